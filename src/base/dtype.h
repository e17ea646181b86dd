/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the element types; pure, so every folder may include it. */
#ifndef MSDU_DTYPE_H
#define MSDU_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include <msdu/msdu.h>

static inline bool msdu__dtype_is_half(int32_t dtype)
{
    return dtype == MSDU_FLOAT16 || dtype == MSDU_BFLOAT16;
}

/* Bytes of one element of the working type: float64's own, float32 for all others. */
static inline uint32_t msdu__dtype_working_bytes(int32_t dtype)
{
    return dtype == MSDU_FLOAT64 ? 8 : 4;
}

/* Bytes of one element. */
static inline uint32_t msdu__dtype_bytes(int32_t dtype)
{
    return msdu__dtype_is_half(dtype) ? 2 : msdu__dtype_working_bytes(dtype);
}

#endif
