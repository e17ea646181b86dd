/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Rule "blend": own parameters and the late mean, weighted by staleness, as DASO (arXiv 2104.05588)
 * does; pure. */
#include "rules.h"

/* Own parameters count as 2 S hosts, as one where nothing was overlapped (S = 0). */
static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    const double own = args->staleness > 0 ? 2.0 * (double)args->staleness : 1.0;
    const double hosts = (double)args->groups;
    (void)is_prompt;
    return (msdu_rule_step){
        .rule = MSDU_RULE_BLEND, .a = own / (own + hosts), .b = hosts / (own + hosts)};
}

const msdu__rule msdu__rule_blend = {
    .name = "blend",
    .help = "experimental: w <- (2 S w + H mean) / (2 S + H), S steps late, H hosts (or ranks, if "
            "gradients are each rank's own), as in DASO",
    .needs = 0,
    .is_merge = true,
    .step = step,
};
