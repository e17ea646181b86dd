/* SPDX-License-Identifier: Apache-2.0 */
/* The device table of the module nccl: memory, kernels on two streams, marks. */
#include "nccl_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_loops.h"

#define PAUSE_NS 20000L

/* --- memory --- */

static void *allocate(msdu_comm *comm, uint64_t bytes, int32_t is_shared)
{
    void *memory = NULL;
    uint64_t room = bytes > 0 ? bytes : 1;
    (void)cudaSetDevice(comm->device);
    if (is_shared != 0) {
        if (cudaHostAlloc(&memory, room, cudaHostAllocPortable | cudaHostAllocMapped) !=
            cudaSuccess) {
            (void)cudaGetLastError();
            return NULL;
        }
        memset(memory, 0, room);
        return memory;
    }
    if (cudaMalloc(&memory, room) != cudaSuccess) {
        (void)cudaGetLastError(); /* else it is the answer of the next launch, too */
        return NULL;
    }
    (void)cudaMemsetAsync(memory, 0, room, comm->early);
    (void)cudaStreamSynchronize(comm->early);
    return memory;
}

static void release(msdu_comm *comm, void *memory, int32_t is_shared)
{
    (void)cudaSetDevice(comm->device);
    /* kernels, and communication that was given up, may still use it; then it is left behind */
    bool is_unused = msdu__nccl_drain(comm);
    if (is_unused && is_shared != 0) {
        (void)cudaFreeHost(memory);
    } else if (is_unused &&
               memory != comm->exchange) { /* that is NCCL's until the communicator ends */
        (void)cudaFree(memory);
    }
}

/* --- kernels --- */

static msdu_status launch(const msdu_launch *at, msdu__nccl_give give, void *args)
{
    msdu_comm *comm = at->comm;
    bool is_late = at->stage != MSDU_STAGE_EARLY;
    cudaStream_t stream = is_late ? comm->late : comm->early;
    if (!is_late) {
        MSDU__CUDA(comm, cudaStreamWaitEvent(comm->early, comm->late_end, 0));
    }
    uint32_t index = at->announcement - 1;
    if (at->announcement > 0 && index < comm->announced_count && comm->announced[index] != NULL) {
        MSDU__CUDA(comm, cudaStreamWaitEvent(stream, comm->announced[index], 0));
    }
    MSDU__CUDA(comm, give(args, comm->scratch[is_late ? 1 : 0], stream));
    MSDU__CUDA(comm, cudaEventRecord(is_late ? comm->late_end : comm->early_end, stream));
    return MSDU_OK;
}

msdu_status msdu__nccl_run(const msdu_launch *at, msdu__nccl_give give, void *args)
{
    if (at->count == 0) {
        return MSDU_OK;
    }
    (void)cudaSetDevice(at->comm->device);
    (void)pthread_mutex_lock(&at->comm->launch);
    msdu_status status = launch(at, give, args);
    (void)pthread_mutex_unlock(&at->comm->launch);
    return status;
}

static msdu_status record_mark(msdu_comm *comm)
{
    cudaEvent_t event = comm->marks[comm->mark_count % MSDU__NCCL_MARKS];
    MSDU__CUDA(comm, cudaStreamWaitEvent(comm->notice, comm->early_end, 0));
    MSDU__CUDA(comm, cudaStreamWaitEvent(comm->notice, comm->late_end, 0));
    MSDU__CUDA(comm, cudaEventRecord(event, comm->notice));
    MSDU__CUDA(comm, cudaLaunchHostFunc(comm->notice, msdu__nccl_notify, comm));
    return MSDU_OK;
}

static msdu_status mark(msdu_comm *comm, uint64_t *mark_out)
{
    (void)cudaSetDevice(comm->device);
    (void)pthread_mutex_lock(&comm->launch);
    msdu_status status = record_mark(comm);
    *mark_out = comm->mark_count++;
    (void)pthread_mutex_unlock(&comm->launch);
    return status;
}

/* A mark so old that its event is another's by now was asked about long ago. */
static msdu_status reached(msdu_comm *comm, uint64_t number)
{
    (void)pthread_mutex_lock(&comm->launch);
    uint64_t count = comm->mark_count;
    (void)pthread_mutex_unlock(&comm->launch);
    if (number + MSDU__NCCL_MARKS < count) {
        number = count - MSDU__NCCL_MARKS;
    }
    cudaError_t error = cudaEventQuery(comm->marks[number % MSDU__NCCL_MARKS]);
    if (error == cudaErrorNotReady) {
        /* kernels may wait for an operation that will not end and that nobody asks for */
        msdu_status status = msdu__nccl_has_chain(comm) ? msdu__nccl_look(comm) : MSDU_OK;
        return status == MSDU_OK ? MSDU_IN_PROGRESS : status;
    }
    MSDU__CUDA(comm, error);
    return MSDU_OK;
}

