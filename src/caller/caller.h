/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of the thread that calls the library: what it remembers from step to step, and what is
 * due. What it gives to the communication thread goes through the hand-over; a command's function
 * runs over there while this thread waits, and may then use both sides.
 */
#ifndef MSDU_CALLER_H
#define MSDU_CALLER_H

#include "core/engine.h"
#include "draw.h"

/* When the ranks synchronize a fragment. */
typedef struct msdu__schedule {
    uint64_t sync_step;  /* next step at whose end this fragment is synchronized */
    uint64_t apply_step; /* step at whose end the last one is applied */
    bool is_pending;     /* synchronized, not yet due for applying */
    uint64_t armed;      /* rounds armed */
    uint64_t from_step;  /* first step of the next round */
    uint64_t samples;    /* drawn before it, in shares and if all had been even */
    uint64_t nominal;
    uint32_t interval; /* h, delay and wire of the next round, as decided */
    uint32_t delay_steps;
    int wire;
    bool wants_clock; /* rounds by the clock from the next one on */
    bool is_left;     /* of the host's own context: no means from the next step on */
} msdu__schedule;

typedef struct msdu__caller {
    const msdu__job *job;
    const msdu__model *model;
    msdu__handover *hand;
    msdu__engine *engine; /* for functions that run on the communication thread, and at the end */
    struct msdu__caller *inner; /* of this host's ranks, see inner.c; NULL: there is none */
    bool averages_host;         /* its gradients are averaged in every step now */
    bool has_left_host;         /* they were, and will not be again */
    msdu__schedule schedules[MSDU__FRAGMENTS_MAX];
    uint64_t step;
    uint32_t sync_mask;      /* fragments synchronized at the end of this step */
    bool is_gradient;        /* present domain */
    bool is_local_entered;   /* anchors are set */
    bool is_backward_closed; /* it waited for a gradient in this step */
    bool is_deferred; /* it did not in the step before: it may wait for those gradients now */
    double weight;    /* of this rank, from the next step on */
    bool is_idle;     /* inside msdu_join() */
    bool was_uneven;  /* ranks had different numbers of gradients; see enter_local() */
    uint64_t reached; /* there: the step before which this rank ran out of input */
    bool is_started;
    bool is_finished;
    bool is_over;          /* the epoch has ended with the last step (setting ranks_least) */
    bool is_resumed;       /* a state was set */
    uint64_t resumed_step; /* its step */
    uint64_t run_name;     /* of the run a state came from; 0: none */
    uint64_t commands;     /* given so far */
    bool is_clocked;       /* rounds by the clock */
    bool is_ticking;       /* it runs */
    uint64_t stops;        /* times it stopped */
    uint64_t shifted;      /* rounds whose means parameters have taken */
    uint64_t step_began_ns;
    uint64_t step_blocked_ns;
    msdu__draw draw;
} msdu__caller;

/* --- announce.c: given to the communication thread, and waited for --- */
/* Announce one tensor; what is one of the two. Thread: any. */
msdu_status msdu__caller_ready(msdu__caller *c, uint32_t id, msdu_what what);
/* Announce what the trainer did not. */
msdu_status msdu__caller_rest(msdu__caller *c, msdu_what what);
/* Does this step want this slice's tensors announced? */
bool msdu__caller_is_due(const msdu__caller *c, uint32_t slice);
/* Was anything of the present step announced? */
bool msdu__caller_is_between_steps(const msdu__caller *c);
/* Block until a tensor's memory (or everything: MSDU_ALL_TENSORS) is free, or a failure. */
msdu_status msdu__caller_wait(msdu__caller *c, uint32_t id, uint32_t what);
/* Likewise; nothing is announced before. */
msdu_status msdu__caller_wait_free(msdu__caller *c, uint32_t id, uint32_t what);
/* One announced gradient; the rest of the step stays as it is (setting commit = tensor). */
msdu_status msdu__caller_wait_alone(msdu__caller *c, uint32_t id, bool is_now);
/* Block, and count it as waiting for the network. */
void msdu__caller_block(msdu__caller *c, const msdu__ticket *ticket);
/* Wait until the statistics messages of this round (from 1) have arrived; false: a failure. */
bool msdu__caller_hear(msdu__caller *c, uint32_t fragment, uint64_t round);
/* Results that are due now: from here the parameters are the library's until they are applied. */
void msdu__caller_apply_due(msdu__caller *c);
/* Slices that are due wait for their tensors. */
void msdu__caller_arm(msdu__caller *c);
/* This rank's part in a round that is armed now. */
msdu__contribution msdu__caller_contribution(const msdu__caller *c, uint32_t fragment);
/* All tensors of a fragment are the communication thread's. */
void msdu__caller_lend(const msdu__caller *c, uint32_t fragment);
/* All that this step wants, whatever the trainer announced. */
void msdu__caller_announce_all(msdu__caller *c, msdu_what what);
/* Zeros in optimizer state (setting state = reset). */
void msdu__caller_reset(msdu__caller *c);
/* Let the communication thread carry out a command, which ends with msdu__event_completed();
 * returns when it has, whatever happens. `what`: for the text of a timeout. */
