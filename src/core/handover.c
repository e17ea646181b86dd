/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the two threads: events, waits, the first failure, counters. The communication thread
 * wakes the API thread whenever something changes; now and then that looks by itself, so a lost
 * wake-up costs no more than that, and a context in which nothing moves any more fails instead of
 * hanging.
 */
#include "handover.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS 500000000ULL
/* Beyond the longest that one operation may take, which fails by itself: for what the communication
 * thread computes between two changes, such as a state of many gigabytes. */
#define MARGIN_NS 60000000000ULL

uint64_t msdu__job_now(const msdu__job *job)
{
    return job->clock(NULL);
}

void msdu__handover_init(msdu__handover *h, const msdu__job *job, msdu__worker_fn step, void *user)
{
    h->job = job;
    pthread_mutex_init(&h->lock, NULL);
    msdu__cond_init(&h->changed);
    msdu__worker_init(&h->worker, step, user);
    msdu__number_set(&h->reports.lr, job->settings.lr);
    msdu__number_set(&h->reports.loss, (double)NAN);
    msdu__flag_set(&h->reports.is_first_call, true);
    h->summary = (msdu_summary){
        .size = sizeof(msdu_summary),
        .rank = job->rank,
        .ranks = job->ranks,
        .interval_steps = 1,
        .wire = "float32",
        .domain = "gradient",
        .state = "exact",
        .interval = "fixed",
    };
}

void msdu__handover_free(msdu__handover *h)
{
    msdu__ready_free(&h->events);
    free(h->leases);
    msdu__worker_free(&h->worker);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
}

void msdu__handover_push(msdu__handover *h, const msdu__event *event)
{
    if (!msdu__ready_push(&h->events, event)) {
        msdu__handover_fail(h, MSDU_ERR_STATE, "the ready queue is full: a call out of order");
    }
}

bool msdu__handover_is_busy(const msdu__handover *h, uint32_t tensor, uint32_t what)
{
    const msdu__lease *lease = &h->leases[tensor];
    return (((what & MSDU_GRADIENT) != 0 && msdu__cell_get(&lease->free[0]) != 0) ||
            ((what & MSDU_PARAMETER) != 0 && msdu__cell_get(&lease->free[1]) != 0));
}

/* --- waits --- */

/* The latest change that was seen. */
typedef struct patience {
    uint64_t progress;
    uint64_t since_ns;
} patience;

static void check_progress(msdu__handover *h, const msdu__ticket *t, patience *seen)
{
    uint64_t now = msdu__job_now(h->job);
    uint64_t progress = msdu__cell_get(&h->progress);
    if (progress != seen->progress) {
        *seen = (patience){progress, now};
    } else if (!msdu__handover_has_failed(h) &&
               now - seen->since_ns > h->job->host.deadline_ns + MARGIN_NS) {
        (void)msdu__fail(
            MSDU_ERR_TIMEOUT,
            "rank %d: waited %llu s for %s%s in step %llu while nothing moved, longer than "
            "deadline_ms %lld allows any operation",
            msdu__job_name(h->job, h->job->rank),
            (unsigned long long)((now - seen->since_ns) / 1000000000ULL), t->what,
            t->name == NULL ? "" : t->name,
            (unsigned long long)msdu__cell_get(&h->reports.step_count),
            (long long)h->job->settings.deadline_ms);
        msdu__handover_fail_last(h, MSDU_ERR_TIMEOUT);
    }
}

bool msdu__ticket_is_there(const msdu__ticket *ticket)
{
    return (int64_t)(msdu__cell_get(ticket->counter) - ticket->value) >= 0;
}

/*
 * After a failure nothing more comes: who waits leaves at once, or, if the communication thread may
 * hold what it was lent, when that stands still. No deadline there: it is inside no call that
 * blocks, and msdu_destroy() joins it likewise.
 */
static bool is_over(const msdu__handover *h, const msdu__ticket *t)
{
    bool may_leave = !t->is_lent || msdu__cell_get(&h->failure.stillness) != 0 ||
                     !msdu__flag_get(&h->worker.is_running);
    return msdu__ticket_is_there(t) || (msdu__handover_has_failed(h) && may_leave);
}

uint64_t msdu__handover_wait(msdu__handover *h, const msdu__ticket *ticket)
{
    struct timespec look;
    uint64_t began = msdu__job_now(h->job);
    patience seen = {msdu__cell_get(&h->progress), began};
    /* counted before the lock, so that a thread that changes something either sees the count or is
     * seen */
    (void)msdu__cell_add(&h->waiters, 1);
    pthread_mutex_lock(&h->lock);
    while (!is_over(h, ticket)) {
        msdu__clock_after(LOOK_NS, &look);
        if (pthread_cond_timedwait(&h->changed, &h->lock, &look) == ETIMEDOUT) {
            pthread_mutex_unlock(&h->lock);
            msdu__worker_kick(&h->worker);
            check_progress(h, ticket, &seen);
            pthread_mutex_lock(&h->lock);
        }
    }
    pthread_mutex_unlock(&h->lock);
    (void)msdu__cell_add(&h->waiters, (uint64_t)-1);
    return msdu__job_now(h->job) - began;
}

