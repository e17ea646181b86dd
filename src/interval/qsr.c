/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Policy qsr: the quadratic synchronization rule, h = (alpha / lr)^2 (arXiv 2310.14423). Pure. */
#include <math.h>
#include <stdio.h>

#include "policies.h"

static double rule(const msdu__interval_args *args, const msdu__round_stats *stats)
{
    double ratio = args->qsr_alpha / stats->lr;

    if (!(stats->lr > 0) || !isfinite(stats->lr)) {
        return args->interval_steps;
    }
    return fmax(args->interval_steps, floor(ratio * ratio));
}

/* A last round longer than the run would leave the ranks apart for nothing. */
static double within_run(const msdu__interval_args *args, const msdu__round_stats *stats,
                         double wanted)
{
    if (args->total_steps <= stats->step) {
        return wanted;
    }
    return fmin(wanted, (double)(args->total_steps - stats->step));
}

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    double wanted = within_run(args, stats, rule(args, stats));

    (void)state;
    if (msdu__interval_warm_up(args, stats, decision)) {
        return;
    }
    msdu__interval_decide_plain(args, msdu__interval_limit(args, stats->interval, wanted),
                                decision);
    snprintf(decision->reason, sizeof decision->reason, "qsr: alpha %.3g, lr %.3g, wants h %.0f",
             args->qsr_alpha, stats->lr, fmin(wanted, 1e9));
}

const msdu__policy msdu__policy_qsr = {
    .name = "qsr",
    .help =
        "experimental: max(interval_steps, (qsr_alpha / lr)^2): longer as the learning rate falls",
    .decide = decide,
};
