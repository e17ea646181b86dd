/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "outer": momentum or Nesterov on the mean pseudo-gradient (SlowMo, BMUF, DiLoCo); pure. */
#include "rules.h"

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    /* COPY is exact: 0 * u + d is not d where d is -0, and lr = 1 must equal the plain average */
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
    .step = step,
};
