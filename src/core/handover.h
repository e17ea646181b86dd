/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that the API thread and the communication thread share while training runs: events go in,
 * tickets come out. Nothing else of either thread is seen by the other, so every lock and every
 * atomic of the core is here, in the queue of events or in the thread's own loop (worker.h).
 *
 * A ticket is a counter and the value that it must reach. Every wait is for one, and has a
 * deadline. Lock order: `lock` is outermost of ours, and never held across a backend call, a
 * callback or the worker's own lock.
 */
#ifndef MSDU_HANDOVER_H
#define MSDU_HANDOVER_H

#include <pthread.h>

#include "base/cell.h"
#include "job.h"
#include "model.h"
#include "ready.h"
#include "worker.h"

#define MSDU__FRAGMENTS_MAX 32
#define MSDU__SUPPLY        64 /* above MSDU__STOCK_MOST */

/* A round as the API thread arms it. */
typedef struct msdu__round {
    uint64_t step;        /* the step at whose end the ranks synchronize */
    uint32_t interval;    /* steps it spans */
    uint32_t delay_steps; /* later, the mean is applied */
    int wire;
    bool is_gradient;  /* gradient domain */
    bool is_exact;     /* parameters themselves, whatever the domain, with nothing but the mean */
    uint64_t began_ns; /* its last step, on this rank */
} msdu__round;

/* This rank's part in a round; fixed at the first announcement of the round's last step. */
typedef struct msdu__contribution {
    double weight;
    bool is_idle;   /* no more input: its gradients are neither read nor written */
    bool is_missed; /* rounds by the clock: no step ended in time, so it gives zeros */
    uint32_t stale; /* rounds missed before, for which it gives less: 1 / (1 + stale) */
    uint32_t work;  /* check of the piece that msdu_next() gave for the step; 0: none */
    bool is_moving; /* its shares change */
} msdu__contribution;

/* What came of a round. */
typedef struct msdu__answer {
    bool is_any_idle; /* some, or all ranks have no more input; with `heard` */
    bool are_all_idle;
    msdu__decision decision; /* with `done` */
    msdu__tuning tuning;
    double *step_ns; /* of each rank; with `heard`; NULL: another fragment's */
} msdu__answer;

/* Rounds by the clock (tick.h): whether this rank may still come to the open round. The cell holds
 * 4 times the number of the round, from 1, and one of these. Either thread ends the first state. */
typedef enum msdu__gate {
    MSDU__GATE_OPEN = 1,
    MSDU__GATE_TAKEN = 2,  /* the API thread gives its progress */
    MSDU__GATE_MISSED = 3, /* the communication thread gave zeros */
} msdu__gate;

/* Of a fragment. Rounds are kept by parity: the API thread arms one while the one before runs, and
 * reads the answers of that. */
typedef struct msdu__mailbox {
    msdu__round rounds[2];
    msdu__contribution contributions[2];
    msdu__answer answers[2];
    msdu__cell heard;   /* rounds whose statistics messages arrived */
    msdu__cell done;    /* rounds completed */
    msdu__cell gate;    /* msdu__gate of the open round */
    msdu__cell tick_ns; /* when that is due */
    msdu__cell stopped; /* times that the clock stopped, because no rank had input */
} msdu__mailbox;

/* Of a tensor, by kind: [0] gradient, [1] parameter. */
typedef struct msdu__lease {
    msdu__cell free[2];      /* minus the slices not yet given back */
    msdu__cell announced[2]; /* step + 1 of the latest announcement */
} msdu__lease;

/* What either thread tells the other, or the summary, in passing. */
typedef struct msdu__reports {
    msdu__cell start_ns;   /* 0: not started */
    msdu__cell step_count; /* steps ended */
    msdu__cell step_start_ns;
    msdu__cell blocked_ns; /* that the API thread has waited */
    msdu__cell cpu_ns;     /* of the communication thread, when its latest round ended */
    msdu__number step_ns;  /* smoothed step time without waiting */
    msdu__number lr;
    msdu__number loss;
    msdu__flag is_first_call; /* accumulated domain: dampening starts after the first call */
    msdu__flag is_sequential; /* gradients are waited for one by one: the plan stays */
    msdu__flag is_idle;       /* this rank is inside msdu_join() */
    msdu__flag is_clipping;   /* its trainer changes mean gradients, see msdu_set_clipping() */
    msdu__flag is_awaited;    /* rank 0: a process waits to be let in (setting ranks_least) */
    msdu__cell host_ranks;    /* over which gradients of local steps are averaged; 0: none */
} msdu__reports;

/* Work by the clock: the communication thread hands out what this rank is given (dealer.h), the API
 * thread draws it. */
