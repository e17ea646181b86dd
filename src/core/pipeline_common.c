/* SPDX-License-Identifier: Apache-2.0 */
/* What owner and communication thread both do: time, failure, release of tensors, the summary. */
#include "pipeline.h"

#include <stdio.h>

#define GRACE_NS 5000000000ULL /* a backend names the cause itself, if it can, by then */

uint64_t msdu__pipeline_now(const msdu__pipeline *p)
{
    return p->clock(NULL);
}

void msdu__pipeline_wake(msdu__pipeline *p)
{
    if (atomic_load(&p->waiters) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
}

void msdu__pipeline_fail(msdu__pipeline *p, msdu_status status, const char *text)
{
    bool is_first = false;
    pthread_mutex_lock(&p->lock);
    if (atomic_load(&p->status) == MSDU_OK) {
        snprintf(p->failure, sizeof(p->failure), "%s", text);
        atomic_store(&p->status, (int)status);
        is_first = true;
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (!is_first) {
        return;
    }
    msdu__log_line(&p->log, MSDU_LOG_ERROR, "%s", text);
    if (atomic_load(&p->worker.is_running)) {
        msdu__worker_kick(&p->worker); /* the communication thread ends it */
    } else {
        msdu__pipeline_end(p);
    }
}

void msdu__pipeline_end(msdu__pipeline *p)
{
    if (p->has_aborted) {
        return;
    }
    p->has_aborted = true;
    if (p->comm != NULL && MSDU_BACKEND_HAS(p->backend, abort)) {
        /* the text was written before the status, and stays */
        p->backend->abort(p->comm, (msdu_status)atomic_load(&p->status), p->failure);
    }
    atomic_store(&p->is_still, true);
    msdu__pipeline_wake(p);
}

void msdu__pipeline_release(msdu__pipeline *p, uint32_t slice, msdu_what what)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    bool is_free = false;
    for (uint32_t i = 0; i < cut->segments; i++) {
        uint32_t id = p->slicing.segments[cut->first_segment + i].tensor;
        is_free |= atomic_fetch_sub(&p->tensors[id].busy[kind], 1) == 1;
    }
    if (is_free) {
        msdu__pipeline_wake(p);
    }
}

void msdu__pipeline_summary(msdu__pipeline *p, msdu_summary *summary_out)
{
    pthread_mutex_lock(&p->lock);
    *summary_out = p->summary;
    pthread_mutex_unlock(&p->lock);
    uint64_t began = atomic_load(&p->start_ns);
    summary_out->steps = atomic_load(&p->step_count);
    summary_out->wait_ns = atomic_load(&p->blocked_ns);
    summary_out->cpu_ns = atomic_load(&p->cpu_ns);
    summary_out->elapsed_ns = began == 0 ? 0 : msdu__pipeline_now(p) - began;
    summary_out->bytes_plain = p->plain_bytes * summary_out->steps;
}

void msdu__pipeline_io(msdu__pipeline *p, msdu_status status)
{
    if (status == MSDU_OK) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    bool is_first = p->io_failure[0] == '\0';
    if (is_first) {
        snprintf(p->io_failure, sizeof(p->io_failure), "%s", msdu_last_error());
    }
    pthread_mutex_unlock(&p->lock);
    if (is_first) {
        msdu__log_line(&p->log, MSDU_LOG_WARN, "%s; training goes on without it",
                       msdu_last_error());
    }
}

msdu_status msdu__pipeline_overdue(msdu__pipeline *p, uint64_t since_ns, const char *what)
{
    if (msdu__pipeline_now(p) - since_ns <= p->host.deadline_ns + GRACE_NS) {
        return MSDU_IN_PROGRESS;
    }
    return msdu__fail(
        MSDU_ERR_TIMEOUT,
        "rank %d: %s did not end within deadline_ms %lld, and the backend %s names no "
        "cause",
        p->rank, what, (long long)p->settings.deadline_ms, p->backend->name);
}

msdu_status msdu__pipeline_start(msdu__pipeline *p, msdu_op *op, uint32_t lane, msdu_req **req_out)
{
    op->size = sizeof(*op);
    op->lane = lane;
    op->sequence = p->lane_sequence[lane];
    msdu_status status = p->backend->start(p->comm, op, req_out);
    if (status == MSDU_OK) {
        p->lane_sequence[lane]++;
    }
    return status;
}

msdu_status msdu__pipeline_status(msdu__pipeline *p)
{
    int status = atomic_load(&p->status);
    if (status == MSDU_OK) {
        return MSDU_OK;
    }
    pthread_mutex_lock(&p->lock);
    msdu__fail_text((msdu_status)status, p->failure);
    pthread_mutex_unlock(&p->lock);
    return (msdu_status)status;
}
