/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stages.h - pipelines: where to cut a model, which device takes which piece, and in what order
 * each works off its micro-batches.
 *
 * No context, no threads, no files: arrays in, a plan out. Rules of msdu.h hold. Thread: any, for
 * every function here.
 *
 * The model. Layers 0 .. L-1 in the order of the forward pass; devices 0 .. D-1; M micro-batches
 * in a step. A *stage* is a run of layers on a device. Every micro-batch passes all stages
 * forward, then all of them backward. Gradients add up, so a step is exact gradient accumulation.
 * A device computes one thing at a time. Messages between stages travel beside computing: one at a
 * time on a link in a direction, and a device's card passes its own rate each way.
 *
 * For a stage of layers i .. j-1 on device d, with t = sum of forward and backward, a_i = bytes
 * that enter layer i, n = rate of the card, K = micro-batches whose activations it holds:
 *
 *     own      = max(t, (a_i + a_j) / n)                    time of each micro-batch
 *     memory   = sum of state + K sum of kept + M (a_i + a_j)      M receive buffers, as torch has
 *     beta     = largest own, or a / rate of a link between neighbors, in either direction
 *     fill     = sum of t + both ways' a / rate + latency of all neighbors: a micro-batch alone
 *
 * Cuts and devices are found exactly, by dynamic programming over sets of devices (Held and Karp
 * 1962, with the layer as one more index): the smallest beta; then the smallest fill among plans
 * whose beta is at most g times that, for a few g (Zheng et al., "Alpa", OSDI 2022, fix the slowest
 * stage likewise); and the smallest step that no order can beat (bound_ns). Devices may stay
 * unused. The order is a list schedule (Graham 1966): in simulated time a free device takes the
 * action that can start first. Stage s of S holds at most min(M, what fits, ceil((S - s) (1 + e /
 * S))) micro-batches: e = 0 is 1F1B (Narayanan et al. 2019), a large e is GPipe (Huang et al.
 * 2019), between them is "eager 1F1B" (Zhuang et al., arXiv:2211.05322). All combinations are
 * simulated; the fastest is the answer.
 */
#ifndef MSDU_STAGES_H
#define MSDU_STAGES_H

#include <msdu/msdu.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU_STAGES_LAYERS_MAX  1024U
#define MSDU_STAGES_DEVICES_MAX 128U
#define MSDU_STAGES_MICRO_MAX   4096U /* micro-batches of a step */

/* What a plan may do; bits, may be joined. */
typedef enum msdu_stages_may {
    /* A backward pass in two actions: gradients of inputs, then those of weights. torch calls no
     * gradient hooks then. */
    MSDU_STAGES_SPLIT = 1,
    /* Two stages a device, the first and the last, the second and the last but one: a V. */
    MSDU_STAGES_TWO = 2,
} msdu_stages_may;

/*
 * What is asked. All arrays are borrowed during the call. Matrices are rows one after another.
 * Values are finite and at least 0 unless it says otherwise.
 *
 * Times and bytes are those of one micro-batch of `samples` samples. Where micro-batches have
 * another number of samples, bytes and what is above the fixed part of a time grow in proportion.
 */
typedef struct msdu_stages_question {
    size_t size;            /* sizeof(msdu_stages_question); use MSDU_STAGES_QUESTION_INIT */
    uint32_t layers;        /* L, 1 .. MSDU_STAGES_LAYERS_MAX */
    uint32_t devices;       /* D, 1 .. MSDU_STAGES_DEVICES_MAX */
    uint32_t micro_batches; /* M, 1 .. MSDU_STAGES_MICRO_MAX; 0: the best divisor of `batch` */
    uint32_t may;           /* msdu_stages_may; 0: neither */
    uint32_t batch;         /* samples of a step, a multiple of M; 0: times are of the M given */
    uint32_t samples;       /* of the micro-batch that times and bytes are of; 0: batch / M */
    /* actions before the one that needs a message at which its receive is posted in `lowered`;
     * 0: all receives first, which moves bytes soonest over Gloo */
    uint32_t ahead;
    const double *forward_ns;  /* D x L: of device d with layer l at [d * L + l] */
    const double *backward_ns; /* D x L: whole backward passes */
    /* D x L: of them, what gradients of weights take; at most backward_ns. NULL: half. Read with
     * MSDU_STAGES_SPLIT only */
    const double *weight_ns;
    const double *fixed_forward_ns;  /* D x L: part that any micro-batch takes; NULL: 0 */
    const double *fixed_backward_ns; /* D x L: likewise */
    const double *output_bytes;      /* L: what layer l hands to layer l + 1, and back */
    const double *kept_bytes;        /* L: kept from forward to backward; NULL: 0 */
    const double *state_bytes;       /* L: parameters, gradients, optimizer state; NULL: 0 */
    const double *memory_bytes;      /* D; 0: no limit. NULL: none has one */
    const double *card_rate;         /* D: bytes a second, each way; 0: no limit. NULL: none */
    const double *link_rate;  /* D x D: bytes a second, [from * D + to]; 0: no link, INFINITY: free.
                                 The diagonal is not read */
    const double *latency_ns; /* D x D; NULL: 0 */
    const char *const *layer_names;  /* L, for error texts; NULL: numbers */
    const char *const *device_names; /* D, likewise */
} msdu_stages_question;

