/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions: check arguments, call the pipeline. The only file that knows all stages. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "start.h"

static msdu_status fail_null(const char *what)
{
    return msdu__fail(MSDU_ERR_INVALID, "%s is NULL", what);
}

/* --- create --- */

static msdu_status load_backend(msdu__pipeline *p, const char *name)
{
    msdu_status status = msdu__backend_find(name, &p->backend);
    if (status == MSDU_OK) {
        msdu__log_line(&p->log, MSDU_LOG_INFO, "backend %s %s", p->backend->name,
                       p->backend->version);
    }
    return status;
}

static void init_shared(msdu__pipeline *p)
{
    pthread_mutex_init(&p->lock, NULL);
    msdu__cond_init(&p->changed);
    msdu__worker_init(&p->worker, msdu__pipeline_advance, p);
    atomic_init(&p->lr, p->settings.lr);
    atomic_init(&p->loss, (double)NAN);
    atomic_init(&p->is_first_call, true);
    p->clock = msdu__clock_monotonic;
    p->weight = 1;
    p->rank = (int32_t)p->settings.rank;
    p->ranks = (int32_t)p->settings.ranks;
    p->summary = (msdu_summary){
        .size = sizeof(msdu_summary),
        .rank = p->rank,
        .ranks = p->ranks,
        .interval_steps = 1,
        .wire = "float32",
        .domain = "gradient",
        .interval = "fixed",
    };
}

static void free_shared(msdu__pipeline *p)
{
    msdu__worker_free(&p->worker);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

msdu_status msdu_create(const msdu_config *config, msdu_ctx **ctx_out)
{
    if (ctx_out == NULL) {
        return fail_null("ctx_out");
    }
    msdu_ctx *ctx = calloc(1, sizeof(*ctx));
    if (ctx == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for a context");
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = msdu__settings_load(config, &p->settings, &p->log);
    if (status != MSDU_OK) {
        goto err_free;
    }
    init_shared(p);
    status = msdu__derive(p);
    if (status != MSDU_OK) {
        goto err_lock;
    }
    /* one rank needs no network: the same calls, no module */
    status = load_backend(p, p->ranks == 1 ? "local" : p->settings.backend);
    if (status != MSDU_OK) {
        goto err_lock;
    }
    p->summary.interval = p->policy->name;
    *ctx_out = ctx;
    return MSDU_OK;

err_lock:
    free_shared(p);
err_free:
    free(ctx);
    return status;
}

/* --- start --- */

static msdu_status open_files(msdu__pipeline *p)
{
    char path[MSDU__SETTING_BYTES];
    const msdu__settings *s = &p->settings;
    if (!msdu__observe_path(s->metrics_file, p->rank, p->metrics_path, sizeof(p->metrics_path)) ||
        !msdu__observe_path(s->trace_file, p->rank, path, sizeof(path))) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: trace_file or metrics_file is too long",
                          p->rank);
    }
    if (path[0] == '\0') {
        return MSDU_OK;
    }
    const char **names = msdu__start_names(p);
    if (names == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the trace", p->rank);
    }
    msdu_status status = msdu__trace_open(path, p->rank, msdu__pipeline_now(p), names,
                                          p->slicing.slice_count, &p->trace);
    free(names);
    return status;
}

static msdu_status join(msdu__pipeline *p)
{
    msdu__derive_host(p);
    msdu_status status = p->backend->open(&p->host, &p->comm);
    if (status != MSDU_OK) {
        p->comm = NULL;
    }
    return status;
}

/* A device's memory needs the group first; else what is wrong with tensors is found before. */
static msdu_status join_and_build(msdu__pipeline *p)
{
    if (p->tensors[0].place == MSDU_PLACE_HOST) {
        msdu_status status = msdu__start_build(p);
        return status == MSDU_OK ? join(p) : status;
    }
    if (p->ranks == 1) {
        msdu_status loaded = load_backend(p, p->settings.backend); /* for its device */
        if (loaded != MSDU_OK) {
            return loaded;
        }
    }
    if (!MSDU_BACKEND_HAS(p->backend, device)) {
        return msdu__fail(
            MSDU_ERR_UNSUPPORTED,
            "rank %d: tensors are in a device's memory, which backend \"%s\" does not "
            "reach",
            p->rank, p->backend->name);
    }
    msdu_status status = join(p);
    p->device = status == MSDU_OK ? p->backend->device : NULL;
    return status == MSDU_OK ? msdu__start_build(p) : status;
}

