/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of a step's samples for ranks of different speeds. Pure: what all ranks know goes in, so
 * all ranks get the same out.
 *
 * Of the N B samples of a step rank i takes b_i, at least one, and sum b_i = N B exactly. Its speed
 * is v_i = b_i / t_i, and the next b_i are in proportion to it. Where t_i(b) = a_i + c_i b, that
 * goes to equal step times by a factor of a_i / t_i a decision, whatever a_i and c_i are: they need
 * not be known.
 */
#ifndef MSDU_SHARES_H
#define MSDU_SHARES_H

#include <stdbool.h>
#include <stdint.h>

#define MSDU__SHARES_STEPS 8 /* from one decision to the next, at least */

typedef struct msdu__share {
    double size;     /* samples for each of an even share; of all ranks: their number */
    double speed;    /* samples per ns, as believed; 0: not known */
    double measured; /* as measured last */
} msdu__share;

/* Room for a rank's part of a division. */
typedef struct msdu__share_bounds {
    double weight;
    double least;
    double most;
    double value; /* scale * weight, between the two */
} msdu__share_bounds;

typedef struct msdu__shares {
    int32_t ranks;
    msdu__share *of;
    msdu__share_bounds *parts;
    bool is_moving; /* step times differ by more than the dead band, or did a moment ago */
    uint32_t calm;  /* decisions since they did */
} msdu__shares;

/* Even shares; both arrays have an element for each rank. */
void msdu__shares_init(msdu__shares *s, int32_t ranks, msdu__share *of, msdu__share_bounds *parts);

/* `samples` by size, as whole numbers of exactly that sum; at least 1 each, or at least 0 where
 * there are fewer samples than ranks. sizes: one of each rank, not below 0. */
void msdu__shares_divide(msdu__shares *s, const double *sizes, uint64_t samples, uint64_t *out);

/* The next sizes, from what ranks did in one step. batch: an even share. had: samples of each rank.
 * step_ns: its time without waiting; what is no time (0, NaN) tells nothing. True: sizes changed.
 */
bool msdu__shares_decide(msdu__shares *s, uint64_t batch, const uint64_t *had,
                         const double *step_ns);

#endif
