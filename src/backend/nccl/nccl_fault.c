/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of the module nccl: whose they are, and how the communicator ends. */
#include "nccl_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MS_NS      UINT64_C(1000000)
#define VERDICT_NS (1500 * MS_NS) /* an obituary follows a broken connection in this */
#define ABORT_NS   (900 * MS_NS)  /* ncclCommAbort() has been seen to hang (nccl#1013) */
#define PAUSE_NS   20000L

static void pause_shortly(void)
{
    const struct timespec span = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&span, NULL);
}

/* --- ending --- */

/* What NCCL may not come back from, in a thread of its own. */
typedef struct ending {
    ncclComm_t nccl;
    void *handle; /* to be deregistered; NULL: the communicator is to be aborted */
    int device;
    msdu__cell holders; /* the thread below, and who waits for it */
    msdu__flag is_over;
} ending;

static void let_go(ending *e)
{
    if (msdu__cell_add(&e->holders, (uint64_t)-1) == 1) {
        free(e);
    }
}

static void *end_main(void *argument)
{
    ending *e = argument;
    (void)cudaSetDevice(e->device);
    if (e->handle != NULL) {
        msdu__nccl_deregister(e->nccl, e->handle);
    } else {
        (void)ncclCommAbort(e->nccl);
    }
    msdu__flag_set(&e->is_over, true);
    let_go(e);
    return NULL;
}

/* True: done in time. */
static bool end_within(ncclComm_t nccl, void *handle, int device)
{
    pthread_t thread;
    ending *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return false;
    }
    e->nccl = nccl;
    e->handle = handle;
    e->device = device;
    msdu__cell_set(&e->holders, 2);
    msdu__flag_set(&e->is_over, false);
    if (pthread_create(&thread, NULL, end_main, e) != 0) {
        free(e); /* the communicator is leaked: there is no thread to wait for it in */
        return false;
    }
    (void)pthread_detach(thread);
    uint64_t began = msdu__clock_now();
    while (!msdu__flag_get(&e->is_over) && msdu__clock_now() - began < ABORT_NS) {
        pause_shortly();
    }
    bool is_over = msdu__flag_get(&e->is_over);
    let_go(e);
    return is_over;
}

void msdu__nccl_end(msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    ncclComm_t nccl = comm->nccl;
    comm->nccl = NULL;
    (void)pthread_mutex_unlock(&comm->lock);
    if (nccl != NULL) {
        comm->has_ended = end_within(nccl, NULL, comm->device);
    }
}

void msdu__nccl_unregister(msdu_comm *comm)
{
    if (comm->nccl != NULL && comm->exchange_handle != NULL &&
        end_within(comm->nccl, comm->exchange_handle, comm->device)) {
        comm->exchange_handle = NULL;
    }
}

/* --- whose failure it is --- */

/* Keep the first cause. */
void msdu__nccl_note(msdu_comm *comm, msdu_status status, const char *text)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->status == MSDU_OK) {
        comm->status = status;
        (void)snprintf(comm->text, sizeof(comm->text), "%s", text);
    }
    (void)pthread_mutex_unlock(&comm->lock);
    msdu__flag_set(&comm->is_failing, true);
}

static msdu_status noted(msdu_comm *comm)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)pthread_mutex_lock(&comm->lock);
    msdu_status status = comm->status;
    memcpy(text, comm->text, sizeof(text));
    (void)pthread_mutex_unlock(&comm->lock);
    return status == MSDU_OK ? MSDU_OK : comm->host->fail(status, text);
}

/* The hub knows best why, if given a moment. */
msdu_status msdu__nccl_fail(msdu_comm *comm, const char *what, const char *why)
{
    char text[MSDU__HUB_TEXT_BYTES];
    msdu_status status = noted(comm);
    if (status == MSDU_OK) {
        status = comm->hub == NULL ? MSDU_OK : msdu__hub_verdict(comm->hub, VERDICT_NS, text);
        if (status == MSDU_OK) {
            const int length = (int)strcspn(what, "(");
            (void)snprintf(text, sizeof(text), "nccl: rank %d: %.*s: %.300s", comm->host->rank,
                           length, what, why);
            status = MSDU_ERR_BACKEND;
            if (comm->hub != NULL) {
                msdu__hub_abort(comm->hub, MSDU_ERR_PEER_LOST, text);
            }
        }
        msdu__nccl_note(comm, status, text);
    }
    msdu__nccl_end(comm);
    return noted(comm);
}

msdu_status msdu__nccl_check(msdu_comm *comm)
{
    if (!msdu__flag_get(&comm->is_failing)) {
        return MSDU_OK;
    }
    return msdu__nccl_fail(comm, "the group", "it failed");
}

static void tell_stuck(const msdu_comm *comm)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text),
                   "nccl: rank %d: the device did not end its work within the deadline: memory is "
                   "left behind",
                   comm->host->rank);
    if (comm->host->log != NULL) {
        comm->host->log(comm->host->user, MSDU_LOG_WARN, text);
    }
}

bool msdu__nccl_drain(msdu_comm *comm)
{
    cudaStream_t streams[] = {comm->early, comm->late, comm->wire, comm->notice};
    uint64_t began = msdu__clock_now();
    if (comm->is_stuck) {
        return false;
    }
    if (msdu__flag_get(&comm->is_failing)) {
        msdu__nccl_end(comm);
    }
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]) && !comm->is_stuck; i++) {
        while (streams[i] != NULL && cudaStreamQuery(streams[i]) == cudaErrorNotReady &&
               !comm->is_stuck) {
            comm->is_stuck = msdu__clock_now() - began > comm->host->deadline_ns;
            pause_shortly();
        }
    }
    if (comm->is_stuck) {
        tell_stuck(comm);
    }
    return !comm->is_stuck;
}

/* Until the communicator has taken a call, the group failed, or the deadline passed. */
msdu_status msdu__nccl_settle(msdu_comm *comm, ncclResult_t result, const char *what)
{
    uint64_t began = msdu__clock_now();
    uint64_t failing_ns = 0;
    while (result == ncclInProgress) {
        if (msdu__flag_get(&comm->is_failing)) {
            failing_ns = failing_ns == 0 ? msdu__clock_now() : failing_ns;
            if (msdu__clock_now() - failing_ns >= comm->grace_ns) {
                return msdu__nccl_check(comm);
            }
        }
        if (msdu__clock_now() - began > comm->host->deadline_ns) {
            return msdu__nccl_fail(comm, what, "not done within the deadline");
        }
        if (ncclCommGetAsyncError(comm->nccl, &result) != ncclSuccess) {
            result = ncclInternalError;
        }
        if (result == ncclInProgress) {
            pause_shortly();
        }
    }
    return result == ncclSuccess ? MSDU_OK
                                 : msdu__nccl_fail(comm, what, ncclGetErrorString(result));
}
