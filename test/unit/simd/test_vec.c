/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the arithmetic loops: right against plain references, equal bits in every variant. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

#include "random.h"
#include "simd/vec.h"
#include "suite.h"

#define MOST                    2200
#define EXPECT_FLOAT(got, want) ck_assert_double_eq((double)(got), (double)(want))

static const uint64_t counts[] = {0,  1,  2,  15,  16,  17,  31,  32,  33,   63,  64,
                                  65, 66, 67, 100, 127, 128, 200, 255, 1024, 2049};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static uint64_t random_state;

static double uniform(void)
{
    return random_signed(&random_state);
}

static void setup(void)
{
    random_state = 0x9e3779b97f4a7c15U;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* --- 16-bit types --- */

/* Value of a binary16 by its definition; not for NaN. */
static float f16_value(uint32_t half)
{
    const int exponent = (int)(half >> 10 & 31U);
    const double mantissa = (double)(half & 1023U);
    double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024.0 + mantissa, exponent - 25);
    if (exponent == 31) {
        value = (double)INFINITY;
    }
    return (float)((half & 0x8000U) != 0 ? -value : value);
}

/* Nearest binary16 by its definition: scale so that the last place is one, round half to even. */
static uint32_t f16_nearest(float x)
{
    const double magnitude = fabs((double)x);
    const uint32_t sign = signbit(x) ? 0x8000U : 0;
    int exponent = 0;
    (void)frexp(magnitude, &exponent);
    exponent = exponent < -13 ? -13 : exponent;
    const double places = nearbyint(ldexp(magnitude, 11 - exponent)); /* 0 .. 2048 */
    if (!isfinite(x) || ldexp(places, exponent - 11) > 65504.0) {
        return sign | 0x7c00U;
    }
    /* 1024 places and more carry into the exponent by themselves. */
    return sign | (uint32_t)((exponent + 13) * 1024 + (int)places);
}

START_TEST(float16_widens_every_value)
{
    for (uint32_t half = 0; half < 65536; half++) {
        const uint16_t in = (uint16_t)half;
        float out;
        msdu__vec_variant((uint32_t)_i)->from_f16(&in, &out, 1);
        const bool is_nan = (half & 0x7fffU) > 0x7c00U;
        if (is_nan ? !isnan(out) : bits_of(out) != bits_of(f16_value(half))) {
            ck_abort_msg("%x gave %a", half, (double)out);
        }
    }
}
END_TEST

static void check_narrow(const msdu__vec *vec, const float *in, uint64_t count)
{
    uint16_t out[64];
    vec->to_f16(in, out, count);
    for (uint64_t i = 0; i < count; i++) {
        const bool is_right =
            isnan(in[i]) ? (out[i] & 0x7fffU) > 0x7c00U : out[i] == f16_nearest(in[i]);
        if (!is_right) {
            ck_abort_msg("%a gave %x", (double)in[i], out[i]);
        }
    }
}

START_TEST(float16_narrows_to_nearest_even)
{
    const msdu__vec *vec = msdu__vec_variant((uint32_t)_i);
    float in[64];
    for (uint32_t round = 0; round < 4000; round++) {
        for (uint32_t i = 0; i < 64; i++) {
            /* All of float's bit patterns, then those near binary16's range and its ties. */
            const uint32_t any = (uint32_t)random_next(&random_state);
            const uint32_t near = (any & 0x80001fffU) | (0x32800000U + (any >> 1 & 0x15ffe000U));
            in[i] = float_of(round % 2 == 0 ? any : (round % 4 == 1 ? near & 0xfffff000U : near));
        }
        check_narrow(vec, in, 64);
    }
}
END_TEST

START_TEST(bfloat16_widens_and_narrows_to_nearest_even)
{
    const msdu__vec *vec = msdu__vec_variant((uint32_t)_i);
    for (uint32_t round = 0; round < 200000; round++) {
        uint32_t bits = (uint32_t)random_next(&random_state);
        bits = round % 2 == 0 ? bits : bits & 0xffff8000U; /* half of them ties or exact */
        const float in = float_of(bits);
        uint16_t half;
        float out;
        vec->to_bf16(&in, &half, 1);
        vec->from_bf16(&half, &out, 1);
        const float below = float_of(bits & 0xffff0000U);
        const float above = float_of((bits & 0xffff0000U) + 0x10000U);
        const uint32_t low = bits & 0xffffU;
        const bool is_up = low > 0x8000U || (low == 0x8000U && (bits >> 16 & 1U) != 0);
        if (isnan(in) ? !isnan(out) : bits_of(out) != bits_of(is_up ? above : below)) {
            ck_abort_msg("%a gave %a", (double)in, (double)out);
        }
    }
}
END_TEST

