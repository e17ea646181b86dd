/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Rule "clip": an unusually large mean pseudo-gradient is scaled down; pure. */
#include "rules.h"

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    (void)is_prompt;
    return (msdu_rule_step){.rule = MSDU_RULE_SCALE, .a = args->clip_scale};
}

const msdu__rule msdu__rule_clip = {
    .name = "clip",
    .help = "experimental: d <- d min(1, clip_ratio running norm / |d|): limit a round's step",
    .needs = MSDU__NEEDS_NORM,
    .is_merge = false,
    .step = step,
};
