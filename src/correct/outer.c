/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "outer": momentum or Nesterov on the mean pseudo-gradient (SlowMo, BMUF, DiLoCo); pure. */
#include "rules.h"

#include <string.h>

static size_t chunk_bytes(const msdu__chunk *chunk)
{
    return chunk->count * (chunk->is_double ? sizeof(double) : sizeof(float));
}

static void apply(const msdu__correct_args *args, const msdu__chunk *chunk)
{
    const msdu__vec_real *loops = msdu__chunk_loops(chunk);
    if (args->outer_momentum == 0.0) {
        /* Exact: 0 * u + d is not d where d is -0, and lr = 1 must equal the plain average. */
        memcpy(chunk->momentum, chunk->update, chunk_bytes(chunk));
        loops->scale(chunk->update, args->outer_lr, chunk->count);
    } else if (args->outer_is_nesterov) {
        loops->nesterov(chunk->update, chunk->momentum, args->outer_lr, args->outer_momentum,
                        chunk->count);
    } else {
        loops->heavy_ball(chunk->update, chunk->momentum, args->outer_lr, args->outer_momentum,
                          chunk->count);
    }
}

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    int32_t rule = args->outer_is_nesterov ? MSDU_RULE_NESTEROV : MSDU_RULE_HEAVY_BALL;
    (void)is_prompt;
    return (msdu_rule_step){.rule = args->outer_momentum == 0.0 ? MSDU_RULE_COPY : rule,
                            .a = args->outer_lr,
                            .b = args->outer_momentum};
}

const msdu__rule msdu__rule_outer = {
    .name = "outer",
    .help = "u <- mu u + d, d <- lr (d + mu u): an outer optimizer, as in DiLoCo and SlowMo",
    .needs = MSDU__NEEDS_MOMENTUM,
    .is_merge = false,
    .apply = apply,
    .step = step,
};