START_TEST(sixteen_bit_arrays_need_no_alignment)
{
    unsigned char bytes[2 * 40 + 1];
    float in[40];
    float out[40];
    for (int i = 0; i < 40; i++) {
        in[i] = (float)i - 20.0F;
    }
    const msdu__vec *vec = msdu__vec_variant((uint32_t)_i);
    vec->to_f16(in, bytes + 1, 40);
    vec->from_f16(bytes + 1, out, 40);
    ck_assert_mem_eq(in, out, sizeof(in));
    vec->to_bf16(in, bytes + 1, 40);
    vec->from_bf16(bytes + 1, out, 40);
    ck_assert_mem_eq(in, out, sizeof(in));
}
END_TEST

/* --- real loops --- */

/* Four float or double arrays with the same values, reset before each loop is tried. */
typedef struct arrays {
    double a[4][MOST];
    float f[4][MOST];
} arrays;

static arrays start;
static arrays plain;
static arrays tried;

static void fill(void)
{
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < MOST; i++) {
            start.a[k][i] = uniform() * exp(3.0 * uniform());
            start.f[k][i] = (float)start.a[k][i];
        }
    }
}

static const msdu_recursion recursion = {.decay = 0.01,
                                         .momentum = 0.9,
                                         .factor = 0.7,
                                         .lr = 0.1,
                                         .lr_inverse = 10.0,
                                         .of_input = 0.5,
                                         .of_velocity = 0.8,
                                         .of_target = 1.25,
                                         .of_trace = 0.3};

#define LOOPS 12

/* Run loop number `loop` on the arrays p[0..3]. */
static void run_loop(const msdu__vec_real *loops, int loop, void *const p[4], uint64_t count)
{
    const double weights[2] = {0.25, 0.75};
    switch (loop) {
    case 0:
        loops->scale(p[0], 0.7, count);
        break;
    case 1:
        loops->subtract(p[0], p[1], count);
        break;
    case 2:
        loops->difference(p[0], p[1], p[2], count);
        break;
    case 3:
        loops->average(p[0], p[1], p[2], count);
        break;
    case 4:
        loops->elastic(p[0], p[1], p[2], 0.3, count);
        break;
    case 5:
        loops->delayed(p[0], p[1], p[2], p[3], 0.8, count);
        break;
    case 6:
        loops->blend(p[0], p[1], p[2], weights, count);
        break;
    case 7:
        loops->heavy_ball(p[0], p[1], 0.7, 0.9, count);
        break;
    case 8:
        loops->nesterov(p[0], p[1], 0.7, 0.9, count);
        break;
    case 9:
        loops->advance(&recursion, p[0], p[1], p[2], count);
        break;
    case 10:
        loops->settle(&recursion, p[0], p[1], count);
        break;
    default:
        loops->meet(&recursion, p[0], p[1], p[2], p[3], count);
        break;
    }
}

/* The same in long form, one element in double: v[0..3] are the arrays' elements. */
static void reference(int loop, double v[4])
{
    const double mean = v[0] - v[2];
    const double sum = 0.9 * v[1] + v[0];
    double k = 0.0;
    switch (loop) {
    case 0:
        v[0] *= 0.7;
        break;
    case 1:
        v[0] -= v[1];
        break;
    case 2:
        v[2] = v[0] - v[1];
        break;
    case 3:
        v[0] = mean;
        v[1] = mean;
        break;
    case 4:
        v[0] = mean;
        v[1] -= 0.3 * (v[1] - mean);
        break;
    case 5:
        v[0] = mean;
        v[1] = mean + 0.8 * (v[1] - v[3]);
        break;
    case 6:
        v[0] = mean;
        v[1] = 0.25 * v[1] + 0.75 * mean;
        break;
    case 7:
        v[1] = sum;
        v[0] = 0.7 * sum;
        break;
    case 8:
        v[1] = sum;
        v[0] = 0.7 * (v[0] + 0.9 * sum);
        break;
    case 9:
        k = v[0] + 0.01 * v[1];
        v[2] = 0.9 * v[2] + 0.7 * k;
        v[1] -= 0.1 * (0.5 * k + 0.8 * v[2]);
        break;
    case 10:
        k = -0.3 * v[0];
        v[0] = 0.9 * v[0] + 0.7 * k;
        v[1] += k;
        break;
    default:
        k = 1.25 * (v[0] - v[1]) * 10.0 - 0.3 * v[2];
        v[2] = 0.9 * v[2] + 0.7 * k;
        v[3] += k;
        break;
    }
}

