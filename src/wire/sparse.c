/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "sparse": at most one element of eight is sent, as +-magnitude; 0.8 bits an element,
 * error feedback; pure.
 *
 * Size. A block has a fixed number of bytes, as all formats have, so nothing has to be agreed upon.
 * Positions are coded as Elias and Fano do: n elements are B = ceil(n / 8) buckets of eight; the
 * i-th element that is sent, in bucket b, sets bit b + i of a field of 2 B bits, and has a nibble:
 * its place in the bucket and its sign. That takes as many bits as Golomb-Rice codes of the gaps
 * with their exact bound, but the i-th one is found by counting bits, without parsing: encoder and
 * decoder have no branch that depends on the data.
 *
 * Magnitude. It is twice the threshold, as a uniform quantizer has it, not the mean of what is
 * sent, which would lose less in one step: what is sent leaves at most as much behind as it had,
 * and on either side of zero. With the mean, elements wait for many steps, and training is that
 * late (src/wire/DESIGN.md has the numbers: 22 % instead of 32 %).
 *
 * Threshold. The largest one that an eighth of the elements reach, but at least a quarter of the
 * largest: a block with fewer elements that are not zero, or with outliers, sends fewer.
 *
 * A block of 256 takes 26 bytes, 39.4 times fewer than float32; wire_block = 1024 makes that 41.8
 * times.
 */
#include "block.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SHARE     8     /* one of so many is sent */
#define LEAST_CUT 0.25F /* threshold, relative to the largest; nth() knows it too */

static uint16_t fit(const msdu__vec *vec, const float *x, uint64_t count, float largest)
{
    const float nth = vec->wire->nth(x, (count + SHARE - 1) / SHARE, largest, count);
    const float cut = LEAST_CUT * largest;
    const float threshold = cut > nth ? cut : nth;
    return msdu__block_scale_fit(threshold < FLT_MAX / 4.0F ? 2.0F * threshold : FLT_MAX, 1.0F);
}

static uint64_t bytes(uint64_t count)
{
    const uint64_t buckets = (count + SHARE - 1) / SHARE;
    return (buckets + 3) / 4 + (buckets + 1) / 2;
}

static void quantize(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                     uint64_t count)
{
    vec->wire->encode_sparse(x, 0.5F * msdu__block_scale(header), codes, count, NULL, 0.0F);
}

static void take(const msdu__vec *vec, uint16_t header, float *x, void *codes, uint64_t count)
{
    const float magnitude = msdu__block_scale(header);
    vec->wire->encode_sparse(x, 0.5F * magnitude, codes, count, x, magnitude);
}

static void add(const msdu__vec *vec, uint16_t header, const void *codes, float *sum,
                uint64_t count, float sign)
{
    for (uint64_t i = 0; header == MSDU__BLOCK_BAD && i < count; i++) {
        sum[i] = NAN; /* not only what was sent */
    }
    vec->wire->add_sparse(codes, sign * msdu__block_scale(header), sum, count);
}

static void dequantize(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                       uint64_t count)
{
    memset(value, 0, count * sizeof(*value));
    add(vec, header, codes, value, count, 1.0F);
}

static const msdu__codec codec = {
    .bytes = bytes, .fit = fit, .encode = quantize, .take = take, .decode = dequantize, .add = add};

const msdu__wire msdu__wire_sparse = {
    .name = "sparse",
    .help = "0.8 bits: one of eight at most, sign and position, error feedback",
    .bits = 0.8125,
    .has_feedback = true,
    .residual_ratio = 3.47,
    .codec = &codec,
};
