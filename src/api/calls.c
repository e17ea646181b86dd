/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of a running context: check arguments, call one thing. */
#include <math.h>

#include "checkpoint/state.h"
#include "core/domain.h"
#include "core/kernels.h"
#include "core/progress.h"
#include "guard.h"

/* --- a step --- */

msdu_status msdu_tensor_ready(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    /* A failure is no reason to leave off in the middle of an optimizer's loop over tensors. */
    msdu_status status = what == MSDU_PARAMETER ? msdu__guard_open(ctx) : msdu__guard_running(ctx);
    if (status != MSDU_OK) {
        return ctx != NULL && msdu__epoch_will_settle(ctx, status) ? MSDU_OK : status;
    }
    msdu__caller *c = &ctx->caller;
    if (id >= c->model->tensor_count || (what != MSDU_GRADIENT && what != MSDU_PARAMETER)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or not one kind of memory: %d",
                          c->job->rank, id, (int)what);
    }
    status = msdu__caller_ready(c, id, what);
    return status == MSDU_OK && what == MSDU_GRADIENT && c->averages_host
               ? msdu__caller_ready(c->inner, id, what)
               : status;
}

static msdu_status wait_alone(msdu_ctx *ctx, uint32_t id, bool is_now)
{
    msdu_status status = msdu__guard_open(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__caller *c = &ctx->caller;
    if (id >= c->model->tensor_count || !c->job->settings.commit_tensor) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: no tensor %u, or setting commit is not tensor: it cannot be "
                          "waited for alone",
                          c->job->rank, id);
    }
    return msdu__caller_wait_alone(c, id, is_now);
}

static msdu_status check_wait(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    const unsigned kinds = MSDU_GRADIENT | MSDU_PARAMETER;
    msdu_status status = what == MSDU_GRADIENT ? msdu__guard_open(ctx) : msdu__guard_running(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    if ((id >= ctx->model.tensor_count && id != MSDU_ALL_TENSORS) ||
        ((unsigned)what & kinds) == 0 || ((unsigned)what & ~kinds) != 0) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or no kind of memory: %d",
                          ctx->job.rank, id, (int)what);
    }
    return MSDU_OK;
}

/* Is the memory the trainer's? Gradients of a skipped step are, and hold NaN. */
static bool is_given(msdu_status status)
{
    return status == MSDU_OK || status == MSDU_ERR_NOT_FINITE;
}

/* Steps so far, where a call is not to end one. */
static uint64_t ended(const msdu_ctx *ctx)
{
    return ctx != NULL ? ctx->caller.step : 0;
}

/* For the mean over this host; of the step in which there is none any more, as well. */
static msdu_status wait_inner(msdu__caller *c, uint32_t id)
{
    return c->averages_host   ? msdu__caller_wait(c->inner, id, MSDU_GRADIENT)
           : c->inner != NULL ? msdu__caller_wait_free(c->inner, id, MSDU_GRADIENT)
                              : MSDU_OK;
}

static msdu_status wait_tensor(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    const unsigned alone = MSDU_ALONE | MSDU_NOW;
    if (((unsigned)what & alone) != 0 &&
        ((unsigned)what & ~(unsigned)MSDU_NOW) == (MSDU_GRADIENT | MSDU_ALONE)) {
        return wait_alone(ctx, id, ((unsigned)what & MSDU_NOW) != 0);
    }
    msdu_status status = check_wait(ctx, id, what);
    if (status != MSDU_OK) {
        return status;
    }
    status = msdu__caller_wait(&ctx->caller, id, (uint32_t)what);
    if (status == MSDU_OK && ((unsigned)what & MSDU_GRADIENT) != 0) {
        status = wait_inner(&ctx->caller, id);
    }
    msdu_status settled = is_given(status) ? msdu__kernels_settle(&ctx->engine) : MSDU_OK;
    return settled == MSDU_OK ? status : settled;
}

msdu_status msdu_tensor_wait(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    msdu_status status = wait_tensor(ctx, id, what);
    return status < 0 ? msdu__epoch_settle(ctx, status, ended(ctx)) : status;
}

/* --- the same with a stream of the device's --- */

