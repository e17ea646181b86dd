/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline: ready -> capture -> plan -> start/test -> correct, one step at a time.
 *
 * Who owns what: the owner thread writes `step`, the schedule and the armed rounds inside
 * msdu_step(); the communication thread owns slice runs, slots and active rounds; busy counters and
 * `missing` are atomic. What the owner arms reaches the communication thread through the ready
 * queue, whose push and pop order memory.
 *
 * Lock order: `lock` (failure text, waiting owner) is outermost of ours and never held across a
 * backend call, a callback or the worker's own lock.
 */
#ifndef MSDU_PIPELINE_H
#define MSDU_PIPELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "config/config.h"
#include "correct/correct.h"
#include "interval/interval.h"
#include "interval/sketch.h"
#include "observe/observe.h"
#include "pass.h"
#include "ready.h"
#include "slicer/plan.h"
#include "slicer/slicer.h"
#include "slicer/tuner.h"
#include "wire/wire.h"
#include "worker.h"

#define MSDU__FRAGMENTS_MAX     32
#define MSDU__WINDOW_MAX        64
#define MSDU__WINDOW_AUTO       4 /* where nothing is measured */
#define MSDU__WINDOW_TUNED      8 /* the tuner may go so far */
#define MSDU__LANES_MAX         8
#define MSDU__DEVICE_BLOCKS_MAX (24 + 3 * MSDU__WINDOW_MAX)
#define MSDU__SMOOTH            0.2 /* weight of the newest measurement in running means */

typedef struct msdu__tensor {
    char *name;
    void *parameter;
    void *gradient;
    uint64_t count;
    int32_t dtype;
    int32_t role;
    int32_t priority;
    int32_t place;        /* msdu_place, the same for all */
    uint32_t first_slice; /* into msdu__pipeline.tensor_slices */
    uint32_t slice_count;
    _Atomic uint32_t busy[2];      /* slices not yet released; [0] gradient, [1] parameter */
    _Atomic uint64_t announced[2]; /* step + 1 of the latest announcement */
} msdu__tensor;

typedef enum msdu__run_state {
    MSDU__RUN_IDLE,
    MSDU__RUN_OPEN,     /* its round is open, its tensors are not all ready */
    MSDU__RUN_CAPTURED, /* buf holds what is to be reduced */
    MSDU__RUN_FIRST,    /* allreduce, or the all-to-all of a narrow wire, in flight */
    MSDU__RUN_SUMMED,   /* own share is summed, the all-gather waits for its turn */
    MSDU__RUN_SECOND,   /* all-gather in flight */
    MSDU__RUN_REDUCED,  /* buf holds the mean */
} msdu__run_state;

/* What passes over a slice found, beside the sums of a capture; in memory that a device reaches. */
typedef struct msdu__found {
    msdu_sums mean;     /* |mean|^2; summed over slices in one order on all ranks */
    msdu_sums residual; /* of error feedback, phase 1 */
    msdu_sums summed;   /* of the own share; only where all weights may be 0 */
    float sketch[MSDU__SKETCH];
    uint64_t hash; /* of the parameters captured; 0: not known */
} msdu__found;

/* A slice at run time. */
typedef struct msdu__run {
    _Atomic uint32_t missing; /* tensors of the slice not announced in this step */
    msdu__run_state state;
    uint32_t slot;     /* while in flight */
    uint64_t position; /* in issue order, since start */
    bool is_staged;    /* gradients: buf is a packed copy (fused or 16-bit tensors) */
    bool is_state;     /* optimizer state or a buffer: averaged as it is */
    bool is_narrow;    /* in flight as a two-phase exchange */
    msdu__found *found;
    double scale;      /* of the latest round, for what its error feedback holds back */
    bool has_residual; /* the error feedback is not zero */
    bool had_residual; /* before the present round, see msdu__domain_keep() */
    void *buf;         /* working type: x, later the mean; NULL: the gradient itself */
    void *anchor;      /* parameter domain */
    void *snapshot;
    void *momentum;
    float *residual;       /* error feedback of phase 1 */
    float *owner_residual; /* and of phase 2, own share only */
    float *kept;           /* both as they were before the present round; NULL: never needed */
    float *owner_kept;
    msdu__recursion_state recursion;
    const uint64_t *share_count; /* elements by owner */
    const uint64_t *share_start;
    msdu_req *req;
    double link_ns; /* smoothed time on the link, for the plan */
    double wait_ns; /* smoothed ready time since the step's start */
    msdu__trace_slice times;
} msdu__run;

