/* SPDX-License-Identifier: Apache-2.0 */
/* One operation from begin to end, while nothing else is under way. */
#include "start.h"

#include <time.h>

#define POLL_LEAST_NS 20000L
#define POLL_MOST_NS  1000000L
#define WAIT_NS       1000000000ULL

/* Test, or wait a little where the backend can. */
static msdu_status poll_once(msdu__pipeline *p, msdu_req *req, struct timespec *pause)
{
    if (MSDU_BACKEND_HAS(p->backend, wait)) {
        return p->backend->wait(p->comm, req, WAIT_NS);
    }
    msdu_status status = p->backend->test(p->comm, req);
    if (status == MSDU_IN_PROGRESS) {
        nanosleep(pause, NULL);
        pause->tv_nsec = pause->tv_nsec < POLL_MOST_NS ? 2 * pause->tv_nsec : POLL_MOST_NS;
    }
    return status;
}

msdu_status msdu__blocking_run(msdu__pipeline *p, msdu_op *op, uint32_t lane)
{
    msdu_req *req = NULL;
    struct timespec pause = {.tv_nsec = POLL_LEAST_NS};
    uint64_t began = msdu__pipeline_now(p);
    msdu_status status = msdu__pipeline_status(p); /* a pass or a copy before it may have failed */
    if (status == MSDU_OK) {
        status = msdu__pipeline_start(p, op, lane, &req);
    }
    if (status != MSDU_OK) {
        return status;
    }
    do {
        status = poll_once(p, req, &pause);
        if (status == MSDU_IN_PROGRESS) {
            status = msdu__pipeline_overdue(p, began, "a blocking operation");
        }
    } while (status == MSDU_IN_PROGRESS);
    atomic_fetch_add(&p->progress, 1); /* an owner that waits for it sees that something moves */
    return status;
}