msdu_status msdu_start(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (p->is_started || p->tensor_count == 0) {
        return msdu__fail(MSDU_ERR_STATE,
                          p->is_started ? "msdu_start() was called before" : "no tensor was added");
    }
    p->is_started = true; /* even if it fails: there is no second try on half a group */
    msdu_status (*const steps[])(msdu__pipeline *) = {join_and_build, msdu__agree,
                                                      msdu__retune_probe, open_files};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        msdu_status status = steps[i](p);
        if (status != MSDU_OK) {
            msdu__pipeline_fail(p, status, msdu_last_error());
            return status;
        }
    }
    p->summary.domain = p->is_gradient      ? "gradient"
                        : p->is_accumulated ? "accumulated"
                                            : "parameter";
    p->summary.slice_bytes = p->tuning.slice_bytes;
    p->summary.window = p->tuning.window;
    p->summary.lanes = p->tuning.lanes;
    if (p->is_local_entered) {
        msdu__domain_anchor(p);
    }
    if (msdu__pass_settle(p) != MSDU_OK) {
        return msdu__pipeline_status(p);
    }
    atomic_store(&p->start_ns, msdu__pipeline_now(p));
    msdu__log_line(&p->log, MSDU_LOG_INFO,
                   "started: ranks %d, tensors %u, slices %u, elements %llu", p->ranks,
                   p->tensor_count, p->slicing.slice_count, (unsigned long long)p->element_count);
    msdu_status status = msdu__worker_start(&p->worker);
    if (status == MSDU_OK) {
        msdu__schedule_start(p);
    } else {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    return status;
}

/* --- a step --- */

static msdu_status check_open(const msdu__pipeline *p)
{
    if (!p->is_started || p->is_finished) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: the context is not between start and finish",
                          p->rank);
    }
    return MSDU_OK;
}

/* The context's failure first: it stays the answer until destroy. */
static msdu_status check_running(msdu__pipeline *p)
{
    msdu_status status = msdu__pipeline_status(p);
    return status == MSDU_OK ? check_open(p) : status;
}

msdu_status msdu_tensor_ready(msdu_ctx *ctx, uint32_t id, msdu_what what)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    /* A failure is no reason to leave off in the middle of an optimizer's loop over tensors. */
    msdu_status status = what == MSDU_PARAMETER ? check_open(p) : check_running(p);
    if (status != MSDU_OK) {
        return status;
    }
    if (id >= p->tensor_count || (what != MSDU_GRADIENT && what != MSDU_PARAMETER)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or not one kind of memory: %d",
                          p->rank, id, (int)what);
    }
    return msdu__schedule_ready(p, id, what);
}

static msdu_status wait_alone(msdu__pipeline *p, uint32_t id, bool is_now)
{
    msdu_status status = check_open(p);
    if (status != MSDU_OK) {
        return status;
    }
    if (id >= p->tensor_count || !p->settings.commit_tensor) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: no tensor %u, or setting commit is not tensor: it cannot be "
                          "waited for alone",
                          p->rank, id);
    }
    return msdu__schedule_wait_alone(p, id, is_now);
}

static msdu_status check_wait(msdu__pipeline *p, uint32_t id, msdu_what what)
{
    const unsigned kinds = MSDU_GRADIENT | MSDU_PARAMETER;
    msdu_status status = what == MSDU_GRADIENT ? check_open(p) : check_running(p);
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
    if (ctx == NULL) {
        return fail_null("ctx");
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
    status = msdu__schedule_wait(p, id, (uint32_t)what);
    msdu_status settled = is_given(status) ? msdu__pass_settle(p) : MSDU_OK;
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
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = check_open(p);
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
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    bool is_alone = (unsigned)what == (MSDU_GRADIENT | MSDU_ALONE);
    msdu_status status = is_alone ? check_open(p) : check_wait(p, id, what);
    if (status == MSDU_OK) {
        status = check_device(p);
    }
    if (status == MSDU_OK) {
        status = is_alone ? wait_alone(p, id, false) : msdu__schedule_wait(p, id, (uint32_t)what);
    }
    msdu_status led = is_given(status) ? p->device->before(p->comm, stream, 0) : MSDU_OK;
    return led == MSDU_OK ? status : led;
}

msdu_status msdu_step(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu_status status = check_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__schedule_step(&ctx->pipeline) : status;
}

msdu_status msdu_set_lr(msdu_ctx *ctx, double lr)
{
    if (ctx == NULL) {
        return fail_null("ctx");
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
    if (ctx == NULL) {
        return fail_null("ctx");
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
        msdu__schedule_weigh(p);
    }
    return MSDU_OK;
}

msdu_status msdu_set_loss(msdu_ctx *ctx, double loss)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    if (!isfinite(loss)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: loss %g is not finite", ctx->pipeline.rank,
                          loss);
    }
    atomic_store(&ctx->pipeline.loss, loss);
    return MSDU_OK;
}

/* --- the end --- */

/* It may end before it has looked at the latest failure. */
static void stop_worker(msdu__pipeline *p)
{
    msdu__worker_stop(&p->worker);
    if (atomic_load(&p->status) != MSDU_OK) {
        msdu__pipeline_end(p);
    }
}

