/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a plan with a given number of micro-batches: layouts by their bottleneck, orders
 * by how eager they are, all simulated. Pure but for memory.
 */
#ifndef MSDU_STAGES_SEARCH_H
#define MSDU_STAGES_SEARCH_H

#include "order.h"
#include "split.h"

#define MSDU__SEARCH_ORDERS  8
#define MSDU__SEARCH_LAYOUTS 48

typedef struct msdu__search_answer {
    msdu__stages_layout layout;
    msdu__stages_run run; /* actions are of the search's memory */
    double bound_ns;
    double beta_ns;
} msdu__search_answer;

typedef enum msdu__search_outcome {
    MSDU__SEARCH_OK,
    MSDU__SEARCH_SHORT,    /* no memory to search */
    MSDU__SEARCH_TOO_MANY, /* kinds of devices */
    MSDU__SEARCH_NONE,     /* nothing fits, or no links */
} msdu__search_outcome;

msdu__search_outcome msdu__search(const msdu__stages_model *model, msdu__stages_memory *memory,
                                  msdu__search_answer *out);
/* Micro-batches that stages may hold at eagerness e (INFINITY: all), by memory. False: a device
 * cannot hold one for each of its stages. */
bool msdu__search_holds(const msdu__stages_model *model, const msdu__stages_layout *layout,
                        double eagerness, uint32_t *holds_out);
/* Bytes of a stage that holds so many micro-batches. */
double msdu__search_stage_bytes(const msdu__stages_model *model, const msdu__stages_layout *layout,
                                uint32_t stage, double holds);

#endif
