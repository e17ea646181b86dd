/* SPDX-License-Identifier: Apache-2.0 */
/* Format "float32": values as they are; pure. */
#include <string.h>

#include "block.h"

static void copy_out(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                     uint64_t count)
{
    (void)vec;
    (void)header;
    memcpy(codes, x, count * sizeof(*x));
}

static void copy_in(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                    uint64_t count)
{
    (void)vec;
    (void)header;
    memcpy(value, codes, count * sizeof(*value));
}

static const msdu__codec codec = {.bits = 32, .encode = copy_out, .decode = copy_in};

static uint64_t bytes(uint64_t count, uint32_t block)
{
    return msdu__block_bytes(&codec, count, block);
}

static double encode(const float *value, float *residual, uint64_t count, uint32_t block, void *out)
{
    return msdu__block_encode(&codec, value, residual, count, block, out);
}

static void decode_add(const void *in, uint64_t count, uint32_t block, float *sum)
{
    msdu__block_decode_add(&codec, in, count, block, sum);
}

static void decode(const void *in, uint64_t count, uint32_t block, float *value)
{
    msdu__block_decode(&codec, in, count, block, value);
}

const msdu__wire msdu__wire_float32 = {
    .name = "float32",
    .help = "32 bits: exact",
    .bits = 32.0,
    .has_feedback = false,
    .residual_ratio = 0.0,
    .bytes = bytes,
    .encode = encode,
    .decode_add = decode_add,
    .decode = decode,
};
