/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about pipelines, made of random whole numbers. */
#ifndef TEST_STAGES_FIXTURE_H
#define TEST_STAGES_FIXTURE_H

#include <stdbool.h>

#include <msdu/stages.h>

#define LAYERS_MOST  12U
#define DEVICES_MOST 6U

/* A question with its arrays. */
typedef struct stages_case {
    msdu_stages_question q;
    double forward[DEVICES_MOST * LAYERS_MOST];
    double backward[DEVICES_MOST * LAYERS_MOST];
    double output[LAYERS_MOST];
    double kept[LAYERS_MOST];
    double state[LAYERS_MOST];
    double memory[DEVICES_MOST];
    double card[DEVICES_MOST];
    double rate[DEVICES_MOST * DEVICES_MOST];
    double latency[DEVICES_MOST * DEVICES_MOST];
} stages_case;

/* Equal layers of 10 and 20 ns on equal devices with free links. */
void stages_equal(stages_case *c, uint32_t layers, uint32_t devices, uint32_t micro_batches);
/* Layers, devices, links and limits at random: some devices alike, some links missing. */
void stages_random(stages_case *c, uint64_t *random, uint32_t layers, uint32_t devices,
                   uint32_t micro_batches);
/* 0 .. below - 1. */
uint32_t stages_below(uint64_t *random, uint32_t below);
/* Is every action there once, after what it needs, and what it holds within limits? Fails if not.
 */
void stages_check_plan(const stages_case *c, const msdu_stages *plan);

#endif
