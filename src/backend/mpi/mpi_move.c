/* SPDX-License-Identifier: Apache-2.0 */
/* One operation as nonblocking MPI calls on memory of its own, in pieces where MPI's int ends. */
#include "backend/local_move.h"
#include "mpi_impl.h"

#include <stdlib.h>
#include <string.h>

/* Memory grows with the largest operation that a request has carried, in the first rounds. */
static bool make_room(unsigned char **memory, size_t *room, uint64_t bytes)
{
    if (bytes <= *room && *memory != NULL) {
        return true;
    }
    free(*memory);
    *room = 0;
    *memory = malloc(bytes + 1);
    if (*memory != NULL) {
        *room = bytes;
    }
    return *memory != NULL;
}

/* Allreduce or broadcast, in as many calls as MPI's int asks for. */
static int start_pieces(struct msdu_req *req)
{
    const msdu_op *op = &req->op;
    MPI_Comm lane = req->lane->comm;
    MPI_Datatype type = op->dtype == MSDU_FLOAT64 ? MPI_DOUBLE : MPI_FLOAT;
    size_t width = msdu__op_width(op);
    uint64_t at = 0;
    int code = MPI_SUCCESS;
    for (req->pieces = 0; code == MPI_SUCCESS && (at < op->count || req->pieces == 0);) {
        uint64_t left = op->count - at;
        int count = left < MSDU_MPI_PIECE ? (int)left : MSDU_MPI_PIECE;
        void *data = req->recv + at * width;
        MPI_Request *request = &req->requests[req->pieces++];
        code = op->kind == MSDU_OP_ALLREDUCE
                   ? PMPI_Iallreduce(MPI_IN_PLACE, data, count, type, MPI_SUM, lane, request)
                   : PMPI_Ibcast(data, count, MPI_BYTE, 0, lane, request);
        at += (uint64_t)count;
    }
    return code;
}

/* Counts and places of a ragged exchange that fits MPI's int. */
static int start_ragged(struct msdu_req *req)
{
    const msdu_op *op = &req->op;
    int32_t ranks = req->lane->group->ranks;
    int own = (int)op->shares[req->lane->group->rank];
    int *counts = req->counts;
    int *places = counts + ranks;
    int *own_counts = places + ranks;
    int *own_places = own_counts + ranks;
    int at = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        counts[rank] = (int)op->shares[rank];
        places[rank] = at;
        own_counts[rank] = own;
        own_places[rank] = own * rank;
        at += counts[rank];
    }
    req->pieces = 1;
    if (op->kind == MSDU_OP_ALLTOALL) {
        return PMPI_Ialltoallv(req->send, counts, places, MPI_BYTE, req->recv, own_counts,
                               own_places, MPI_BYTE, req->lane->comm, req->requests);
    }
    return PMPI_Iallgatherv(req->send, own, MPI_BYTE, req->recv, counts, places, MPI_BYTE,
                            req->lane->comm, req->requests);
}

/* A type for `bytes` bytes that begin `place` bytes behind the buffer's start. */
static int make_type(uint64_t place, uint64_t bytes, MPI_Datatype *type_out)
{
    MPI_Datatype whole = MPI_DATATYPE_NULL;
    int code = PMPI_Type_contiguous(MSDU_MPI_PIECE, MPI_BYTE, &whole);
    if (code != MPI_SUCCESS) {
        return code;
    }
    uint64_t wholes = bytes / MSDU_MPI_PIECE;
    int lengths[2] = {(int)wholes, (int)(bytes % MSDU_MPI_PIECE)};
    MPI_Aint places[2] = {(MPI_Aint)place, (MPI_Aint)(place + wholes * MSDU_MPI_PIECE)};
    MPI_Datatype types[2] = {whole, MPI_BYTE};
    code = PMPI_Type_create_struct(2, lengths, places, types, type_out);
    (void)PMPI_Type_free(&whole);
    return code == MPI_SUCCESS ? PMPI_Type_commit(type_out) : code;
}

