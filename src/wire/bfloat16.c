/* SPDX-License-Identifier: Apache-2.0 */
/* Format "bfloat16": the upper half of float32, rounded to nearest even; pure. */
#include "block.h"

#define LARGEST 3.38953139e38F

static void narrow(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                   uint64_t count)
{
    (void)header;
    msdu__block_narrow(vec, LARGEST, vec->to_bf16, x, codes, count);
}

static void widen(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                  uint64_t count)
{
    (void)header;
    vec->from_bf16(codes, value, count);
}

static const msdu__codec codec = {.bits = 16, .encode = narrow, .decode = widen};

const msdu__wire msdu__wire_bfloat16 = {
    .name = "bfloat16",
    .help = "16 bits: range of float32, 8 bits of precision",
    .bits = 16.0,
    .has_feedback = false,
    .residual_ratio = 2.8e-6,
    .codec = &codec,
};
