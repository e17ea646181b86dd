/* SPDX-License-Identifier: Apache-2.0 */
/* A context from msdu_create() to msdu_destroy(). The only file that knows all stages. */
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "checkpoint/state.h"
#include "core/domain.h"
#include "core/kernels.h"
#include "core/levels.h"
#include "core/memory.h"
#include "core/progress.h"
#include "guard.h"
#include "startup/startup.h"

/* --- create --- */

static msdu_status load_backend(msdu_ctx *ctx, const char *name)
{
    msdu_status status = msdu__backend_find(name, &ctx->job.backend);
    if (status == MSDU_OK) {
        msdu__log_line(&ctx->job.log, MSDU_LOG_INFO, "backend %s %s", ctx->job.backend->name,
                       ctx->job.backend->version);
    }
    return status;
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
    msdu_status status = msdu__guard_process(&ctx->forks);
    if (status == MSDU_OK) {
        status = msdu__settings_load(config, &ctx->job.settings, &ctx->job.log);
    }
    if (status != MSDU_OK) {
        goto err_free;
    }
    msdu__context_init(ctx);
    ctx->job.levels.inner = &msdu__backend_host;
    status = msdu__derive(&ctx->job, &ctx->engine.correct_args);
    if (status != MSDU_OK) {
        goto err_parts;
    }
    /* one rank needs no network: the same calls, no module */
    status = load_backend(ctx, ctx->job.ranks == 1 ? "local" : ctx->job.settings.backend);
    if (status != MSDU_OK) {
        goto err_parts;
    }
    ctx->hand.summary.interval = ctx->job.policy->name;
    *ctx_out = ctx;
    return MSDU_OK;

err_parts:
    msdu__context_free(ctx);
    return status;
err_free:
    explicit_bzero(ctx->job.settings.secret, sizeof(ctx->job.settings.secret));
    free(ctx);
    return status;
}

/* --- start --- */

static msdu_status open_files(msdu_ctx *ctx)
{
    char path[MSDU__SETTING_BYTES];
    const msdu__settings *s = &ctx->job.settings;
    if (!msdu__observe_path(s->metrics_file, ctx->job.rank, ctx->engine.files.metrics_path,
                            sizeof(ctx->engine.files.metrics_path)) ||
        !msdu__observe_path(s->trace_file, ctx->job.rank, path, sizeof(path))) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: trace_file or metrics_file is too long",
                          ctx->job.rank);
    }
    if (path[0] == '\0') {
        return MSDU_OK;
    }
    const char **names = msdu__start_names(&ctx->engine);
    if (names == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the trace", ctx->job.rank);
    }
    msdu_status status = msdu__trace_open(path, ctx->job.rank, msdu__job_now(&ctx->job), names,
                                          ctx->model.slicing.slice_count, &ctx->engine.files.trace);
    free(names);
    return status;
}

/* A device's memory needs the group first; else what is wrong with tensors is found before. */
static msdu_status join_and_build(msdu_ctx *ctx)
{
    if (ctx->model.tensors[0].place == MSDU_PLACE_HOST) {
        msdu_status status = msdu__start_build(&ctx->engine);
        return status == MSDU_OK ? msdu__start_join(&ctx->engine) : status;
    }
    if (ctx->job.ranks == 1) {
        msdu_status loaded = load_backend(ctx, ctx->job.settings.backend); /* for its device */
        if (loaded != MSDU_OK) {
            return loaded;
        }
    }
    if (!MSDU_BACKEND_HAS(ctx->job.backend, device)) {
        return msdu__fail(
            MSDU_ERR_UNSUPPORTED,
            "rank %d: tensors are in a device's memory, which backend \"%s\" does not "
            "reach",
            ctx->job.rank, ctx->job.backend->name);
    }
    msdu_status status = msdu__start_join(&ctx->engine);
    ctx->job.device = status == MSDU_OK ? ctx->job.backend->device : NULL;
    return status == MSDU_OK ? msdu__start_build(&ctx->engine) : status;
}

static msdu_status meet_others(msdu_ctx *ctx)
{
    msdu_status status = join_and_build(ctx);
    status = status == MSDU_OK ? msdu__agree(&ctx->engine) : status;
    status = status == MSDU_OK ? msdu__draw_prepare(&ctx->caller.draw, &ctx->hand, ctx->job.ranks)
                               : status;
    status = status == MSDU_OK ? msdu__hosts_find(&ctx->engine) : status;
    status = status == MSDU_OK ? msdu__inner_open(ctx) : status;
    status = status == MSDU_OK ? msdu__reslice_probe(&ctx->engine) : status;
    return status == MSDU_OK ? open_files(ctx) : status;
}

static void describe_start(msdu_ctx *ctx)
{
    msdu_summary *summary = &ctx->hand.summary;
    summary->domain = ctx->job.starts_gradients ? "gradient"
                      : ctx->job.is_accumulated ? "accumulated"
                                                : "parameter";
    summary->state = ctx->engine.ticks.is_on     ? "clock"
                     : ctx->job.starts_gradients ? "exact"
                                                 : "local";
    summary->slice_bytes = ctx->model.tuning.slice_bytes;
    summary->window = ctx->model.tuning.window;
    summary->lanes = ctx->model.tuning.lanes;
}

