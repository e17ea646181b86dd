/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Means of gradients over the ranks of one host, in every local step (setting hosts): h is always
 * 1, in float32. They are given up for good, as exact gradients are, once enough steps waited too
 * long for them. Pure.
 */
#include <stdio.h>

#include "policies.h"

#define LEAVE_STEPS 12 /* as exact gradients are left in divergence.c */
#define FORGIVEN    2  /* of these, by one that wants to stay */

enum { COUNT_LEAVING };

/* Of the slowest rank, which waits for nobody; not what other ranks computed on its core. */
static double waited_share(const msdu__round_stats *stats)
{
    double wait = (double)stats->wait_ns - (double)stats->shared_ns;
    double total = (double)stats->step_ns + (double)stats->wait_ns;

    return total > 0 ? wait / total : 0;
}

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    uint64_t *leaving = &state->count[COUNT_LEAVING];
    double share = waited_share(stats);

    if (share > args->target_overhead) {
        *leaving += 1;
    } else {
        *leaving -= *leaving < FORGIVEN ? *leaving : FORGIVEN;
    }
    decision->interval = 1;
    decision->wire = args->widest_wire;
    decision->is_left = *leaving >= LEAVE_STEPS;
    snprintf(decision->reason, sizeof decision->reason, "waits %.1f%% of %.1f%%",
             msdu__interval_percent(share), msdu__interval_percent(args->target_overhead));
}

const msdu__policy msdu__policy_host_mean = {
    .name = "host_mean",
    .help = "means over a host in every local step",
    .decide = decide,
};
