/* SPDX-License-Identifier: Apache-2.0 */
/* The wire formats as kernels of `msdu bench kernels`. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#include "wire/wire.h"

#define BLOCK 256 /* default of setting wire_block */

static const msdu__wire *wire_of(const msdu__kernel *kernel)
{
    return msdu__wire_at(kernel->variant);
}

uint64_t msdu__kernel_coded_bytes(const msdu__kernel *kernel, uint64_t count)
{
    if (kernel->coded == 0) {
        return 0;
    }
    return strcmp(kernel->group, "wire") == 0 ? msdu__wire_bytes(wire_of(kernel), count, BLOCK)
                                              : 2 * count;
}

static float *residual_of(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    return wire_of(kernel)->has_feedback ? a->array[MSDU__MOMENTUM] : NULL;
}

void msdu__kernel_encode(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    a->sink += msdu__wire_encode(wire_of(kernel), a->array[MSDU__PARAM], residual_of(kernel, a),
                                 a->count, BLOCK, a->codes);
}

static void decode(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__wire_decode(wire_of(kernel), a->codes, a->count, BLOCK, a->array[MSDU__UPDATE]);
}

static void decode_add(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__wire_decode_add(wire_of(kernel), a->codes, a->count, BLOCK, a->array[MSDU__SNAPSHOT]);
}

bool msdu__kernel_reads_codes(const msdu__kernel *kernel)
{
    return kernel->run == decode || kernel->run == decode_add;
}

/* Largest difference between a coded value and the value less its residual, per unit of value. */
static float tolerance(int wire)
{
    switch (wire) {
    case MSDU__WIRE_FLOAT32:
        return 0.0F;
    case MSDU__WIRE_BFLOAT16:
        return 0x1p-8F;
    case MSDU__WIRE_FLOAT16:
        return 0x1p-11F;
    default:
        return 0x1p-20F; /* rounding of the differences taken here */
    }
}

/* Decoded value of an element, whichever of the passes ran. */
static float decoded_at(const msdu__kernel *kernel, const msdu__kernel_arrays *a,
                        const msdu__kernel_point *before, uint64_t at)
{
    if (kernel->run == decode_add) {
        return a->array[MSDU__SNAPSHOT][at] - before->value[MSDU__SNAPSHOT];
    }
    return a->array[MSDU__UPDATE][at];
}

/*
 * Error feedback promises: value + old residual = decoded + new residual. That alone would let an
 * encoder send zeros, so the new residuals must also be small beside the values. A decoding pass
 * was prepared by one encoding, so its points hold the residual after it: then value alone, less
 * nothing, is compared within the block's largest step.
 */
static bool is_right(const msdu__kernel *kernel, msdu__kernel_arrays *a,
                     const msdu__kernel_point *points, uint64_t stride)
{
    const bool is_encode = kernel->run == msdu__kernel_encode;
    const bool has_feedback = wire_of(kernel)->has_feedback;
    double lost = 0;
    double sent = 0;
    bool has_sent = false;
    if (is_encode) {
        decode(kernel, a);
    }
    for (uint64_t i = 0; i * stride < a->count; i++) {
        const uint64_t at = i * stride;
        float decoded = decoded_at(kernel, a, &points[i], at);
        float value = points[i].value[MSDU__PARAM];
        float left = has_feedback ? a->array[MSDU__MOMENTUM][at] : 0.0F;
        float old = has_feedback && is_encode ? points[i].value[MSDU__MOMENTUM] : 0.0F;
        /* 0.001 is the largest residual before the encoding that prepared a decoding pass */
        float slack = has_feedback && !is_encode ? 0.0011F : 1e-7F;
        if (fabsf(value + old - decoded - left) >
            tolerance(kernel->variant) * fabsf(value) + slack) {
            return false;
        }
        lost += (double)left * (double)left;
        sent += (double)value * (double)value;
        has_sent = has_sent || decoded != 0;
    }
    /* sparse leaves most for later: what it sends leaves as much behind, on the other side */
    return has_sent && lost <= (kernel->variant == MSDU__WIRE_SPARSE ? 1.1 : 0.3) * sent;
}

#define WIRE(format, index, feedback)                                                              \
    {"encode " format,                                                                             \
     "wire",                                                                                       \
     feedback ? "read x, read and write e, write codes" : "read x, write codes",                   \
     (feedback) ? 3 : 1,                                                                           \
     1,                                                                                            \
     index,                                                                                        \
     msdu__kernel_encode,                                                                          \
     NULL,                                                                                         \
     0,                                                                                            \
     is_right},                                                                                    \
        {"decode_add " format,                                                                     \
         "wire",                                                                                   \
         "read codes, read and write sum",                                                         \
         2,                                                                                        \
         1,                                                                                        \
         index,                                                                                    \
         decode_add,                                                                               \
         NULL,                                                                                     \
         0,                                                                                        \
         is_right},                                                                                \
    {                                                                                              \
        "decode " format, "wire", "read codes, write x", 1, 1, index, decode, NULL, 0, is_right    \
    }

const msdu__kernel msdu__kernel_wires[] = {
    WIRE("float32", MSDU__WIRE_FLOAT32, 0), WIRE("bfloat16", MSDU__WIRE_BFLOAT16, 0),
    WIRE("float16", MSDU__WIRE_FLOAT16, 0), WIRE("int8", MSDU__WIRE_INT8, 1),
    WIRE("int4", MSDU__WIRE_INT4, 1),       WIRE("int2", MSDU__WIRE_INT2, 1),
    WIRE("sparse", MSDU__WIRE_SPARSE, 1),   {.name = NULL},
};
