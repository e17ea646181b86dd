/* SPDX-License-Identifier: Apache-2.0 */
/* Data of one collective operation moved between the ranks of a process. Pure. */
#include "local_move.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

static void sum_float32(const msdu_op *const *ops, int32_t ranks)
{
    float sum[BLOCK_COUNT];
    for (uint64_t first = 0; first < ops[0]->count; first += BLOCK_COUNT) {
        uint64_t left = ops[0]->count - first;
        size_t count = left < BLOCK_COUNT ? (size_t)left : BLOCK_COUNT;
        memcpy(sum, (const float *)ops[0]->recv + first, count * sizeof(float));
        for (int32_t rank = 1; rank < ranks; rank++) {
            const float *part = (const float *)ops[rank]->recv + first;
            for (size_t i = 0; i < count; i++) {
                sum[i] += part[i];
            }
        }
        for (int32_t rank = 0; rank < ranks; rank++) {
            memcpy((float *)ops[rank]->recv + first, sum, count * sizeof(float));
        }
    }
}

static void sum_float64(const msdu_op *const *ops, int32_t ranks)
{
    double sum[BLOCK_COUNT];
    for (uint64_t first = 0; first < ops[0]->count; first += BLOCK_COUNT) {
        uint64_t left = ops[0]->count - first;
        size_t count = left < BLOCK_COUNT ? (size_t)left : BLOCK_COUNT;
        memcpy(sum, (const double *)ops[0]->recv + first, count * sizeof(double));
        for (int32_t rank = 1; rank < ranks; rank++) {
            const double *part = (const double *)ops[rank]->recv + first;
            for (size_t i = 0; i < count; i++) {
                sum[i] += part[i];
            }
        }
        for (int32_t rank = 0; rank < ranks; rank++) {
            memcpy((double *)ops[rank]->recv + first, sum, count * sizeof(double));
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
    } else if (ops[0]->dtype == MSDU_FLOAT64) {
        sum_float64(ops, ranks);
    } else {
        sum_float32(ops, ranks);
    }
}
