/* SPDX-License-Identifier: Apache-2.0 */
/* The two-phase allreduce of a slice, as pure steps around an all-to-all and an all-gather. */
#include <assert.h>

#include "block.h"

#define PIECE_COUNT 2048 /* elements an owner sums before it goes on: they stay in the L1 cache */

/* Elements of owner j's share, which begins at `start`. */
static uint64_t share_at(uint64_t start, uint64_t count, uint32_t block, int32_t ranks, int32_t j)
{
    const uint64_t owners = (uint64_t)ranks;
    const uint64_t blocks = count / block + (count % block != 0 ? 1 : 0);
    const uint64_t wanted = (blocks / owners + ((uint64_t)j < blocks % owners ? 1 : 0)) * block;
    return wanted < count - start ? wanted : count - start;
}

void msdu__exchange_shares(uint64_t count, uint32_t block, int32_t ranks, uint64_t *share_count,
                           uint64_t *share_start)
{
    assert(block > 0 && ranks > 0);
    uint64_t start = 0;
    for (int32_t j = 0; j < ranks; j++) {
        share_start[j] = start;
        share_count[j] = share_at(start, count, block, ranks, j);
        start += share_count[j];
    }
    assert(start == count);
}

uint64_t msdu__exchange_bytes(const msdu__wire *wire, uint64_t count, uint32_t block, int32_t ranks)
{
    const uint64_t owners = (uint64_t)ranks;
    const uint64_t blocks = count / block + (count % block != 0 ? 1 : 0);
    const uint64_t share_blocks = blocks / owners + (blocks % owners != 0 ? 1 : 0);
    const uint64_t share = share_blocks * block < count ? share_blocks * block : count;
    const uint64_t sent =
        msdu__wire_bytes(wire, count, block) + owners; /* shares round up a byte each */
    const uint64_t received = owners * msdu__wire_bytes(wire, share, block);
    return sent > received ? sent : received;
}

uint64_t msdu__exchange_sent(const msdu__wire *wire, const uint64_t *share_count, uint32_t block,
                             int32_t ranks)
{
    uint64_t sent =
        (uint64_t)(ranks > 0 ? ranks - 1 : 0) * msdu__wire_bytes(wire, share_count[0], block);
    for (int32_t j = 1; j < ranks; j++) {
        sent += msdu__wire_bytes(wire, share_count[j], block);
    }
    return sent;
}

double msdu__exchange_encode(const msdu_exchange *x, uint64_t count, const float *value,
                             float *residual, void *send)
{
    const msdu__wire *wire = msdu__wire_at(x->format);
    unsigned char *out = send;
    double energy = 0.0;
    uint64_t start = 0;
    for (int32_t j = 0; j < x->ranks; j++) {
        const uint64_t share = share_at(start, count, x->block, x->ranks, j);
        float *lost = residual != NULL ? residual + start : NULL;
        energy += msdu__wire_encode(wire, value + start, lost, share, x->block, out);
        out += msdu__wire_bytes(wire, share, x->block);
        start += share;
    }
    return energy;
}

/* sum = all ranks' contributions, stride bytes apart, rank by rank. */
static void sum_piece(const msdu_exchange *x, const unsigned char *in, uint64_t stride,
                      uint64_t count, float *sum)
{
    const msdu__wire *wire = msdu__wire_at(x->format);
    msdu__wire_decode(wire, in, count, x->block, sum);
    for (int32_t j = 1; j < x->ranks; j++) {
        msdu__wire_decode_add(wire, in + stride * (uint64_t)j, count, x->block, sum);
    }
    if (x->factor != 1.0) {
        msdu__vec_get()->real[0]->scale(sum, x->factor, count);
    }
}

double msdu__exchange_reduce(const msdu_exchange *x, uint64_t count, const void *received,
                             float *owner_residual, float *sum, void *out)
{
    const msdu__wire *wire = msdu__wire_at(x->format);
    const uint64_t stride = msdu__wire_bytes(wire, count, x->block);
    const uint64_t piece = x->block < PIECE_COUNT ? PIECE_COUNT / x->block * x->block : x->block;
    double energy = 0.0;
    for (uint64_t start = 0; start < count; start += piece) {
        const uint64_t n = count - start < piece ? count - start : piece;
        const uint64_t at = msdu__wire_bytes(wire, start, x->block);
        float *lost = owner_residual != NULL ? owner_residual + start : NULL;
        sum_piece(x, (const unsigned char *)received + at, stride, n, sum + start);
        energy +=
            msdu__wire_encode(wire, sum + start, lost, n, x->block, (unsigned char *)out + at);
    }
    return energy;
}

void msdu__exchange_decode(const msdu_exchange *x, uint64_t count, const void *gathered,
                           float *value)
{
    /* shares are whole blocks, so theirs are the slice's */
    msdu__wire_decode(msdu__wire_at(x->format), gathered, count, x->block, value);
}
