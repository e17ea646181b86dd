/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds by the clock: a mean arrives while the trainer computes, so it cannot touch parameters.
 * The shift s keeps what they are owed. With own progress x since the last contribution, captured
 * as s <- x, and the mean d of a round, anchor A and s both take d; the next step's end adds s:
 *
 *     w <- w + s = w + (x - d) = A + (steps since the capture)
 */
#include "correct.h"

#include "base/dtype.h"
#include "simd/vec.h"

static void add_float(float *restrict x, const float *restrict y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        x[i] += y[i];
    }
}

static void add_double(double *restrict x, const double *restrict y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        x[i] += y[i];
    }
}

static void add_half(uint16_t *param, const float *shift, uint64_t count, int32_t dtype)
{
    float wide[MSDU__CHUNK];
    for (uint64_t done = 0; done < count; done += MSDU__CHUNK) {
        const uint64_t some = count - done < MSDU__CHUNK ? count - done : MSDU__CHUNK;
        msdu__vec_widen(param + done, dtype, wide, some);
        add_float(wide, shift + done, some);
        msdu__vec_narrow(wide, dtype, param + done, some);
    }
}

void msdu__shift_take(void *param, const void *shift, uint64_t count, int32_t dtype)
{
    if (dtype == MSDU_FLOAT64) {
        add_double(param, shift, count);
    } else if (msdu__dtype_is_half(dtype)) {
        add_half(param, shift, count, dtype);
    } else {
        add_float(param, shift, count);
    }
}

void msdu__shift_follow(void *anchor, void *shift, const void *update, uint64_t count,
                        int32_t dtype)
{
    const msdu__vec_real *loops = msdu__vec_get()->real[dtype == MSDU_FLOAT64];
    loops->subtract(anchor, update, count);
    loops->subtract(shift, update, count);
}