/* Buffers of a slice in flight. */
typedef struct msdu__slot {
    bool is_used;
    uint8_t *send;         /* encoded slice; after phase 1 the gathered slice */
    uint8_t *received;     /* contributions to the own share */
    float *sum;            /* own share */
    uint64_t *share_bytes; /* by owner */
} msdu__slot;

/* What a rank says about a round; all-gathered as doubles, equal layout on all ranks. */
typedef struct msdu__control {
    double bad_tensor; /* 1 + tensor with a non-finite value, 0: none */
    double local_sq;
    double weight_sq;
    double residual_sq;
    double step_ns;
    double link_ns;
    double latency_ns;
    double wait_ns;   /* the owner's, since the message before */
    double alone_ns;  /* of that, at most: no other rank computed on this rank's cores */
    double queued_ns; /* in the round of link_ns the communication thread waited for a core */
    double loss;      /* NaN: not told */
    double lr;
    double wants_plan; /* rank 0: the order shall be renewed after this round */
    double weight;     /* of this rank in the mean */
    double is_absent;  /* 1: this rank has no more input (msdu_join) */
    double check[2];   /* halves of a hash of round, interval, wire and order; equal on all ranks */
    double hash[2];    /* likewise of the parameters that were captured, see is_told() in control.c;
                          0: not told */
    float sketch[MSDU__SKETCH]; /* of what was captured, before quantization */
} msdu__control;

/* A round as the owner arms it. */
typedef struct msdu__round {
    uint64_t step;        /* the step at whose end the ranks meet */
    uint32_t interval;    /* steps it spans */
    uint32_t delay_steps; /* later, the mean is applied */
    int wire;
    bool is_gradient;  /* gradient domain */
    bool is_exact;     /* parameters themselves, whatever the domain, with nothing but the mean */
    uint64_t began_ns; /* its last step, on this rank */
} msdu__round;

/* What this rank has to say in a round; settled when the first tensor of its last step is
 * announced. */
typedef struct msdu__voice {
    double weight;  /* of its contribution */
    bool is_absent; /* it has no more input: its gradients are neither read nor written */
} msdu__voice;

typedef enum msdu__fragment_state {
    MSDU__FRAGMENT_IDLE,
    MSDU__FRAGMENT_OPEN,
    MSDU__FRAGMENT_FAILED,
} msdu__fragment_state;

/* What is synchronized together: all slices, or one P-th of them (overlap streamed). */
typedef struct msdu__fragment {
    /* owner */
    uint64_t sync_step;  /* next step at whose end this fragment is synchronized */
    uint64_t apply_step; /* step at whose end the last one is applied */
    bool is_pending;     /* synchronized, not yet due for applying */
    uint64_t armed;      /* rounds armed */
    uint64_t from_step;  /* first step of the next round */
    uint32_t interval;   /* h, delay and wire of the next round, as decided */
    uint32_t delay_steps;
    int wire;
    msdu__round rounds[2];
    msdu__voice voices[2];
    /* communication thread */
    msdu__fragment_state state;
    uint64_t opened;        /* rounds opened */
    int link_wire;          /* format of the round before, whose time on the link is told */
    _Atomic uint64_t done;  /* rounds completed; read by the owner */
    _Atomic uint64_t heard; /* rounds whose control messages arrived; then: */
    bool is_any_absent[2];  /* by round: some, or all ranks have no more input */
    bool are_all_absent[2];
    msdu__decision decisions[2]; /* by round; the owner reads that of the round before the last */
    msdu__tuning tunings[2];     /* likewise */
    msdu__round round;
    bool may_apply;
    uint32_t slice_count;
    uint32_t *members;    /* its slices, as the slicer ordered them */
    uint32_t *plan;       /* issue order: indices into members */
    uint64_t queue_begin; /* positions of its slices in the queue: begin .. begin + slice_count */
    uint32_t captured;
    uint32_t issued;
    uint32_t reduced;
    msdu__sums sums;
    uint32_t bad_tensor;
    uint64_t mark;   /* passes that the control message, or the end of the round, waits for */
    bool is_marked;  /* `mark` is of the present wait */
    bool is_applied; /* the passes that apply the means were launched */
    bool is_skipped; /* gradients of this round are dropped on all ranks (check_finite skip) */
    bool is_passed;  /* some of them are NaN on all ranks, as the trainer wants it (pass) */
    bool is_void;    /* all weights are 0: nothing changes */
    double scale;    /* ranks / sum of weights; 1: the mean needs no more than 1 / ranks */
    double residual_sq;
    double mean_sq;
    float sketch[MSDU__SKETCH];
    uint64_t bytes;
    uint64_t blocked_ns;   /* the owner's, when the last control message left; and then, too: */
    uint64_t told_ns;      /* time; 0: no message left yet */
    uint64_t computing_ns; /* processor time of this process */
    uint64_t stolen_ns;    /* time that a hypervisor took from all cores */
    uint64_t opened_ns;
    uint64_t control_issued_ns;
    uint64_t plan_issued_ns;
    bool is_control_issued;
    bool is_control_done;
    msdu_req *control_req;
    msdu__control *control; /* one per rank */
    msdu_req *plan_req;     /* order on its way from rank 0 */
    uint32_t *plan_next;    /* order being received */
    uint64_t plan_hash;
    bool wants_plan; /* rank 0 */
} msdu__fragment;

