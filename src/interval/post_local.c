/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Policy post_local: plain training first, local steps from a given step on (arXiv 1808.07217).
 * Pure. */
#include <stdio.h>

#include "policies.h"

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    bool is_local = stats->step >= args->switch_step;
    double wanted = is_local ? args->interval_steps : 1;

    (void)state;
    if (msdu__interval_warm_up(args, stats, decision)) {
        return;
    }
    msdu__interval_decide_plain(args, msdu__interval_limit(args, stats->interval, wanted),
                                decision);
    snprintf(decision->reason, sizeof decision->reason, "post_local: step %llu %s switch at %llu",
             (unsigned long long)stats->step, is_local ? "past" : "before",
             (unsigned long long)args->switch_step);
}

const msdu__policy msdu__policy_post_local = {
    .name = "post_local",
    .help = "experimental: 1 until switch_step, then interval_steps",
    .decide = decide,
};