static msdu_status check_device(const msdu_ctx *ctx)
{
    return ctx->job.device != NULL
               ? MSDU_OK
               : msdu__fail(MSDU_ERR_UNSUPPORTED,
                            "rank %d: tensors are in the host's memory: no stream is "
                            "behind them",
                            ctx->job.rank);
}

msdu_status msdu_tensor_ready_on(msdu_ctx *ctx, uint32_t id, msdu_what what, void *stream)
{
    msdu_status status = msdu__guard_open(ctx);
    status = status == MSDU_OK ? check_device(ctx) : status;
    if (status == MSDU_OK && id >= ctx->model.tensor_count) {
        status = msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u", ctx->job.rank, id);
    }
    if (status == MSDU_OK) {
        status = ctx->job.device->after(ctx->job.comm, msdu__announcement(id, what) - 1, stream);
    }
    return status == MSDU_OK ? msdu_tensor_ready(ctx, id, what) : status;
}

msdu_status msdu_tensor_wait_on(msdu_ctx *ctx, uint32_t id, msdu_what what, void *stream)
{
    bool is_alone = (unsigned)what == (MSDU_GRADIENT | MSDU_ALONE);
    msdu_status status = is_alone ? msdu__guard_open(ctx) : check_wait(ctx, id, what);
    status = status == MSDU_OK ? check_device(ctx) : status;
    if (status == MSDU_OK) {
        status = is_alone ? wait_alone(ctx, id, false)
                          : msdu__caller_wait(&ctx->caller, id, (uint32_t)what);
    }
    msdu_status led =
        is_given(status) ? ctx->job.device->before(ctx->job.comm, stream, 0) : MSDU_OK;
    return led == MSDU_OK ? status : led;
}

msdu_status msdu_step(msdu_ctx *ctx)
{
    uint64_t step = ended(ctx) + 1;
    msdu_status status = msdu__guard_running(ctx);
    status = status == MSDU_OK ? msdu__inner_step(&ctx->caller) : status;
    return msdu__epoch_settle(ctx, status, step);
}

msdu_status msdu_set_lr(msdu_ctx *ctx, double lr)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (!(lr >= 0) || !isfinite(lr)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: lr %g is not a finite number >= 0",
                          ctx->job.rank, lr);
    }
    msdu__number_set(&ctx->hand.reports.lr, lr);
    return MSDU_OK;
}

msdu_status msdu_set_clipping(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded == MSDU_OK) {
        msdu__flag_set(&ctx->hand.reports.is_clipping, true);
    }
    return guarded;
}

#define WEIGHT_LEAST 1e-9 /* sums and their inverse stay far from the ends of float32 */
#define WEIGHT_MOST  1e9

msdu_status msdu_set_weight(msdu_ctx *ctx, double weight)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__caller *c = &ctx->caller;
    if (weight != 0 && !(weight >= WEIGHT_LEAST && weight <= WEIGHT_MOST)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: weight %g is not 0, nor %g .. %g",
                          c->job->rank, weight, WEIGHT_LEAST, WEIGHT_MOST);
    }
    if (c->job->settings.commit_tensor && weight != 1) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: weight %g: setting commit = tensor releases gradients before "
                          "the weights of all ranks are known",
                          c->job->rank, weight);
    }
    c->weight = weight;
    if (c->is_started) {
        msdu__step_weigh(c);
        msdu__inner_weigh(c);
    }
    return MSDU_OK;
}

static msdu_status draw(msdu_ctx *ctx, msdu_work *work)
{
    msdu_status status = msdu__guard_running(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__caller *c = &ctx->caller;
    if (work == NULL || work->size != sizeof(*work)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: work is NULL, or not MSDU_WORK_INIT",
                          c->job->rank);
    }
    status = msdu__draw_check(c->job, work);
    msdu__flag_set(&ctx->hand.supply.is_drawn, true);
    if (status == MSDU_OK && msdu__draw_is_dealt(&c->draw, c->job, c->step, work)) {
        return msdu__dealt_next(c, work);
    }
    if (status == MSDU_OK && work->step <= c->step && work->position < work->total) {
        status = msdu__guard_between_steps(ctx);
    }
    if (status == MSDU_OK) {
        status = msdu__draw_next(&c->draw, c->job, c->step, work);
    }
    if (status == MSDU_OK) {
        msdu__step_weigh(c);
        msdu__inner_weigh(c);
    }
    return status;
}

