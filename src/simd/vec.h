/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic loops by type, compiled once per instruction set from one source (vec.c) and chosen
 * at run time. Pure. The other stages call only what is declared here.
 *
 * All variants give the same bits: no contraction, no reassociation, sums in MSDU__VEC_LANES fixed
 * partial sums. Arrays of one call do not overlap unless said.
 */
#ifndef MSDU_VEC_H
#define MSDU_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/device.h>

#define MSDU__VEC_LANES    16 /* partial sums: one 512-bit register of floats */
#define MSDU__VEC_PROJECTS 64 /* projections of a sketch: the signs of as many fit a word */

/* Loops that exist for float and double alike; every array is of that type. */
typedef struct msdu__vec_real {
    /* Sum of squares in double. *has_bad_out is set at a NaN or infinity, and only then; a sum of
     * finite doubles that overflows is returned as DBL_MAX. */
    double (*sum_sq)(const void *x, uint64_t count, bool *has_bad_out);
    void (*scale)(void *x, double factor, uint64_t count);
    void (*subtract)(void *x, const void *y, uint64_t count); /* x -= y */
    /* update = anchor - param */
    void (*difference)(const void *anchor, const void *param, void *update, uint64_t count);
    /* Merge rules: anchor -= update, then
     * param = anchor; */
    void (*average)(void *anchor, void *param, const void *update, uint64_t count);
    /* param -= alpha * (param - anchor); */
    void (*elastic)(void *anchor, void *param, const void *update, double alpha, uint64_t count);
    /* param = anchor + keep * (param - snapshot); */
    void (*delayed)(void *anchor, void *param, const void *update, const void *snapshot,
                    double keep, uint64_t count);
    /* param = weights[0] * param + weights[1] * anchor. */
    void (*blend)(void *anchor, void *param, const void *update, const double weights[2],
                  uint64_t count);
    /* Outer momentum: momentum = mu * momentum + update, then
     * update = lr * momentum; */
    void (*heavy_ball)(void *update, void *momentum, double lr, double mu, uint64_t count);
    /* update = lr * (update + mu * momentum). */
    void (*nesterov)(void *update, void *momentum, double lr, double mu, uint64_t count);
    /* Recursion: drift and velocity take in the gradient. */
    void (*advance)(const msdu_recursion *c, const void *gradient, void *drift, void *velocity,
                    uint64_t count);
    /* With T = 0: trace and gradient take in K. */
    void (*settle)(const msdu_recursion *c, void *trace, void *gradient, uint64_t count);
    /* With T = (own - mean) / lr: trace and gradient take in K. */
    void (*meet)(const msdu_recursion *c, const void *own, const void *mean, void *trace,
                 void *gradient, uint64_t count);
} msdu__vec_real;

/* Sums of a block's magnitudes, for the fit of two levels (wire/int2.c). */
typedef struct msdu__vec_moments {
    double sum;
    double sum_sq;
} msdu__vec_moments;

typedef struct msdu__vec_split {
    double sum;   /* of magnitudes at or above the threshold */
    double count; /* of such elements */
} msdu__vec_split;

/*
 * Loops of the wire formats; byte arrays need no alignment. Codes of 4 and 2 bits are packed in
 * groups of 32 and 64 elements, 16 bytes each: byte j of a group holds elements j, j + 16, ...
 * (low bits first). A last group of m elements takes q = ceil(m / 2) or ceil(m / 4) bytes and byte
 * j holds j, j + q, ....
 */
