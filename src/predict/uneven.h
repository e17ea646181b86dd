/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of different speeds, and hosts of several ranks: what a step takes by each way of training
 * them together. Pure but for predict.h, which allocates.
 *
 * N ranks, C: computing of the profile's step, v_i: speed of rank i, so that its step takes C / v_i
 * with an equal batch. T(x): simulated step whose computing takes x. X: simulated time of one
 * exchange of the model. The ways differ in how many samples a rank takes, so they are compared by
 * the time in which all ranks together take N batches:
 *
 *   exact        Everybody waits for the slowest in every step:  T(C / min v).
 *   shares       Rank i takes b_i ~ v_i samples of a step, all end together:  T(C N / sum v). Costs
 *                of a step that do not shrink with its batch are not known, and left out.
 *   clock        Nobody waits:  C N / sum v, a step of the fastest is C / max v. A round takes as
 *                long as the exchange, or as a step of the median rank if that is longer.
 *   two levels   Exact inside a host of n ranks, in float32: a step is S_h = T_host(C / min v of
 * the host). Between hosts nobody waits:  N / sum over hosts of n / S_h. Host links carry each
 * parameter once; a round is as with the clock.
 *
 * How far ranks drift apart, and so what an approximate way may cost in results, is not predicted.
 */
#ifndef MSDU_PREDICT_UNEVEN_H
#define MSDU_PREDICT_UNEVEN_H

#include "predict.h"

#define MSDU__UNEVEN_SPEEDS_MAX 64

typedef enum msdu__uneven_way {
    MSDU__UNEVEN_EXACT,
    MSDU__UNEVEN_SHARES,
    MSDU__UNEVEN_CLOCK,
    MSDU__UNEVEN_TWO_LEVELS, /* only of several hosts with several ranks each */
    MSDU__UNEVEN_WAYS
} msdu__uneven_way;

/* Rank i has speed of[i % count]; count divides the number of ranks. */
typedef struct msdu__uneven_speeds {
    double of[MSDU__UNEVEN_SPEEDS_MAX]; /* above 0; 1: the profile's */
    uint32_t count;                     /* at least 1 */
} msdu__uneven_speeds;

typedef struct msdu__uneven_answer {
    double step_ns;     /* of the fastest rank, waiting included */
    double batches_ns;  /* in which all ranks together take as many batches as there are ranks */
    double round_ns;    /* from one exchange between hosts, or of all ranks, to the next */
    double bytes;       /* a rank sends in `batches_ns` */
    double outer_bytes; /* likewise, of them to other hosts */
    uint32_t interval;  /* steps of the median rank, or host, in a round */
} msdu__uneven_answer;

const char *msdu__uneven_name(msdu__uneven_way way);
bool msdu__uneven_applies(const msdu__whatif_question *question, msdu__uneven_way way);
/* wire: of exchanges but those inside a host. False: why holds one line. */
bool msdu__uneven_predict(const msdu__whatif_question *question, const msdu__uneven_speeds *speeds,
                          msdu__uneven_way way, int wire, msdu__uneven_answer *answer, char *why,
                          size_t why_bytes);

#endif
