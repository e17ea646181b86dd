/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of one communicator as tensors of an msdu context: knows no MPI but its numbers.
 * engine_device.h has what differs for gradients in a device's memory.
 *
 * One step of the trainer is one pass over all tensors in order. Values are sums over ranks, before
 * and after, because that is what the trainer asked MPI for.
 */
#ifndef MSDU_ENGINE_H
#define MSDU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/msdu.h>

#include "drift_recovery.h"
#include "recognize.h"

/* Kinds of gradients, as msdu__call has them: 1 + the type (msdu_dtype) of sums; of means more. */
#define MSDU__KIND_MEANS 4

static inline int32_t msdu__kind_dtype(int32_t kind)
{
    return (kind - 1) % MSDU__KIND_MEANS;
}

/* Of a sum of floats; else 0. */
static inline uint64_t msdu__call_bytes(const msdu__call *call)
{
    const int32_t dtype = msdu__kind_dtype(call->kind);
    const uint64_t width = dtype == MSDU_FLOAT64 ? 8 : dtype == MSDU_FLOAT32 ? 4 : 2;
    return call->is_sum ? call->count * width : 0;
}

typedef struct msdu__grad {
    void *user;  /* host: where the trainer wants the sum; NULL: nothing under way */
    float *wide; /* host: a float64 gradient on a compressed wire: its float32 copy */
    uint64_t count;
    int32_t kind;   /* of the call */
    bool is_double; /* of the trainer */
} msdu__grad;

typedef struct msdu__attach_engine {
    msdu_ctx *ctx;
    msdu__grad *grads;
    uint32_t count;
    uint32_t announced; /* of this step */
    uint32_t waited;
    int32_t ranks;
    bool is_accumulated;
    uint64_t steps;        /* of this engine */
    uint64_t steps_before; /* of the trainer, while learning */
    uint64_t equal_steps;  /* setting MSDU_ATTACH_EQUAL_STEPS */
    uint64_t total_steps;  /* the trainer's, setting MSDU_TOTAL_STEPS */
    bool wants_meeting;
    bool has_promised;    /* the latest step ends with equal parameters on all ranks */
    bool was_asked;       /* the trainer itself asked for that */
    double lr;            /* as the trainer told it, before or since; 0: not at all */
    uint64_t guard_steps; /* setting MSDU_ATTACH_GUARD; 0: off */
    uint64_t given;       /* a hash of the sums that were given out since it was compared last */
} msdu__attach_engine;

/* What the trainer's settings ask for: nothing that a plain reduction would not do? */
bool msdu__attach_engine_is_plain(void);
/* In the accumulated domain? */
bool msdu__attach_engine_is_local(void);
/* Why it will not do for such a pattern; NULL: it will. */
const char *msdu__attach_engine_refusal(const msdu__recognizer *r);
/* Do the lists allow a call to be a gradient? `user`: the msdu__attach_comm that it is on. */
bool msdu__attach_engine_allows(const void *user, const msdu__call *call, uint32_t at);
#define MSDU__ANYWHERE UINT32_MAX /* `at` of a call before a pattern is known */
/* Are gradients of 16 bits taken? Every step over narrower wires, not in local steps. */
bool msdu__attach_engine_takes_half(void);

/*
 * Make the context and join the group; all ranks do. The error text is msdu_last_error(); on
 * failure there is nothing to release.
 */
msdu_status msdu__attach_engine_open(msdu__attach_engine *engine, const msdu__recognizer *r,
                                     const char *backend, int comm, int32_t rank, int32_t ranks);
void msdu__attach_engine_close(msdu__attach_engine *engine);
/*
 * Ranks took local steps, and these gradients will not come as they did: wait for all that was
 * started, and list how far this rank is from where the ranks were together, tensors that are due
 * next first. The list is the caller's; NULL without local steps.
 */
msdu_status msdu__attach_engine_part(msdu__attach_engine *engine, msdu__apart **list_out,
                                     msdu__optimizer *optimizer_out);
/* Before close, on all ranks after the same call: end the step, if need be with zeros for what has
 * not come, and the training. */
msdu_status msdu__attach_engine_finish(msdu__attach_engine *engine);

/* Tensor `at` is in `data` (the trainer's memory, where the sum shall be). Does not wait. */
msdu_status msdu__attach_engine_start(msdu__attach_engine *engine, uint32_t at, void *data);
/* Its sum is there; with may_block false, MSDU_IN_PROGRESS if it is not. The last of a step ends
 * the step. */
msdu_status msdu__attach_engine_wait(msdu__attach_engine *engine, uint32_t at, bool may_block);
/* The trainer tells the next step's learning rate, before there is an engine, too. False: local
 * steps have begun without one, and what they did so far has no scale; the text says so. */
bool msdu__attach_engine_tell_lr(msdu__attach_engine *engine, double lr, char *why, size_t bytes);
/* Are ranks to be compared now, before the first tensor of a step? In the gradient domain by
 * `given`, which is the same on all of them. */
bool msdu__attach_engine_is_guarded(const msdu__attach_engine *engine);
/* Steps of the trainer until the present one. */
uint64_t msdu__attach_engine_steps(const msdu__attach_engine *engine);
/* Local steps: the latest step was the trainer's last one, as the user said. */
bool msdu__attach_engine_is_over(const msdu__attach_engine *engine);
/* Local steps have moved nothing since the latest synchronization, on this rank. */
bool msdu__attach_engine_has_met(msdu__attach_engine *engine);
/* Local steps were taken, and if the training ends now, neither the number of steps nor the trainer
 * said so before the last one. All was waited for. */
bool msdu__attach_engine_is_early(const msdu__attach_engine *engine);
/* Wait for all that was started. */
msdu_status msdu__attach_engine_settle(msdu__attach_engine *engine);

/* --- also for a device's engine, as is close, and part where all was waited for --- */
/* Settings, and room for the tensors of a pattern; the context is the caller's to make. */
msdu_status msdu__attach_engine_prepare(msdu__attach_engine *engine, const msdu__recognizer *r,
                                        int32_t ranks);
/* Before the first tensor of a step, and behind the last. */
msdu_status msdu__attach_engine_begin_step(msdu__attach_engine *engine);
msdu_status msdu__attach_engine_end_step(msdu__attach_engine *engine);

#endif
