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

uint64_t msdu__nccl_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void pause_shortly(void)
{
    const struct timespec span = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&span, NULL);
}

/* --- ending --- */

typedef struct ending {
    ncclComm_t nccl;
    int device;
    _Atomic int holders; /* the thread below, and who waits for it */
    _Atomic bool is_over;
} ending;

static void let_go(ending *e)
{
    if (atomic_fetch_sub(&e->holders, 1) == 1) {
        free(e);
    }
}

static void *end_main(void *argument)
{
    ending *e = argument;
    (void)cudaSetDevice(e->device);
    (void)ncclCommAbort(e->nccl);
    atomic_store(&e->is_over, true);
    let_go(e);
    return NULL;
}

void msdu__nccl_end(msdu_comm *comm)
{
    pthread_t thread;
    (void)pthread_mutex_lock(&comm->lock);
    ncclComm_t nccl = comm->nccl;
    comm->nccl = NULL;
    (void)pthread_mutex_unlock(&comm->lock);
    ending *e = nccl == NULL ? NULL : calloc(1, sizeof(*e));
    if (e == NULL) {
        return;
    }
    e->nccl = nccl;
    e->device = comm->device;
    atomic_init(&e->holders, 2);
    atomic_init(&e->is_over, false);
    if (pthread_create(&thread, NULL, end_main, e) != 0) {
        free(e); /* the communicator is leaked: there is no thread to wait for it in */
        return;
    }
    (void)pthread_detach(thread);
    uint64_t began = msdu__nccl_now();
    while (!atomic_load(&e->is_over) && msdu__nccl_now() - began < ABORT_NS) {
        pause_shortly();
    }
    let_go(e);
}

/* --- whose failure it is --- */

/* Keep the first cause. */
static void note(msdu_comm *comm, msdu_status status, const char *text)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->status == MSDU_OK) {
        comm->status = status;
        (void)snprintf(comm->text, sizeof(comm->text), "%s", text);
    }
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->is_failing, true);
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
        note(comm, status, text);
    }
    msdu__nccl_end(comm);
    return noted(comm);
}

msdu_status msdu__nccl_check(msdu_comm *comm)
{
    if (!atomic_load(&comm->is_failing)) {
        return MSDU_OK;
    }
    return msdu__nccl_fail(comm, "the group", "it failed");
}

/* Until the communicator has taken a call, the group failed, or the deadline passed. */
msdu_status msdu__nccl_settle(msdu_comm *comm, ncclResult_t result, const char *what)
{
    uint64_t began = msdu__nccl_now();
    uint64_t failing_ns = 0;
    while (result == ncclInProgress) {
        if (atomic_load(&comm->is_failing)) {
            failing_ns = failing_ns == 0 ? msdu__nccl_now() : failing_ns;
            if (msdu__nccl_now() - failing_ns >= comm->grace_ns) {
                return msdu__nccl_check(comm);
            }
        }
        if (msdu__nccl_now() - began > comm->host->deadline_ns) {
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
