/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a synchronization costs, and how much of it is waited for: a model of what hides, corrected
 * by what the API thread really waited. Pure.
 *
 * A gradient round hides under the backward pass of its own step, a late round under whole steps
 * of the next one, any other local round under what the trainer leaves it. How much of a step that
 * is differs between trainers, so it is learned: the share of a step that hid, or the time waited
 * beyond the model.
 */
#ifndef MSDU_WAITING_H
#define MSDU_WAITING_H

#include "interval.h"

/* Slots of the state, behind those of drift.h. */
enum {
    MSDU__REAL_LINK = 8,     /* smoothed time of a synchronization in the widest format */
    MSDU__REAL_HID,          /* share of a step that hides a gradient round, beyond hide_share */
    MSDU__REAL_HID_LOCAL,    /* likewise a local round that is not late */
    MSDU__REAL_WAITED_LATE,  /* waited in a late round beyond the model, in ns */
    MSDU__REAL_TIME,         /* smoothed time of a synchronization in the present format, ... */
    MSDU__REAL_TIME_OTHER,   /* ... and in the one before it */
    MSDU__REAL_WAITED_EXACT, /* smoothed wait of float32 gradient rounds that left cores idle */
    MSDU__REAL_SHARED,       /* and the rest of it; 0: ranks have cores of their own */
    MSDU__REAL_LEAST,        /* a low quantile of the time of a synchronization, ... */
    MSDU__REAL_LOWEST,       /* ... the lowest of the present block of rounds, and the next */
    MSDU__REAL_LOW,
    MSDU__REAL_PACE_EXACT,  /* smoothed time of a step in float32 gradient rounds, waiting included
                             */
    MSDU__REAL_PACE_NARROW, /* likewise in narrower ones, since float32 was left */
    MSDU__REALS_WAITING
};
enum {
    MSDU__COUNT_BEFORE = 6, /* the round whose waiting the next message tells; 0: none */
    MSDU__COUNT_MEASURED,   /* rounds measured */
    MSDU__COUNT_FORMATS,    /* those two, 1 and more, in 8 bits each; 0: none */
    MSDU__COUNT_LEAST,      /* ... its format, 1 and more; 0: none */
    MSDU__COUNT_BLOCK,      /* ... rounds of the present block */
    MSDU__COUNT_NARROW,     /* narrower gradient rounds since float32 was left */
    MSDU__COUNT_REFUSED,    /* times that narrower rounds were no faster */
    MSDU__COUNT_RESTING,    /* rounds until they may be tried again */
    MSDU__COUNTS_WAITING
};

/* Learn from a round, warm-up included; stats->link_ns becomes the smoothed one. */
void msdu__waiting_learn(const msdu__interval_args *args, msdu__round_stats *stats,
                         msdu__interval_state *state);
/* Were narrower gradient rounds tried for long enough, and no faster than float32 was? Then they
 * rest, twice as long each time. */
bool msdu__waiting_refuses(msdu__interval_state *state);
/* Is what is waited for the network's? Then fewer bytes made steps shorter, or a message's latency
 * alone misses the target. True as well where that cannot be known. */
bool msdu__waiting_is_network(const msdu__interval_args *args, const msdu__round_stats *stats,
                              const msdu__interval_state *state);
/* What is known of hiding: hide_share where nothing was measured yet. state may be NULL. */
msdu__hiding msdu__waiting_hiding(const msdu__interval_args *args,
                                  const msdu__interval_state *state);

#endif