void msdu__handover_await_stillness(msdu__handover *h)
{
    const msdu__ticket end = {
        .counter = &h->failure.stillness, .value = 1, .what = "the end", .is_lent = true};
    if (msdu__handover_has_failed(h)) {
        (void)msdu__handover_wait(h, &end);
    }
}

void msdu__handover_wake(msdu__handover *h)
{
    if (msdu__cell_get(&h->waiters) > 0) {
        pthread_mutex_lock(&h->lock);
        pthread_cond_broadcast(&h->changed);
        pthread_mutex_unlock(&h->lock);
    }
}

/* --- failure --- */

static msdu_status status_of(const msdu__handover *h)
{
    return (msdu_status) - (int)msdu__cell_get(&h->failure.status);
}

static void fail_one(msdu__handover *h, msdu_status status, const char *text)
{
    bool is_first = false;
    pthread_mutex_lock(&h->lock);
    if (!msdu__handover_has_failed(h)) {
        snprintf(h->failure.text, sizeof(h->failure.text), "%s", text);
        msdu__cell_set(&h->failure.status, (uint64_t) - (int)status);
        is_first = true;
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (!is_first) {
        return;
    }
    msdu__log_line(&h->job->log, MSDU_LOG_ERROR, "%s", text);
    if (msdu__flag_get(&h->worker.is_running)) {
        msdu__worker_kick(&h->worker); /* the communication thread ends it */
    } else {
        msdu__handover_end(h);
    }
}

void msdu__handover_fail(msdu__handover *h, msdu_status status, const char *text)
{
    msdu__handover *other = h->inner != NULL ? h->inner : h->outer;
    fail_one(h, status, text);
    if (other != NULL) {
        fail_one(other, status, text);
    }
}

void msdu__handover_fail_last(msdu__handover *h, msdu_status status)
{
    msdu__handover_fail(h, status, msdu_last_error());
}

void msdu__handover_end(msdu__handover *h)
{
    const msdu__job *job = h->job;
    if (h->failure.has_aborted) {
        return;
    }
    h->failure.has_aborted = true;
    if (job->comm != NULL && MSDU_BACKEND_HAS(job->backend, abort)) {
        /* the text was written before the status, and stays */
        job->backend->abort(job->comm, status_of(h), h->failure.text);
    }
    if (job->levels.inner_comm != NULL) {
        job->levels.inner->abort(job->levels.inner_comm, status_of(h), h->failure.text);
    }
    msdu__cell_set(&h->failure.stillness, 1);
    msdu__handover_wake(h);
}

msdu_status msdu__handover_status(msdu__handover *h)
{
    if (!msdu__handover_has_failed(h)) {
        return MSDU_OK;
    }
    msdu_status status = status_of(h);
    pthread_mutex_lock(&h->lock);
    msdu__fail_text(status, h->failure.text);
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* --- counters --- */

uint32_t msdu__handover_host_ranks(const msdu__handover *h)
{
    uint64_t ranks = msdu__cell_get(&h->reports.host_ranks);
    return ranks > 0 ? (uint32_t)ranks : 1;
}

/* What the host's own context sent, and where it waited. */
static void add_inner(msdu__handover *inner, msdu_summary *out)
{
    pthread_mutex_lock(&inner->lock);
    out->bytes_inside += inner->summary.bytes_sent;
    out->straggler_ns += inner->summary.straggler_ns;
    pthread_mutex_unlock(&inner->lock);
    out->wait_ns += msdu__cell_get(&inner->reports.blocked_ns);
    out->cpu_ns += msdu__cell_get(&inner->reports.cpu_ns);
}

void msdu__handover_summary(msdu__handover *h, msdu_summary *summary_out)
{
    const msdu__reports *reports = &h->reports;
    pthread_mutex_lock(&h->lock);
    *summary_out = h->summary;
    pthread_mutex_unlock(&h->lock);
    uint64_t began = msdu__cell_get(&reports->start_ns);
    summary_out->steps = msdu__cell_get(&reports->step_count);
    summary_out->wait_ns = msdu__cell_get(&reports->blocked_ns);
    summary_out->cpu_ns = msdu__cell_get(&reports->cpu_ns);
    summary_out->elapsed_ns = began == 0 ? 0 : msdu__job_now(h->job) - began;
    if (strcmp(summary_out->state, "clock") != 0) {
        summary_out->common_steps = summary_out->steps; /* all ranks are in the same */
    }
    summary_out->bytes_plain = h->plain_bytes * summary_out->steps;
    bool is_gradient = strcmp(summary_out->domain, "gradient") == 0;
    summary_out->gradient_ranks =
        is_gradient ? (uint32_t)h->job->ranks : msdu__handover_host_ranks(h);
    if (h->inner != NULL) {
        add_inner(h->inner, summary_out);
    }
}

void msdu__handover_io(msdu__handover *h, msdu_status status)
{
    if (status == MSDU_OK) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    bool is_first = h->failure.io_text[0] == '\0';
    if (is_first) {
        snprintf(h->failure.io_text, sizeof(h->failure.io_text), "%s", msdu_last_error());
    }
    pthread_mutex_unlock(&h->lock);
    if (is_first) {
        msdu__log_line(&h->job->log, MSDU_LOG_WARN, "%s; training goes on without it",
                       msdu_last_error());
    }
}
