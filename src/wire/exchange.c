/* SPDX-License-Identifier: Apache-2.0 */
/* The two-phase allreduce of a slice, as pure steps around an all-to-all and an all-gather. */
#include <assert.h>

#include "block.h"

#define PIECE_COUNT 2048 /* elements an owner sums before it goes on: they stay in the L1 cache */

void msdu__exchange_shares(uint64_t count, uint32_t block, int32_t ranks, uint64_t *share_count,
                           uint64_t *share_start)
{
    assert(block > 0 && ranks > 0);
    const uint64_t owners = (uint64_t)ranks;
    const uint64_t blocks = count / block + (count % block != 0 ? 1 : 0);
    uint64_t start = 0;
    for (uint64_t j = 0; j < owners; j++) {
        const uint64_t wanted = (blocks / owners + (j < blocks % owners ? 1 : 0)) * block;
        share_start[j] = start;
        share_count[j] = wanted < count - start ? wanted : count - start;
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

double msdu__exchange_encode(const msdu__exchange *x, const float *value, float *residual,
                             void *send)
{
    unsigned char *out = send;
    double energy = 0.0;
    for (int32_t j = 0; j < x->ranks; j++) {
        const uint64_t start = x->share_start[j];
        energy +=
            msdu__wire_encode(x->wire, value + start, residual != NULL ? residual + start : NULL,
                              x->share_count[j], x->block, out);
        out += x->share_bytes[j];
    }
    return energy;
}

/* sum = the contributions to elements start .. start + count of the owner's share, rank by rank. */
static void sum_piece(const msdu__exchange *x, const unsigned char *received, uint64_t start,
                      uint64_t count, float *sum)
{
    const uint64_t stride = x->share_bytes[x->rank];
    const unsigned char *in = received + msdu__wire_bytes(x->wire, start, x->block);
    msdu__wire_decode(x->wire, in, count, x->block, sum);
    for (int32_t j = 1; j < x->ranks; j++) {
        msdu__wire_decode_add(x->wire, in + stride * (uint64_t)j, count, x->block, sum);
    }
    if (x->factor != 1.0) {
        msdu__vec_get()->real[0]->scale(sum, x->factor, count);
    }
}

double msdu__exchange_reduce(const msdu__exchange *x, const void *received, float *owner_residual,
                             float *sum, void *out)
{
    const uint64_t count = x->share_count[x->rank];
    const uint64_t piece = x->block < PIECE_COUNT ? PIECE_COUNT / x->block * x->block : x->block;
    double energy = 0.0;
    for (uint64_t start = 0; start < count; start += piece) {
        const uint64_t n = count - start < piece ? count - start : piece;
        float *lost = owner_residual != NULL ? owner_residual + start : NULL;
        sum_piece(x, received, start, n, sum + start);
        energy +=
            msdu__wire_encode(x->wire, sum + start, lost, n, x->block,
                              (unsigned char *)out + msdu__wire_bytes(x->wire, start, x->block));
    }
    return energy;
}

void msdu__exchange_decode(const msdu__exchange *x, const void *gathered, float *value)
{
    const unsigned char *in = gathered;
    for (int32_t j = 0; j < x->ranks; j++) {
        msdu__wire_decode(x->wire, in, x->share_count[j], x->block, value + x->share_start[j]);
        in += x->share_bytes[j];
    }
}
