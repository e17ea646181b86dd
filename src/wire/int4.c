/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "int4": 15 equal steps per block, error feedback; pure.
 *
 * The header is the step as bfloat16, rounded up. It has float's whole range in 2 bytes, so no
 * block can leave it: float16 could be left, and float32 would cost 1.5 % more bytes for a step
 * that need not be precise, since encoder and decoders use the same rounded one.
 */
#include "block.h"

#define LEVELS 7.0F

static uint16_t fit(const msdu__vec *vec, const float *x, uint64_t count, float largest)
{
    (void)vec;
    (void)x;
    (void)count;
    return msdu__block_scale_fit(largest, LEVELS);
}

static void quantize(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                     uint64_t count)
{
    const float scale = msdu__block_scale(header);
    vec->wire->encode4(x, scale > 0.0F ? 1.0F / scale : 0.0F, codes, count);
}

static void dequantize(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                       uint64_t count)
{
    vec->wire->decode4(codes, msdu__block_scale(header), value, count);
}

static void add(const msdu__vec *vec, uint16_t header, const void *codes, float *sum,
                uint64_t count, float sign)
{
    vec->wire->add4(codes, sign * msdu__block_scale(header), sum, count);
}

static const msdu__codec codec = {
    .bits = 4, .fit = fit, .encode = quantize, .decode = dequantize, .add = add};

const msdu__wire msdu__wire_int4 = {
    .name = "int4",
    .help = "4 bits: blocks of equal steps, error feedback",
    .bits = 4.0625,
    .has_feedback = true,
    .residual_ratio = 0.0163,
    .codec = &codec,
};