typedef struct msdu__vec_wire {
    void (*add)(float *x, const float *y, uint64_t count); /* x += y */
    /* x += y, within +-FLT_MAX. True: y has no NaN and no infinity; then *largest_out is the
     * largest magnitude of x. */
    bool (*add_clamped)(float *x, const float *y, uint64_t count, float *largest_out);
    /* out = x within +-limit; NaN and infinity stay. */
    void (*clamp)(const float *x, float limit, float *out, uint64_t count);
    /* The largest magnitude, where NaN is passed over. True: no NaN, no infinity. */
    bool (*absmax)(const float *x, uint64_t count, float *largest_out);
    msdu__vec_moments (*moments)(const float *x, uint64_t count);
    msdu__vec_split (*split)(const float *x, float threshold, uint64_t count);
    /* Codes round(x * inverse), half to even, within +-127 or +-7, stored with an offset of 128 or
     * 8. NaN becomes the lowest code. */
    void (*encode8)(const float *x, float inverse, void *codes, uint64_t count);
    void (*encode4)(const float *x, float inverse, void *codes, uint64_t count);
    /* Bit 0: magnitude at or above the threshold; bit 1: negative. */
    void (*encode2)(const float *x, float threshold, void *codes, uint64_t count);
    void (*decode8)(const void *codes, float scale, float *value, uint64_t count);
    void (*decode4)(const void *codes, float scale, float *value, uint64_t count);
    void (*decode2)(const void *codes, float inner, float outer, float *value, uint64_t count);
    /* x += what those codes are decoded to; with negative scale or levels, x -= that. */
    void (*add8)(const void *codes, float scale, float *x, uint64_t count);
    void (*add4)(const void *codes, float scale, float *x, uint64_t count);
    void (*add2)(const void *codes, float inner, float outer, float *x, uint64_t count);
    /* The largest number of 5 mantissa bits that at least `wanted` magnitudes reach, if it is above
     * a quarter of `largest`; else 0, or less than that. x is finite, and `largest` its absmax. */
    float (*nth)(const float *x, uint64_t wanted, float largest, uint64_t count);
    /* The first ceil(count / 8) elements of magnitude at or above the threshold, as wire/sparse.c
     * says. left, which may be x: NULL, or left -= those, each as +-magnitude. */
    void (*encode_sparse)(const float *x, float threshold, void *codes, uint64_t count, float *left,
                          float magnitude);
    /* x += those, each as +-magnitude. Any bytes are good: nothing beyond count is touched. */
    void (*add_sparse)(const void *codes, float magnitude, float *x, uint64_t count);
} msdu__vec_wire;

typedef struct msdu__vec {
    const char *isa;
    const msdu__vec_real *real[2]; /* [0] float, [1] double */
    const msdu__vec_wire *wire;
    /* sums[k] += sum over elements i = k mod MSDU__VEC_PROJECTS of sign(seed, i) * x[i]. */
    void (*project)(const float *x, uint64_t count, uint64_t seed, float *sums);
    void (*from_f16)(const void *in, float *out, uint64_t count);
    void (*to_f16)(const float *in, void *out, uint64_t count);
    void (*from_bf16)(const void *in, float *out, uint64_t count);
    void (*to_bf16)(const float *in, void *out, uint64_t count);
} msdu__vec;

/* The best variant for this CPU. Keeps no state: a few tests of a word the C runtime filled. */
const msdu__vec *msdu__vec_get(void);
/* The index-th variant that this CPU can run, best first; NULL past the last. */
const msdu__vec *msdu__vec_variant(uint32_t index);
/* Name of the instruction set in use, such as "avx512": for `msdu info`. */
const char *msdu__vec_isa(void);

/* float16 (IEEE binary16) and bfloat16, round to nearest even; NaN stays NaN. */
void msdu__vec_from_f16(const void *in, float *out, uint64_t count);
void msdu__vec_to_f16(const float *in, void *out, uint64_t count);
void msdu__vec_from_bf16(const void *in, float *out, uint64_t count);
void msdu__vec_to_bf16(const float *in, void *out, uint64_t count);

/* out = in for any dtype of msdu.h into float (not for float64) and back. */
void msdu__vec_widen(const void *in, int32_t dtype, float *out, uint64_t count);
void msdu__vec_narrow(const float *in, int32_t dtype, void *out, uint64_t count);

/* x *= factor */
void msdu__vec_scale(void *x, int32_t dtype, double factor, uint64_t count);
/* Sum of squares in double; *has_bad_out is set to true (never cleared) at a NaN or infinity. */
double msdu__vec_sum_sq(const void *x, int32_t dtype, uint64_t count, bool *has_bad_out);

#endif
