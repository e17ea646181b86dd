/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of a stream of reductions are gradients? Pure: no I/O, locks, clock, allocation.
 *
 * All ranks make the same reductions on a communicator in the same order, with the same counts and
 * types, or MPI itself would fail. So what is said here, from nothing but that sequence, is equal
 * on all ranks without a message.
 *
 * A call is a candidate if it could be a gradient (floating point, sum, not small). While learning
 * all calls are remembered; once the latest `least` of them are the same period at least three
 * times, the candidates of that period are the tensors of a step. What is no candidate does not
 * matter from then on.
 */
#ifndef MSDU_RECOGNIZE_H
#define MSDU_RECOGNIZE_H

#include <stdbool.h>
#include <stdint.h>

#define MSDU__CALLS_MAX   4096 /* calls remembered while learning */
#define MSDU__TENSORS_MAX 1024 /* gradients of a step */
#define MSDU__STEPS_BORNE 3    /* steps_borne, for ranks that take local steps */

/* What is known of a call: equal on all ranks. */
typedef struct msdu__call {
    uint64_t count;
    int32_t kind;      /* type and operation, as the caller numbers them */
    bool is_candidate; /* may be a gradient */
} msdu__call;

typedef enum msdu__verdict {
    MSDU__CALL_OTHER = 0,    /* not a gradient, or not known yet: leave it alone */
    MSDU__CALL_GRADIENT = 1, /* tensor `position` of a step */
    MSDU__CALL_BREAKS = 2,   /* a candidate where another was due: the pattern is no more */
    MSDU__CALL_STRAYS = 3,   /* one that is no tensor, and the pattern is still waited for: leave it
                                alone */
    MSDU__CALL_DENIED = 4, /* part of the pattern, but denied by its place in it: leave it alone */
} msdu__verdict;

typedef enum msdu__recognizer_state {
    MSDU__LEARNING = 0,
    MSDU__WAITING = 1, /* the period is known; a step must begin */
    MSDU__FOLLOWING = 2,
} msdu__recognizer_state;

/* May what comes `at` so many others of a step be a gradient? Pure. */
typedef bool (*msdu__allows_fn)(const void *user, const msdu__call *call, uint32_t at);

/* Zeroed, then `least`, `tensors_wanted` and, if any place is denied, `allows` set by the caller.
 */
typedef struct msdu__recognizer {
    uint32_t least;          /* calls before a period is believed */
    uint32_t tensors_wanted; /* 0: find out */
    msdu__allows_fn allows;  /* asked once a pattern is known; NULL: all */
    const void *allows_user;
    msdu__recognizer_state state;
    uint32_t seen_count;
    uint32_t pattern_count; /* candidates of a step */
    uint32_t tensor_count;  /* those that are not denied: the gradients */
    uint32_t position;      /* in the pattern, of what is due */
    bool has_others;        /* the period holds calls that are no candidates */
    bool has_doubted;       /* the one second look was taken */
    uint32_t other_count;   /* others since a period without any was believed */
    bool is_patient;      /* set by the caller: a pattern that is not given up at the first stray */
    uint32_t steps_borne; /* likewise: so many steps in a row with strays, for they are gradients,
                             too, and ranks can be joined to begin anew; 0: any number */
    uint32_t stray_count; /* since a tensor came that was due */
    bool has_strayed;     /* in the present step */
    uint32_t stray_steps; /* in a row with strays */
    msdu__call pattern[MSDU__TENSORS_MAX];
    msdu__call tensors[MSDU__TENSORS_MAX];
    uint32_t tensor_at[MSDU__TENSORS_MAX]; /* of the pattern; MSDU__TENSORS_MAX: denied */
    msdu__call seen[MSDU__CALLS_MAX];
} msdu__recognizer;

/* Which of the pattern are gradients: again, when allows() knows more. */
void msdu__recognize_allowed(msdu__recognizer *r);
/* Take the next call; position_out is set for a gradient. */
msdu__verdict msdu__recognize(msdu__recognizer *r, const msdu__call *call, uint32_t *position_out);

#endif