msdu_status msdu__caller_carry(msdu__caller *c, const msdu__event *command, const char *what);
/* Let everything captured end and be applied; then nothing is in flight, and the communication
 * thread calls no backend and changes nothing until something is pushed. */
msdu_status msdu__caller_drain(msdu__caller *c);

/* --- step.c: what is due in a step --- */
/* Arm the first round, which ends with the present step. */
void msdu__step_start(msdu__caller *c);
/* In the gradient domain, which is left before the present step: in an epoch whose ranks took local
 * steps before, so that their optimizers differ. Parameters are equal. */
void msdu__step_start_local(msdu__caller *c, const msdu__decision *decision);
/* End of a step: what is due, when the ranks synchronize next. */
msdu_status msdu__step_end(msdu__caller *c);
/* Go on from the step of a state: arm the rounds that end with it. */
void msdu__step_resume(msdu__caller *c);
/* The ranks synchronize in the step about to run (domain accumulated, nothing announced yet). */
void msdu__step_synchronize(msdu__caller *c);
/* Weight of this rank in the rounds of the present step, if that has not begun, and later. */
void msdu__step_weigh(msdu__caller *c);

/* --- inner.c: means of gradients over a host, in every local step --- */
/* End of a step of both contexts. */
msdu_status msdu__inner_step(msdu__caller *c);
/* Weight of this rank among those of its host, as msdu__step_weigh(). */
void msdu__inner_weigh(msdu__caller *c);
/* Go on as in a state: with such means, or without. */
void msdu__inner_resume(msdu__caller *c);
/* After all ranks ran out of input: ranks of a host have what those have that missed nothing. */
msdu_status msdu__inner_catch_up(msdu__caller *c);

/* --- boundary.c: rounds by the clock --- */
/* The end of a step: contribute if the round is due, take what has arrived. */
msdu_status msdu__boundary(msdu__caller *c);
/* The clock runs from the first call on. */
void msdu__boundary_run(msdu__caller *c);
/* Contribute what is left, then take part without input until no rank has any; the clock stands
 * then, and parameters hold all means. */
msdu_status msdu__boundary_join(msdu__caller *c);

/* --- dealt.c: work by the clock --- */
/* The next batch that this rank was given; waits until there is one. Nothing changes where it
 * fails. */
msdu_status msdu__dealt_next(msdu__caller *c, msdu_work *work);

/* --- reslice.c: slices cut anew, between two steps --- */
/* Time of a small operation, the same on all ranks; blocks, before the communication thread
 * exists. */
msdu_status msdu__reslice_probe(msdu__engine *e);
/* Change where all ranks do. */
void msdu__reslice_due(msdu__caller *c);
/* About to leave the gradient domain: the slicing of the wire that comes, which then stays. */
void msdu__reslice_last(msdu__caller *c, int wire);
/* Change now, between two steps. */
msdu_status msdu__reslice_to(msdu__caller *c, msdu__tuning wanted);
/* Cut anew, with all that belongs to an element; nothing may be captured. A failure is one of the
 * context. Communication thread. */
msdu_status msdu__reslice_cut(msdu__engine *e, msdu__tuning tuning);

/* --- average.c --- */
/* Are there parameters to average? */
bool msdu__average_has_parameters(const msdu__model *model);
/* Finish what is in flight, then one exact, blocking average of all parameters and buffers. */
msdu_status msdu__average_exact(msdu__caller *c);
/* All ranks ran out of input, at different steps: bring those that did so early up to the others.
 */
msdu_status msdu__average_catch_up(msdu__caller *c);

/* --- share.c --- */
/* All ranks take bytes from rank 0; nothing of a round is under way meanwhile. */
msdu_status msdu__caller_share(msdu__caller *c, void *data, uint64_t bytes);

/* --- join.c --- */
/* Take part without input until no rank has any. */
msdu_status msdu__join_run(msdu__caller *c);

#endif
