/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuner: how large slices are and how many are in flight, from measured rounds. Pure: no I/O,
 * locks, clock, globals.
 *
 * The model. A rank sends B bytes in a round, in n slices of s = B / n each, over a link of R bytes
 * per ns. A slice has g ns of its own beside its bytes, however many are in flight (messages,
 * wake-ups), and latency a, which others in flight hide. With W in flight the link is busy for
 *
 *     T = n max(g + s / R, (a + s / R) / W)
 *
 * and a slice that is needed first but ready last waits for those in flight: W times the bytes of
 * the largest slice by R. Where a step waits for all slices alike, order gains nothing, and only
 * the last slice itself is left when all are ready; of a single tensor T is all. Small slices cost
 * n g, large ones that wait; where they meet, near sqrt(B g R / W), is the best. No more than n
 * slices are in flight, so a few hide latency and one does not. B, n and T are what rounds tell; a
 * is measured at the start; g follows from T under two different slicings, and is a share of a
 * before there are two.
 *
 * What more channels are worth (connections that share a link or do not, threads that share cores
 * or do not) no model says: with the best cut, twice as many and half as many are tried.
 */
#ifndef MSDU_TUNER_H
#define MSDU_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#define MSDU__TUNER_ROUNDS  4 /* measured before a decision; their median counts */
#define MSDU__TUNER_CHANGES 6 /* of slices and window, at most, in a run */
#define MSDU__TUNER_LANES   4 /* changes of channels, likewise */

/* What is chosen. */
typedef struct msdu__tuning {
    uint64_t slice_bytes; /* largest slice, in bytes of its tensors */
    uint32_t window;      /* slices in flight */
    uint32_t lanes;       /* that first phases are spread over */
} msdu__tuning;

static inline bool msdu__tuning_is_equal(msdu__tuning a, msdu__tuning b)
{
    return a.slice_bytes == b.slice_bytes && a.window == b.window && a.lanes == b.lanes;
}

typedef struct msdu__tuner_args {
    uint64_t model_bytes; /* of all tensors */
    double latency_ns;    /* of a small operation on an idle link, equal on all ranks */
    uint64_t slice_least; /* powers of two */
    uint64_t slice_most;
    uint32_t window_least; /* equal to window_most: it stays */
    uint32_t window_most;
    uint32_t lanes_most; /* 1 .. so many; 0: they stay */
    bool is_whole;       /* a step waits for all slices (commit=round) */
    bool is_single;      /* one tensor: all slices are ready, and needed, at once */
} msdu__tuner_args;

/* A round, in values that are equal on all ranks. */
typedef struct msdu__tuner_round {
    uint64_t bytes; /* that a rank sends */
    uint32_t slices;
    uint32_t window;
    double link_ns; /* time with slices in flight */
} msdu__tuner_round;

typedef struct msdu__tuner_cost {
    double bytes_per_ns; /* R */
    double slice_ns;     /* g */
    double latency_ns;   /* a */
} msdu__tuner_cost;

/* What was measured under one choice. */
typedef struct msdu__tuner_point {
    msdu__tuning tuning;
    msdu__tuner_round round;
} msdu__tuner_point;

typedef struct msdu__tuner {
    msdu__tuning present;
    msdu__tuner_cost cost; /* by the latest fit; bytes_per_ns 0: none yet */
    msdu__tuner_point points[MSDU__TUNER_CHANGES + 1];
    uint32_t point_count; /* of rounds with as many bytes as the present ones */
    double link_ns[MSDU__TUNER_ROUNDS];
    uint64_t bytes; /* of the rounds that are being measured */
    uint32_t count;
    uint32_t skip;    /* rounds that still tell of the slicing before */
    uint32_t changes; /* so far */
    bool is_settled;  /* until rounds have another number of bytes */

    /* channels, once the slicing has come to rest */
    bool has_cut;
    uint32_t lanes_tried; /* bit n: n of them */
    uint32_t lanes_best;
    double lanes_ns;       /* T with these */
    uint32_t lane_changes; /* so far */
} msdu__tuner;

/* Smallest and largest slices that are tried: 32 KiB, more for models of more than 128 MiB, to 4
 * MiB, less for smaller models. */
uint64_t msdu__tuner_slice_least(uint64_t model_bytes);
uint64_t msdu__tuner_slice_most(uint64_t model_bytes);
/* Before anything was measured: 64 slices or more, of 256 KiB to 1 MiB. */
msdu__tuning msdu__tuner_first(uint64_t model_bytes, uint32_t window, uint32_t lanes);
/*
 * Size of slices where a round sends sent_bytes for the model's, in a compressed wire: slice_bytes
 * doubled as long as a slice does not send more than one of slice_bytes does in float32, the model
 * is in 16 slices or more, each of several fragments in 4; and, without fragments, as long as a
 * slice sends no more than 64 KiB. A slice has 2 MiB at most.
 */
uint64_t msdu__tuner_compressed(uint64_t slice_bytes, uint64_t model_bytes, uint64_t sent_bytes,
                                uint32_t fragments);

void msdu__tuner_begin(msdu__tuner *tuner, msdu__tuning present);

/* T of the model, and what a step loses beside its bytes: T - B / R and the wait for `ahead`
 * slices. largest: bytes that a rank sends for the largest slice. */
double msdu__tuner_busy_ns(const msdu__tuner_cost *cost, const msdu__tuner_round *round);
double msdu__tuner_loss_ns(const msdu__tuner_cost *cost, const msdu__tuner_round *round,
                           uint32_t ahead, double largest);

/* R and g by what was measured, count (at least 1) points, the latest last. g is sought within
 * what is possible beside a, so noise cannot lead far; by a single point it is a guess. */
msdu__tuner_cost msdu__tuner_fit(const msdu__tuner_point *points, uint32_t count,
                                 double latency_ns);

/* The choice of least loss. */
msdu__tuning msdu__tuner_best(const msdu__tuner_args *args, const msdu__tuner_cost *cost,
                              const msdu__tuner_round *now, msdu__tuning present);

/* A round has ended. True: change to tuner->present, which has just been chosen. */
bool msdu__tuner_hear(msdu__tuner *tuner, const msdu__tuner_args *args,
                      const msdu__tuner_round *round);

#endif
