/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the wire formats' loops: right codes, equal bits in every variant. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simd/vec.h"
#include "suite.h"

#define MOST 2200

static const uint64_t counts[] = {0,  1,  2,  15,  16,  17,  31,  32,  33,   63,  64,
                                  65, 66, 67, 100, 127, 128, 200, 255, 1024, 2049};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static float values[MOST];

static void fill(void)
{
    uint64_t state = 0x9e3779b97f4a7c15U;
    for (int i = 0; i < MOST; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        values[i] = (float)((double)(state >> 33) / 1073741824.0 - 1.0);
        values[i] *=
            values[i] * values[i] * 8.0F; /* from far below a step to far above the range */
    }
}

typedef struct coded {
    uint8_t codes[3][MOST];
    float value[3][MOST];
    float clamped[MOST];
    float added[MOST];
    float sums[3][MOST]; /* x + codes - codes */
    float largest[2];
    msdu__vec_moments moments;
    msdu__vec_split split;
} coded;

static void run_wire(const msdu__vec_wire *wire, const float *x, uint64_t count, coded *out)
{
    memset(out, 0, sizeof(*out));
    wire->encode8(x, 37.0F, out->codes[0], count);
    wire->encode4(x, 3.0F, out->codes[1], count);
    wire->encode2(x, 0.5F, out->codes[2], count);
    wire->decode8(out->codes[0], 1.0F / 37.0F, out->value[0], count);
    wire->decode4(out->codes[1], 1.0F / 3.0F, out->value[1], count);
    wire->decode2(out->codes[2], 0.25F, 1.5F, out->value[2], count);
    wire->clamp(x, 1.0F, out->clamped, count);
    wire->add(out->added, x, count);
    if (!wire->add_clamped(out->added, x, count, &out->largest[0])) {
        out->largest[0] = 0.0F; /* not told then */
    }
    (void)wire->absmax(x, count, &out->largest[1]);
    out->split = wire->split(x, 0.5F, count);
    out->moments = wire->moments(x, count);
    for (int i = 0; i < 3; i++) {
        memcpy(out->sums[i], x, count * sizeof(*x));
    }
    wire->add8(out->codes[0], 1.0F / 37.0F, out->sums[0], count);
    wire->add4(out->codes[1], 1.0F / 3.0F, out->sums[1], count);
    wire->add2(out->codes[2], -0.25F, -1.5F, out->sums[2], count);
}

START_TEST(every_variant_of_the_wire_loops_gives_the_same_bits)
{
    static coded one;
    static coded two;
    fill();
    for (int special = 0; special < 2; special++) {
        if (special != 0) { /* NaN and infinity: any result, but no crash and the same one */
            values[0] = INFINITY;
            values[70] = NAN;
            values[1000] = -INFINITY;
        }
        for (size_t c = 0; c < COUNTS; c++) {
            run_wire(msdu__vec_variant(0)->wire, values, counts[c], &one);
            run_wire(msdu__vec_variant((uint32_t)_i)->wire, values, counts[c], &two);
            ck_assert_mem_eq(one.codes, two.codes, sizeof(one.codes));
            if (special == 0) { /* the sign of a NaN sum may differ */
                ck_assert_mem_eq(&one, &two, sizeof(one));
            }
        }
    }
}
END_TEST

