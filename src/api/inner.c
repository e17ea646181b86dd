/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context of this host's ranks inside the job's (caller/inner.c has its steps): the same tensors,
 * in the gradient domain, over shared memory. Both have a failure when one has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/blocking.h"
#include "core/memory.h"
#include "guard.h"
#include "startup/startup.h"

#define JOIN_MS 10000 /* ranks of a host meet within this, or the job goes on without */

/* Why gradients stay each rank's own; NULL: they need not. Equal on all ranks. */
static const char *reason_against(const msdu_ctx *ctx)
{
    const msdu__job *job = &ctx->job;
    return !job->starts_gradients           ? "as domain parameter announces none"
           : job->levels.inner_comm == NULL ? "as hosts share no memory"
           : job->settings.reduce_sum       ? "as setting reduce is sum"
                                            : NULL;
}

static void settle(const msdu_ctx *ctx, msdu__settings *s)
{
    const msdu__levels *levels = &ctx->job.levels;
    *s = ctx->job.settings;
    s->rank = levels->index;
    s->ranks = levels->size;
    s->domain = MSDU__DOMAIN_GRADIENT;
    s->overlap =
        s->overlap == MSDU__OVERLAP_BLOCKING ? MSDU__OVERLAP_BLOCKING : MSDU__OVERLAP_BACKWARD;
    s->wire = MSDU__WIRE_FLOAT32;
    s->state = MSDU__STATE_LOCAL;
    s->uneven = MSDU__UNEVEN_WAIT;
    s->total_steps = 0;
    s->broadcast = 0;
    s->correct[0] = s->rendezvous[0] = s->trace_file[0] = s->metrics_file[0] = '\0';
    s->store.size = 0;
    /* cut once: what is tuned is meant for a network */
    s->slice_bytes = (int64_t)ctx->model.tuning.slice_bytes;
    (void)snprintf(s->job, sizeof(s->job), "%s-mean", levels->job);
}

static msdu_status add_tensors(const msdu_ctx *ctx, msdu_ctx *inner)
{
    msdu_status status = MSDU_OK;
    for (uint32_t i = 0; i < ctx->model.tensor_count && status == MSDU_OK; i++) {
        const msdu__tensor *t = &ctx->model.tensors[i];
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = t->name;
        desc.parameter = t->parameter;
        desc.gradient = t->gradient;
        desc.count = t->count;
        desc.dtype = t->dtype;
        desc.role = t->role;
        desc.priority = t->priority;
        desc.place = t->place;
        status = msdu_tensor_add(inner, &desc, NULL);
    }
    return status;
}

/* Sooner than the deadline within which all ranks then tell each other how that went. */
static msdu_status join(const msdu_ctx *ctx, msdu_ctx *inner)
{
    int64_t deadline = ctx->job.settings.deadline_ms;
    inner->job.settings.deadline_ms = deadline / 2 < JOIN_MS ? deadline / 2 : JOIN_MS;
    msdu_status status = msdu__start_join(&inner->engine);
    inner->job.settings.deadline_ms = deadline;
    inner->job.host.deadline_ns = ctx->job.host.deadline_ns;
    return status;
}

static msdu_status build(msdu_ctx *ctx, msdu_ctx *inner)
{
    if (inner == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for a context");
    }
    settle(ctx, &inner->job.settings);
    msdu__context_init(inner);
    inner->forks = ctx->forks;
    inner->job.clock = ctx->job.clock;
    inner->job.backend = ctx->job.levels.inner;
    inner->job.cores = ctx->job.cores;
    inner->job.core_share = ctx->job.core_share;
    inner->job.levels.names = ctx->job.levels.names;
    msdu_status status = msdu__derive(&inner->job, &inner->engine.correct_args);
    inner->job.policy = &msdu__policy_host_mean;
    status = status == MSDU_OK ? add_tensors(ctx, inner) : status;
    status = status == MSDU_OK ? msdu__start_build(&inner->engine) : status;
    status = status == MSDU_OK ? join(ctx, inner) : status;
    status = status == MSDU_OK
                 ? msdu__draw_prepare(&inner->caller.draw, &inner->hand, inner->job.ranks)
                 : status;
    status = status == MSDU_OK ? msdu__worker_start(&inner->hand.worker) : status;
    inner->caller.is_started = inner->caller.is_gradient = true;
    return status;
}

/* Its place in the job's context. */
static void take(msdu_ctx *ctx, msdu_ctx *inner)
{
    ctx->inner = inner;
    ctx->caller.inner = &inner->caller;
    ctx->hand.inner = &inner->hand;
    inner->hand.outer = &ctx->hand;
}

/* All ranks of all hosts, or none. */
static msdu_status agree(msdu_ctx *ctx, bool is_open, bool *are_open_out)
{
    uint64_t own = is_open ? 1 : 0;
    void *all = NULL;
    msdu_status status = msdu__blocking_gather(&ctx->engine, &own, sizeof(own), 0, 0, &all);
    *are_open_out = status == MSDU_OK;
    for (int32_t i = 0; i < ctx->job.ranks && *are_open_out; i++) {
        *are_open_out = ((const uint64_t *)all)[i] != 0;
    }
    free(all);
    return status;
}

static msdu_status open_all(msdu_ctx *ctx)
{
    bool is_alone = ctx->job.levels.size == 1;
    bool are_open = false;
    msdu_ctx *inner = is_alone ? NULL : calloc(1, sizeof(*inner));
    bool is_open = is_alone || build(ctx, inner) == MSDU_OK;
    if (!is_open) {
        msdu__log_line(&ctx->job.log, MSDU_LOG_WARN,
                       "gradients cannot be averaged over this host: %s", msdu_last_error());
    }
    msdu_status status = agree(ctx, is_open, &are_open);
    if (inner != NULL) {
        take(ctx, inner);
    }
    if (!are_open) {
        msdu__inner_close(ctx);
    }
    return status;
}

/* Who is where, and which level does what. */
static void describe(const msdu_ctx *ctx, const char *why)
{
    const msdu__job *job = &ctx->job;
    msdu__log_line(&job->log, MSDU_LOG_INFO,
                   "%d ranks on %d hosts; local steps: gradients %s%s, parameters between hosts by "
                   "%d ranks of each, inside over %s; this is rank %d of %d of host %d",
                   job->ranks, job->levels.hosts,
                   why == NULL ? "averaged inside a host in every step" : "each rank's own, ",
                   why == NULL ? "" : why, job->levels.carriers,
                   job->levels.inner_comm != NULL ? "shared memory" : job->backend->name,
                   job->levels.index, job->levels.size, job->levels.host);
}

msdu_status msdu__inner_open(msdu_ctx *ctx)
{
    if (!ctx->job.levels.is_on) {
        return MSDU_OK;
    }
    const char *why = reason_against(ctx);
    describe(ctx, why);
    return why == NULL ? open_all(ctx) : MSDU_OK;
}

void msdu__inner_close(msdu_ctx *ctx)
{
    msdu_ctx *inner = ctx->inner;
    if (inner == NULL) {
        return;
    }
    msdu__context_stop(inner);
    ctx->inner = NULL;
    ctx->caller.inner = NULL;
    ctx->hand.inner = NULL;
    msdu__memory_release(&inner->engine);
    if (inner->job.comm != NULL) {
        inner->job.backend->close(inner->job.comm);
    }
    msdu__context_free(inner);
}
