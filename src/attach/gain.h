/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a trainer faster with the library than without? Pure: times go in, what to do comes out.
 *
 * Phases have a fixed number of steps, so all ranks come to their ends together, and what is
 * decided there is a function of values equal on all ranks. Times are those of the fastest of
 * several blocks of steps: what a busy machine adds is no property of the network. The wait is that
 * of the rank that waited least: the others waited for it.
 *
 * PLAIN: all calls are passed through, and timed. Then an estimate says whether fewer bytes could
 * save a tenth of a step: what the network took, less what coding takes.
 *
 * TRIAL: an engine does it, and is timed. It stays if steps are shorter by a twentieth.
 *
 * KEPT: looked at again after ever more steps. If they are no shorter than plain ones were, or once
 * these were timed some 16000 steps ago, the engine goes, and plain calls are timed anew.
 *
 * REFUSED: plain, for longer and longer, and after TRIALS_MAX trials for good.
 */
#ifndef MSDU_GAIN_H
#define MSDU_GAIN_H

#include <stdbool.h>
#include <stdint.h>

typedef enum msdu__gain_phase {
    MSDU__GAIN_PLAIN = 0,
    MSDU__GAIN_TRIAL = 1,
    MSDU__GAIN_KEPT = 2,
    MSDU__GAIN_REFUSED = 3,
    MSDU__GAIN_ASKED = 4, /* the user wants it whatever it costs: set by the caller */
} msdu__gain_phase;

/* Zeroed, then `elements` set. */
typedef struct msdu__gain {
    msdu__gain_phase phase;
    uint64_t elements;   /* gradients of a step */
    uint32_t steps;      /* of the phase, so far */
    uint32_t length;     /* of the phase; 0: not begun */
    uint32_t trials;     /* so far */
    uint32_t kept_looks; /* in this engine's life */
    uint64_t last_ns;    /* when the latest step began; 0: not known */
    uint64_t block_ns;   /* of the present block: its steps, and of that in calls */
    uint64_t block_waits;
    uint32_t block_steps;
    uint64_t best_ns;    /* of a block; 0: none is complete */
    uint64_t best_waits; /* likewise, of perhaps another one */
    /* of a step, equal on all ranks */
    double plain_ns; /* a step as the trainer is without the library; 0: not known */
    double plain_wait_ns;
    double taken_ns; /* with it */
    uint64_t kept_steps;
} msdu__gain;

/* A step begins at `now_ns`; `wait_ns` of the one before were spent in reductions. True: the phase
 * ends before it. */
bool msdu__gain_step(msdu__gain *gain, uint64_t now_ns, uint64_t wait_ns);
/* What this rank says at a phase's end: the largest over ranks of each number counts. */
#define MSDU__GAIN_NUMBERS 2
void msdu__gain_report(const msdu__gain *gain, double own_out[MSDU__GAIN_NUMBERS]);
/* The next phase, by the largest over ranks. */
void msdu__gain_decide(msdu__gain *gain, const double largest[MSDU__GAIN_NUMBERS]);
/* Shall an engine be there? */
bool msdu__gain_wants_engine(const msdu__gain *gain);
/* Other gradients: all is measured anew. */
void msdu__gain_reset(msdu__gain *gain);

#endif
