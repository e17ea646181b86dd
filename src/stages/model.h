/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The question as numbers of one micro-batch, with defaults and sums in place; and where stages
 * lie. Pure but for memory.
 */
#ifndef MSDU_STAGES_MODEL_H
#define MSDU_STAGES_MODEL_H

#include <msdu/stages.h>

#include "memory.h"

#define MSDU__STAGES_MAX (2 * MSDU_STAGES_DEVICES_MAX) /* of a plan */

typedef struct msdu__stages_model {
    uint32_t layers;
    uint32_t devices;
    uint32_t micro_batches;
    uint32_t may;
    /* D x (L + 1): sums over the layers before this one */
    double *forward;
    double *backward;
    double *weight;
    /* L + 1, likewise */
    double *kept;
    double *state;
    double *cross;   /* L + 1: bytes that pass between layer l - 1 and l; 0 at both ends */
    double *memory;  /* D; INFINITY: no limit */
    double *card;    /* D: bytes a ns; INFINITY: no limit */
    double *rate;    /* D x D: of a message, both cards considered; 0: no link */
    double *latency; /* D x D */
} msdu__stages_model;

/* Where stages lie: stage s has layers first[s] .. first[s + 1] - 1. */
typedef struct msdu__stages_layout {
    uint32_t count;
    uint32_t ranks; /* devices in use */
    uint32_t device[MSDU__STAGES_MAX];
    uint32_t rank[MSDU__STAGES_MAX];
    uint32_t first[MSDU__STAGES_MAX + 1];
} msdu__stages_layout;

/* The question with M micro-batches. Blocks are the memory's; false: it is short. */
bool msdu__stages_model_make(const msdu_stages_question *question, uint32_t micro_batches,
                             msdu__stages_memory *memory, msdu__stages_model *out);

/* Sums over layers first .. end - 1 of a device. */
double msdu__stages_forward(const msdu__stages_model *m, uint32_t device, uint32_t first,
                            uint32_t end);
double msdu__stages_backward(const msdu__stages_model *m, uint32_t device, uint32_t first,
                             uint32_t end);
double msdu__stages_weight(const msdu__stages_model *m, uint32_t device, uint32_t first,
                           uint32_t end);
/* Time of each micro-batch: computing, or the card. */
double msdu__stages_own(const msdu__stages_model *m, uint32_t device, uint32_t first, uint32_t end);
/* Bytes, holding the activations of so many micro-batches. */
double msdu__stages_bytes(const msdu__stages_model *m, uint32_t first, uint32_t end, double holds);
/* What a message takes of the link between two devices, in the slower direction. */
double msdu__stages_link(const msdu__stages_model *m, uint32_t from, uint32_t to, double bytes);
/* Until a message has come, latency included. */
double msdu__stages_way(const msdu__stages_model *m, uint32_t from, uint32_t to, double bytes);
/* The slowest stage or link of a layout. */
double msdu__stages_beta(const msdu__stages_model *m, const msdu__stages_layout *layout);

#endif
