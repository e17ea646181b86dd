/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msdu.h - public interface for trainers.
 *
 * Rules that hold for every function here:
 *  - Pointer arguments must not be NULL unless the comment says so.
 *  - Argument order: handle, inputs, outputs. Outputs are written only on MSDU_OK.
 *  - Sizes are bytes unless the name says count (elements) or steps; times are nanoseconds (_ns).
 *  - A function is owner-thread-only unless its comment says "Thread: any". The owner is the
 *    thread that called msdu_create().
 *  - A context belongs to the process that made it: in a child of fork() every call is refused
 *    with ERR_INVALID, and msdu_destroy() touches nothing of the parent's.
 *  - No function prints, exits or aborts. A negative status comes with one line of text,
 *    msdu_last_error(), kept per thread.
 *  - A failure on the communication thread makes the context *failed*: every later call returns
 *    the same status and text until msdu_destroy(). Parameters are then as they were after the
 *    last complete slice set, never part of a round.
 *
 * One training step, the same calls in every domain (those that the present domain does not
 * need return at once):
 *
 *     backward:  msdu_tensor_ready(ctx, id, MSDU_GRADIENT)        as each gradient is final
 *     optimizer: msdu_tensor_wait(ctx, id, MSDU_GRADIENT)         before the gradient is read
 *                ... update the parameter ...
 *                msdu_tensor_ready(ctx, id, MSDU_PARAMETER)       after it was updated
 *     msdu_step(ctx)
 *     forward:   msdu_tensor_wait(ctx, id, MSDU_PARAMETER)        before the parameter is touched
 *
 * With setting ranks_least a lost rank is no failure, and ranks may join. A call that meets such a
 * change blocks until the next group is there, and returns MSDU_REGROUPED. Parameters are then
 * equal on all ranks, and nothing is announced. Where a wait for gradients says it, those of this
 * step are lost: make no update and no msdu_step(), and begin the next step. Elsewhere go on as
 * after MSDU_OK. No other thread may be in a call of this context meanwhile.
 */
#ifndef MSDU_MSDU_H
#define MSDU_MSDU_H

#include <msdu/config.h>

#include <stddef.h>
#include <stdint.h>

#define MSDU_VERSION_MAJOR 0
#define MSDU_VERSION_MINOR 3
#define MSDU_VERSION_PATCH 0

#if defined(__GNUC__)
#define MSDU_API        __attribute__((visibility("default")))
#define MSDU_MUST_CHECK __attribute__((warn_unused_result))
#else
#define MSDU_API
#define MSDU_MUST_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One line per status keeps enum, name and text in step. Values are never reused. */
#define MSDU_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "operation still in flight")                                                 \
    X(REGROUPED, 2, "the group of ranks has changed")                                              \
    X(ERR_INVALID, -1, "invalid argument or setting")                                              \
    X(ERR_UNSUPPORTED, -2, "not supported by this build or backend")                               \
    X(ERR_NOT_FOUND, -3, "not found")                                                              \
    X(ERR_NO_MEMORY, -4, "out of memory")                                                          \
    X(ERR_STATE, -5, "call out of order")                                                          \
    X(ERR_MISMATCH, -6, "ranks disagree")                                                          \
    X(ERR_TIMEOUT, -7, "deadline passed")                                                          \
    X(ERR_PEER_LOST, -8, "a rank was lost")                                                        \
    X(ERR_NOT_FINITE, -9, "a value is NaN or infinite")                                            \
    X(ERR_IO, -10, "input or output failed")                                                       \
    X(ERR_BACKEND, -11, "the collective backend failed")                                           \
    X(ERR_DENIED, -12, "the rendezvous refused this process")

typedef enum msdu_status {
#define MSDU_STATUS_ENUM(name, value, text) MSDU_##name = (value),
    MSDU_STATUS_MAP(MSDU_STATUS_ENUM)
#undef MSDU_STATUS_ENUM
} msdu_status;

/* Element types. */
typedef enum msdu_dtype {
    MSDU_FLOAT32 = 0,
    MSDU_FLOAT64 = 1,
    MSDU_FLOAT16 = 2,  /* IEEE 754 binary16; sums accumulate in float32 */
    MSDU_BFLOAT16 = 3, /* upper half of float32; sums accumulate in float32 */
} msdu_dtype;

