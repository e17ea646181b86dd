/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronization state as bytes (msdu_state_get, msdu_state_set).
 *
 * state.c frames it, checks it and moves it at the right moment; text.c knows what it must have in
 * common with a context, image.c the single values that are in it, arrays.c the arrays. All of them
 * run on the communication thread while the API thread waits, so that nothing moves meanwhile.
 */
#ifndef MSDU_STATE_H
#define MSDU_STATE_H

#include "base/serial.h"
#include "caller/caller.h"

/* Raised whenever the list of values changes. Format 4, of release 0.2, is read still: its messages
 * and the policy's memory were shorter. Format 5 knew no rounds by the clock. */
#define MSDU__STATE_FORMAT 6
#define MSDU__STATE_OLDEST 4

typedef struct msdu__image_fragment {
    /* .armed: without a round that is only open; .is_pending: the mean has arrived and waits */
    msdu__schedule schedule;
    uint64_t blocked_ns;
    bool wants_plan;
    msdu__round round; /* of the mean that waits */
    double scale;
    bool is_void;
    uint64_t bytes;
    msdu__decision decisions[2];
} msdu__image_fragment;

/* All single values of a state. */
typedef struct msdu__image {
    uint64_t format; /* in which it is written, or was */
    uint64_t step;
    uint64_t run; /* names the run: equal on all ranks that made it, other in every other run */
    bool is_gradient;
    bool is_local_entered;
    bool is_deferred;
    bool is_first_call;
    bool was_uneven;
    bool averages_host; /* not in format 4 */
    bool is_clocked;    /* rounds by the clock, and all ranks had synchronized; not in format 5 */
    double period_ns;   /* of them, as chosen; likewise */
    double lr;
    double loss;
    double weight;
    double step_ns;
    double link_ns;
    double last_link_ns;
    double latency_ns;
    double norm_average;
    uint64_t blocked_ns;
    uint64_t elapsed_ns;
    uint64_t rounds;
    uint64_t bytes_sent;
    uint64_t plan_renewals;
    double drift;
    double divergence;
    msdu__interval_state interval_state;
    msdu__decision decision;
    msdu__image_fragment fragments[MSDU__FRAGMENTS_MAX];
    uint64_t pending[MSDU__FRAGMENTS_MAX]; /* fragments, in the order in which they will end */
    uint64_t pending_count;
} msdu__image;

/* --- image.c --- */
/* Nothing is moving: every round that was captured has ended, or waits for nothing but its step. */
bool msdu__image_is_quiet(const msdu__engine *e);
void msdu__image_take(const msdu__caller *caller, msdu__image *image);
/* Both sides as after the step in which the image was taken, but for the arrays. */
void msdu__image_give(msdu__caller *caller, const msdu__image *image);
/* Values, through the codec. */
void msdu__image_code(const msdu__model *model, msdu__serial *c, msdu__image *image);
/* Name of the first value that this context cannot be in; NULL: none. */
const char *msdu__image_check(const msdu__caller *caller, const msdu__image *image);

/* --- arrays.c --- */
/* Plans, statistics messages, anchors, residuals and so on, through the codec. */
void msdu__arrays_code(msdu__engine *e, msdu__serial *c, const msdu__image *image);

/* --- text.c --- */
/* What a state and its context must have in common, a fact a line; to be freed, NULL: no memory. */
char *msdu__text_describe(const msdu__caller *caller);
/* Does a state's text, without its end, fit this context, in the words of either version? */
msdu_status msdu__text_check(const msdu__caller *caller, const char *text, uint64_t bytes);

/* --- state.c --- */
/* As msdu_state_get and msdu_state_set, between start and finish. */
msdu_status msdu__state_get(msdu__caller *caller, void *data, size_t bytes, size_t *bytes_out);
msdu_status msdu__state_set(msdu__caller *caller, const void *data, size_t bytes);
/* Checksum of a state of `bytes` bytes, and where it is kept; for tests that edit states. */
void msdu__state_seal(void *data, uint64_t bytes);

#endif