static void check_loop(const msdu__vec *vec, int loop, uint64_t count)
{
    memcpy(&tried, &start, sizeof(tried));
    void *const doubles[4] = {tried.a[0], tried.a[1], tried.a[2], tried.a[3]};
    void *const floats[4] = {tried.f[0], tried.f[1], tried.f[2], tried.f[3]};
    run_loop(vec->real[1], loop, doubles, count);
    run_loop(vec->real[0], loop, floats, count);
    double worst[2] = {0.0, 0.0};
    for (uint64_t i = 0; i < MOST; i++) {
        double v[4] = {start.a[0][i], start.a[1][i], start.a[2][i], start.a[3][i]};
        double w[4] = {(double)start.f[0][i], (double)start.f[1][i], (double)start.f[2][i],
                       (double)start.f[3][i]};
        if (i < count) {
            reference(loop, v);
            reference(loop, w);
        }
        for (int k = 0; k < 4; k++) {
            worst[0] = fmax(worst[0], fabs(tried.a[k][i] - v[k]));
            worst[1] = fmax(worst[1], fabs((double)tried.f[k][i] - w[k]));
        }
    }
    ck_assert_msg(worst[0] < 1e-12, "loop %d is off by %g", loop, worst[0]);
    ck_assert_msg(worst[1] < 1e-4, "loop %d is off by %g", loop, worst[1]);
}

START_TEST(every_loop_equals_its_formula)
{
    fill();
    for (int loop = 0; loop < LOOPS; loop++) {
        check_loop(msdu__vec_variant((uint32_t)_i), loop, 0);
        check_loop(msdu__vec_variant((uint32_t)_i), loop, 67);
        check_loop(msdu__vec_variant((uint32_t)_i), loop, MOST);
    }
}
END_TEST

static void run_all(const msdu__vec *vec, arrays *on, uint64_t count)
{
    memcpy(on, &start, sizeof(*on));
    void *const doubles[4] = {on->a[0], on->a[1], on->a[2], on->a[3]};
    void *const floats[4] = {on->f[0], on->f[1], on->f[2], on->f[3]};
    for (int loop = 0; loop < LOOPS; loop++) {
        run_loop(vec->real[1], loop, doubles, count);
        run_loop(vec->real[0], loop, floats, count);
    }
}

START_TEST(every_variant_of_the_loops_gives_the_same_bits)
{
    const msdu__vec *first = msdu__vec_variant(0);
    const msdu__vec *other = msdu__vec_variant((uint32_t)_i);
    fill();
    for (size_t c = 0; c < COUNTS; c++) {
        run_all(first, &plain, counts[c]);
        run_all(other, &tried, counts[c]);
        ck_assert_mem_eq(&plain, &tried, sizeof(tried));
        for (int is_double = 0; is_double < 2; is_double++) {
            const void *x = is_double != 0 ? (const void *)start.a[0] : (const void *)start.f[0];
            bool has_bad = false;
            const double one = first->real[is_double]->sum_sq(x, counts[c], &has_bad);
            const double two = other->real[is_double]->sum_sq(x, counts[c], &has_bad);
            ck_assert_double_eq(one, two);
            ck_assert(!has_bad);
        }
    }
}
END_TEST

START_TEST(sum_of_squares_equals_the_plain_sum)
{
    fill();
    for (size_t c = 0; c < COUNTS; c++) {
        bool has_bad = false;
        double want = 0.0;
        for (uint64_t i = 0; i < counts[c]; i++) {
            want += start.a[0][i] * start.a[0][i];
        }
        const double got = msdu__vec_sum_sq(start.a[0], MSDU_FLOAT64, counts[c], &has_bad);
        ck_assert_double_eq_tol(got, want, 1e-12 * (1.0 + want));
        ck_assert_double_eq_tol(msdu__vec_sum_sq(start.f[0], MSDU_FLOAT32, counts[c], &has_bad),
                                want, 1e-6 * (1.0 + want));
    }
}
END_TEST