typedef struct msdu__pipeline {
    msdu__settings settings;
    msdu__log log;
    msdu__clock_fn clock;
    const msdu_backend *backend;
    msdu_host host;
    msdu_comm *comm;
    int32_t rank;
    int32_t ranks;
    long cores;        /* of this host */
    double core_share; /* cores of this host for each process where ranks outnumber them, else 0 */

    const msdu_device *device; /* where tensors are; NULL: host memory */

    msdu__tensor *tensors;
    void *tensor_names; /* a tree, to find names that are used twice */
    uint32_t tensor_count;
    uint64_t tensor_bytes; /* of all, as doubles */
    uint32_t forks;        /* of the process that made it; guard.h */

    /* built by start, and anew by reslice.c */
    msdu__tuning tuning; /* in use; changes while nothing moves */
    msdu__slicing slicing;
    msdu__run *runs;
    msdu_sums *captured; /* sums of passes by segment, as the capture found them */
    msdu_sums *applied;  /* and as the correction did */
    uint32_t *tensor_slices;
    msdu__fragment fragments[MSDU__FRAGMENTS_MAX];
    uint32_t fragment_count;
    uint32_t slice_bound;  /* slices of model tensors */
    uint32_t buffer_bound; /* then of buffers, then of optimizer state */
    msdu__slot slots[MSDU__WINDOW_MAX];
    void **blocks; /* allocations to free */
    uint32_t block_count;
    void *device_blocks[MSDU__DEVICE_BLOCKS_MAX];
    bool device_block_shared[MSDU__DEVICE_BLOCKS_MAX];
    uint32_t device_block_count;
    uint64_t element_count; /* model elements synchronized */
    uint64_t plain_bytes;   /* of one float32-equivalent allreduce of everything */
    msdu__chain chain;
    msdu__chain mean_chain; /* of rounds that are exact */
    const msdu__policy *policy;
    msdu__interval_args interval_args;

    /* owner */
    uint64_t step;
    uint32_t sync_mask; /* fragments that meet at the end of this step */
    bool is_gradient;   /* present domain */
    bool is_accumulated;
    bool is_local_entered;   /* anchors are set */
    bool is_backward_closed; /* the owner waited for a gradient in this step */
    bool is_deferred; /* it did not in the step before: it may wait for those gradients now */
    _Atomic uint32_t announced; /* kinds of memory of which something was, in this step */
    double weight;              /* of this rank, from the next step on */
    bool is_absent;             /* inside msdu_join() */
    bool was_uneven;            /* ranks had different numbers of gradients; see enter_local() */
    uint64_t reached;           /* there: the step before which this rank ran out of input */
    bool is_started;
    bool is_finished;
    bool is_resumed;                           /* a state was set */
    uint64_t resumed_step;                     /* its step */
    msdu__tuning tuning_next;                  /* the change that the owner waits for */
    struct msdu__state_call *state_call;       /* while the owner waits for it; state.c */
    bool (*carried)(struct msdu__pipeline *p); /* what it waits for, see msdu__handoff_carry() */
    uint64_t run_name;                         /* of the run a state came from; 0: none */
    _Atomic uint64_t start_ns;                 /* 0: not started */
    _Atomic uint64_t step_count;               /* step, for the summary */
    uint64_t step_began_ns;
    uint64_t step_blocked_ns;
    _Atomic uint64_t blocked_ns;
    _Atomic uint64_t cpu_ns; /* of the communication thread, when its latest round ended */
    _Atomic double step_ns;  /* smoothed step time without waiting */
    _Atomic double lr;
    _Atomic double loss;
    _Atomic uint64_t step_start_ns;
    _Atomic bool is_first_call; /* accumulated domain: dampening starts after the first call */

    /* communication thread */
    msdu__worker worker;
    msdu__ready ready;
    bool slices_are_whole; /* one fragment holds all slices (gradient domain) */
    uint32_t *queue;       /* slices in issue order, ring */
    uint64_t queue_mask;
    uint64_t queue_tail;
    uint64_t queue_first;  /* next to start */
    uint64_t queue_second; /* next whose all-gather may start */
    uint64_t queue_oldest; /* oldest not reduced */
    uint32_t in_flight;
    uint64_t flight_began_ns;
    double link_ns; /* of the present round */
    double last_link_ns;
    uint64_t queued_ns;    /* its time on a run queue, when the latest round ended; 0: none did */
    double last_queued_ns; /* of that round */
    double latency_ns;
    uint64_t lane_sequence[2 * MSDU__LANES_MAX + 2];
    uint32_t active[MSDU__FRAGMENTS_MAX]; /* open fragments in order of opening */
    uint32_t active_count;
    msdu__interval_state interval_state;
    msdu__decision decision; /* the latest */
    bool may_cut;            /* slices may be cut anew; equal on all ranks, as is: */
    bool is_tuned;           /* they are, as measured */
    bool is_recut;           /* they are, as measured or as the wire changes */
    bool is_narrowed;        /* a narrow round was heard: cuts are the wire's, and not measured */
    msdu__tuning tuning_first;
    msdu__tuner tuner;
    msdu__tuner_args tuner_args;
    uint64_t *control_shares; /* sizeof(msdu__control) for every rank */
    char metrics_path[MSDU__SETTING_BYTES];
    msdu__trace *trace;
    double norm_average; /* clip: running norm of the mean pseudo-gradient */
    uint64_t metrics_due_ns;
    bool waits_for_device; /* a mark was not reached when last looked at */
    uint64_t backoff_ns;   /* backends that cannot notify */
    msdu__plan_item *plan_items;
    uint32_t *plan_marks;
    uint64_t *plan_ends;
    msdu__correct_args correct_args;

    /* shared, under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    msdu_summary summary;
    char failure[MSDU__TEXT_BYTES];
    char io_failure[MSDU__TEXT_BYTES];
    char skip_text[MSDU__TEXT_BYTES]; /* why the gradients of the latest skipped step are NaN */
    _Atomic uint64_t skipped;         /* 1 + that step; written after skip_text; 0: none */
    _Atomic int status;               /* first failure; written under lock */
    _Atomic uint32_t waiters;         /* owner waits on `changed` */
    _Atomic uint64_t progress;        /* rises whenever the communication thread got on */
    _Atomic bool is_still;            /* it has seen the failure and touches nothing any more */
    bool has_aborted; /* the communication thread's; the owner's where that does not run */
    _Atomic bool is_sequential; /* gradients are waited for one by one: the plan stays */
    _Atomic bool is_drained;
    _Atomic bool is_carried;
} msdu__pipeline;

