/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of a running context: check arguments, call the pipeline. */
#include <math.h>

#include "checkpoint/state.h"
#include "guard.h"

/* --- a step --- */

msdu_status msdu_tensor_ready(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    /* A failure is no reason to leave off in the middle of an optimizer's loop over tensors. */
    msdu_status status = what == MSDU_PARAMETER ? msdu__guard_open(p) : msdu__guard_running(p);
    if (status != MSDU_OK) {
        return status;
    }
    if (id >= p->tensor_count || (what != MSDU_GRADIENT && what != MSDU_PARAMETER)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or not one kind of memory: %d",
                          p->rank, id, (int)what);
    }
    return msdu__handoff_ready(p, id, what);
}

static msdu_status wait_alone(msdu__pipeline *p, uint32_t id, bool is_now)
{
    msdu_status status = msdu__guard_open(p);
    if (status != MSDU_OK) {
        return status;
    }
    if (id >= p->tensor_count || !p->settings.commit_tensor) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: no tensor %u, or setting commit is not tensor: it cannot be "
                          "waited for alone",
                          p->rank, id);
    }
    return msdu__handoff_wait_alone(p, id, is_now);
}

static msdu_status check_wait(msdu__pipeline *p, uint32_t id, msdu_what what)
{
    const unsigned kinds = MSDU_GRADIENT | MSDU_PARAMETER;
    msdu_status status = what == MSDU_GRADIENT ? msdu__guard_open(p) : msdu__guard_running(p);
    if (status != MSDU_OK) {
        return status;
    }
    if ((id >= p->tensor_count && id != MSDU_ALL_TENSORS) || ((unsigned)what & kinds) == 0 ||
        ((unsigned)what & ~kinds) != 0) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or no kind of memory: %d",
                          p->rank, id, (int)what);
    }
    return MSDU_OK;
}

/* Is the memory the trainer's? Gradients of a skipped step are, and hold NaN. */
static bool is_given(msdu_status status)
{
    return status == MSDU_OK || status == MSDU_ERR_NOT_FINITE;
}

msdu_status msdu_tensor_wait(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    const unsigned alone = MSDU_ALONE | MSDU_NOW;
    msdu__pipeline *p = &ctx->pipeline;
    if (((unsigned)what & alone) != 0 &&
        ((unsigned)what & ~(unsigned)MSDU_NOW) == (MSDU_GRADIENT | MSDU_ALONE)) {
        return wait_alone(p, id, ((unsigned)what & MSDU_NOW) != 0);
    }
    msdu_status status = check_wait(p, id, what);
    if (status != MSDU_OK) {
        return status;
    }
    status = msdu__handoff_wait(p, id, (uint32_t)what);
    msdu_status settled = is_given(status) ? msdu__kernels_settle(p) : MSDU_OK;
    return settled == MSDU_OK ? status : settled;
}

/* --- the same with a stream of the device's --- */

static msdu_status check_device(const msdu__pipeline *p)
{
    return p->device != NULL ? MSDU_OK
                             : msdu__fail(MSDU_ERR_UNSUPPORTED,
                                          "rank %d: tensors are in the host's memory: no stream is "
                                          "behind them",
                                          p->rank);
}

msdu_status msdu_tensor_ready_on(msdu_ctx *ctx, uint32_t id, msdu_what what, void *stream)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = msdu__guard_open(p);
    if (status == MSDU_OK) {
        status = check_device(p);
    }
    if (status == MSDU_OK && id >= p->tensor_count) {
        status = msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u", p->rank, id);
    }
    if (status == MSDU_OK) {
        status = p->device->after(p->comm, msdu__announcement(id, what) - 1, stream);
    }
    return status == MSDU_OK ? msdu_tensor_ready(ctx, id, what) : status;
}

msdu_status msdu_tensor_wait_on(msdu_ctx *ctx, uint32_t id, msdu_what what, void *stream)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    bool is_alone = (unsigned)what == (MSDU_GRADIENT | MSDU_ALONE);
    msdu_status status = is_alone ? msdu__guard_open(p) : check_wait(p, id, what);
    if (status == MSDU_OK) {
        status = check_device(p);
    }
    if (status == MSDU_OK) {
        status = is_alone ? wait_alone(p, id, false) : msdu__handoff_wait(p, id, (uint32_t)what);
    }
    msdu_status led = is_given(status) ? p->device->before(p->comm, stream, 0) : MSDU_OK;
    return led == MSDU_OK ? status : led;
}

