/* SPDX-License-Identifier: Apache-2.0 */
/* What public functions check first. */
#include "guard.h"

#include <string.h>

/* Forks that led to this process: a load is all that a call on the data path can afford. */
static _Atomic uint32_t forks;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static int watch_error;

static void note_fork(void)
{
    atomic_fetch_add(&forks, 1);
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
    *forks_out = atomic_load(&forks);
    return MSDU_OK;
}

bool msdu__guard_is_parents(const msdu_ctx *ctx)
{
    return ctx->pipeline.forks != atomic_load(&forks);
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
                          ctx->pipeline.rank);
    }
    return MSDU_OK;
}

msdu_status msdu__guard_open(const msdu__pipeline *p)
{
    if (!p->is_started || p->is_finished) {
        return msdu__fail(MSDU_ERR_STATE, "rank %d: the context is not between start and finish",
                          p->rank);
    }
    return MSDU_OK;
}

msdu_status msdu__guard_running(msdu__pipeline *p)
{
    msdu_status status = msdu__pipeline_status(p);
    return status == MSDU_OK ? msdu__guard_open(p) : status;
}

msdu_status msdu__guard_between_steps(const msdu__pipeline *p)
{
    if (!msdu__final_is_between_steps(p)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: tensors were announced since the last "
                          "msdu_step(); end the step first",
                          p->rank);
    }
    return MSDU_OK;
}
