/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An order with its messages: sends behind the action that makes them, receives early. Pure but for
 * memory.
 *
 * Torch matches messages of two ranks by order alone. So the receives from a rank stand in the
 * order of its sends, whichever stages they are of: in a V the same two ranks exchange activations
 * and gradients both ways.
 */
#ifndef MSDU_STAGES_LOWER_H
#define MSDU_STAGES_LOWER_H

#include "model.h"

typedef struct msdu__stages_lowering {
    const msdu__stages_layout *layout;
    uint32_t micro_batches;
    const msdu_stages_action *actions; /* those of a rank side by side */
    const uint32_t *rank_begin;
    uint32_t ahead; /* actions between a receive and the action that needs it; 0: all first */
} msdu__stages_lowering;

/* Actions with messages, all ranks together. */
uint32_t msdu__stages_lower_count(const msdu__stages_lowering *lowering);
/* out: as many; begin_out: ranks + 1. False: no memory. */
bool msdu__stages_lower(const msdu__stages_lowering *lowering, msdu__stages_memory *memory,
                        msdu_stages_action *out, uint32_t *begin_out);

#endif