msdu_status msdu_step(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu_status status = msdu__guard_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__step_end(&ctx->pipeline) : status;
}

msdu_status msdu_set_lr(msdu_ctx *ctx, double lr)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (!(lr >= 0) || !isfinite(lr)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: lr %g is not a finite number >= 0",
                          ctx->pipeline.rank, lr);
    }
    atomic_store(&ctx->pipeline.lr, lr);
    return MSDU_OK;
}

#define WEIGHT_LEAST 1e-9 /* sums and their inverse stay far from the ends of float32 */
#define WEIGHT_MOST  1e9

msdu_status msdu_set_weight(msdu_ctx *ctx, double weight)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (weight != 0 && !(weight >= WEIGHT_LEAST && weight <= WEIGHT_MOST)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: weight %g is not 0, nor %g .. %g", p->rank,
                          weight, WEIGHT_LEAST, WEIGHT_MOST);
    }
    if (p->settings.commit_tensor && weight != 1) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: weight %g: setting commit = tensor releases gradients before "
                          "the weights of all ranks are known",
                          p->rank, weight);
    }
    p->weight = weight;
    if (p->is_started) {
        msdu__step_weigh(p);
    }
    return MSDU_OK;
}

msdu_status msdu_set_loss(msdu_ctx *ctx, double loss)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (!isfinite(loss)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: loss %g is not finite", ctx->pipeline.rank,
                          loss);
    }
    atomic_store(&ctx->pipeline.loss, loss);
    return MSDU_OK;
}

/* --- between steps --- */

/* What msdu_meet() and its like have in common. */
static msdu_status check_meeting(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu_status status = msdu__guard_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__guard_between_steps(&ctx->pipeline) : status;
}

msdu_status msdu_meet(msdu_ctx *ctx)
{
    msdu_status status = check_meeting(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (!p->is_accumulated) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: only in domain accumulated may a meeting be asked for",
                          p->rank);
    }
    msdu__step_meet(p);
    return MSDU_OK;
}

msdu_status msdu_synchronize(msdu_ctx *ctx)
{
    msdu_status status = check_meeting(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (p->is_accumulated && !msdu__final_has_parameters(p)) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: domain accumulated averages parameters only if every model "
                          "tensor was added with one",
                          p->rank);
    }
    return msdu__final_meet(p);
}

msdu_status msdu_join(msdu_ctx *ctx)
{
    msdu_status status = check_meeting(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (p->settings.commit_tensor) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: setting commit = tensor releases gradients before it is "
                          "known which ranks have input",
                          p->rank);
    }
    if (!msdu__final_has_parameters(p)) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: parameters of a rank without input are brought up to the "
                          "others only if every model tensor was added with one",
                          p->rank);
    }
    return p->ranks > 1 ? msdu__join_run(p) : MSDU_OK;
}

static bool carry_rollback(msdu__pipeline *p)
{
    msdu__domain_rollback(p);
    msdu__handoff_carried(p);
    return true;
}

msdu_status msdu_rollback(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (!p->is_local_entered || p->runs == NULL || p->runs[0].anchor == NULL) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: no completed round to go back to", p->rank);
    }
    if (atomic_load(&p->status) == MSDU_OK && !p->is_finished) {
        /* a failure meanwhile is the very thing that one goes back after */
        (void)msdu__handoff_wait(p, MSDU_ALL_TENSORS, MSDU_PARAMETER);
        (void)msdu__handoff_carry(p, carry_rollback, "the parameters of its last round");
    }
    msdu__await_stillness(p);
    if (atomic_load(&p->status) != MSDU_OK || p->is_finished) {
        msdu__domain_rollback(p);
    }
    return msdu__kernels_settle(p);
}

msdu_status msdu_state_get(msdu_ctx *ctx, void *data, size_t bytes, size_t *bytes_out)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (bytes_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "bytes_out is NULL");
    }
    msdu_status status = msdu__guard_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__state_get(&ctx->pipeline, data, bytes, bytes_out) : status;
}

msdu_status msdu_state_set(msdu_ctx *ctx, const void *data, size_t bytes)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu_status status = msdu__guard_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__state_set(&ctx->pipeline, data, bytes) : status;
}
