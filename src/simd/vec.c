/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic loops, compiled once per instruction set; pure, plain C that compilers vectorize.
 *
 * Flags of every variant: -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math, and
 *   base    -DMSDU__VEC_ISA=base
 *   avx2    -DMSDU__VEC_ISA=avx2   -mavx2 -mfma -mf16c
 *   avx512  -DMSDU__VEC_ISA=avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
 *           -mprefer-vector-width=512
 * base is built for every machine, the others for x86-64. Never -ffast-math, and no contraction
 * into fused multiply-adds: ranks on different CPUs must get the same bits.
 *
 * Half-precision conversions are integer arithmetic rather than intrinsics for the same reason:
 * one definition, also of what happens to a NaN's payload, on every machine.
 */
#include "vec.h"

#include <float.h>
#include <math.h>
#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Add the partial sums in one fixed order. */
static inline double fold(const double lanes[MSDU__VEC_LANES])
{
    double sum = 0.0;
    for (uint32_t l = 0; l < MSDU__VEC_LANES; l++) {
        sum += lanes[l];
    }
    return sum;
}

#define REAL    float
#define NAME(x) f32_##x
#include "vec_real.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(x) f64_##x
#include "vec_real.inc"
#undef REAL
#undef NAME
#include "vec_wire.inc"

/* splitmix64 (Steele, Lea and Flood 2014): a word of independent signs for a block of elements. */
static inline uint64_t signs_of(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* sums[k] += +-x[k] for count <= 32 elements; bit k of signs: negative */
static inline void add_signed(const float *restrict x, uint32_t count, uint32_t signs,
                              float *restrict sums)
{
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t is_negative = (signs & 1U << k) != 0 ? 0x80000000U : 0U;
        sums[k] += float_of(bits_of(x[k]) ^ is_negative);
    }
}

static void project(const float *restrict x, uint64_t count, uint64_t seed, float *restrict sums)
{
    const uint64_t key = signs_of(seed);
    const uint64_t blocks = count / MSDU__VEC_PROJECTS;
    const uint32_t rest = (uint32_t)(count % MSDU__VEC_PROJECTS);
    float lanes[MSDU__VEC_PROJECTS];
    memcpy(lanes, sums, sizeof(lanes));
    for (uint64_t block = 0; block < blocks; block++, x += MSDU__VEC_PROJECTS) {
        const uint64_t signs = signs_of(key + block);
        add_signed(x, 32, (uint32_t)signs, lanes);
        add_signed(x + 32, 32, (uint32_t)(signs >> 32), lanes + 32);
    }
    const uint64_t signs = signs_of(key + blocks);
    add_signed(x, rest < 32 ? rest : 32, (uint32_t)signs, lanes);
    if (rest > 32) {
        add_signed(x + 32, rest - 32, (uint32_t)(signs >> 32), lanes + 32);
    }
    memcpy(sums, lanes, sizeof(lanes));
}

static inline uint16_t load16(const uint8_t *in)
{
    uint16_t half;
    memcpy(&half, in, sizeof(half));
    return half;
}

static inline void store16(uint8_t *out, uint32_t half)
{
    const uint16_t h = (uint16_t)half;
    memcpy(out, &h, sizeof(h));
}

static inline float f16_widen(uint32_t half)
{
    const uint32_t magnitude = half & 0x7fffU;
    /* Subnormal: as the low mantissa bits of 0.5, whose unit is the same 2^-24. */
    const uint32_t small = bits_of(float_of(magnitude | 0x3f000000U) - 0.5F);
    const uint32_t scaled = magnitude < 0x0400U ? small : (magnitude << 13) + 0x38000000U;
    /* Infinity and NaN: exponent of all ones; a NaN becomes quiet. */
    const uint32_t special =
        0x7f800000U | magnitude << 13 | (magnitude > 0x7c00U ? 0x00400000U : 0U);
    return float_of((half & 0x8000U) << 16 | (magnitude >= 0x7c00U ? special : scaled));
}

static inline uint32_t f16_narrow(float x)
{
    const uint32_t bits = bits_of(x);
    const uint32_t magnitude = bits & 0x7fffffffU;
    /* Subnormal result: adding 0.5 moves the bits that stay into the low mantissa, rounded by the
     * addition itself (2^-24 is the unit of both). */
    const uint32_t small = bits_of(float_of(magnitude) + 0.5F) - 0x3f000000U;
    const uint32_t normal = (magnitude - 0x38000000U + 0x0fffU + (magnitude >> 13 & 1U)) >> 13;
    const uint32_t nan = 0x7e00U | (magnitude >> 13 & 0x03ffU);
    uint32_t half = magnitude < 0x38800000U ? small : normal;
    half = magnitude >= 0x477ff000U ? 0x7c00U : half; /* 65520 and above round to infinity */
    half = magnitude > 0x7f800000U ? nan : half;
    return (bits >> 16 & 0x8000U) | half;
}

static inline uint32_t bf16_narrow(float x)
{
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return (bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16 | 0x0040U) : rounded;
}

static void from_f16(const void *in, float *restrict out, uint64_t count)
{
    const uint8_t *restrict bytes = in;
    for (uint64_t i = 0; i < count; i++) {
        out[i] = f16_widen(load16(bytes + 2 * i));
    }
}

static void to_f16(const float *restrict in, void *out, uint64_t count)
{
    uint8_t *restrict bytes = out;
    for (uint64_t i = 0; i < count; i++) {
        store16(bytes + 2 * i, f16_narrow(in[i]));
    }
}

static void from_bf16(const void *in, float *restrict out, uint64_t count)
{
    const uint8_t *restrict bytes = in;
    for (uint64_t i = 0; i < count; i++) {
        out[i] = float_of((uint32_t)load16(bytes + 2 * i) << 16);
    }
}

static void to_bf16(const float *restrict in, void *out, uint64_t count)
{
    uint8_t *restrict bytes = out;
    for (uint64_t i = 0; i < count; i++) {
        store16(bytes + 2 * i, bf16_narrow(in[i]));
    }
}

#define GLUE(a, b)    a##b
#define TABLE_NAME(x) GLUE(msdu__vec_, x)
#define QUOTE_RAW(x)  #x
#define QUOTE(x)      QUOTE_RAW(x)

extern const msdu__vec TABLE_NAME(MSDU__VEC_ISA); /* declared again in vec_select.c */

const msdu__vec TABLE_NAME(MSDU__VEC_ISA) = {
    .isa = QUOTE(MSDU__VEC_ISA),
    .real = {&f32_loops, &f64_loops},
    .wire = &wire_loops,
    .project = project,
    .from_f16 = from_f16,
    .to_f16 = to_f16,
    .from_bf16 = from_bf16,
    .to_bf16 = to_bf16,
};