#define MSDU_STAGES_QUESTION_INIT MSDU_SIZED(msdu_stages_question)

/* What a rank does at a time. Letters of torch's schedules. */
typedef enum msdu_stages_kind {
    MSDU_STAGES_FORWARD = 0,       /* F */
    MSDU_STAGES_BACKWARD = 1,      /* B: whole */
    MSDU_STAGES_INPUT = 2,         /* I: gradients of inputs */
    MSDU_STAGES_WEIGHT = 3,        /* W: gradients of weights */
    MSDU_STAGES_SEND_FORWARD = 4,  /* SEND_F: behind F, of the same stage */
    MSDU_STAGES_RECV_FORWARD = 5,  /* RECV_F: before F */
    MSDU_STAGES_SEND_BACKWARD = 6, /* SEND_B: behind B or I */
    MSDU_STAGES_RECV_BACKWARD = 7, /* RECV_B: before B or I */
} msdu_stages_kind;

typedef struct msdu_stages_action {
    uint32_t stage;
    uint32_t micro_batch;
    int32_t kind; /* msdu_stages_kind */
    uint32_t reserved;
    double begin_ns; /* simulated, since the start of the step; 0 in `lowered` */
    double end_ns;
} msdu_stages_action;

typedef struct msdu_stages_stage {
    uint32_t device;
    uint32_t rank;  /* row of the schedule: devices in use, in the order of their first stages */
    uint32_t first; /* layers first .. end - 1 */
    uint32_t end;
    uint32_t holds; /* micro-batches whose activations it holds at once, at most */
    uint32_t reserved;
    double busy_ns;      /* computing in a step */
    double memory_bytes; /* at most */
} msdu_stages_stage;

/* A step by one of torch's schedules on the same devices; 0: not possible, for memory or links, or
 * because 1F1B needs M >= stages. */
typedef struct msdu_stages_torch {
    double equal_1f1b_ns; /* L / D layers a device, in their order: Schedule1F1B */
    double equal_gpipe_ns;
    double cuts_1f1b_ns; /* with the plan's cuts and devices, one stage a device */
    double cuts_gpipe_ns;
} msdu_stages_torch;

/*
 * A plan. Made by msdu_stages_plan(), or filled in by the caller for msdu_stages_time(). New
 * members are only appended; what is new about a stage or an action comes in arrays of its own.
 */
typedef struct msdu_stages {
    size_t size; /* sizeof(msdu_stages) of who made it; use MSDU_STAGES_INIT */
    uint32_t stage_count;
    uint32_t rank_count;
    uint32_t micro_batches;
    uint32_t reserved;
    const msdu_stages_stage *stages; /* in the order of the forward pass */
    /* Computing, those of rank r at rank_begin[r] .. rank_begin[r + 1] - 1, in its order. */
    const msdu_stages_action *actions;
    const uint32_t *rank_begin; /* rank_count + 1 */
    /* The same with messages. Receives from a rank are in the order of its sends, so messages may
     * be matched by order alone. lowered_begin: as rank_begin. */
    const msdu_stages_action *lowered;
    const uint32_t *lowered_begin;
    double step_ns; /* simulated */
    /* No plan of this M is faster. With one stage a device, the smallest over all cuts and devices
     * of: M times a stage or link, with the way to it in front and the way back behind (split
     * backward: less of it, see src/stages/split.h). With MSDU_STAGES_TWO M times computing shared
     * ideally, or the way through all layers, each where it is fastest */
    double bound_ns;
    double beta_ns;          /* of this plan's layout: the slowest stage or link */
    msdu_stages_torch torch; /* for comparison */
} msdu_stages;

#define MSDU_STAGES_INIT MSDU_SIZED(msdu_stages)

/*
 * Plan the stages of a model. Deterministic on one machine; processors may break ties differently,
 * so one rank plans and tells the others.
 *
 * question borrowed during the call
 * plan_out receives the plan; release it with msdu_stages_free()
 * Returns MSDU_OK, ERR_INVALID (a value, named by member, device and layer; M that does not divide
 * the batch), ERR_NOT_FOUND (no plan: too little memory, with the layer that fits nowhere, or no
 * links), ERR_UNSUPPORTED (too many kinds of devices for an exact answer; struct from a newer
 * header), ERR_NO_MEMORY.
 * Takes time in proportion to 2^D D L^2; equal devices count once: prod(n_c + 1) sets for n_c
 * devices of kind c.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_stages_plan(const msdu_stages_question *question,
                                                      msdu_stages **plan_out);

/* Release a plan of msdu_stages_plan(). NULL is fine. */
MSDU_API void msdu_stages_free(msdu_stages *plan);

/*
 * Simulate a given order under the question's times: what a plan of before takes now.
 *
 * plan        size, counts, stages (device, rank, first, end), actions (stage, micro_batch, kind)
 * and rank_begin are read. Its M is used if the question's is 0 step_ns_out receives the time of a
 * step Returns MSDU_OK, ERR_INVALID (a value; an order that misses or repeats an action, or waits
 * for itself), ERR_UNSUPPORTED, ERR_NO_MEMORY.
 */
MSDU_API MSDU_MUST_CHECK msdu_status msdu_stages_time(const msdu_stages_question *question,
                                                      const msdu_stages *plan, double *step_ns_out);

#ifdef __cplusplus
}
#endif

#endif
