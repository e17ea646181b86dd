/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds teach the policy divergence about drift and residual, and the error it predicts.
 * Pure.
 *
 * Error is what the gradients of a round do not know of the other ranks: the disagreement of the
 * ranks' parameters, averaged over the steps in which gradients are taken, plus a part of the
 * energy E that error feedback keeps back; both relative to the squared weights. Ranks that met s
 * steps ago disagree by V(1) s^p; p is learned from rounds of different h, between 1 (a random
 * walk) and 2 (momentum carries each rank on). A round of h steps takes gradients at s = 0 .. h -
 * 1; if its mean comes tau steps late, at s = tau .. h + tau - 1. So h = 1 brings no error but by
 * its residual, and h = 2 one step late as much as h = 3.5 at once.
 *
 * The budget is relative as well: the error of a plain round of interval_steps, as it was at its
 * largest. A bound on drift over weights would not do: per step SGD moves a convolution by 1e-4 of
 * its norm where AdamW moves a transformer by 1e-2, and both stand about the same interval.
 */
#ifndef MSDU_DRIFT_H
#define MSDU_DRIFT_H

#include "interval.h"

/* Slots of the state; more in waiting.h. */
enum {
    MSDU__REAL_DRIFT,        /* V / |w|^2 at h = AT, smoothed */
    MSDU__REAL_CONTRIBUTION, /* a / |w|^2, likewise */
    MSDU__REAL_AT,           /* 0: not measured */
    MSDU__REAL_POWER,        /* p; 0: not begun */
    MSDU__REAL_SCALE,        /* measured over predicted residual */
    MSDU__REAL_LR,           /* largest learning rate so far: what the budget is relative to */
    MSDU__REAL_PEAK,         /* error of a plain round of interval_steps, at its largest */
    MSDU__REAL_WEIGHT        /* latest |w|^2; 0: not known */
};
enum {
    MSDU__COUNT_INTERVAL, /* last decision; 0: none */
    MSDU__COUNT_WIRE,
    MSDU__COUNT_DELAY,
    MSDU__COUNT_LEAVING,   /* gradient rounds after which local steps were wanted, less others */
    MSDU__COUNT_NARROWING, /* likewise a narrower wire than the exact one */
    MSDU__COUNT_CALIBRATED /* local rounds that made the peak */
};

/* What is known when a decision is made. */
typedef struct msdu__drift {
    const msdu__interval_args *args;
    const msdu__interval_state *state;
    msdu__round_stats stats; /* link_ns smoothed */
    double budget;           /* on error; infinite where no drift was measured */
    double energy;           /* of a contribution at h = 1, over |w|^2; negative: not known */
} msdu__drift;

/* Are the statistics numbers at all? */
bool msdu__drift_is_usable(const msdu__round_stats *stats);
/* Learn from a round and fill the model for the decision after it. */
void msdu__drift_learn(const msdu__interval_args *args, const msdu__round_stats *stats,
                       msdu__interval_state *state, msdu__drift *drift_out);
/* Was the drift of local steps measured? */
bool msdu__drift_is_known(const msdu__drift *drift);
/* Likewise of parameters that are averaged every `interval` steps and `delay_steps` late, whichever
 * is longer; where drift is not known, in units of that of one step. */
double msdu__drift_error_late(const msdu__drift *drift, const msdu__choice *choice);
/* Predicted error; beyond h = 1 only where drift is known. */
double msdu__drift_error(const msdu__drift *drift, const msdu__choice *choice);

#endif
