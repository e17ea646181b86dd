/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/*
 * Policy plateau: halve h whenever the loss has become stable, start again once h = 1 is stable, as
 * DASO does (arXiv 2104.05588), by rounds instead of epochs and on a smoothed loss. Pure.
 */
#include <math.h>
#include <stdio.h>

#include "policies.h"

#define SMOOTH 0.2 /* weight of the newest loss: one round's loss is one batch per rank */

enum { REAL_LOSS, REAL_BEST };       /* smoothed loss; what it has to improve on */
enum { COUNT_TARGET, COUNT_STABLE }; /* h aimed at, 0: not begun; rounds without improvement */

static void begin_again(const msdu__interval_args *args, msdu__interval_state *state)
{
    state->count[COUNT_TARGET] = args->interval_steps > 0 ? args->interval_steps : 1;
    state->count[COUNT_STABLE] = 0;
}

static void watch_loss(const msdu__interval_args *args, double loss, msdu__interval_state *state)
{
    double *smooth = &state->real[REAL_LOSS];
    double *best = &state->real[REAL_BEST];
    double needed = 0;

    *smooth += SMOOTH * (loss - *smooth);
    needed = *best - args->plateau_threshold * fabs(*best);
    if (*smooth < needed) {
        *best = *smooth;
        state->count[COUNT_STABLE] = 0;
    } else {
        state->count[COUNT_STABLE]++;
    }
}

static void step_down_if_stable(const msdu__interval_args *args, msdu__interval_state *state)
{
    if (state->count[COUNT_STABLE] < args->plateau_patience) {
        return;
    }
    state->count[COUNT_STABLE] = 0;
    state->real[REAL_BEST] = state->real[REAL_LOSS];
    if (state->count[COUNT_TARGET] <= 1) {
        begin_again(args, state);
    } else {
        state->count[COUNT_TARGET] /= 2;
    }
}

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    double wanted = 0;

    if (msdu__interval_warm_up(args, stats, decision)) {
        return;
    }
    if (isfinite(stats->loss) && state->count[COUNT_TARGET] == 0) {
        begin_again(args, state);
        state->real[REAL_LOSS] = stats->loss;
        state->real[REAL_BEST] = stats->loss;
    } else if (isfinite(stats->loss)) {
        watch_loss(args, stats->loss, state);
        step_down_if_stable(args, state);
    }
    wanted = state->count[COUNT_TARGET] > 0 ? (double)state->count[COUNT_TARGET]
                                            : (double)args->interval_steps;
    msdu__interval_decide_plain(args, msdu__interval_limit(args, stats->interval, wanted),
                                decision);
    snprintf(decision->reason, sizeof decision->reason,
             isfinite(stats->loss) ? "plateau: loss %.4g, stable for %llu of %u, wants h %.0f"
                                   : "plateau: loss not told (%.4g), %llu of %u, wants h %.0f",
             state->real[REAL_LOSS], (unsigned long long)state->count[COUNT_STABLE],
             args->plateau_patience, wanted);
}

const msdu__policy msdu__policy_plateau = {
    .name = "plateau",
    .help = "experimental: from interval_steps, halved whenever the loss is stable, then from the "
            "start",
    .decide = decide,
};
