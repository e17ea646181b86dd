/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of work by list scheduling in simulated time. Pure but for memory.
 *
 * A free device takes the action that can start first. Of several: backward, forward, gradients of
 * weights (or forward first), and the deeper stage. A stage begins no forward pass while it holds
 * as many micro-batches as it may. What happened is the static order of every rank.
 */
#ifndef MSDU_STAGES_ORDER_H
#define MSDU_STAGES_ORDER_H

#include "network.h"

typedef struct msdu__stages_policy {
    uint32_t holds[MSDU__STAGES_MAX]; /* at least 1 */
    bool is_forward_first;
    bool is_split; /* all stages but the first, whose input has no gradient */
} msdu__stages_policy;

/* What happened: actions in the order of their starts, for all ranks together. */
typedef struct msdu__stages_run {
    msdu_stages_action *actions;
    uint32_t count;
    double step_ns;
    uint32_t held[MSDU__STAGES_MAX]; /* micro-batches that a stage held at once, at most */
} msdu__stages_run;

/* Room of an order: reused from run to run. */
typedef struct msdu__stages_order {
    const msdu__stages_model *m;
    msdu__stages_network network;
    double *forward_at; /* stages x M: when the input of F, of B has come; INFINITY: not yet */
    double *backward_at;
    uint32_t stages; /* that there is room for */
} msdu__stages_order;

bool msdu__stages_order_make(const msdu__stages_model *model, uint32_t stages,
                             msdu__stages_memory *memory, msdu__stages_order *out);
/* Actions of a run, at most. */
uint32_t msdu__stages_order_room(const msdu__stages_model *model, uint32_t stages);
/* run->actions has room; the rest is set. */
void msdu__stages_order_run(msdu__stages_order *order, const msdu__stages_layout *layout,
                            const msdu__stages_policy *policy, msdu__stages_run *run);

#endif
