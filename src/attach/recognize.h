/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of a communicator are gradients, and where does a step begin? Pure: no I/O, locks,
 * clock, allocation.
 *
 * A call is a candidate if it could be a gradient (floating point, sum, not small). A step is a
 * period of the candidates. All ranks of a communicator make the same calls in the same order, so
 * that a sequence repeats is seen by all of them. It is not enough: equal layers repeat, too. What
 * tells a layer from a step is rank's own evidence, so ranks vote on it:
 *
 *   memory   A gradient lies where it lay one step before, and the others of its step lie
 * elsewhere. Memory that comes back sooner or later speaks against a period. marks    Other calls
 * (a loss, a barrier, another communicator) come in every period. history  What repeated before and
 * then broke is part of something longer. What came before, and belongs to no period, may be the
 * first step's: then a period has to explain more calls than a model has in equal layers.
 *
 * What memory does not tell is passed through, unless the user says how many gradients a step has.
 * Local steps need more calls of proof, and memory that comes back after exactly one step, always:
 * two places of a pattern must never be one parameter, nor one place two. The user's number is
 * proof enough only where no two gradients are of one size. Layers that take turns on memory and
 * gradients of each micro-batch look like steps for ever. So the user has to say how many gradients
 * a step has, or how many steps there are: what comes more often is no step.
 */
#ifndef MSDU_RECOGNIZE_H
#define MSDU_RECOGNIZE_H

#include <stdbool.h>
#include <stdint.h>

#define MSDU__CALLS_MAX    16384 /* candidates remembered while learning */
#define MSDU__TENSORS_MAX  4096  /* candidates of a step */
#define MSDU__PLACES       65536 /* in the table of their memory */
#define MSDU__STEPS_BORNE  3     /* steps in a row with strays before the pattern is given up */
#define MSDU__STEPS_PROVEN 20    /* whole steps before local steps */
#define MSDU__VOTES_MAX    64    /* until one is agreed upon */
#define MSDU__STEPS_BEYOND 8     /* that look like steps: averages at the beginning and end */

/* What is known of a call. All but `memory` is equal on all ranks. */
typedef struct msdu__call {
    uint64_t count;
    int32_t kind;      /* type and operation, as the caller numbers them */
    bool is_candidate; /* may be a gradient */
    bool is_sum;       /* a gradient by its type, if it is no candidate: small, or denied */
    uint64_t memory;   /* address of the result */
} msdu__call;

typedef enum msdu__verdict {
    MSDU__CALL_OTHER = 0,    /* not a gradient, or not known yet: leave it alone */
    MSDU__CALL_GRADIENT = 1, /* tensor `position` of a step */
    MSDU__CALL_BREAKS = 2,   /* a candidate where another was due: the pattern is no more */
    MSDU__CALL_STRAYS = 3,   /* one that is no tensor, and the pattern is still waited for: leave it
                                alone */
    MSDU__CALL_DENIED = 4, /* part of the pattern, but denied by its place in it: leave it alone */
    MSDU__CALL_VOTES = 5,  /* leave it alone; before the next one ranks vote, see below */
} msdu__verdict;

typedef enum msdu__recognizer_state {
    MSDU__LEARNING = 0,
    MSDU__WAITING = 1, /* the period is known; a step must begin */
    MSDU__FOLLOWING = 2,
    MSDU__CLOSED = 3, /* nothing is looked for any more */
} msdu__recognizer_state;

/* What else than a step could a period be? Ranks go by the largest doubt among them. */
typedef enum msdu__doubt {
    MSDU__DOUBT_NONE = 0,   /* the user said how many reductions a step has */
    MSDU__DOUBT_SAID = 1,   /* the same, and memory agrees on all ranks */
    MSDU__DOUBT_LITTLE = 2, /* memory and marks agree */
    MSDU__DOUBT_SOME = 3,   /* memory alone */
    MSDU__DOUBT_MUCH = 4,   /* the same, but it may be the first step's equal layers */
    MSDU__DOUBT_EQUAL = 5,  /* all layers are equal: never enough for local steps, and ... */
    MSDU__DOUBT_FULL = 6,   /* ... memory moves: nor can it say later that a pattern is none */
    MSDU__DOUBTS = 7,
} msdu__doubt;

/* A rank's own reading of what it has seen. */
typedef struct msdu__proposal {
    uint32_t period; /* candidates of a step; 0: none is found */
    msdu__doubt doubt;
} msdu__proposal;

/* How ranks vote: each adds up these numbers with those of the others. */
#define MSDU__VOTE_SUMS (2 + MSDU__DOUBTS)

/* May what comes `at` so many others of a step be a gradient? Pure. */
typedef bool (*msdu__allows_fn)(const void *user, const msdu__call *call, uint32_t at);

/* A candidate, and what came since the one before. */
typedef struct msdu__seen {
    msdu__call call;
    uint32_t others; /* calls on this communicator that are no candidates: equal on all ranks */
    uint32_t sums;   /* of these, those that are gradients by their type, or losses */
    uint32_t small;  /* of these, those that are no losses by their size or type */
    uint32_t marks;  /* calls of any kind that are no candidates, here and elsewhere */
    uint32_t back;   /* candidates since the same memory came last; 0: never */
} msdu__seen;

/* Zeroed, then `least`, `tensors_wanted`, `total_steps` and, if any place is denied, `allows` set
 * by the caller. */
