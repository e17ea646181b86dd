/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation is in NCCL's calls, on memory of the device or staged from the host's. */
#include "nccl_impl.h"

#include <string.h>

#include "backend/local_move.h"

static bool is_taken(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* Every rank's share to it, and its part from every rank; or the own share to all. */
static msdu_status exchange(msdu_comm *comm, const msdu_op *op, const unsigned char *send,
                            unsigned char *recv)
{
    bool is_gather = op->kind == MSDU_OP_ALLGATHER;
    uint64_t own = op->shares[comm->host->rank];
    ncclResult_t result = ncclGroupStart();
    /* inside a group nothing is launched yet: "in progress" says as little as success */
    for (int32_t i = 0; i < comm->host->ranks && is_taken(result); i++) {
        uint64_t out = is_gather ? own : op->shares[i];
        uint64_t in = is_gather ? op->shares[i] : own;
        if (out > 0) {
            result = ncclSend(send, out, ncclInt8, i, comm->nccl, comm->wire);
        }
        if (in > 0 && is_taken(result)) {
            result = ncclRecv(recv, in, ncclInt8, i, comm->nccl, comm->wire);
        }
        send += is_gather ? 0 : out;
        recv += in;
    }
    ncclResult_t ended = ncclGroupEnd();
    MSDU__NCCL(comm, is_taken(result) ? ended : result);
    return MSDU_OK;
}

/* Equal shares are what NCCL has a collective for. */
static bool is_even(const msdu_comm *comm, const msdu_op *op)
{
    bool is = op->kind == MSDU_OP_ALLGATHER;
    for (int32_t i = 1; is && i < comm->host->ranks; i++) {
        is = op->shares[i] == op->shares[0];
    }
    return is;
}

static msdu_status communicate(msdu_comm *comm, const msdu_op *op, const void *send, void *recv)
{
    ncclDataType_t type = op->dtype == MSDU_FLOAT64 ? ncclFloat64 : ncclFloat32;
    if (op->kind == MSDU_OP_ALLREDUCE) {
        MSDU__NCCL(comm,
                   ncclAllReduce(recv, recv, op->count, type, ncclSum, comm->nccl, comm->wire));
    } else if (op->kind == MSDU_OP_BROADCAST) {
        MSDU__NCCL(comm, ncclBroadcast(recv, recv, op->count, ncclInt8, 0, comm->nccl, comm->wire));
    } else if (is_even(comm, op)) {
        MSDU__NCCL(comm,
                   ncclAllGather(send, recv, op->shares[0], ncclInt8, comm->nccl, comm->wire));
    } else {
        return exchange(comm, op, send, recv);
    }
    return MSDU_OK;
}

/* Room for an operation on the host's memory: grown when needed, which blocks. */
static msdu_status make_room(msdu_comm *comm, msdu_req *req, uint64_t bytes)
{
    void *pinned = NULL;
    void *staging = NULL;
    if (bytes <= req->staged_bytes) {
        return MSDU_OK;
    }
    (void)cudaFreeHost(req->pinned);
    (void)cudaFree(req->staging);
    req->pinned = req->staging = NULL;
    req->staged_bytes = 0;
    MSDU__CUDA(comm, cudaHostAlloc(&pinned, bytes, cudaHostAllocPortable));
    req->pinned = pinned;
    MSDU__CUDA(comm, cudaMalloc(&staging, bytes));
    req->staging = staging;
    req->staged_bytes = bytes;
    return MSDU_OK;
}

/* Send and receive lie one behind the other in the staging memory. */
static msdu_status run_staged(msdu_comm *comm, msdu_req *req)
{
    const msdu_op *op = &req->op;
    uint64_t in = msdu__op_reads(op, comm->host->rank, comm->host->ranks);
    uint64_t out = msdu__op_writes(op, comm->host->rank, comm->host->ranks);
    uint64_t behind = msdu__op_is_in_place(op) ? 0 : (in + 63) / 64 * 64;
    msdu_status status = make_room(comm, req, behind + out + 64);
    if (status != MSDU_OK) {
        return status;
    }
    const void *from = msdu__op_is_in_place(op) ? op->recv : op->send;
    if (in > 0 && req->pinned != NULL) {
        memcpy(req->pinned, from, in);
        MSDU__CUDA(comm, cudaMemcpyAsync(req->staging, req->pinned, in, cudaMemcpyHostToDevice,
                                         comm->wire));
    }
    status = communicate(comm, op, req->staging, req->staging + behind);
    if (status == MSDU_OK && out > 0) {
        MSDU__CUDA(comm, cudaMemcpyAsync(req->pinned + behind, req->staging + behind, out,
                                         cudaMemcpyDeviceToHost, comm->wire));
    }
    return status;
}

/* What is sent was written by kernels: the all-gather's by late ones, the rest by early ones, which
 * wait for late ones themselves. */
msdu_status msdu__nccl_move(msdu_comm *comm, msdu_req *req)
{
    const msdu_op *op = &req->op;
    if (op->place == MSDU_PLACE_DEVICE) {
        bool is_late = op->kind == MSDU_OP_ALLGATHER;
        MSDU__CUDA(comm,
                   cudaStreamWaitEvent(comm->wire, is_late ? comm->late_end : comm->early_end, 0));
        return communicate(comm, op, op->send, op->recv);
    }
    return run_staged(comm, req);
}

void msdu__nccl_unstage(const msdu_comm *comm, const msdu_req *req)
{
    const msdu_op *op = &req->op;
    uint64_t out = msdu__op_writes(op, comm->host->rank, comm->host->ranks);
    uint64_t behind =
        msdu__op_is_in_place(op)
            ? 0
            : (msdu__op_reads(op, comm->host->rank, comm->host->ranks) + 63) / 64 * 64;
    if (out > 0) {
        memcpy(req->op.recv, req->pinned + behind, out);
    }
}
