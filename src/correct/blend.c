/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Rule "blend": own parameters and the late mean, weighted by staleness, as DASO does; pure. */
#include "rules.h"

/* Own parameters count as 2 S ranks, as one where nothing was overlapped (S = 0). */
static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    const double own = args->staleness > 0 ? 2.0 * (double)args->staleness : 1.0;
    const double ranks = (double)args->ranks;
    (void)is_prompt;
    return (msdu_rule_step){
        .rule = MSDU_RULE_BLEND, .a = own / (own + ranks), .b = ranks / (own + ranks)};
}

const msdu__rule msdu__rule_blend = {
    .name = "blend",
    .help = "experimental: w <- (2 S w + N mean) / (2 S + N), S steps late, N ranks, as in DASO",
    .needs = 0,
    .is_merge = true,
    .step = step,
};