typedef struct msdu__recognizer {
    uint32_t least;          /* calls before a period is believed */
    uint32_t tensors_wanted; /* gradients of a step as the user counts them; 0: find out */
    uint64_t total_steps;    /* of the trainer, as the user says; 0: not said */
    msdu__allows_fn allows;  /* asked once a pattern is known; NULL: all */
    const void *allows_user;
    msdu__recognizer_state state;
    msdu__doubt doubt;
    uint32_t votes;         /* so far without an agreement */
    uint32_t next_look;     /* seen_count from which on a vote may be worth it */
    uint32_t seen_count;    /* candidates */
    bool is_cut;            /* older ones were forgotten */
    uint64_t total;         /* candidates ever remembered */
    msdu__seen since;       /* what came since the latest candidate; `call` is not used */
    uint32_t pattern_count; /* candidates of a step */
    uint32_t pattern_sums;  /* gradients of a step as a user would count them: with small ones */
    uint32_t tensor_count;  /* candidates that are not denied: the gradients */
    uint32_t position;      /* in the pattern, of what is due */
    uint64_t held_steps;    /* whole steps that the pattern explains */
    uint64_t held_calls;    /* and the calls since it began, equal on all ranks */
    uint64_t ended_steps;   /* held by patterns before it ... */
    uint64_t ended_total;   /* ... until so many candidates */
    uint64_t again_steps;   /* since the latest pattern broke, while there is no other ... */
    uint32_t again_count;   /* ... by its candidates, which are still in `pattern` ... */
    uint32_t stray_count;   /* since a tensor came that was due */
    bool has_strayed;       /* in the present step */
    uint32_t stray_steps;   /* in a row with strays */
    bool has_moved;         /* a gradient came from where another one of its size lies */
    bool has_alternated;    /* or came from elsewhere, and then from where it was learned */
    uint64_t left_at;       /* `total` when its memory was elsewhere, if only that tells it; 0 */
    bool has_twins;         /* two of the pattern are of one size */
    uint32_t unmet_count;   /* a period that is found, but is not what the user wants ... */
    uint32_t unmet_sums;    /* ... and with its small ones; 0: none */
    msdu__call pattern[MSDU__TENSORS_MAX];
    msdu__call tensors[MSDU__TENSORS_MAX];
    uint32_t tensor_at[MSDU__TENSORS_MAX]; /* of the pattern; MSDU__TENSORS_MAX: denied */
    uint32_t again[MSDU__TENSORS_MAX];     /* ... and came so often */
    bool is_away[MSDU__TENSORS_MAX];       /* a place of the pattern: it last came from elsewhere */
    bool is_twin[MSDU__TENSORS_MAX];       /* or another one has its size */
    msdu__seen seen[MSDU__CALLS_MAX];
    uint64_t last[MSDU__PLACES]; /* by memory: 1 + `total` when it came last */
} msdu__recognizer;

/* Take the next call; position_out is set for a gradient. */
msdu__verdict msdu__recognize(msdu__recognizer *r, const msdu__call *call, uint32_t *position_out);
/* The trainer made another call between: a barrier, or one on another communicator. */
void msdu__recognize_mark(msdu__recognizer *r);

/*
 * A vote, on all ranks behind the same call: what this rank adds, then what the sums over `ranks`
 * say. True: ranks agree, and the next step that begins is one of gradients.
 */
void msdu__recognize_vote(msdu__recognizer *r, double sums_out[MSDU__VOTE_SUMS]);
bool msdu__recognize_agree(msdu__recognizer *r, const double sums[MSDU__VOTE_SUMS], int ranks);

/* Is it time for ranks to ask each other for contradictions? Equal on all ranks, for each step.
 * Under local steps a wrong step does more harm. */
bool msdu__recognize_is_due(const msdu__recognizer *r, uint64_t steps, bool is_local);
/* This rank's memory says by now that one place of the pattern is two parameters. */
bool msdu__recognize_is_contradicted(const msdu__recognizer *r);
/* Likewise for local steps, which need a gradient's own memory in every step: of what moved nobody
 * knows whose it is. */
bool msdu__recognize_is_mistaken(const msdu__recognizer *r);
/* The same before the latest call, which may be an average behind the last step. */
bool msdu__recognize_was_mistaken(const msdu__recognizer *r);
/* Has the pattern held for so long that local steps may build on it? Equal on all ranks, who ask
 * each other for contradictions then. */
bool msdu__recognize_is_proven(const msdu__recognizer *r);
/* Where the sums of a tensor of the pattern, or of the one that just broke, lie in every step; 0:
 * memory does not tell. */
uint64_t msdu__recognize_home(const msdu__recognizer *r, uint32_t tensor);
/* It never will be. Gradients of one size may change places, and nobody can see it. Or small ones
 * were counted to meet the user's number: two models that take turns do so, too. */
bool msdu__recognize_is_blind(const msdu__recognizer *r);
/* Whole steps so far, of all patterns. Equal on all ranks. */
uint64_t msdu__recognize_steps(const msdu__recognizer *r);
/* More of them came than the trainer has steps: what was taken for a step is a part of one, or the
 * user's number is wrong. Equal on all ranks. */
bool msdu__recognize_is_exceeded(const msdu__recognizer *r);
/* Pass everything through from now on. */
void msdu__recognize_close(msdu__recognizer *r);

#endif