/* --- other streams, and the host --- */

/* Room for an announcement, and its event. */
static msdu_status reserve(msdu_comm *comm, uint32_t index)
{
    if (index >= comm->announced_count) {
        uint32_t count = index + 1 + index / 2;
        cudaEvent_t *grown = realloc(comm->announced, count * sizeof(cudaEvent_t));
        if (grown == NULL) {
            return comm->host->fail(MSDU_ERR_NO_MEMORY, "nccl: out of memory");
        }
        memset(grown + comm->announced_count, 0,
               (count - comm->announced_count) * sizeof(cudaEvent_t));
        comm->announced = grown;
        comm->announced_count = count;
    }
    if (comm->announced[index] == NULL) {
        MSDU__CUDA(comm, cudaEventCreateWithFlags(&comm->announced[index], cudaEventDisableTiming));
    }
    return MSDU_OK;
}

static msdu_status follow(msdu_comm *comm, uint32_t index, cudaStream_t stream)
{
    msdu_status status = reserve(comm, index);
    if (status == MSDU_OK) {
        MSDU__CUDA(comm, cudaEventRecord(comm->announced[index], stream));
    }
    return status;
}

static msdu_status after(msdu_comm *comm, uint32_t index, void *stream)
{
    (void)cudaSetDevice(comm->device);
    (void)pthread_mutex_lock(&comm->launch);
    msdu_status status = follow(comm, index, stream);
    (void)pthread_mutex_unlock(&comm->launch);
    return status;
}

static msdu_status lead(msdu_comm *comm, cudaStream_t stream)
{
    MSDU__CUDA(comm, cudaStreamWaitEvent(stream, comm->early_end, 0));
    MSDU__CUDA(comm, cudaStreamWaitEvent(stream, comm->late_end, 0));
    return MSDU_OK;
}

/* Streams may stand behind an operation that ranks have given up; an abort lets them go on. */
static void release_streams(msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->launch);
    (void)msdu__nccl_check(comm);
    (void)pthread_mutex_unlock(&comm->launch);
}

/* Everything launched so far, by both streams. A group that failed is no reason to fail here: what
 * is waited for is that nobody writes to the trainer's memory any more. */
static msdu_status wait_host(msdu_comm *comm)
{
    uint64_t began = msdu__clock_now();
    uint64_t number = 0;
    const struct timespec span = {.tv_nsec = PAUSE_NS};
    msdu_status status = mark(comm, &number);
    while (status == MSDU_OK && (status = reached(comm, number)) == MSDU_IN_PROGRESS) {
        if (msdu__clock_now() - began > comm->host->deadline_ns) {
            return comm->host->fail(MSDU_ERR_TIMEOUT,
                                    "nccl: the device did not end its work within the deadline");
        }
        if (msdu__flag_get(&comm->is_failing)) {
            release_streams(comm);
        }
        (void)nanosleep(&span, NULL);
        status = MSDU_OK;
    }
    return status;
}

static msdu_status before(msdu_comm *comm, void *stream, int32_t is_host)
{
    (void)cudaSetDevice(comm->device);
    if (is_host != 0) {
        return wait_host(comm);
    }
    (void)pthread_mutex_lock(&comm->launch);
    msdu_status status = lead(comm, stream);
    (void)pthread_mutex_unlock(&comm->launch);
    return status;
}

static msdu_status copy(msdu_comm *comm, void *to, const void *from, uint64_t bytes)
{
    msdu_status status = before(comm, NULL, 1);
    if (status != MSDU_OK || bytes == 0) {
        return status;
    }
    (void)pthread_mutex_lock(&comm->launch);
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, comm->late);
    error = error == cudaSuccess ? cudaStreamSynchronize(comm->late) : error;
    (void)pthread_mutex_unlock(&comm->launch);
    MSDU__CUDA(comm, error);
    return MSDU_OK;
}

const msdu_device msdu__nccl_device = {
    .size = sizeof(msdu_device),
    .name = "cuda",
    .allocate = allocate,
    .release = release,
    .copy = copy,
    .kernels = &msdu__nccl_kernels,
    .mark = mark,
    .reached = reached,
    .after = after,
    .before = before,
    .exchange = msdu__nccl_exchange,
};