/* The public handle. */
struct msdu_ctx {
    msdu__pipeline pipeline;
};

/* Ready queue values: a slice, or a command from the owner. */
#define MSDU__COMMAND_OPEN   0x80000000U /* | fragment: its next round begins */
#define MSDU__COMMAND_APPLY  0x40000000U /* | fragment: its results may be applied */
#define MSDU__COMMAND_ANCHOR 0x20000000U /* set all anchors from the parameters */
#define MSDU__COMMAND_DRAIN  0x10000000U /* tell when what was captured has ended */
#define MSDU__COMMAND_CARRY  0x08000000U /* call `carried` until it returns true */
#define MSDU__COMMAND_RESET  0x04000000U /* zeros in optimizer state (setting state = reset) */
#define MSDU__COMMAND_VALUE  0x03ffffffU
_Static_assert(MSDU__SLICES_MOST == MSDU__COMMAND_VALUE + 1, "a slice is no command");

/* --- pipeline.c: the communication thread's side --- */
/* One step of everything that can progress; returns as msdu__worker_fn. user: the pipeline. */
uint64_t msdu__pipeline_advance(void *user);
/* Record the first failure and wake everybody. Thread: any; what is in flight is ended by
 * msdu__pipeline_end(). */
void msdu__pipeline_fail(msdu__pipeline *p, msdu_status status, const char *text);
/* After a failure: end what is in flight, once. The communication thread, which then stands still;
 * the owner where that does not run. So one thread at a time is inside the backend. */