/* Last lines of metrics and trace; a file that failed makes finish return ERR_IO. */
static msdu_status close_files(msdu__pipeline *p)
{
    msdu__pipeline_io(p, msdu__trace_close(p->trace));
    p->trace = NULL;
    if (p->metrics_path[0] != '\0' && p->metrics_due_ns != UINT64_MAX) {
        msdu_summary summary;
        msdu__pipeline_summary(p, &summary);
        msdu__pipeline_io(p, msdu__metrics_write(p->metrics_path, &summary));
    }
    return p->io_failure[0] == '\0' ? MSDU_OK : msdu__fail_text(MSDU_ERR_IO, p->io_failure);
}

static msdu_status check_between_steps(const msdu__pipeline *p)
{
    if (!msdu__final_is_between_steps(p)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: tensors were announced since the last "
                          "msdu_step(); end the step first",
                          p->rank);
    }
    return MSDU_OK;
}

/* What msdu_meet() and its like have in common. */
static msdu_status check_meeting(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu_status status = check_running(&ctx->pipeline);
    return status == MSDU_OK ? check_between_steps(&ctx->pipeline) : status;
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
    msdu__schedule_meet(p);
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

msdu_status msdu_finish(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = p->is_finished ? check_running(p) : check_open(p);
    if (status != MSDU_OK) {
        return status;
    }
    status = msdu__pipeline_status(p);
    if (status == MSDU_OK) {
        status = check_between_steps(p);
        if (status != MSDU_OK) {
            return status;
        }
        status = msdu__final_meet(p);
    }
    stop_worker(p);
    p->is_finished = true;
    msdu_status closed = close_files(p);
    return status != MSDU_OK ? msdu__pipeline_status(p) : closed;
}

msdu_status msdu_rollback(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (!p->is_local_entered || p->runs == NULL || p->runs[0].anchor == NULL) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: no completed round to go back to", p->rank);
    }
    if (atomic_load(&p->status) == MSDU_OK && !p->is_finished) {
        /* a failure meanwhile is the very thing that one goes back after */
        (void)msdu__schedule_wait(p, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    msdu__await_stillness(p);
    msdu__domain_rollback(p);
    return msdu__pass_settle(p);
}

msdu_status msdu_state_get(msdu_ctx *ctx, void *data, size_t bytes, size_t *bytes_out)
{
    if (ctx == NULL || bytes_out == NULL) {
        return fail_null("ctx or bytes_out");
    }
    msdu_status status = check_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__state_get(&ctx->pipeline, data, bytes, bytes_out) : status;
}

msdu_status msdu_state_set(msdu_ctx *ctx, const void *data, size_t bytes)
{
    if (ctx == NULL) {
        return fail_null("ctx");
    }
    msdu_status status = check_running(&ctx->pipeline);
    return status == MSDU_OK ? msdu__state_set(&ctx->pipeline, data, bytes) : status;
}

msdu_status msdu_summary_get(msdu_ctx *ctx, msdu_summary *summary_out)
{
    if (ctx == NULL || summary_out == NULL || summary_out->size == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "ctx or summary_out is NULL, or its size is 0: use "
                                            "MSDU_SUMMARY_INIT");
    }
    msdu_summary summary;
    size_t size = summary_out->size;
    msdu__pipeline_summary(&ctx->pipeline, &summary);
    memcpy(summary_out, &summary, size < sizeof(summary) ? size : sizeof(summary));
    summary_out->size = size;
    return MSDU_OK;
}

static void log_summary(msdu__pipeline *p)
{
    char text[2048];
    msdu_summary summary;
    msdu__pipeline_summary(p, &summary);
    msdu__summary_text(&summary, text, sizeof(text));
    for (char *rest = text, *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        msdu__log_line(&p->log, MSDU_LOG_INFO, "%s", line);
    }
}

void msdu_destroy(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return;
    }
    msdu__pipeline *p = &ctx->pipeline;
    stop_worker(p);
    if (p->comm != NULL) {
        bool is_well = atomic_load(&p->status) == MSDU_OK;
        if (is_well && !p->is_finished && MSDU_BACKEND_HAS(p->backend, abort)) {
            p->backend->abort(p->comm, MSDU_ERR_PEER_LOST,
                              "it destroyed its context before msdu_finish()");
        }
        msdu__start_release(p);
        p->backend->close(p->comm);
    }
    if (atomic_load(&p->start_ns) != 0) {
        log_summary(p);
    }
    (void)msdu__trace_close(p->trace);
    msdu__start_free(p);
    msdu__tensors_free(p);
    free_shared(p);
    memset(p->settings.secret, 0, sizeof(p->settings.secret));
    free(ctx);
}
