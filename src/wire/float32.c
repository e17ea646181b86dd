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

const msdu__wire msdu__wire_float32 = {
    .name = "float32",
    .help = "32 bits: exact",
    .bits = 32.0,
    .has_feedback = false,
    .residual_ratio = 0.0,
    .codec = &codec,
};
