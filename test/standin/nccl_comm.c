/* SPDX-License-Identifier: Apache-2.0 */
/* STAND-IN for NCCL, not NCCL: communicators, from their id to their end. */
#include "nccl_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void standin_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static _Atomic unsigned count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "/msdu-standin-%ld-%u-%ld", (long)getpid(),
             atomic_fetch_add(&count, 1), now.tv_nsec);
    int file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, sizeof(shared)) != 0) {
        return ncclSystemError;
    }
    close(file);
    return ncclSuccess;
}

static void *join_main(void *argument)
{
    ncclComm_t c = argument;
    atomic_fetch_add(&c->memory->joined, 1);
    while (atomic_load(&c->memory->joined) < (uint32_t)c->ranks && !atomic_load(&c->is_aborted)) {
        standin_pause();
    }
    if (c->rank == 0) {
        shm_unlink(c->name);
    }
    atomic_store(&c->is_joined, true);
    return NULL;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t c = calloc(1, sizeof(*c));
    int file = shm_open(id.internal, O_RDWR, 0600);
    if (c == NULL || file < 0 || ranks > RANKS_MOST) {
        free(c);
        return ncclSystemError;
    }
    c->memory = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    memcpy(c->name, id.internal, sizeof(c->name));
    c->rank = rank;
    c->ranks = ranks;
    c->is_nonblocking = config != NULL && config->blocking == 0;
    c->must_ask = c->is_nonblocking;
    (void)cudaEventCreateWithFlags(&c->last, cudaEventDisableTiming);
    if (c->memory == MAP_FAILED || pthread_create(&c->joiner, NULL, join_main, c) != 0) {
        free(c);
        return ncclSystemError;
    }
    *comm = c;
    while (!c->is_nonblocking && !atomic_load(&c->is_joined)) {
        standin_pause();
    }
    return c->is_nonblocking ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    (void)comm;
    return cudaGetDevice(device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = (ncclResult_t)atomic_load(&comm->error);
    if (*result != ncclSuccess || !comm->must_ask) {
        return ncclSuccess;
    }
    *result = ncclInProgress;
    if (!atomic_load(&comm->is_joined) || comm->polls-- > 0) {
        return ncclSuccess;
    }
    if (comm->held != NULL) {
        launch *l = comm->held;
        comm->held = NULL;
        *result = standin_give(l);
    } else {
        *result = ncclSuccess;
    }
    comm->must_ask = false;
    return ncclSuccess;
}

/* Once its thread has joined and nothing is active. */
static ncclResult_t comm_free(ncclComm_t comm)
{
    pthread_join(comm->joiner, NULL);
    while (atomic_load(&comm->active) > 0) {
        standin_pause();
    }
    munmap(comm->memory, sizeof(shared));
    (void)cudaEventDestroy(comm->last);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    atomic_store(&comm->is_aborted, true);
    standin_end_registered(comm, true);
    if (comm->held != NULL) {
        free(comm->held);
        atomic_fetch_sub(&comm->active, 1);
    }
    return comm_free(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->must_ask) {
        return ncclInvalidUsage;
    }
    comm->must_ask = comm->is_nonblocking;
    comm->polls = 1;
    return comm->is_nonblocking ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->must_ask) {
        return ncclInvalidUsage;
    }
    standin_end_registered(comm, false);
    return comm_free(comm);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process error",   "in progress"};
    return result >= ncclSuccess && result <= ncclInProgress ? texts[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
