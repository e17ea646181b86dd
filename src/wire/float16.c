/* SPDX-License-Identifier: Apache-2.0 */
/* Format "float16": IEEE binary16, rounded to nearest even; values beyond it are cut; pure. */
#include "block.h"

#define LARGEST 65504.0F /* of float16: nothing finite becomes infinite */
#define PIECE   256

static void narrow(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                   uint64_t count)
{
    (void)header;
    float cut[PIECE];
    for (uint64_t done = 0; done < count; done += PIECE) {
        const uint64_t n = count - done < PIECE ? count - done : PIECE;
        vec->wire->clamp(x + done, LARGEST, cut, n);
        vec->to_f16(cut, (unsigned char *)codes + 2 * done, n);
    }
}

static void widen(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                  uint64_t count)
{
    (void)header;
    vec->from_f16(codes, value, count);
}

static const msdu__codec codec = {.bits = 16, .encode = narrow, .decode = widen};

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

const msdu__wire msdu__wire_float16 = {
    .name = "float16",
    .help = "16 bits: 11 bits of precision, 6e-8 to 65504",
    .bits = 16.0,
    .has_feedback = false,
    .residual_ratio = 4e-8,
    .bytes = bytes,
    .encode = encode,
    .decode_add = decode_add,
    .decode = decode,
};
