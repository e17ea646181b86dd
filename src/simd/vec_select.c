/* SPDX-License-Identifier: Apache-2.0 */
/* Which variant of the arithmetic loops this CPU gets, and loops by dtype on top of them; pure. */
#include "vec.h"

#include <string.h>

#include <msdu/msdu.h>

#include "base/dtype.h"

extern const msdu__vec msdu__vec_base;

#define WIDE_COUNT 1024 /* elements widened at a time: 4 KiB of stack */

#if defined(__x86_64__)

extern const msdu__vec msdu__vec_avx2;
extern const msdu__vec msdu__vec_avx512;

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const msdu__vec *msdu__vec_variant(uint32_t index)
{
    const msdu__vec *variants[4] = {NULL};
    uint32_t count = 0;
    if (has_avx512()) {
        variants[count++] = &msdu__vec_avx512;
    }
    if (has_avx2()) {
        variants[count++] = &msdu__vec_avx2;
    }
    variants[count++] = &msdu__vec_base;
    return index < count ? variants[index] : NULL;
}

const msdu__vec *msdu__vec_get(void)
{
    if (has_avx512()) {
        return &msdu__vec_avx512;
    }
    return has_avx2() ? &msdu__vec_avx2 : &msdu__vec_base;
}

#else

const msdu__vec *msdu__vec_variant(uint32_t index)
{
    return index == 0 ? &msdu__vec_base : NULL;
}

const msdu__vec *msdu__vec_get(void)
{
    return &msdu__vec_base;
}

#endif

const char *msdu__vec_isa(void)
{
    return msdu__vec_get()->isa;
}

void msdu__vec_from_f16(const void *in, float *out, uint64_t count)
{
    msdu__vec_get()->from_f16(in, out, count);
}

void msdu__vec_to_f16(const float *in, void *out, uint64_t count)
{
    msdu__vec_get()->to_f16(in, out, count);
}

void msdu__vec_from_bf16(const void *in, float *out, uint64_t count)
{
    msdu__vec_get()->from_bf16(in, out, count);
}

void msdu__vec_to_bf16(const float *in, void *out, uint64_t count)
{
    msdu__vec_get()->to_bf16(in, out, count);
}

void msdu__vec_widen(const void *in, int32_t dtype, float *out, uint64_t count)
{
    if (dtype == MSDU_FLOAT16) {
        msdu__vec_from_f16(in, out, count);
    } else if (dtype == MSDU_BFLOAT16) {
        msdu__vec_from_bf16(in, out, count);
    } else {
        memcpy(out, in, count * sizeof(*out));
    }
}

void msdu__vec_narrow(const float *in, int32_t dtype, void *out, uint64_t count)
{
    if (dtype == MSDU_FLOAT16) {
        msdu__vec_to_f16(in, out, count);
    } else if (dtype == MSDU_BFLOAT16) {
        msdu__vec_to_bf16(in, out, count);
    } else {
        memcpy(out, in, count * sizeof(*in));
    }
}

void msdu__vec_scale(void *x, int32_t dtype, double factor, uint64_t count)
{
    const msdu__vec *vec = msdu__vec_get();
    if (!msdu__dtype_is_half(dtype)) {
        vec->real[dtype == MSDU_FLOAT64]->scale(x, factor, count);
        return;
    }
    float wide[WIDE_COUNT];
    uint8_t *bytes = x;
    for (uint64_t done = 0; done < count; done += WIDE_COUNT) {
        const uint64_t n = count - done < WIDE_COUNT ? count - done : WIDE_COUNT;
        msdu__vec_widen(bytes + 2 * done, dtype, wide, n);
        vec->real[0]->scale(wide, factor, n);
        msdu__vec_narrow(wide, dtype, bytes + 2 * done, n);
    }
}

double msdu__vec_sum_sq(const void *x, int32_t dtype, uint64_t count, bool *has_bad_out)
{
    const msdu__vec *vec = msdu__vec_get();
    if (!msdu__dtype_is_half(dtype)) {
        return vec->real[dtype == MSDU_FLOAT64]->sum_sq(x, count, has_bad_out);
    }
    float wide[WIDE_COUNT];
    const uint8_t *bytes = x;
    double sum = 0.0;
    for (uint64_t done = 0; done < count; done += WIDE_COUNT) {
        const uint64_t n = count - done < WIDE_COUNT ? count - done : WIDE_COUNT;
        msdu__vec_widen(bytes + 2 * done, dtype, wide, n);
        sum += vec->real[0]->sum_sq(wide, n, has_bad_out);
    }
    return sum;
}
