/* SPDX-License-Identifier: Apache-2.0 */
/* A context's group: met, with all that is built for it, and left. Once, or once for each epoch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "core/domain.h"
#include "core/kernels.h"
#include "core/levels.h"
#include "core/memory.h"
#include "core/progress.h"
#include "guard.h"
#include "startup/startup.h"

static msdu_status load_backend(msdu_ctx *ctx, const char *name)
{
    msdu_status status = msdu__backend_find(name, &ctx->job.backend);
    if (status == MSDU_OK) {
        msdu__log_line(&ctx->job.log, MSDU_LOG_INFO, "backend %s %s", ctx->job.backend->name,
                       ctx->job.backend->version);
    }
    return status;
}

/* One rank needs no network: the same calls, no module. */
msdu_status msdu__context_backend(msdu_ctx *ctx)
{
    return load_backend(ctx, ctx->job.ranks == 1 ? "local" : ctx->job.settings.backend);
}

/* --- met --- */

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
    if (ctx->job.is_later) { /* a file for each epoch */
        size_t used = strlen(path);
        (void)snprintf(path + used, sizeof(path) - used, ".epoch%llu",
                       (unsigned long long)ctx->epochs.now.number);
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
    if (status == MSDU_OK && ctx->job.is_later) {
        status = msdu__heal(&ctx->engine, &ctx->epochs.carried, &ctx->epochs.former);
    }
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

/* Ranks of a later epoch begin with what its rank 0 brought. */
static void take_carried(msdu_ctx *ctx)
{
    const msdu__carried *c = &ctx->epochs.carried;
    ctx->caller.step = ctx->caller.resumed_step = c->step;
    ctx->caller.is_resumed = true;
    msdu__cell_set(&ctx->hand.reports.step_count, c->step);
    msdu__number_set(&ctx->hand.reports.lr, c->lr);
}

/* From gradients there is no way but local steps, as in the epoch before: optimizers differ. */
static bool goes_on_local(const msdu_ctx *ctx)
{
    return ctx->job.is_later && ctx->epochs.carried.is_exact == 0 && ctx->job.starts_gradients &&
           ctx->job.interval_args.can_go_local && !ctx->engine.ticks.is_on;
}

msdu_status msdu__context_begin(msdu_ctx *ctx)
{
    msdu_status status = meet_others(ctx);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(&ctx->hand, status);
        return status;
    }
    if (ctx->job.is_later) {
        take_carried(ctx);
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
    if (msdu__cell_get(&ctx->hand.reports.start_ns) == 0) {
        msdu__cell_set(&ctx->hand.reports.start_ns, msdu__job_now(&ctx->job));
    }
    msdu__log_line(&ctx->job.log, MSDU_LOG_INFO,
                   "started: ranks %d, tensors %u, slices %u, elements %llu", ctx->job.ranks,
                   ctx->model.tensor_count, ctx->model.slicing.slice_count,
                   (unsigned long long)ctx->model.element_count);
    status = msdu__worker_start(&ctx->hand.worker);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(&ctx->hand, status);
    } else if (goes_on_local(ctx)) {
        /* the trainer is in the middle of a step, and may change parameters at once: anchors first
         */
        msdu__step_start_local(&ctx->caller, &ctx->epochs.carried.decision);
        status = msdu__caller_wait_free(&ctx->caller, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    } else {
        msdu__step_start(&ctx->caller);
    }
    return status;
}

/* --- left --- */

void msdu__context_halt(msdu_ctx *ctx)
{
    msdu__context_stop(ctx);
    if (ctx->inner != NULL) {
        msdu__context_stop(ctx->inner);
    }
}

/* Last lines of metrics and trace; a file that failed makes finish return ERR_IO. */
msdu_status msdu__context_files(msdu_ctx *ctx)
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

void msdu__context_leave(msdu_ctx *ctx)
{
    if (ctx->job.comm != NULL) {
        msdu__memory_release(&ctx->engine);
        msdu__inner_close(ctx);
        msdu__levels_close(&ctx->job);
        ctx->job.backend->close(ctx->job.comm);
        ctx->job.comm = NULL;
    }
}
