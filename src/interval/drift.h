/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds teach the policy divergence about drift, residual and link, and what it predicts of
 * them. Pure.
 *
 * Harm, relative to the squared weights, is the drift variance V = a - b at the end of a round
 * (none at h = 1) plus a part of the energy E that error feedback keeps from the other ranks. Both
 * are carried to another h as h^p; p is learned from rounds of different h, between 1 (drift is a
 * random walk) and 2 (momentum carries each rank on).
 */
#ifndef MSDU_DRIFT_H
#define MSDU_DRIFT_H

#include "interval.h"

/* Slots of the state. */
enum {
    MSDU__REAL_DRIFT,        /* V / |w|^2 at h = AT, smoothed */
    MSDU__REAL_CONTRIBUTION, /* a / |w|^2, likewise */
    MSDU__REAL_AT,           /* 0: not measured */
    MSDU__REAL_POWER,        /* p; 0: not begun */
    MSDU__REAL_SCALE,        /* measured over predicted residual */
    MSDU__REAL_LR,           /* largest learning rate so far: what the cap is relative to */
    MSDU__REAL_LINK,         /* smoothed time of a synchronization in the widest format */
    MSDU__REAL_WEIGHT        /* latest |w|^2; 0: not known */
};
enum {
    MSDU__COUNT_SINCE,    /* gradient rounds since drift was measured */
    MSDU__COUNT_INTERVAL, /* last decision; 0: none */
    MSDU__COUNT_WIRE,
    MSDU__COUNT_COOLDOWN /* largest h in the last part of the run; 0: not there yet */
};

/* What is known when a decision is made. */
typedef struct msdu__drift {
    const msdu__interval_args *args;
    const msdu__interval_state *state;
    msdu__round_stats stats; /* link_ns smoothed */
    double cap;              /* on harm */
    double energy;           /* of a contribution at h = 1, over |w|^2; negative: not known */
} msdu__drift;

/* Are the statistics numbers at all? */
bool msdu__drift_is_usable(const msdu__round_stats *stats);
/* Only the learning rate: during warm-up. */
void msdu__drift_learn_lr(const msdu__round_stats *stats, msdu__interval_state *state);
/* Learn from a round and fill the model for the decision after it. */
void msdu__drift_learn(const msdu__interval_args *args, const msdu__round_stats *stats,
                       msdu__interval_state *state, msdu__drift *drift_out);
/* Was the drift of local steps measured, not too long ago? */
bool msdu__drift_is_known(const msdu__drift *drift);
/* Predicted harm of a pair; beyond h = 1 only where drift is known. */
double msdu__drift_harm(const msdu__drift *drift, uint32_t interval, int wire);

#endif
