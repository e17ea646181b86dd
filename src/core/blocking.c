/* SPDX-License-Identifier: Apache-2.0 */
/* One operation from begin to end, while nothing else is under way. */
#include "blocking.h"

#include <time.h>

#define POLL_LEAST_NS 20000L
#define POLL_MOST_NS  1000000L
#define WAIT_NS       1000000000ULL

/* Test, or wait a little where the backend can. */
static msdu_status poll_once(msdu__engine *e, msdu_req *req, struct timespec *pause)
{
    if (MSDU_BACKEND_HAS(e->job->backend, wait)) {
        return e->job->backend->wait(e->job->comm, req, WAIT_NS);
    }
    msdu_status status = e->job->backend->test(e->job->comm, req);
    if (status == MSDU_IN_PROGRESS) {
        nanosleep(pause, NULL);
        pause->tv_nsec = pause->tv_nsec < POLL_MOST_NS ? 2 * pause->tv_nsec : POLL_MOST_NS;
    }
    return status;
}

msdu_status msdu__blocking_run(msdu__engine *e, msdu_op *op, uint32_t lane)
{
    msdu_req *req = NULL;
    struct timespec pause = {.tv_nsec = POLL_LEAST_NS};
    uint64_t began = msdu__engine_now(e);
    msdu_status status =
        msdu__handover_status(e->hand); /* a kernel or a copy before it may have failed */
    if (status == MSDU_OK) {
        status = msdu__engine_start(e, op, lane, &req);
    }
    if (status != MSDU_OK) {
        return status;
    }
    do {
        status = poll_once(e, req, &pause);
        if (status == MSDU_IN_PROGRESS) {
            status = msdu__engine_overdue(e, began, "a blocking operation");
        }
    } while (status == MSDU_IN_PROGRESS);
    (void)msdu__cell_add(&e->hand->progress, 1); /* who waits for it sees that something moves */
    return status;
}