void msdu__pipeline_end(msdu__pipeline *p);
uint64_t msdu__pipeline_now(const msdu__pipeline *p);
/* Failure of the context, with its text as this thread's; MSDU_OK if none. */
msdu_status msdu__pipeline_status(msdu__pipeline *p);
/* Give a slice back to its tensors' users. */
void msdu__pipeline_release(msdu__pipeline *p, uint32_t slice, msdu_what what);
/* Wake an owner that waits. */
void msdu__pipeline_wake(msdu__pipeline *p);
/* Counters as they are now. Thread: any. */
void msdu__pipeline_summary(msdu__pipeline *p, msdu_summary *summary_out);
/* Remember that a file could not be written; training goes on. */
void msdu__pipeline_io(msdu__pipeline *p, msdu_status status);
/* ERR_TIMEOUT with text if an operation started then is past the deadline, else IN_PROGRESS. A
 * backend that knows the cause said so before; this is the last resort. */
msdu_status msdu__pipeline_overdue(msdu__pipeline *p, uint64_t since_ns, const char *what);
/* Start one backend operation on a lane. */
msdu_status msdu__pipeline_start(msdu__pipeline *p, msdu_op *op, uint32_t lane, msdu_req **req_out);

/* --- order.c: may the next slice start its first phase, or its all-gather; may the round's control
 * message leave? f: of that slice --- */
bool msdu__order_may_first(const msdu__pipeline *p, const msdu__fragment *f);
bool msdu__order_may_second(const msdu__pipeline *p, const msdu__fragment *f);
bool msdu__order_may_control(const msdu__pipeline *p, const msdu__fragment *f);

/* --- domain.c: what a slice means in each domain --- */
/* buf <- what is to be reduced. */
void msdu__domain_capture(msdu__pipeline *p, msdu__fragment *f, uint32_t slice);
/* Statistics of what was captured, once those passes are done. */
void msdu__domain_sums(msdu__pipeline *p, msdu__fragment *f);
/* A new round: nothing was found in a slice yet. */
void msdu__domain_forget_sums(msdu__pipeline *p, uint32_t slice);
/* The mean has arrived in buf: scale it if needed, unpack gradients. */
void msdu__domain_reduced(msdu__pipeline *p, msdu__fragment *f, uint32_t slice);
/* Is a slice given back as soon as its mean has arrived (setting commit = tensor)? */
bool msdu__domain_commits_slice(const msdu__pipeline *p, const msdu__fragment *f);
/* The round is complete: correct parameters or gradients of one slice. */
void msdu__domain_apply(msdu__pipeline *p, msdu__fragment *f, uint32_t slice);
/* Accumulated domain, a call on which ranks do not meet. */
void msdu__domain_local(msdu__pipeline *p, uint32_t slice);
/*
 * x += factor times what error feedback still holds back, which is then none: before a float32
 * reduction. own: what the reduction will divide by, for the part held back from the mean.
 */
void msdu__domain_flush(msdu__pipeline *p, float *x, uint32_t slice, double factor, double own);
/* Remember the error feedback, as long as the round that changes it may still be skipped. */
void msdu__domain_keep(msdu__pipeline *p, uint32_t slice);
/* Nothing is held back any more. */
void msdu__domain_clear(msdu__pipeline *p, uint32_t slice, bool is_late);
/* The round is skipped: gradients <- NaN, error feedback as it was before. */
void msdu__domain_skip(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice);
/* Zeros in registered optimizer state; then it is given back. */
void msdu__domain_reset(msdu__pipeline *p);
/* anchors <- parameters */
void msdu__domain_anchor(msdu__pipeline *p);
/* parameters <- anchors */
void msdu__domain_rollback(msdu__pipeline *p);
/* Accumulated domain: parameters were just averaged, there is no drift. */
void msdu__domain_forget(msdu__pipeline *p, uint32_t slice);
/* Where the reduction of a slice happens. */
void *msdu__domain_buffer(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice);

