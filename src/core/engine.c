/* SPDX-License-Identifier: Apache-2.0 */
/* What several files of the engine do: start an operation, look at its deadline, release tensors.
 */
#include "engine.h"

#include <stdlib.h>

#define GRACE_NS 5000000000ULL /* a backend names the cause itself, if it can, by then */

void msdu__engine_release(msdu__engine *e, uint32_t slice, msdu_what what)
{
    const msdu__slicing *slicing = &e->model->slicing;
    const msdu__slice *cut = &slicing->slices[slice];
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    bool is_free = false;
    for (uint32_t i = 0; i < cut->segments; i++) {
        uint32_t id = slicing->segments[cut->first_segment + i].tensor;
        is_free |= msdu__cell_add(&e->hand->leases[id].free[kind], 1) == (uint64_t)-1;
    }
    if (is_free) {
        msdu__handover_wake(e->hand);
    }
}

msdu_status msdu__engine_overdue(msdu__engine *e, uint64_t since_ns, const char *what)
{
    const msdu__job *job = e->job;
    if (msdu__engine_now(e) - since_ns <= job->host.deadline_ns + GRACE_NS) {
        return MSDU_IN_PROGRESS;
    }
    return msdu__fail(
        MSDU_ERR_TIMEOUT,
        "rank %d: %s did not end within deadline_ms %lld, and the backend %s names no cause",
        msdu__job_name(job, job->rank), what, (long long)job->settings.deadline_ms,
        job->backend->name);
}

msdu_status msdu__engine_start(msdu__engine *e, msdu_op *op, uint32_t lane, msdu_req **req_out)
{
    op->size = sizeof(*op);
    op->lane = lane;
    op->sequence = e->channel_sequence[op->group][lane];
    const msdu__levels *levels = &e->job->levels;
    uint32_t group = op->group;
    msdu_status status = MSDU_OK;
    if (group == MSDU_GROUP_HOST && levels->inner_comm != NULL) {
        op->group = MSDU_GROUP_WORLD; /* to that backend, the host is the world */
        status = levels->inner->start(levels->inner_comm, op, req_out);
    } else {
        status = e->job->backend->start(e->job->comm, op, req_out);
    }
    if (status == MSDU_OK) {
        e->channel_sequence[group][lane]++;
    }
    return status;
}

msdu_status msdu__engine_test(const msdu__engine *e, uint32_t group, msdu_req *req)
{
    const msdu__levels *levels = &e->job->levels;
    if (group == MSDU_GROUP_HOST && levels->inner_comm != NULL) {
        return levels->inner->test(levels->inner_comm, req);
    }
    return e->job->backend->test(e->job->comm, req);
}

void msdu__levels_close(msdu__job *job)
{
    if (job->levels.inner_comm != NULL) {
        job->levels.inner->close(job->levels.inner_comm);
    }
    job->levels.inner_comm = NULL;
    free(job->levels.names);
    job->levels.names = NULL;
}
