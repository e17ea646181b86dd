/* SPDX-License-Identifier: Apache-2.0 */
/* What one collective operation is, and its data moved between the ranks of a process. Pure. */
#include "local_move.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rank_list.h"

#define BLOCK_COUNT 1024 /* elements summed at a time: small enough for the first-level cache */

bool msdu__op_is_valid(const msdu_op *op, char *text, size_t bytes)
{
    if (op->kind < MSDU_OP_ALLREDUCE || op->kind > MSDU_OP_BROADCAST) {
        (void)snprintf(text, bytes, "operation kind %" PRId32 " is not known", op->kind);
        return false;
    }
    if (op->kind == MSDU_OP_ALLREDUCE && op->dtype != MSDU_FLOAT32 && op->dtype != MSDU_FLOAT64) {
        (void)snprintf(text, bytes, "allreduce takes float32 and float64, not type %" PRId32,
                       op->dtype);
        return false;
    }
    bool has_shares = op->kind == MSDU_OP_ALLTOALL || op->kind == MSDU_OP_ALLGATHER;
    if (has_shares && op->shares == NULL) {
        (void)snprintf(text, bytes, "operation without shares");
        return false;
    }
    return true;
}

bool msdu__op_is_equal(const msdu_op *left, const msdu_op *right, int32_t ranks)
{
    if (left->kind != right->kind) {
        return false;
    }
    if (left->kind == MSDU_OP_ALLREDUCE) {
        return left->count == right->count && left->dtype == right->dtype;
    }
    if (left->kind == MSDU_OP_BROADCAST) {
        return left->count == right->count;
    }
    return memcmp(left->shares, right->shares, (size_t)ranks * sizeof(uint64_t)) == 0;
}

bool msdu__op_is_in_place(const msdu_op *op)
{
    return op->kind == MSDU_OP_ALLREDUCE || op->kind == MSDU_OP_BROADCAST;
}

size_t msdu__op_width(const msdu_op *op)
{
    if (op->kind != MSDU_OP_ALLREDUCE) {
        return 1;
    }
    return op->dtype == MSDU_FLOAT64 ? sizeof(double) : sizeof(float);
}

static uint64_t sum_of(const uint64_t *shares, int32_t ranks)
{
    uint64_t sum = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        sum += shares[rank];
    }
    return sum;
}

uint64_t msdu__op_reads(const msdu_op *op, int32_t rank, int32_t ranks)
{
    if (msdu__op_is_in_place(op)) {
        return op->count * msdu__op_width(op);
    }
    return op->kind == MSDU_OP_ALLTOALL ? sum_of(op->shares, ranks) : op->shares[rank];
}

uint64_t msdu__op_writes(const msdu_op *op, int32_t rank, int32_t ranks)
{
    if (op->kind == MSDU_OP_ALLTOALL) {
        return op->shares[rank] * (uint64_t)ranks;
    }
    return op->kind == MSDU_OP_ALLGATHER ? sum_of(op->shares, ranks)
                                         : msdu__op_reads(op, rank, ranks);
}

uint32_t msdu__op_print(const msdu_op *op, int32_t ranks)
{
    const uint64_t facts[] = {op->count, op->kind == MSDU_OP_ALLREDUCE ? (uint64_t)op->dtype : 0};
    const uint64_t *more = msdu__op_is_in_place(op) ? facts : op->shares;
    int32_t count = msdu__op_is_in_place(op) ? 2 : ranks;
    uint64_t hash = (UINT64_C(0xcbf29ce484222325) ^ (uint64_t)op->kind) * UINT64_C(0x100000001b3);
    for (int32_t i = 0; i < count; i++) {
        hash = (hash ^ more[i]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    uint32_t bits = ((uint32_t)(hash ^ (hash >> 32)) | 2U) & ~MSDU__PRINT_FINAL;
    return bits | ((op->flags & MSDU_OP_FINAL) != 0 ? MSDU__PRINT_FINAL : 0U);
}

static void add_float32(float *sum, const float *part, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += part[i];
    }
}

static void add_float64(double *sum, const double *part, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += part[i];
    }
}

static void reduce(const msdu_op *const *ops, int32_t ranks)
{
    union {
        float narrow[BLOCK_COUNT];
        double wide[BLOCK_COUNT];
    } sum;
    size_t width = msdu__op_width(ops[0]);
    for (uint64_t first = 0; first < ops[0]->count; first += BLOCK_COUNT) {
        uint64_t left = ops[0]->count - first;
        size_t count = left < BLOCK_COUNT ? (size_t)left : BLOCK_COUNT;
        memcpy(&sum, (const char *)ops[0]->recv + first * width, count * width);
        for (int32_t rank = 1; rank < ranks; rank++) {
            if (ops[0]->dtype == MSDU_FLOAT64) {
                add_float64(sum.wide, (const double *)ops[rank]->recv + first, count);
            } else {
                add_float32(sum.narrow, (const float *)ops[rank]->recv + first, count);
            }
        }
        for (int32_t rank = 0; rank < ranks; rank++) {
            memcpy((char *)ops[rank]->recv + first * width, &sum, count * width);
        }
    }
}

/* memmove of something; NULL goes with zero bytes. */
static void copy_bytes(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
    if (bytes > 0 && to != from) {
        memmove(to, from, (size_t)bytes);
    }
}

static void exchange(const msdu_op *const *ops, int32_t ranks)
{
    const uint64_t *shares = ops[0]->shares;
    uint64_t offset = 0;
    for (int32_t to = 0; to < ranks; to++) {
        unsigned char *recv = ops[to]->recv;
        for (int32_t from = 0; from < ranks; from++) {
            const unsigned char *send = ops[from]->send;
            if (shares[to] > 0) {
                copy_bytes(recv + shares[to] * (uint64_t)from, send + offset, shares[to]);
            }
        }
        offset += shares[to];
    }
}

static void gather(const msdu_op *const *ops, int32_t ranks)
{
    const uint64_t *shares = ops[0]->shares;
    for (int32_t to = 0; to < ranks; to++) {
        unsigned char *recv = ops[to]->recv;
        for (int32_t from = 0; from < ranks; from++) {
            copy_bytes(recv, ops[from]->send, shares[from]);
            recv = shares[from] > 0 ? recv + shares[from] : recv;
        }
    }
}

void msdu__op_move(const msdu_op *const *ops, int32_t ranks)
{
    if (ops[0]->kind == MSDU_OP_ALLTOALL) {
        exchange(ops, ranks);
    } else if (ops[0]->kind == MSDU_OP_ALLGATHER) {
        gather(ops, ranks);
    } else if (ops[0]->kind == MSDU_OP_BROADCAST) {
        for (int32_t rank = 1; rank < ranks; rank++) {
            copy_bytes(ops[rank]->recv, ops[0]->recv, ops[0]->count);
        }
    } else {
        reduce(ops, ranks);
    }
}