/* --- round_open.c, round.c: begin and end of a round --- */
/* Orders of all fragments as the slicer cut them. */
void msdu__round_orders(msdu__pipeline *p);
/* Leave the gradient domain: anchors <- parameters, fragments as overlap wants them. */
void msdu__round_enter_local(msdu__pipeline *p);
void msdu__round_open(msdu__pipeline *p, uint32_t fragment);
/* Have all passes ended that were launched before the first of these calls? */
bool msdu__round_passes_done(msdu__pipeline *p, msdu__fragment *f);
/* Try to end a round: all reduced, control arrived, due. True if something was done. */
bool msdu__round_finish(msdu__pipeline *p, msdu__fragment *f);
/* True once everything captured has ended; rounds that were only opened stay so. */
bool msdu__round_drain(msdu__pipeline *p);

/* --- control.c: the control message of a round --- */
/* Start it once all slices are on their way. True if it was started. */
bool msdu__control_start(msdu__pipeline *p, msdu__fragment *f);
/* Poll the control message and a plan on its way. */
bool msdu__control_poll(msdu__pipeline *p, msdu__fragment *f);
/* --- message.c: what those of all ranks say --- */
/* Did all ranks capture the same parameters? Then these are the mean, and nothing is applied. */
bool msdu__message_is_equal(const msdu__pipeline *p, const msdu__fragment *f);
/* Of all ranks, in rank order. */
double msdu__message_weights(const msdu__pipeline *p, const msdu__fragment *f);

/* --- cores.c: ranks that take turns on cores --- */
/* Of what the owner waited since the last control message of `f`, at most: what left a core of this
 * host idle. Communication thread; once for each message. */
double msdu__cores_alone(const msdu__pipeline *p, msdu__fragment *f, double waited_ns);
/* How long the calling thread was ready to run and waited for a core, since it began; 0: not told.
 */
uint64_t msdu__cores_queued_ns(void);
uint64_t msdu__cores_thread_ns(void); /* processor time of the calling thread */

/* --- decide.c: the decision behind a round --- */
void msdu__decide(msdu__pipeline *p, msdu__fragment *f);
/* A round that changed nothing: no statistics, so the latest decision stays. */
void msdu__decide_repeat(msdu__pipeline *p, msdu__fragment *f);

/* Control messages have a lane of their own, behind those of both phases of slices; plans the next.
 */
static inline uint32_t msdu__control_lane(const msdu__pipeline *p)
{
    return (uint32_t)(2 * p->settings.lanes);
}

/* --- replan.c: renewal of the plan --- */
/* Remember when a slice was ready and how long it took. */
void msdu__replan_note(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice);
/* End of a round: look at the plan now and then; renew it where rank 0 asked for it. */
void msdu__replan_review(msdu__pipeline *p, msdu__fragment *f);
/* Rank 0's order has arrived. */
void msdu__replan_take(msdu__pipeline *p, msdu__fragment *f);

/* --- tune.c: size of slices and window, as measured --- */
/* May this context's slices be cut anew? Sets what the tuner has to know; only before the start. */
void msdu__tune_prepare(msdu__pipeline *p);
/* Measure anew from the present tuning on, whatever was decided. */
void msdu__tune_begin(msdu__pipeline *p);
/* End of a round: what the ranks shall change to, in values that are equal on all of them. */
void msdu__tune_hear(msdu__pipeline *p, msdu__fragment *f, const msdu__round_stats *stats);
/* Rounds of a wire, where nothing was measured: as float32 was cut first, in as many lanes. */
msdu__tuning msdu__tune_of_wire(const msdu__pipeline *p, int wire, uint32_t lanes);

/* Number of the latest announcement of a tensor's memory, as passes name it. */
static inline uint32_t msdu__announcement(uint32_t tensor, msdu_what what)
{
    return 1 + 2 * tensor + (what == MSDU_GRADIENT ? 0 : 1);
}

/* tensor.c: what was added. */
void msdu__tensors_free(msdu__pipeline *p);

/* Where tensors and slices are. */
static inline uint32_t msdu__place(const msdu__pipeline *p)
{
    return p->device != NULL ? MSDU_PLACE_DEVICE : MSDU_PLACE_HOST;
}

/* Fragment of a slice at present. */
static inline uint32_t msdu__fragment_of(const msdu__pipeline *p, uint32_t slice, bool is_gradient)
{
    return is_gradient ? 0 : p->slicing.slices[slice].fragment;
}

/* What this rank says in the round under way; only after something of its last step was announced.
 */
static inline const msdu__voice *msdu__voice_of(const msdu__fragment *f)
{
    return &f->voices[(f->opened - 1) & 1];
}

#endif