/* What a tensor is to the trainer. */
typedef enum msdu_role {
    MSDU_ROLE_MODEL = 0, /* a parameter and its gradient */
    MSDU_ROLE_STATE = 1, /* optimizer state; `parameter` points at it, see setting `state` */
    /* what a model carries beside its parameters, such as BatchNorm's running statistics;
     * `parameter` points at it. Averaged as it is (never narrowed, corrected or measured) at every
     * synchronization of parameters and at the end; else left alone */
    MSDU_ROLE_BUFFER = 2,
    MSDU_ROLE_FIXED = 3, /* a frozen parameter, a table: `parameter` is compared or broadcast by
                            msdu_start(), as bytes, and never exchanged */
} msdu_role;

/* Which memory of a tensor a call speaks of; bits, may be joined. */
typedef enum msdu_what {
    MSDU_GRADIENT = 1,
    MSDU_PARAMETER = 2,
    /* With MSDU_GRADIENT in msdu_tensor_wait(), setting commit = tensor: this tensor was announced,
     * others of the step may not have their values yet, and are not taken as they are. For a
     * trainer that reduces one after another, announcing them in the order of adding; small ones
     * must not be fused (fuse_bytes = 0). */
    MSDU_ALONE = 4,
    /* Beside MSDU_ALONE: do not block, return MSDU_IN_PROGRESS instead. */
    MSDU_NOW = 8,
} msdu_what;

/* Where a tensor's memory is; the same for all tensors of a context. */
typedef enum msdu_place {
    MSDU_PLACE_HOST = 0,
    MSDU_PLACE_DEVICE = 1, /* of the backend's device: the one current at msdu_start() */
} msdu_place;

/* All tensors, for msdu_tensor_wait(). */
#define MSDU_ALL_TENSORS UINT32_MAX

typedef struct msdu_ctx msdu_ctx;

/*
 * A tensor of the trainer. A model tensor needs `parameter`, `gradient` or both: both let the
 * controller move between the gradient and the parameter domain.
 */
typedef struct msdu_tensor_desc {
    size_t size;      /* sizeof(msdu_tensor_desc); use MSDU_TENSOR_INIT */
    const char *name; /* copied; not empty, unique in the context, at most 255 bytes */
    void *parameter;  /* count elements, contiguous, aligned to the element; borrowed, see
                         msdu_tensor_add() */
    void *gradient;   /* the same shape and dtype, or NULL */
    uint64_t count;   /* elements, at least 1 */
    int32_t dtype;    /* msdu_dtype */
    int32_t role;     /* msdu_role */
    int32_t priority; /* order of need in the next forward, small first; ties: order of adding */
    int32_t place;    /* msdu_place of parameter and gradient */
} msdu_tensor_desc;

#define MSDU_TENSOR_INIT MSDU_SIZED(msdu_tensor_desc)

