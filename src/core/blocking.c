/* SPDX-License-Identifier: Apache-2.0 */
/* One operation from begin to end, while nothing else is under way. */
#include "blocking.h"

#include <stdlib.h>
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

msdu_status msdu__blocking_gather(msdu__engine *e, const void *own, uint64_t bytes, uint32_t flags,
                                  uint32_t lane, void **all_out)
{
    const size_t ranks = (size_t)e->job->ranks;
    uint64_t *shares = malloc(ranks * sizeof(*shares));
    void *all = malloc(ranks * bytes);
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER, .send = own, .recv = all, .shares = shares, .flags = flags};
    msdu_status status = MSDU_OK;
    if (shares == NULL || all == NULL) {
        status =
            msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to compare ranks", e->job->rank);
    }
    for (size_t i = 0; shares != NULL && i < ranks; i++) {
        shares[i] = bytes;
    }
    status = status == MSDU_OK ? msdu__blocking_run(e, &op, lane) : status;
    free(shares);
    if (status != MSDU_OK) {
        free(all);
        return status;
    }
    *all_out = all;
    return MSDU_OK;
}
