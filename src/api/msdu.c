/* SPDX-License-Identifier: Apache-2.0 */
/* A context from msdu_create() to msdu_destroy(). The only file that knows all stages. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "checkpoint/state.h"
#include "guard.h"

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

static void free_context(msdu_ctx *ctx)
{
    explicit_bzero(ctx->pipeline.settings.secret, sizeof(ctx->pipeline.settings.secret));
    free(ctx);
}

msdu_status msdu_create(const msdu_config *config, msdu_ctx **ctx_out)
{
    if (ctx_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "ctx_out is NULL");
    }
    msdu_ctx *ctx = calloc(1, sizeof(*ctx));
    if (ctx == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for a context");
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = msdu__guard_process(&p->forks);
    if (status == MSDU_OK) {
        status = msdu__settings_load(config, &p->settings, &p->log);
    }
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
    free_context(ctx);
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
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    if (p->is_started || p->tensor_count == 0) {
        return msdu__fail(MSDU_ERR_STATE,
                          p->is_started ? "msdu_start() was called before" : "no tensor was added");
    }
    p->is_started = true; /* even if it fails: there is no second try on half a group */
    msdu_status (*const steps[])(msdu__pipeline *) = {join_and_build, msdu__agree,
                                                      msdu__reslice_probe, open_files};
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
    if (msdu__kernels_settle(p) != MSDU_OK) {
        return msdu__pipeline_status(p);
    }
    atomic_store(&p->start_ns, msdu__pipeline_now(p));
    msdu__log_line(&p->log, MSDU_LOG_INFO,
                   "started: ranks %d, tensors %u, slices %u, elements %llu", p->ranks,
                   p->tensor_count, p->slicing.slice_count, (unsigned long long)p->element_count);
    msdu_status status = msdu__worker_start(&p->worker);
    if (status == MSDU_OK) {
        msdu__step_start(p);
    } else {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    return status;
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

msdu_status msdu_finish(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = p->is_finished ? msdu__guard_running(p) : msdu__guard_open(p);
    if (status != MSDU_OK) {
        return status;
    }
    status = msdu__pipeline_status(p);
    if (status == MSDU_OK) {
        status = msdu__guard_between_steps(p);
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

msdu_status msdu_summary_get(msdu_ctx *ctx, msdu_summary *summary_out)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (summary_out == NULL || summary_out->size == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "summary_out is NULL, or its size is 0: use "
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
    if (msdu__guard_is_parents(ctx)) {
        /* threads, locks and connections are the parent's; the memory goes with this process */
        explicit_bzero(p->settings.secret, sizeof(p->settings.secret));
        return;
    }
    stop_worker(p);
    if (p->comm != NULL) {
        bool is_well = atomic_load(&p->status) == MSDU_OK;
        if (is_well && !p->is_finished && MSDU_BACKEND_HAS(p->backend, abort)) {
            p->backend->abort(p->comm, MSDU_ERR_PEER_LOST,
                              "it destroyed its context before msdu_finish()");
        }
        msdu__memory_release(p);
        p->backend->close(p->comm);
    }
    if (atomic_load(&p->start_ns) != 0) {
        log_summary(p);
    }
    (void)msdu__trace_close(p->trace);
    msdu__memory_free(p);
    msdu__tensors_free(p);
    free_shared(p);
    free_context(ctx);
}