/* What happened so far; see msdu_summary_get(). */
typedef struct msdu_summary {
    size_t size;             /* sizeof(msdu_summary); set by the caller */
    uint64_t steps;          /* msdu_step() calls */
    uint64_t rounds;         /* synchronizations completed; one counts when all its work is done,
                                a moment after its last tensor is free */
    uint64_t bytes_sent;     /* payload this rank sent for synchronizations */
    uint64_t bytes_plain;    /* what an allreduce a step, in the tensors' types, would send */
    uint64_t wait_ns;        /* owner blocked in step, wait and finish */
    uint64_t elapsed_ns;     /* since msdu_start() */
    uint64_t plan_renewals;  /* times the order of slices was renewed */
    uint64_t interval_steps; /* h of the last round, as it was carried out */
    double drift;            /* relative drift of the last round: V / |w|^2 */
    double divergence;       /* gradient divergence a / b of the last round, 1 .. ranks */
    int32_t rank;            /* this rank */
    int32_t ranks;           /* size of the group */
    const char *wire;        /* static; format of the last round, likewise */
    const char *domain;      /* static; domain now */
    const char *interval;    /* static; policy */
    char reason[128];        /* the policy's last reason, one line: of a round to come */
    uint64_t cpu_ns;         /* processor time of the communication thread, as of the latest
                                synchronization; threads of a backend come on top */
    uint64_t slice_bytes;    /* largest slice now */
    uint32_t window;         /* slices in flight now */
    uint32_t slice_cuts;     /* times slices, window or lanes were chosen anew */
    uint32_t lanes;          /* lanes in use now */
    uint64_t missed;         /* rounds by the clock in which this rank had ended no step in time
                                (setting uneven); it came in a later one */
    uint64_t network_ns;     /* of the ranks' waiting: what the one that waited least did, for the
                                network; summed over rounds */
    uint64_t straggler_ns;   /* and what ranks waited more, on average: for slower ranks */
    uint64_t common_steps;   /* steps of the average rank, as of the latest round; pace schedules
                                by these (setting uneven) */
    const char *state;       /* static; exact, local or clock: how ranks synchronize now */
    uint64_t bytes_inside;   /* given to ranks of its host; not in bytes_sent */
    uint32_t hosts;          /* of this job; 0: not known yet */
    uint32_t carriers; /* ranks of each that exchange local steps with the other hosts, for all
                          of the host (setting hosts); 0: all ranks are one group */
    uint32_t gradient_ranks; /* over which gradients are averaged now: all, in local steps those of
                                this host (setting hosts), or this one alone */
    uint64_t epoch;          /* number of the present group of ranks (setting ranks_least); 0: the
                                group is fixed */
    uint32_t ranks_lost;     /* ranks that were lost, as far as this one was there */
    uint32_t ranks_joined;   /* and that joined */
    int32_t has_given;       /* 1, on all ranks: when the group changed last, some rank took
                                rank 0's parameters, so it needs the rest as well (msdu_share) */
    int32_t was_given;       /* 1: this rank did: as a newcomer, or as it had missed a step's end */
} msdu_summary;

#define MSDU_SUMMARY_INIT MSDU_SIZED(msdu_summary)

/* How far a rank's optimizer is from the others', and what optimizer that is
 * (msdu_local_drift_get). */
typedef struct msdu_local_drift {
    size_t size;     /* sizeof(msdu_local_drift); set by the caller */
    void *parameter; /* set by the caller: receives how far the parameters have moved since the
                        ranks met last */
    void *momentum;  /* set by the caller: receives what the momentum buffer holds beyond what
                        all ranks have in common */
    double lr;       /* settings, and the latest msdu_set_lr() */
    double mu;       /* momentum */
    double dampening;
    double weight_decay;
    int32_t is_nesterov; /* 0 or 1 */
} msdu_local_drift;

#define MSDU_LOCAL_DRIFT_INIT MSDU_SIZED(msdu_local_drift)

/* Work that ranks divide among them by speed (msdu_next). One struct for each set of samples. */
typedef struct msdu_work {
    size_t size;       /* sizeof(msdu_work); use MSDU_WORK_INIT */
    uint64_t total;    /* samples of an epoch, at least 1 */
    uint64_t batch;    /* samples that a rank takes in a step where all are equally fast; all ranks
                          together take ranks times that in a step, whatever their speeds */
    uint64_t ahead;    /* steps that pieces are drawn ahead of training, at most; 0 .. 64 */
    uint64_t position; /* samples that all ranks together have drawn of this epoch; set to 0 it
                          begins the next one, set to a value kept it goes on from there */
    uint64_t step;     /* that the next piece is for; 0: the one about to run */
    uint64_t begin;    /* received: this rank's piece, begin .. end - 1 of total */
    uint64_t end;
} msdu_work;

#define MSDU_WORK_INIT MSDU_SIZED(msdu_work)

/* One setting, as `msdu info` prints it. All strings are static. */
typedef struct msdu_setting_info {
    size_t size;              /* sizeof(msdu_setting_info); set by the caller */
    const char *name;         /* as in an ini file */
    const char *environment;  /* MSDU_... */
    const char *type;         /* "text", "integer", "real", "choice" */
    const char *default_text; /* default as text; "" if none */
    const char *range;        /* "1 .. 64", or the choices */
    const char *help;         /* one line */
} msdu_setting_info;