START_TEST(sum_of_squares_finds_a_bad_value_anywhere)
{
    const msdu__vec *vec = msdu__vec_variant((uint32_t)_i);
    float x[100] = {0};
    double y[100] = {0};
    for (int at = 0; at < 100; at++) {
        bool has_bad = false;
        x[at] = at % 2 == 0 ? NAN : -INFINITY;
        y[at] = (double)x[at];
        (void)vec->real[0]->sum_sq(x, 100, &has_bad);
        ck_assert(has_bad);
        has_bad = false;
        (void)vec->real[1]->sum_sq(y, 100, &has_bad);
        ck_assert(has_bad);
        x[at] = 0.0F;
        y[at] = 0.0;
    }
}
END_TEST

START_TEST(large_finite_values_are_not_bad)
{
    const msdu__vec *vec = msdu__vec_variant((uint32_t)_i);
    float x[33];
    double y[33];
    for (int i = 0; i < 33; i++) {
        x[i] = FLT_MAX;
        y[i] = 1e300;
    }
    bool has_bad = false;
    const double want = 33.0 * (double)FLT_MAX * (double)FLT_MAX;
    ck_assert_double_eq_tol(vec->real[0]->sum_sq(x, 33, &has_bad), want, 1e-12 * want);
    ck_assert_double_eq(vec->real[1]->sum_sq(y, 33, &has_bad), DBL_MAX);
    ck_assert(!has_bad);
}
END_TEST

/* --- by dtype --- */

START_TEST(scale_and_sum_work_for_sixteen_bits)
{
    static const int32_t dtypes[2] = {MSDU_FLOAT16, MSDU_BFLOAT16};
    const int32_t dtype = dtypes[_i];
    static float in[MOST];
    static float out[MOST];
    static uint16_t half[MOST];
    double want = 0.0;
    for (int i = 0; i < MOST; i++) {
        in[i] = (float)(i % 64);
        want += (double)in[i] * (double)in[i];
    }
    bool has_bad = false;
    msdu__vec_narrow(in, dtype, half, MOST);
    ck_assert_double_eq(msdu__vec_sum_sq(half, dtype, MOST, &has_bad), want);
    msdu__vec_scale(half, dtype, 0.5, MOST);
    msdu__vec_widen(half, dtype, out, MOST);
    for (int i = 0; i < MOST; i++) {
        EXPECT_FLOAT(out[i], 0.5F * in[i]);
    }
    half[MOST - 1] = 0x7fff; /* NaN in both types */
    (void)msdu__vec_sum_sq(half, dtype, MOST, &has_bad);
    ck_assert(has_bad);
}
END_TEST

START_TEST(names_of_variants_are_known)
{
    ck_assert_str_eq(msdu__vec_isa(), msdu__vec_variant(0)->isa);
    uint32_t count = 0;
    while (msdu__vec_variant(count) != NULL) {
        count++;
    }
    ck_assert_str_eq(msdu__vec_variant(count - 1)->isa, "base");
}
END_TEST

int main(void)
{
    int variants = 0;
    while (msdu__vec_variant((uint32_t)variants) != NULL) {
        variants++;
    }
    Suite *suite = suite_create("vec");
    TCase *cases = suite_case(suite, "vec", 0, setup, NULL);
    tcase_add_loop_test(cases, float16_widens_every_value, 0, variants);
    tcase_add_loop_test(cases, float16_narrows_to_nearest_even, 0, variants);
    tcase_add_loop_test(cases, bfloat16_widens_and_narrows_to_nearest_even, 0, variants);
    tcase_add_loop_test(cases, sixteen_bit_arrays_need_no_alignment, 0, variants);
    tcase_add_loop_test(cases, every_loop_equals_its_formula, 0, variants);
    tcase_add_loop_test(cases, every_variant_of_the_loops_gives_the_same_bits, 0, variants);
    tcase_add_test(cases, sum_of_squares_equals_the_plain_sum);
    tcase_add_loop_test(cases, sum_of_squares_finds_a_bad_value_anywhere, 0, variants);
    tcase_add_loop_test(cases, large_finite_values_are_not_bad, 0, variants);
    tcase_add_loop_test(cases, scale_and_sum_work_for_sixteen_bits, 0, 2);
    tcase_add_test(cases, names_of_variants_are_known);
    return suite_run(suite);
}