typedef struct msdu__supply {
    uint64_t batches[MSDU__SUPPLY]; /* numbers, a ring; written before `given` */
    msdu__cell given;               /* so far */
    msdu__cell drawn;               /* of these */
    msdu__cell work;                /* hash of what they are of; 0: nothing was asked for */
    msdu__flag is_drawn;            /* msdu_next() was called */
    msdu__flag is_awaited;          /* the trainer waits for more, so it ends no step */
} msdu__supply;

/* How it failed. */
typedef struct msdu__failure {
    msdu__cell status;           /* minus the first failure; written under lock */
    msdu__cell stillness;        /* 1: the communication thread has seen it and touches nothing */
    bool has_aborted;            /* whoever ends it: one thread only */
    char text[MSDU__TEXT_BYTES]; /* under lock until `status` is set, then it stays */
    char io_text[MSDU__TEXT_BYTES];
    char skip_text[MSDU__TEXT_BYTES]; /* why the gradients of the latest skipped step are NaN */
    msdu__cell skipped;               /* 1 + that step; written after skip_text; 0: none */
} msdu__failure;

typedef struct msdu__handover {
    const msdu__job *job;
    msdu__ready events;
    msdu__worker worker;
    msdu__lease *leases;  /* by tensor */
    msdu__cell *missing;  /* by slice: tensors not announced in this step */
    msdu__cell announced; /* kinds of memory of which something was, in this step */
    msdu__cell completed; /* commands that someone waits for, see msdu__caller_carry() */
    msdu__mailbox fragments[MSDU__FRAGMENTS_MAX];
    msdu__reports reports;
    msdu__supply supply;
    msdu__failure failure;
    msdu__cell waiters;  /* the API thread waits on `changed` */
    msdu__cell progress; /* rises whenever the communication thread got on */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    msdu_summary summary; /* under lock */
    uint64_t plain_bytes; /* of one float32-equivalent allreduce of everything */
    /* The ranks of this host have a context of their own (setting hosts): that of the same rank
     * here, or of the whole job there. They fail together; NULL: there is none. */
    struct msdu__handover *inner;
    struct msdu__handover *outer;
} msdu__handover;

typedef struct msdu__ticket {
    const msdu__cell *counter; /* it is there once counter - value, as a signed number, is >= 0 */
    uint64_t value;
    const char *what; /* for the text of a timeout, with name behind it if there is one */
    const char *name;
    bool is_lent; /* the communication thread may use memory of the waiting thread's meanwhile */
} msdu__ticket;

void msdu__handover_init(msdu__handover *h, const msdu__job *job, msdu__worker_fn step, void *user);
void msdu__handover_free(msdu__handover *h);

/* --- the API thread, and gradient hooks --- */
void msdu__handover_push(msdu__handover *h, const msdu__event *event);
/* Has the communication thread any of a tensor's memory? what: one or both of msdu_what. */
bool msdu__handover_is_busy(const msdu__handover *h, uint32_t tensor, uint32_t what);
/* Block until it is there, or the context failed: by itself, if nothing moves for longer than any
 * operation may take. Returns how long, in ns. */
uint64_t msdu__handover_wait(msdu__handover *h, const msdu__ticket *ticket);
bool msdu__ticket_is_there(const msdu__ticket *ticket);
/* After a failure: wait until the communication thread touches nothing of the trainer's. */
void msdu__handover_await_stillness(msdu__handover *h);

/* --- any thread --- */
static inline bool msdu__handover_has_failed(const msdu__handover *h)
{
    return msdu__cell_get(&h->failure.status) != 0;
}
/* Failure of the context, with its text as this thread's; MSDU_OK if none. */
msdu_status msdu__handover_status(msdu__handover *h);
/* Record the first failure, also that of the other context of this rank, and wake everybody; what
 * is in flight is ended by msdu__handover_end(). */
void msdu__handover_fail(msdu__handover *h, msdu_status status, const char *text);
/* Likewise with this thread's error text. */
void msdu__handover_fail_last(msdu__handover *h, msdu_status status);
/* Wake who waits. */
void msdu__handover_wake(msdu__handover *h);
/* Ranks over which gradients of local steps are averaged, this one included. */
uint32_t msdu__handover_host_ranks(const msdu__handover *h);
/* Counters as they are now, with those of the host's own context. */
void msdu__handover_summary(msdu__handover *h, msdu_summary *summary_out);
/* Remember that a file could not be written; training goes on. */
void msdu__handover_io(msdu__handover *h, msdu_status status);

/* --- the communication thread, or the API thread where that does not run --- */
/* After a failure: end what is in flight, once, and stand still from then on. So one thread at a
 * time is inside the backend. */
void msdu__handover_end(msdu__handover *h);

#endif