#define MSDU_SETTING_INFO_INIT MSDU_SIZED(msdu_setting_info)

/* What a setting is, and who said so. */
typedef struct msdu_resolved {
    size_t size;      /* sizeof(msdu_resolved); set by the caller */
    char text[512];   /* the value as an ini file holds it; "": an empty text, or the secret */
    char origin[512]; /* "MSDU_WIRE", "run.ini:3: wire", "msdu_config.wire"; "": the default */
} msdu_resolved;

#define MSDU_RESOLVED_INIT MSDU_SIZED(msdu_resolved)

/* "MAJOR.MINOR.PATCH" of the loaded library; static. Thread: any. */
MSDU_API const char *msdu_version(void);

/* Symbolic name, such as "MSDU_ERR_TIMEOUT"; "MSDU_UNKNOWN" if there is none. Thread: any. */
MSDU_API const char *msdu_status_name(msdu_status status);

/* Short text for a status; static. Thread: any. */
MSDU_API const char *msdu_status_text(msdu_status status);

/*
 * One line that names the cause of this thread's latest failing call, with rank and setting where
 * they apply; "" if none failed. Valid until the thread's next failing call. Thread: any.
 */
MSDU_API const char *msdu_last_error(void);

/*
 * Create a context: read settings, load the backend module. No connection is made yet.
 *
 * config  zero-initialised with MSDU_CONFIG_INIT; copied. NULL: all defaults
 * ctx_out receives the context; release it with msdu_destroy()
 * Returns MSDU_OK, ERR_INVALID (a bad value; the text names setting, value and range),
 * ERR_NOT_FOUND (no such backend or file), ERR_UNSUPPORTED (struct from a newer header),
 * ERR_NO_MEMORY.
 * Thread: any; the calling thread becomes the owner.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_create(const msdu_config *config, msdu_ctx **ctx_out);

/*
 * Add a tensor, before msdu_start(), in the same order on every rank.
 *
 * desc   copied; the memory it points at is borrowed until msdu_tensor_set() or msdu_destroy()
 * id_out receives 0, 1, 2, ... in order of adding; may be NULL
 * Returns MSDU_OK, ERR_INVALID, ERR_STATE (after start), ERR_NO_MEMORY.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_add(msdu_ctx *ctx, const msdu_tensor_desc *desc,
                                                     uint32_t *id_out);

/*
 * Tell where a tensor's memory is from now on, such as a gradient that the framework allocates
 * anew every step: the same count and dtype, aligned to the element.
 *
 * what MSDU_GRADIENT or MSDU_PARAMETER, one of the two, and not one that was NULL when added
 * data borrowed until the next call of this function for it, or msdu_destroy()
 * Returns MSDU_OK, ERR_INVALID (id, what, NULL, alignment), ERR_STATE (the memory is the
 * library's: it was announced, or a mean is being applied, and msdu_tensor_wait() did not return
 * yet). Never blocks, never allocates.
 * Thread: any, one at a time for a tensor; the owner must not call msdu_step() meanwhile.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_set(msdu_ctx *ctx, uint32_t id, msdu_what what,
                                                     void *data);

/*
 * Join the group, compare tensors and settings with all ranks, broadcast rank 0's parameters if
 * asked, allocate everything, start the communication thread. Blocks until all ranks came or the
 * deadline passed.
 *
 * Returns MSDU_OK, ERR_MISMATCH (names the first difference and the ranks), ERR_TIMEOUT (names
 * the missing ranks), ERR_DENIED, ERR_PEER_LOST, ERR_BACKEND, ERR_INVALID, ERR_STATE,
 * ERR_NO_MEMORY.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_start(msdu_ctx *ctx);

/*
 * Say that a tensor's gradient or parameter has its final value of this step. From here until
 * msdu_tensor_wait() for it returned the memory belongs to the library. At most once per tensor,
 * step and kind. A tensor that was not announced is taken as it is when the owner first waits
 * for a gradient (gradients) or calls msdu_step() (parameters).
 *
 * Returns MSDU_OK, ERR_INVALID (id, what, or announced twice in a step), ERR_STATE (before
 * start), or, for a gradient, the context's failure. Never blocks, never allocates.
 * Thread: any; the owner must not call msdu_step() meanwhile.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_ready(msdu_ctx *ctx, uint32_t id, msdu_what what);

/*
 * As msdu_tensor_ready(), for memory of a device: it has its final value behind the work that
 * `stream` (a cudaStream_t) was given so far, which need not be done. After the plain call, and for
 * tensors that were not announced, the caller has made sure that it is.
 *
 * Returns as msdu_tensor_ready(); ERR_UNSUPPORTED (tensors of the host), ERR_BACKEND.
 * Thread: any; the owner must not call msdu_step() meanwhile.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_ready_on(msdu_ctx *ctx, uint32_t id,
                                                          msdu_what what, void *stream);

/*
 * As msdu_tensor_wait(), for memory of a device: what `stream` is given from here on comes behind
 * the library's work on the tensor. Blocks only until that work was launched. With commit = tensor,
 * domain = gradient and a wire that is given no launch waits for the network, so the host runs
 * ahead of the device, by a step at most.
 *
 * Returns as msdu_tensor_wait(); ERR_UNSUPPORTED (tensors of the host), ERR_BACKEND.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_wait_on(msdu_ctx *ctx, uint32_t id, msdu_what what,
                                                         void *stream);

/*
 * Wait until memory of a tensor may be used: a gradient holds its reduced value (in local steps: of
 * the ranks of this host, or its own; summary.gradient_ranks), or a parameter
 * has been read by the library and, where a synchronization is due, corrected.
 *
 * id   a tensor, or MSDU_ALL_TENSORS
 * Returns MSDU_OK, ERR_INVALID, ERR_STATE, or the context's failure: ERR_PEER_LOST,
 * ERR_TIMEOUT, ERR_NOT_FINITE, ERR_BACKEND. Where the first gradient of a round is given out, all
 * are, so that no update is half applied (setting commit = round); what failed since then is
 * returned by msdu_step().
 * With check_finite = skip, ERR_NOT_FINITE for a gradient is no failure of the context: some rank
 * (the text names it and its tensor) had a NaN or infinity, the gradients of this step are NaN on
 * all ranks, every wait for one of them says so, and the next step goes on as if the round had
 * not been. Parameters (parameter domain) and shadowed gradients (accumulated) still fail.
 * With check_finite = propagate, for trainers that look themselves (as AMP's loss scaling does), a
 * gradient that holds NaN or infinity on some rank, or overflows in the sum, comes back so on all
 * ranks, with the other elements of its block where the wire is narrow; MSDU_OK is returned. What
 * error feedback held back is dropped on all ranks then, as the trainer will drop that step.
 * Parameters and shadowed gradients fail as with skip.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_tensor_wait(msdu_ctx *ctx, uint32_t id, msdu_what what);

/*
 * End a step. All ranks call it equally often. With overlap "blocking" it returns when a due
 * synchronization is over, else at once.
 *
 * Returns MSDU_OK, ERR_STATE, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_step(msdu_ctx *ctx);

/*
 * Have the ranks synchronize in the step about to run, whatever the interval says (domain
 * accumulated): after it their parameters are equal, up to rounding. Between steps; all ranks call
 * it before the same step.
 *
 * Returns MSDU_OK, ERR_STATE (tensors were announced already), ERR_UNSUPPORTED (another domain).
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_sync_after_step(msdu_ctx *ctx);

/*
 * Read how far local steps have led this rank (domain accumulated), tensor by tensor, even in the
 * middle of a step: for a caller that will not go on with these tensors, and joins the ranks by
 * other means. Both distances are in the units of the gradients that the trainer is given (sums,
 * with reduce = sum; an element moved by lr times 1 has moved by lr), relative to a point that all
 * ranks have in common, so that only differences between ranks mean anything. It holds for what the
 * trainer's optimizer has done, or will have, with the gradients that it was given so far.
 *
 * id        a tensor whose gradient was not announced in this step, or was waited for
 * drift_out size, parameter and momentum are set by the caller, with room in the host's memory for
 *           the tensor's elements as float64 of a float64 tensor, else float32
 * Waits for a device where tensors are in its memory.
 * Returns MSDU_OK, ERR_INVALID, ERR_STATE (not started, finished, or not waited for),
 * ERR_UNSUPPORTED (another domain), ERR_NO_MEMORY, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_local_drift_get(msdu_ctx *ctx, uint32_t id,
                                                          msdu_local_drift *drift_out);

/*
 * Tell the learning rate of the next step (accumulated domain with weight decay or a schedule,
 * policies qsr and divergence with drift_exponent > 0). All ranks pass the same value.
 *
 * Returns MSDU_OK, ERR_INVALID (not finite or negative), ERR_STATE.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_set_lr(msdu_ctx *ctx, double lr);

/*
 * Tell that the trainer changes mean gradients before its optimizer takes them, such as by clipping
 * their norm. With optimizer=sgd, wire=auto may send gradients in sparse. Their sum over steps is
 * right, but a single mean is several times as long, so clipping would shorten steps. After this
 * call gradients stay in four bits or more. One call on any rank is enough, at any time.
 *
 * Returns MSDU_OK, ERR_INVALID (NULL, or a context of the process that was forked).
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_set_clipping(msdu_ctx *ctx);

/*
 * Weight of this rank in means: sum of w x over the sum of w, over all ranks. 1 by default; 0: this
 * rank takes part and gets the mean, but its values are not used. Ranks may differ. Counts for
 * what ends with the step about to run, if nothing was announced in it yet, and from then on; of
 * the several steps of a local round the last one counts. With reduce = sum the sum is weighted.
 * If all weights are 0, gradients become 0 and parameters stay. Weights are relative; keep them
 * near 1, where compressed formats have most range.
 *
 * Returns MSDU_OK, ERR_INVALID (neither 0 nor 1e-9 .. 1e9), ERR_UNSUPPORTED (commit = tensor).
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_set_weight(msdu_ctx *ctx, double weight);

/*
 * Draw this rank's piece of a step's samples. In a step all ranks together take ranks * batch of
 * them, the last one of an epoch what is left. How many of these a rank takes follows its speed, as
 * the statistics of rounds tell it; its weight follows that. So the mean gradient is that of the
 * union of all pieces, and training is that of one process with the union as its batch. Every
 * sample of an epoch has one rank, and the epoch ends on all ranks with the same step. Nobody is
 * asked: all ranks compute the same pieces.
 *
 *     msdu_work work = MSDU_WORK_INIT;
 *     work.total = n;  work.batch = 32;                   and for every epoch:
 *     work.position = 0;
 *     while (msdu_next(ctx, &work) == MSDU_OK && work.begin < work.total) {
 *         ... samples order[work.begin] .. order[work.end - 1]: their mean gradient; msdu_step(ctx)
 *     }
 *
 * `order` is the trainer's: a permutation, the same on all ranks. All ranks make the same calls in
 * the same steps, one piece for each step; what a later call draws for the same step replaces it.
 * A piece may be empty (begin = end < total) in the last step of an epoch that has fewer samples
 * than there are ranks: the rank's gradient then counts nothing, as with weight 0. Else it has at
 * least one. At the end of the epoch begin = end = total, and there is no step to be made.
 *
 * The weight is samples / batch, times that of msdu_set_weight(). In local rounds it is that of all
 * steps of the round. A step without a piece has an even share.
 * `ahead` is for loaders that fetch pieces early: shares then follow speed that much later. All
 * ranks have the same one.
 * Shares change by a quarter in 8 steps at most, and rest while no step is 5 % longer than the mean
 * or one sample is all the difference. They are no part of msdu_state_get(): a resumed run learns
 * them anew. A sample is as likely on a fast rank as on a slow one, if `order` is shuffled.
 *
 * By the clock (setting uneven) ranks are in different steps. A rank then gets a whole batch at
 * each call, so fast ranks get more, and all ranks weigh the same. Every sample still has one rank.
 * An epoch ends on a rank when all samples are given away, in whatever step. `position` only says
 * begin (0) or end (total). An epoch is drawn to its end, else ERR_STATE. The call may wait for a
 * round.
 *
 * work  total, batch and ahead are the same on all ranks; position and step are moved on
 * Returns MSDU_OK, ERR_INVALID (a value of work), ERR_STATE (not started; the step has begun; more
 * than `ahead` steps ahead; by the clock: see above), ERR_UNSUPPORTED (commit = tensor), or the
 * context's failure. ERR_MISMATCH comes from the step, where ranks drew from different work. Only
 * by the clock it may block.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_next(msdu_ctx *ctx, msdu_work *work);

/*
 * Tell this rank's latest training loss (policy plateau). Averaged over ranks with the round.
 *
 * Returns MSDU_OK, ERR_INVALID (not finite).
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_set_loss(msdu_ctx *ctx, double loss);

/*
 * Between steps, all ranks after the same step: finish what is in flight, then one exact, blocking
 * average of all buffers and of all model tensors that have a parameter, so that all ranks hold
 * the same bits (evaluation, checkpoint). Training goes on afterwards; when the ranks synchronize
 * next does not change, and a mean that was to be applied later is applied now. No tensor of the
 * present step may have been announced, and the trainer must not touch parameters meanwhile.
 *
 * Returns MSDU_OK, ERR_STATE, ERR_UNSUPPORTED (accumulated domain without parameters), or the
 * context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_synchronize(msdu_ctx *ctx);

/*
 * Between steps, all ranks after the same step: take bytes from rank 0, such as the optimizer's
 * state, the schedule's or the position in the data, after the group has changed (setting
 * ranks_least; summary.has_given). Blocks. With no bytes, which no rank waits for, this rank says
 * that it has all now; until then summary.has_given stays set through further changes.
 *
 * data  of rank 0: read; of others: written
 * bytes the same on all ranks
 * Returns MSDU_OK, MSDU_REGROUPED (the group changed again; data is of no use), ERR_STATE,
 * ERR_INVALID, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_share(msdu_ctx *ctx, void *data, size_t bytes);

/*
 * This rank has no more input: take part with weight 0 in everything that the others still do,
 * until all ranks called this function. Between steps; all ranks call it at the end of an epoch, in
 * which they may have made different numbers of steps. Returns after the same step on all ranks,
 * and training may go on with the next epoch; as after msdu_step(), wait for parameters before they
 * are touched.
 * Gradients of this rank are neither read nor written meanwhile. Parameter domain: its parameters
 * follow the means of the others; local steps that it made since the ranks met last do not count.
 * Gradient domain: parameters, and optimizer state added with role MSDU_ROLE_STATE, become those of
 * a rank that had input longest. Momentum that was not added stays behind, and leads parameters
 * apart until they are averaged: by msdu_synchronize(), or by the change to the parameter domain.
 * Accumulated domain:
 * parameters become the mean of the ranks that had input longest.
 * Rounds by the clock (uneven = clock): what this rank has done counts first; ranks come here, and
 * to msdu_synchronize() and msdu_finish(), after different numbers of steps.
 *
 * Returns MSDU_OK, ERR_STATE, ERR_UNSUPPORTED (commit = tensor, or a model tensor without
 * parameter), or the context's failure: ERR_TIMEOUT if the others do not come.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_join(msdu_ctx *ctx);

/*
 * End training: finish what is in flight, then one exact, blocking average of all buffers and of
 * all model tensors that have a parameter, so that every rank ends with the same bits. All ranks
 * call it after the same step. Afterwards only summary, rollback and destroy are allowed.
 *
 * Returns MSDU_OK, ERR_IO (the training is complete, but the trace or metrics file could not be
 * written), ERR_STATE, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_finish(msdu_ctx *ctx);

/*
 * Put the parameters back to the last completed round, the value on which all ranks agreed. For
 * a context in the parameter domain, failed or not, between steps.
 *
 * Returns MSDU_OK, ERR_STATE (no completed round to go back to).
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_rollback(msdu_ctx *ctx);

/*
 * Write down this rank's synchronization state, between two steps, for a checkpoint: anchors, error
 * feedback, outer momentum, the accumulated domain's recursion, policy and schedule, means that
 * have arrived but are not due yet (overlap delayed and streamed), and the counters of the summary.
 * Not in it: parameters, gradients, and the optimizer's state, which are the trainer's to save.
 *
 * Waits until everything that was sent has arrived, so that other ranks have to come to the same
 * step; they need not call this function. Nothing is changed: training goes on as if it had not
 * been called. By the clock (setting uneven) ranks are in different steps, so all of them call
 * msdu_synchronize() before, with no step in between. When it returns, parameters and gradients are
 * the trainer's until it announces or waits again, so the parameters to be saved beside the state
 * are those after this call. A trainer that defers its optimizer to the next forward pass runs it
 * first.
 *
 * data      receives the state, little-endian, any alignment; NULL: only ask for the size
 * bytes     room at data
 * bytes_out receives the size of the state
 * Returns MSDU_OK, ERR_INVALID (too little room; the text names the size), ERR_STATE (not between
 * start and finish, or tensors were announced since the last msdu_step(); by the clock, steps since
 * msdu_synchronize()), ERR_NO_MEMORY, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_state_get(msdu_ctx *ctx, void *data, size_t bytes,
                                                    size_t *bytes_out);

/*
 * Go on from a state: once, after msdu_start() and before the first step. All ranks call it, each
 * with the state of its own rank, all of one and the same step; it blocks until all have. With the
 * policy "fixed" training then goes on bit by bit as if it had not been interrupted; other policies
 * also measure time.
 *
 * In this order: msdu_create(), msdu_tensor_add(), msdu_start() with parameters that are equal on
 * all ranks (or broadcast = yes), msdu_state_set(), and only then the parameters and the
 * optimizer's state of the checkpoint into their memory: after local steps they differ by rank,
 * which msdu_start() refuses. The learning rate and the loss told last are part of the state.
 *
 * Tensors, settings and the number of ranks must be those of the state, except job, broadcast,
 * check_finite, window, lanes, total_steps and what concerns a rank alone (rendezvous, deadline,
 * files). Everything is checked before anything is used: a call that fails on one rank fails on
 * all, and leaves all contexts as they were. States of release 0.2 (format 4) are taken too, as
 * long as settings that are gone since had their default.
 *
 * data  what msdu_state_get() gave; may be freed afterwards
 * bytes its size
 * Returns MSDU_OK, ERR_INVALID (no state, cut off or damaged), ERR_MISMATCH (names the first
 * difference: a setting or tensor, the rank, the step, another run; or the rank that could not take
 * its state), ERR_UNSUPPORTED (a format of no version from 0.2 to this), ERR_STATE,
 * ERR_NO_MEMORY, or the context's failure.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_state_set(msdu_ctx *ctx, const void *data, size_t bytes);

/*
 * Read the counters. summary_out->size must be set by the caller (MSDU_SUMMARY_INIT).
 *
 * Returns MSDU_OK, ERR_INVALID.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_summary_get(msdu_ctx *ctx, msdu_summary *summary_out);

/*
 * Stop the communication thread, leave the group, free the context. Never fails and never waits
 * longer than the deadline. NULL is allowed. Logs the summary at level info.
 */
MSDU_API void msdu_destroy(msdu_ctx *ctx);

/*
 * The index-th setting, from 0. info_out->size must be set by the caller.
 *
 * Returns MSDU_OK, ERR_NOT_FOUND (index is past the last), ERR_INVALID. Thread: any.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_setting_get(uint32_t index, msdu_setting_info *info_out);

/*
 * What a setting would be in a context made now: the environment over the ini file over config over
 * the default. Makes no context, reads the ini file, logs nothing.
 *
 * config        as for msdu_create(); NULL: as all defaults
 * name          as in an ini file, such as "wire". NULL: only see whether msdu_create() would take
 *               the settings, with the rules that join several; resolved_out may be NULL then
 * resolved_out  size must be set by the caller (MSDU_RESOLVED_INIT); the caller's own memory
 *
 * Returns MSDU_OK, ERR_INVALID (a bad value of any setting; the text names setting, value and
 * range), ERR_NOT_FOUND (no such setting, or no such ini file), ERR_UNSUPPORTED (config is of a
 * newer version). Thread: any.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_setting_resolve(const msdu_config *config,
                                                          const char *name,
                                                          msdu_resolved *resolved_out);

#ifdef __cplusplus
}
#endif

#endif
