/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's waits for the communication thread. That wakes the owner whenever something changes;
 * now and then the owner looks by itself, so a lost wake-up costs no more than that, and a context
 * in which nothing moves any more fails instead of hanging.
 */
#include "caller.h"

#include <errno.h>

#define LOOK_NS 500000000ULL
/* Beyond the longest that one operation may take, which fails by itself: for what the communication
 * thread computes between two changes, such as a state of many gigabytes. */
#define MARGIN_NS 60000000000ULL

/* The latest change that was seen. */
typedef struct patience {
    uint64_t progress;
    uint64_t since_ns;
} patience;

static void check_progress(msdu__pipeline *p, const msdu__awaited *a, patience *seen)
{
    uint64_t now = msdu__pipeline_now(p);
    uint64_t progress = atomic_load(&p->progress);
    if (progress != seen->progress) {
        *seen = (patience){progress, now};
    } else if (atomic_load(&p->status) == MSDU_OK &&
               now - seen->since_ns > p->host.deadline_ns + MARGIN_NS) {
        (void)msdu__fail(MSDU_ERR_TIMEOUT,
                         "rank %d: waited %llu s for %s%s in step %llu while nothing moved, longer "
                         "than deadline_ms %lld allows any operation",
                         p->rank, (unsigned long long)((now - seen->since_ns) / 1000000000ULL),
                         a->what, a->name == NULL ? "" : a->name, (unsigned long long)p->step,
                         (long long)p->settings.deadline_ms);
        msdu__pipeline_fail(p, MSDU_ERR_TIMEOUT, msdu_last_error());
    }
}

/*
 * After a failure nothing more comes: the owner leaves at once, or, if the communication thread may
 * hold what it was lent, when that stands still. No deadline there: it is inside no call that
 * blocks, and msdu_destroy() joins it likewise.
 */
static bool is_over(msdu__pipeline *p, const msdu__awaited *a)
{
    bool is_failed = atomic_load(&p->status) != MSDU_OK;
    bool may_leave =
        !a->is_lent || atomic_load(&p->is_still) || !atomic_load(&p->worker.is_running);
    return a->is_there(p, a) || (is_failed && may_leave);
}

uint64_t msdu__await(msdu__pipeline *p, const msdu__awaited *a)
{
    struct timespec look;
    uint64_t began = msdu__pipeline_now(p);
    patience seen = {atomic_load(&p->progress), began};
    /* counted before the lock, so that a thread that changes something either sees the count or is
     * seen */
    atomic_fetch_add(&p->waiters, 1);
    pthread_mutex_lock(&p->lock);
    while (!is_over(p, a)) {
        msdu__clock_after(LOOK_NS, &look);
        if (pthread_cond_timedwait(&p->changed, &p->lock, &look) == ETIMEDOUT) {
            pthread_mutex_unlock(&p->lock);
            msdu__worker_kick(&p->worker);
            check_progress(p, a, &seen);
            pthread_mutex_lock(&p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
    atomic_fetch_sub(&p->waiters, 1);
    return msdu__pipeline_now(p) - began;
}

static bool is_never(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)p;
    (void)a;
    return false;
}

void msdu__await_stillness(msdu__pipeline *p)
{
    const msdu__awaited stillness = {.is_there = is_never, .what = "the end", .is_lent = true};
    if (atomic_load(&p->status) != MSDU_OK) {
        (void)msdu__await(p, &stillness);
    }
}
