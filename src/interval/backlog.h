/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does what a format holds back of gradients keep growing? Pure.
 *
 * sparse sends an element some steps late. Under a learning rate at the edge of what a model bears,
 * that is enough to let gradients grow from step to step, and the backlog with them. Their ratio
 * says nothing: it falls. So the backlog is compared with its own past. It may well grow for a
 * while: gradients of a deep network do by twenty times in energy once it begins to learn. The unit
 * is a gradient's, so the learning rate does not matter.
 */
#ifndef MSDU_BACKLOG_H
#define MSDU_BACKLOG_H

#include "interval.h"

#define MSDU__BACKLOG_EARLY_STEPS 200

/* Slots of the state, behind those of waiting.h. */
enum {
    MSDU__REAL_BACKLOG = 21,  /* smoothed energy held back */
    MSDU__REAL_BACKLOG_LEAST, /* its lowest; rises slowly */
    MSDU__REAL_LR_MOST,       /* largest learning rate so far */
    MSDU__REALS_BACKLOG
};
enum {
    MSDU__COUNT_BACKLOG = 14, /* gradient rounds in such a format, in a row; or given up */
    MSDU__COUNT_GROWING,      /* of these in which it grew, nearly in a row */
    MSDU__COUNT_ROSE,         /* step in which the learning rate was larger than ever before */
    MSDU__COUNTS_BACKLOG
};

/* Why, in the one round after which such formats are given up for gradients; else NULL. A trainer
 * that clips means is a reason: single means are several times as long as the mean gradient, and
 * only their sum is right. */
const char *msdu__backlog_learn(const msdu__interval_args *args, const msdu__round_stats *stats,
                                msdu__interval_state *state);
/* Are these the first steps, or does the learning rate still rise? A network bears least lateness
 * then. */
bool msdu__backlog_is_early(const msdu__round_stats *stats, const msdu__interval_state *state);
bool msdu__backlog_is_given_up(const msdu__interval_state *state);

#endif
