/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for what ranks send and receive, registered with NCCL: ranks that reach each other's
 * memory then copy from there to there, without buffers of NCCL's on the way. Only what NCCL
 * allocated itself may be registered (cudaMalloc's memory is not safe there when ranks fail), and
 * only what all ranks use in the same operations.
 */
#include "nccl_impl.h"

#define VERSION_LEAST 22300 /* send and receive within a host gain from it */

#ifndef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE 0
#endif

#if NCCL_VERSION_CODE >= VERSION_LEAST
/* What is loaded may be older than the header. */
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister

static bool can_register(const msdu_comm *comm)
{
    int version = 0;
    bool is_there = ncclMemAlloc != NULL && ncclMemFree != NULL && ncclCommRegister != NULL &&
                    ncclCommDeregister != NULL;
    return is_there && comm->host->ranks > 1 && comm->exchange == NULL &&
           ncclGetVersion(&version) == ncclSuccess && version >= VERSION_LEAST;
}

/* A rank that cannot must not go on: the others would send to it from registered memory. */
static msdu_status take(msdu_comm *comm, uint64_t bytes)
{
    MSDU__NCCL(comm, ncclMemAlloc(&comm->exchange, bytes));
    MSDU__CUDA(comm, cudaMemsetAsync(comm->exchange, 0, bytes, comm->early));
    MSDU__CUDA(comm, cudaStreamSynchronize(comm->early));
    MSDU__NCCL(comm, ncclCommRegister(comm->nccl, comm->exchange, bytes, &comm->exchange_handle));
    return MSDU_OK;
}

void msdu__nccl_deregister(ncclComm_t nccl, void *handle)
{
    (void)ncclCommDeregister(nccl, handle);
}

static void give(void *memory)
{
    (void)ncclMemFree(memory);
}
#else
static bool can_register(const msdu_comm *comm)
{
    (void)comm;
    return false;
}

static msdu_status take(msdu_comm *comm, uint64_t bytes)
{
    (void)bytes;
    return comm->host->fail(MSDU_ERR_UNSUPPORTED, "nccl: built with a header without registration");
}

void msdu__nccl_deregister(ncclComm_t nccl, void *handle)
{
    (void)nccl;
    (void)handle;
}

static void give(void *memory)
{
    (void)memory;
}
#endif

msdu_status msdu__nccl_exchange(msdu_comm *comm, uint64_t bytes, void **memory_out)
{
    (void)cudaSetDevice(comm->device);
    if (!can_register(comm)) {
        *memory_out = msdu__nccl_device.allocate(comm, bytes, 0);
        return MSDU_OK;
    }
    msdu_status status = take(comm, bytes);
    *memory_out = status == MSDU_OK ? comm->exchange : NULL;
    return status;
}

/* NCCL may still use what it did not let go of: that is leaked. */
void msdu__nccl_exchange_end(msdu_comm *comm)
{
    if (comm->exchange != NULL && (comm->exchange_handle == NULL || comm->has_ended)) {
        give(comm->exchange);
    }
}