msdu_status msdu_next(msdu_ctx *ctx, msdu_work *work)
{
    msdu_status status = draw(ctx, work);
    return status < 0 ? msdu__epoch_settle(ctx, status, ended(ctx)) : status;
}

msdu_status msdu_set_loss(msdu_ctx *ctx, double loss)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (!isfinite(loss)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: loss %g is not finite", ctx->job.rank, loss);
    }
    msdu__number_set(&ctx->hand.reports.loss, loss);
    return MSDU_OK;
}

/* --- between steps --- */

msdu_status msdu_sync_after_step(msdu_ctx *ctx)
{
    msdu_status status = msdu__guard_between_steps(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__caller *c = &ctx->caller;
    if (!c->job->is_accumulated) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: only in domain accumulated may a synchronization be asked for",
                          c->job->rank);
    }
    msdu__step_synchronize(c);
    return MSDU_OK;
}

msdu_status msdu_synchronize(msdu_ctx *ctx)
{
    msdu_status status = msdu__guard_between_steps(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__caller *c = &ctx->caller;
    if (c->job->is_accumulated && !msdu__average_has_parameters(c->model)) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: domain accumulated averages parameters only if every model "
                          "tensor was added with one",
                          c->job->rank);
    }
    return msdu__average_exact(c);
}

msdu_status msdu_share(msdu_ctx *ctx, void *data, size_t bytes)
{
    msdu_status status = msdu__guard_between_steps(ctx);
    if (status == MSDU_OK && data == NULL && bytes > 0) {
        status = msdu__fail(MSDU_ERR_INVALID, "rank %d: data is NULL", ctx->job.rank);
    }
    if (status != MSDU_OK) {
        return msdu__epoch_settle(ctx, status, ended(ctx));
    }
    if (bytes == 0) {
        ctx->epochs.needs_rest = false;
        return MSDU_OK;
    }
    return msdu__epoch_settle(ctx, msdu__caller_share(&ctx->caller, data, bytes), ctx->caller.step);
}

msdu_status msdu_join(msdu_ctx *ctx)
{
    msdu_status status = msdu__guard_between_steps(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__caller *c = &ctx->caller;
    if (c->job->settings.commit_tensor) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: setting commit = tensor releases gradients before it is "
                          "known which ranks have input",
                          c->job->rank);
    }
    if (!msdu__average_has_parameters(c->model)) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: parameters of a rank without input are brought up to the "
                          "others only if every model tensor was added with one",
                          c->job->rank);
    }
    return c->job->ranks > 1 ? msdu__epoch_settle(ctx, msdu__join_run(c), c->step) : MSDU_OK;
}

static msdu__outcome carry_rollback(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    msdu__domain_rollback(e);
    return msdu__event_completed(e);
}

msdu_status msdu_rollback(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__caller *c = &ctx->caller;
    if (!c->is_local_entered || c->engine->runs == NULL || c->engine->runs[0].anchor == NULL) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: no completed round to go back to",
                          c->job->rank);
    }
    if (!msdu__handover_has_failed(c->hand) && !c->is_finished) {
        /* a failure meanwhile is the very thing that one goes back after */
        (void)msdu__caller_wait(c, MSDU_ALL_TENSORS, MSDU_PARAMETER);
        (void)msdu__caller_carry(c, &(msdu__event){.run = carry_rollback},
                                 "the parameters of its last round");
    }
    msdu__handover_await_stillness(c->hand);
    if (msdu__handover_has_failed(c->hand) || c->is_finished) {
        msdu__domain_rollback(c->engine);
    }
    return msdu__kernels_settle(c->engine);
}

msdu_status msdu_state_get(msdu_ctx *ctx, void *data, size_t bytes, size_t *bytes_out)
{
    if (bytes_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "bytes_out is NULL");
    }
    msdu_status status = msdu__guard_running(ctx);
    return status == MSDU_OK ? msdu__state_get(&ctx->caller, data, bytes, bytes_out) : status;
}

msdu_status msdu_state_set(msdu_ctx *ctx, const void *data, size_t bytes)
{
    msdu_status status = msdu__guard_running(ctx);
    return status == MSDU_OK ? msdu__state_set(&ctx->caller, data, bytes) : status;
}
