/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a context, put together and taken apart. */
#include "context.h"

#include <stdlib.h>
#include <string.h>

#include "core/costs.h"
#include "core/memory.h"
#include "core/progress.h"

void msdu__context_init(msdu_ctx *ctx)
{
    ctx->job.clock = msdu__clock_monotonic;
    ctx->job.measure_costs = msdu__costs_here;
    ctx->job.rank = (int32_t)ctx->job.settings.rank;
    ctx->job.ranks = (int32_t)ctx->job.settings.ranks;
    ctx->engine.job = &ctx->job;
    ctx->engine.model = &ctx->model;
    ctx->engine.hand = &ctx->hand;
    ctx->caller.job = &ctx->job;
    ctx->caller.model = &ctx->model;
    ctx->caller.hand = &ctx->hand;
    ctx->caller.engine = &ctx->engine;
    ctx->caller.weight = 1;
    msdu__handover_init(&ctx->hand, &ctx->job, msdu__engine_advance, &ctx->engine);
}

void msdu__context_stop(msdu_ctx *ctx)
{
    msdu__worker_stop(&ctx->hand.worker);
    if (msdu__handover_has_failed(&ctx->hand)) {
        msdu__handover_end(&ctx->hand);
    }
}

void msdu__context_reset(msdu_ctx *ctx)
{
    msdu__job *job = &ctx->job;
    msdu__model *model = &ctx->model;
    msdu__lease *leases = ctx->hand.leases;
    msdu__clock_fn clock = job->clock;
    const msdu__wire_costs *(*measure)(void) = job->measure_costs;
    msdu__draw_free(&ctx->caller.draw);
    msdu__memory_free(&ctx->engine);
    ctx->hand.leases = NULL;
    msdu__handover_free(&ctx->hand);
    *job =
        (msdu__job){.settings = job->settings, .log = job->log, .levels.inner = job->levels.inner};
    *model = (msdu__model){.tensors = model->tensors,
                           .tensor_names = model->tensor_names,
                           .tensor_count = model->tensor_count,
                           .tensor_bytes = model->tensor_bytes};
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        model->tensors[i].first_slice = model->tensors[i].slice_count = 0;
        memset(&leases[i], 0, sizeof(leases[i]));
    }
    memset(&ctx->engine, 0, sizeof(ctx->engine));
    memset(&ctx->caller, 0, sizeof(ctx->caller));
    memset(&ctx->hand, 0, sizeof(ctx->hand));
    msdu__context_init(ctx);
    ctx->hand.leases = leases;
    job->clock = clock;
    job->measure_costs = measure;
}

void msdu__context_free(msdu_ctx *ctx)
{
    msdu__draw_free(&ctx->caller.draw);
    msdu__memory_free(&ctx->engine);
    msdu__tensors_free(&ctx->model);
    msdu__handover_free(&ctx->hand);
    explicit_bzero(ctx->job.settings.secret, sizeof(ctx->job.settings.secret));
    free(ctx);
}
