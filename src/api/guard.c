/* SPDX-License-Identifier: Apache-2.0 */
/* What public functions check first. */
#include "guard.h"

#include <string.h>

/* Forks that led to this process: a load is all that a call on the data path can afford. */
static msdu__cell forks;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static int watch_error;

static void note_fork(void)
{
    (void)msdu__cell_add(&forks, 1);
}

static void watch_forks(void)
{
    watch_error = pthread_atfork(NULL, NULL, note_fork);
}

msdu_status msdu__guard_process(uint32_t *forks_out)
{
    (void)pthread_once(&watch_once, watch_forks);
    if (watch_error != 0) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "cannot watch for fork(): %s", strerror(watch_error));
    }
    *forks_out = (uint32_t)msdu__cell_get(&forks);
    return MSDU_OK;
}

bool msdu__guard_is_parents(const msdu_ctx *ctx)
{
    return ctx->forks != msdu__cell_get(&forks);
}

msdu_status msdu__guard(const msdu_ctx *ctx)
{
    if (ctx == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "ctx is NULL");
    }
    if (msdu__guard_is_parents(ctx)) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: this context was made before fork(), by the parent process; "
                          "the child makes its own",
                          ctx->job.rank);
    }
    return MSDU_OK;
}

msdu_status msdu__guard_open(const msdu_ctx *ctx)
{
    msdu_status status = msdu__guard(ctx);
    if (status == MSDU_OK && (!ctx->caller.is_started || ctx->caller.is_finished)) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: the context is not between start and finish",
                          ctx->job.rank);
    }
    return status;
}

msdu_status msdu__guard_running(msdu_ctx *ctx)
{
    msdu_status status = msdu__guard(ctx);
    status = status == MSDU_OK ? msdu__handover_status(&ctx->hand) : status;
    return status == MSDU_OK ? msdu__guard_open(ctx) : status;
}

msdu_status msdu__guard_between_steps(msdu_ctx *ctx)
{
    msdu_status status = msdu__guard_running(ctx);
    if (status == MSDU_OK && !msdu__caller_is_between_steps(&ctx->caller)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: tensors were announced since the last "
                          "msdu_step(); end the step first",
                          ctx->job.rank);
    }
    return status;
}