START_TEST(codes_decode_to_the_nearest_level)
{
    static coded out;
    fill();
    for (size_t c = 0; c < COUNTS; c++) {
        run_wire(msdu__vec_variant((uint32_t)_i)->wire, values, counts[c], &out);
        double sum = 0.0;
        double squares = 0.0;
        double high = 0.0;
        double count = 0.0;
        float largest = 0.0F;
        int wrong = 0;
        for (uint64_t i = 0; i < counts[c]; i++) {
            const float x = values[i];
            const float eight = fminf(fmaxf(nearbyintf(x * 37.0F), -127.0F), 127.0F);
            const float four = fminf(fmaxf(nearbyintf(x * 3.0F), -7.0F), 7.0F);
            wrong += out.value[0][i] != eight * (1.0F / 37.0F);
            wrong += out.value[1][i] != four * (1.0F / 3.0F);
            wrong += out.value[2][i] != copysignf(fabsf(x) >= 0.5F ? 1.5F : 0.25F, x);
            wrong += out.clamped[i] != fminf(fmaxf(x, -1.0F), 1.0F);
            wrong += out.added[i] != x + x;
            wrong += out.sums[0][i] != x + out.value[0][i];
            wrong += out.sums[1][i] != x + out.value[1][i];
            wrong += out.sums[2][i] != x - out.value[2][i];
            largest = fmaxf(largest, fabsf(x));
            squares += (double)x * (double)x;
            count += fabsf(x) >= 0.5F ? 1.0 : 0.0;
            sum += fabs((double)x);
            high += fabsf(x) >= 0.5F ? fabs((double)x) : 0.0;
        }
        ck_assert_int_eq(wrong, 0);
        ck_assert(out.largest[0] == 2.0F * largest && out.largest[1] == largest);
        ck_assert_double_eq_tol(out.moments.sum, sum, 1e-12 * (1.0 + sum));
        ck_assert_double_eq_tol(out.moments.sum_sq, squares, 1e-12 * (1.0 + squares));
        ck_assert_double_eq_tol(out.split.sum, high, 1e-6 * (1.0 + sum)); /* sums of floats */
        ck_assert(out.split.count == count);
    }
}
END_TEST

START_TEST(a_bad_value_is_found_wherever_it_is_and_not_cut)
{
    const msdu__vec_wire *wire = msdu__vec_variant((uint32_t)_i)->wire;
    static const float bad[3] = {NAN, INFINITY, -INFINITY};
    float x[100];
    float cut[100];
    for (int i = 0; i < 100; i++) {
        x[i] = i % 2 == 0 ? FLT_MAX : -FLT_MAX;
    }
    for (uint64_t at = 0; at < 100; at++) {
        const float was = x[at];
        x[at] = bad[at % 3];
        float largest = 0.0F;
        float added[100] = {0};
        ck_assert(wire->absmax(x, at, &largest) && !wire->absmax(x, at + 1, &largest));
        ck_assert(at == 0 || largest >= FLT_MAX);
        ck_assert(wire->add_clamped(added, x, at, &largest));
        ck_assert(!wire->add_clamped(added, x, at + 1, &largest));
        wire->clamp(x, 2.0F, cut, 100);
        ck_assert(at % 3 == 0 ? isnan(cut[at]) : cut[at] == x[at]);
        ck_assert(cut[(at + 1) % 100] == copysignf(2.0F, x[(at + 1) % 100]));
        x[at] = was;
    }
}
END_TEST

START_TEST(packed_codes_touch_no_byte_too_many)
{
    const msdu__vec_wire *wire = msdu__vec_variant((uint32_t)_i)->wire;
    float x[200];
    float back[201];
    uint8_t codes[201];
    for (int i = 0; i < 200; i++) {
        x[i] = 1.0F;
    }
    for (uint64_t count = 0; count <= 200; count++) {
        memset(codes, 0xee, sizeof(codes));
        wire->encode4(x, 7.0F, codes, count);
        ck_assert_uint_eq(codes[(count + 1) / 2], 0xee);
        memset(codes, 0xee, sizeof(codes));
        wire->encode2(x, 0.5F, codes, count);
        ck_assert_uint_eq(codes[(count + 3) / 4], 0xee);
        back[count] = 42.0F;
        wire->decode2(codes, 0.0F, 1.0F, back, count);
        ck_assert(back[count] == 42.0F);
        for (uint64_t i = 0; i < count; i++) {
            ck_assert(back[i] == 1.0F);
        }
    }
}
END_TEST

int main(void)
{
    int variants = 0;
    while (msdu__vec_variant((uint32_t)variants) != NULL) {
        variants++;
    }
    Suite *suite = suite_create("vec_wire");
    TCase *cases = suite_case(suite, "vec_wire", 0, NULL, NULL);
    tcase_add_loop_test(cases, every_variant_of_the_wire_loops_gives_the_same_bits, 0, variants);
    tcase_add_loop_test(cases, codes_decode_to_the_nearest_level, 0, variants);
    tcase_add_loop_test(cases, a_bad_value_is_found_wherever_it_is_and_not_cut, 0, variants);
    tcase_add_loop_test(cases, packed_codes_touch_no_byte_too_many, 0, variants);
    return suite_run(suite);
}
