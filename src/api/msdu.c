/* SPDX-License-Identifier: Apache-2.0 */
/* A context from msdu_create() to msdu_destroy(). The only file that knows all stages. */
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "checkpoint/state.h"
#include "core/progress.h"
#include "guard.h"

/* --- create --- */

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
    status = msdu__context_backend(ctx);
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
    return ctx->job.settings.ranks_least > 0 ? msdu__epoch_start(ctx) : msdu__context_begin(ctx);
}

/* --- the end --- */

/* All ranks end with the same parameters. */
static msdu_status average_last(msdu_ctx *ctx)
{
    msdu_status status = msdu__handover_status(&ctx->hand);
    if (status == MSDU_OK) {
        status = msdu__guard_between_steps(ctx);
    }
    if (status == MSDU_OK && ctx->caller.averages_host) {
        status = msdu__caller_drain(&ctx->inner->caller);
    }
    status = status == MSDU_OK ? msdu__average_exact(&ctx->caller) : status;
    /* Where ranks may be lost, a second time, which finds them equal: who returns from that knows
     * that all have the mean, so that those who go on without it end with the same. */
    return status == MSDU_OK && ctx->epochs.members != NULL ? msdu__average_exact(&ctx->caller)
                                                            : status;
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
    do {
        status = msdu__epoch_settle(ctx, average_last(ctx), ctx->caller.step);
    } while (status == MSDU_REGROUPED); /* a rank was lost: once more among the others */
    if (status == MSDU_ERR_STATE && !msdu__handover_has_failed(&ctx->hand)) {
        return status; /* in the middle of a step */
    }
    msdu__context_halt(ctx);
    ctx->caller.is_finished = true;
    msdu_status closed = msdu__context_files(ctx);
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
    msdu__context_halt(ctx);
    if (ctx->job.comm != NULL) {
        bool is_well = !msdu__handover_has_failed(&ctx->hand);
        if (is_well && !ctx->caller.is_finished && MSDU_BACKEND_HAS(ctx->job.backend, abort)) {
            ctx->job.backend->abort(ctx->job.comm, MSDU_ERR_PEER_LOST,
                                    "it destroyed its context before msdu_finish()");
        }
        if (msdu__cell_get(&ctx->hand.reports.start_ns) != 0) {
            log_summary(ctx);
        }
        msdu__context_leave(ctx);
    }
    msdu__epoch_close(ctx);
    (void)msdu__trace_close(ctx->engine.files.trace);
    msdu__context_free(ctx);
}
