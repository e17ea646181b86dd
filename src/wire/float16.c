/* SPDX-License-Identifier: Apache-2.0 */
/* Format "float16": IEEE binary16, rounded to nearest even; values beyond it are cut; pure. */
#include "block.h"

#define LARGEST 65504.0F

static void narrow(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                   uint64_t count)
{
    (void)header;
    msdu__block_narrow(vec, LARGEST, vec->to_f16, x, codes, count);
}

static void widen(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                  uint64_t count)
{
    (void)header;
    vec->from_f16(codes, value, count);
}

static const msdu__codec codec = {.bits = 16, .encode = narrow, .decode = widen};

const msdu__wire msdu__wire_float16 = {
    .name = "float16",
    .help = "16 bits: 11 bits of precision, 6e-8 to 65504",
    .bits = 16.0,
    .has_feedback = false,
    .residual_ratio = 4e-8,
    .codec = &codec,
};