msdu_status msdu_start(msdu_ctx *ctx)
{
    msdu_status guarded = msdu__guard(ctx);
    if (guarded != MSDU_OK) {
        return guarded;
    }
    if (ctx->caller.is_started || ctx->model.tensor_count == 0) {
        return msdu__fail(MSDU_ERR_STATE, ctx->caller.is_started ? "msdu_start() was called before"
                                                                 : "no tensor was added");
    }
    ctx->caller.is_started = true; /* even if it fails: there is no second try on half a group */
    msdu_status status = meet_others(ctx);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(&ctx->hand, status);
        return status;
    }
    ctx->caller.is_gradient = ctx->job.starts_gradients;
    ctx->caller.is_local_entered = ctx->job.starts_local;
    ctx->caller.is_clocked = ctx->engine.ticks.is_on;
    ctx->caller.draw.clock_step = ctx->engine.ticks.is_on ? 0 : UINT64_MAX;
    describe_start(ctx);
    if (ctx->job.starts_local) {
        msdu__levels_set(&ctx->engine, true);
        msdu__domain_anchor(&ctx->engine);
    }
    if (msdu__kernels_settle(&ctx->engine) != MSDU_OK) {
        return msdu__handover_status(&ctx->hand);
    }
    msdu__cell_set(&ctx->hand.reports.start_ns, msdu__job_now(&ctx->job));
    msdu__log_line(&ctx->job.log, MSDU_LOG_INFO,
                   "started: ranks %d, tensors %u, slices %u, elements %llu", ctx->job.ranks,
                   ctx->model.tensor_count, ctx->model.slicing.slice_count,
                   (unsigned long long)ctx->model.element_count);
    status = msdu__worker_start(&ctx->hand.worker);
    if (status == MSDU_OK) {
        msdu__step_start(&ctx->caller);
    } else {
        msdu__handover_fail_last(&ctx->hand, status);
    }
    return status;
}

/* --- the end --- */

static void stop_workers(msdu_ctx *ctx)
{
    msdu__context_stop(ctx);
    if (ctx->inner != NULL) {
        msdu__context_stop(ctx->inner);
    }
}

/* Last lines of metrics and trace; a file that failed makes finish return ERR_IO. */
static msdu_status close_files(msdu_ctx *ctx)
{
    msdu__handover_io(&ctx->hand, msdu__trace_close(ctx->engine.files.trace));
    ctx->engine.files.trace = NULL;
    if (ctx->engine.files.metrics_path[0] != '\0' &&
        ctx->engine.files.metrics_due_ns != UINT64_MAX) {
        msdu_summary summary;
        msdu__handover_summary(&ctx->hand, &summary);
        msdu__handover_io(&ctx->hand,
                          msdu__metrics_write(ctx->engine.files.metrics_path, &summary));
    }
    return ctx->hand.failure.io_text[0] == '\0'
               ? MSDU_OK
               : msdu__fail_text(MSDU_ERR_IO, ctx->hand.failure.io_text);
}

msdu_status msdu_finish(msdu_ctx *ctx)
{
    if (ctx == NULL || ctx->caller.is_finished) {
        return msdu__guard_running(ctx); /* says why not */
    }
    msdu_status status = msdu__guard_open(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    status = msdu__handover_status(&ctx->hand);
    if (status == MSDU_OK) {
        status = msdu__guard_between_steps(ctx);
        if (status != MSDU_OK) {
            return status;
        }
        status = ctx->caller.averages_host ? msdu__caller_drain(&ctx->inner->caller) : MSDU_OK;
        status = status == MSDU_OK ? msdu__average_exact(&ctx->caller) : status;
    }
    stop_workers(ctx);
    ctx->caller.is_finished = true;
    msdu_status closed = close_files(ctx);
    return status != MSDU_OK ? msdu__handover_status(&ctx->hand) : closed;
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
    msdu__handover_summary(&ctx->hand, &summary);
    memcpy(summary_out, &summary, size < sizeof(summary) ? size : sizeof(summary));
    summary_out->size = size;
    return MSDU_OK;
}

static void log_summary(msdu_ctx *ctx)
{
    char text[2048];
    msdu_summary summary;
    msdu__handover_summary(&ctx->hand, &summary);
    msdu__summary_text(&summary, text, sizeof(text));
    for (char *rest = text, *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        msdu__log_line(&ctx->job.log, MSDU_LOG_INFO, "%s", line);
    }
}

void msdu_destroy(msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return;
    }
    if (msdu__guard_is_parents(ctx)) {
        /* threads, locks and connections are the parent's; the memory goes with this process */
        explicit_bzero(ctx->job.settings.secret, sizeof(ctx->job.settings.secret));
        if (ctx->inner != NULL) {
            explicit_bzero(ctx->inner->job.settings.secret, sizeof(ctx->job.settings.secret));
        }
        return;
    }
    stop_workers(ctx);
    if (ctx->job.comm != NULL) {
        bool is_well = !msdu__handover_has_failed(&ctx->hand);
        if (is_well && !ctx->caller.is_finished && MSDU_BACKEND_HAS(ctx->job.backend, abort)) {
            ctx->job.backend->abort(ctx->job.comm, MSDU_ERR_PEER_LOST,
                                    "it destroyed its context before msdu_finish()");
        }
        msdu__memory_release(&ctx->engine);
        if (msdu__cell_get(&ctx->hand.reports.start_ns) != 0) {
            log_summary(ctx);
        }
        msdu__inner_close(ctx);
        msdu__levels_close(&ctx->job);
        ctx->job.backend->close(ctx->job.comm);
    }
    (void)msdu__trace_close(ctx->engine.files.trace);
    msdu__context_free(ctx);
}
