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

void msdu__context_free(msdu_ctx *ctx)
{
    msdu__draw_free(&ctx->caller.draw);
    msdu__memory_free(&ctx->engine);
    msdu__tensors_free(&ctx->model);
    msdu__handover_free(&ctx->hand);
    explicit_bzero(ctx->job.settings.secret, sizeof(ctx->job.settings.secret));
    free(ctx);
}
