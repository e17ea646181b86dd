/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of the trainer's thread (the owner): all of it runs there, but msdu__reslice_cut(). What
 * it gives to the communication thread goes through the ready queue.
 */
#ifndef MSDU_CALLER_H
#define MSDU_CALLER_H

#include "startup/startup.h"

/* --- await.c: the owner's waits --- */
typedef struct msdu__awaited {
    bool (*is_there)(const msdu__pipeline *p, const struct msdu__awaited *self);
    const char *what; /* for the text of a timeout, with name behind it if there is one */
    const char *name;
    const void *of; /* for is_there */
    uint64_t count;
    bool is_lent; /* the communication thread may use memory of the owner's meanwhile */
} msdu__awaited;

/* Block until it is there, or the context failed: by itself, if nothing moves for longer than any
 * operation may take. Returns how long. */
uint64_t msdu__await(msdu__pipeline *p, const msdu__awaited *a);
/* After a failure: the communication thread touches nothing of the trainer's any more. */
void msdu__await_stillness(msdu__pipeline *p);

/* --- handoff.c: given to the communication thread, and waited for --- */
/* A slice, or a command. */
void msdu__handoff_push(msdu__pipeline *p, uint32_t value);
/* Announce one tensor; what is one of the two. */
msdu_status msdu__handoff_ready(msdu__pipeline *p, uint32_t id, msdu_what what);
/* Announce what the trainer did not. */
msdu_status msdu__handoff_rest(msdu__pipeline *p, msdu_what what);
/* Does this step want this slice's tensors announced? */
bool msdu__handoff_is_due(const msdu__pipeline *p, uint32_t slice);
/* Block until a tensor's memory (or everything: MSDU_ALL_TENSORS) is free, or a failure. */
msdu_status msdu__handoff_wait(msdu__pipeline *p, uint32_t id, uint32_t what);
/* Likewise; nothing is announced before. */
msdu_status msdu__handoff_wait_free(msdu__pipeline *p, uint32_t id, uint32_t what);
/* One announced gradient; the rest of the step stays as it is (setting commit = tensor). */
msdu_status msdu__handoff_wait_alone(msdu__pipeline *p, uint32_t id, bool is_now);
/* Block, and count it as waiting for the network. */
void msdu__handoff_block(msdu__pipeline *p, const msdu__awaited *a);
/* Wait until the control messages of this round (from 1) have arrived; false: a failure. */
bool msdu__handoff_hear(msdu__pipeline *p, const msdu__fragment *f, uint64_t round);
/* Results that are due now: from here the parameters are the library's until they are applied. */
void msdu__handoff_apply_due(msdu__pipeline *p);
/* Zeros in optimizer state (setting state = reset). */
void msdu__handoff_reset(msdu__pipeline *p);
/* Let the communication thread call `run` until that returns true; returns when it has, whatever
 * happens. `what`: for the text of a timeout. */
msdu_status msdu__handoff_carry(msdu__pipeline *p, bool (*run)(msdu__pipeline *p),
                                const char *what);
/* At the end of `run`. */
void msdu__handoff_carried(msdu__pipeline *p);
/* Let everything captured end and be applied; then nothing is in flight, and the communication
 * thread calls no backend and changes nothing until something is pushed. */
msdu_status msdu__handoff_drain(msdu__pipeline *p);

/* --- step.c: what is due in a step --- */
/* Arm the first round. */
void msdu__step_start(msdu__pipeline *p);
/* End of a step: what is due, when the ranks meet next. */
msdu_status msdu__step_end(msdu__pipeline *p);
/* Go on from the step of a state: arm the rounds that end with it. */
void msdu__step_resume(msdu__pipeline *p);
/* The ranks meet in the step about to run (domain accumulated, nothing announced yet). */
void msdu__step_meet(msdu__pipeline *p);
/* Weight of this rank in the rounds of the present step, if that has not begun, and later. */
void msdu__step_weigh(msdu__pipeline *p);

/* --- reslice.c: slices cut anew, between two steps --- */
/* Time of a small operation, the same on all ranks; blocks, before the communication thread
 * exists. */
msdu_status msdu__reslice_probe(msdu__pipeline *p);
/* Change where all ranks do. */
void msdu__reslice_due(msdu__pipeline *p);
/* About to leave the gradient domain: the cut of the wire that comes, which then stays. */
void msdu__reslice_last(msdu__pipeline *p, int wire);
/* Change now, between two steps. */
msdu_status msdu__reslice_to(msdu__pipeline *p, msdu__tuning wanted);
/* Cut anew, with all that belongs to an element; nothing may be captured. A failure is one of the
 * context. Communication thread. */
msdu_status msdu__reslice_cut(msdu__pipeline *p, msdu__tuning tuning);

/* --- final.c --- */
/* Do tensors announced in this step forbid to end? */
bool msdu__final_is_between_steps(const msdu__pipeline *p);
/* Are there parameters to average? */
bool msdu__final_has_parameters(const msdu__pipeline *p);
/* Finish what is in flight, then one exact, blocking average of all parameters and buffers. */
msdu_status msdu__final_meet(msdu__pipeline *p);
/* All ranks ran out of input, at different steps: bring those that did so early up to the others.
 */
msdu_status msdu__final_catch_up(msdu__pipeline *p);

/* --- join.c --- */
/* Take part without input until no rank has any. */
msdu_status msdu__join_run(msdu__pipeline *p);

#endif
