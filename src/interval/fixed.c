/* SPDX-License-Identifier: Apache-2.0 */
/* Policy fixed: the same h for all rounds after the warm-up. Pure. */
#include <stdio.h>

#include "policies.h"

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    uint32_t interval = 0;

    (void)state;
    if (msdu__interval_warm_up(args, stats, decision)) {
        return;
    }
    /* The user named this number: it is reached at once, not by doubling. */
    interval = msdu__interval_limit(args, args->interval_steps, args->interval_steps);
    msdu__interval_decide_plain(args, interval, decision);
    snprintf(decision->reason, sizeof decision->reason, "fixed: h %u", interval);
}

const msdu__policy msdu__policy_fixed = {
    .name = "fixed",
    .help = "interval_steps, always",
    .decide = decide,
};