/* Which bytes go to and come from a rank, for exchanges beyond MPI's int. */
static int huge_types(struct msdu_req *req, int32_t rank, uint64_t place)
{
    const msdu_op *op = &req->op;
    uint64_t own = op->shares[req->lane->group->rank];
    bool is_gather = op->kind == MSDU_OP_ALLGATHER;
    MPI_Datatype *sends = req->types;
    MPI_Datatype *recvs = req->types + req->lane->group->ranks;
    int code = make_type(is_gather ? 0 : place, is_gather ? own : op->shares[rank], &sends[rank]);
    if (code != MPI_SUCCESS) {
        return code;
    }
    return make_type(is_gather ? place : own * (uint64_t)rank, is_gather ? op->shares[rank] : own,
                     &recvs[rank]);
}

static int start_huge(struct msdu_req *req)
{
    int32_t ranks = req->lane->group->ranks;
    int *ones = req->counts;
    int *places = ones + ranks;
    uint64_t at = 0;
    int code = MPI_SUCCESS;
    for (int32_t i = 0; i < 2 * ranks; i++) {
        req->types[i] = MPI_DATATYPE_NULL;
    }
    for (int32_t rank = 0; code == MPI_SUCCESS && rank < ranks; rank++) {
        ones[rank] = 1;
        places[rank] = 0;
        code = huge_types(req, rank, at);
        at += req->op.shares[rank];
    }
    req->pieces = 1;
    if (code == MPI_SUCCESS) {
        code = PMPI_Ialltoallw(req->send, ones, places, req->types, req->recv, ones, places,
                               req->types + ranks, req->lane->comm, req->requests);
    }
    for (int32_t i = 0; i < 2 * ranks; i++) {
        if (req->types[i] != MPI_DATATYPE_NULL) {
            (void)PMPI_Type_free(&req->types[i]); /* lives on until the call that uses it ended */
        }
    }
    return code;
}

static int start_call(struct msdu_req *req)
{
    const msdu_op *op = &req->op;
    if (msdu__op_is_in_place(op)) {
        return start_pieces(req);
    }
    /* The same choice on all ranks, or they would make different calls. */
    uint64_t largest = 0;
    for (int32_t rank = 0; rank < req->lane->group->ranks; rank++) {
        largest = op->shares[rank] > largest ? op->shares[rank] : largest;
    }
    bool is_huge = largest * (uint64_t)req->lane->group->ranks > MSDU_MPI_PIECE;
    return is_huge ? start_huge(req) : start_ragged(req);
}

msdu_status mpi__move_start(struct msdu_comm *comm, struct msdu_req *req)
{
    const msdu_op *op = &req->op;
    const mpi__group *group = req->lane->group;
    bool has_pieces = msdu__op_is_in_place(op);
    uint64_t out = has_pieces ? 0 : msdu__op_reads(op, group->rank, group->ranks);
    uint64_t in = msdu__op_writes(op, group->rank, group->ranks);
    if (has_pieces && op->count > (uint64_t)MSDU_MPI_PIECE * MPI__PIECES) {
        return comm->host->fail(MSDU_ERR_UNSUPPORTED, "mpi: the operation is too large");
    }
    if (!make_room(&req->recv, &req->recv_room, in) ||
        !make_room(&req->send, &req->send_room, out)) {
        return comm->host->fail(MSDU_ERR_NO_MEMORY, "mpi: no memory for an operation");
    }
    if (out > 0) {
        memcpy(req->send, op->send, out);
    }
    if (has_pieces && in > 0) {
        memcpy(req->recv, op->recv, in);
    }
    int code = start_call(req);
    return code == MPI_SUCCESS ? MSDU_OK : mpi__error(comm->host, "starting an operation", code);
}

msdu_status mpi__move_test(struct msdu_comm *comm, struct msdu_req *req)
{
    char reason[MPI_MAX_ERROR_STRING + 1] = "";
    int is_done = 1;
    int length = 0;
    for (int i = 0; i < req->pieces && is_done; i++) {
        int code = mpi__test(&req->requests[i], &is_done);
        if (code != MPI_SUCCESS) {
            (void)PMPI_Error_string(code, reason, &length);
            return mpi__watch_blame(comm, req, reason);
        }
    }
    if (!is_done) {
        return MSDU_IN_PROGRESS;
    }
    const mpi__group *group = req->lane->group;
    uint64_t in = msdu__op_writes(&req->op, group->rank, group->ranks);
    if (in > 0) {
        memcpy(req->op.recv, req->recv, in);
    }
    return MSDU_OK;
}

void mpi__move_free(struct msdu_req *req)
{
    free(req->send);
    free(req->recv);
    free(req->counts);
    free(req->types);
}
