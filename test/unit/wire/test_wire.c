/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the wire formats: error bounds, byte counts, error feedback, odd values. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "suite.h"
#include "wire/wire.h"

#define MOST  4096
#define BLOCK 256
#define GUARD 0xc3

static uint64_t random_state;

static double gaussian(void)
{
    return random_gaussian(&random_state);
}

static void setup(void)
{
    random_state = 0x9e3779b97f4a7c15U;
}

/* Bytes of a slice by the formula: a header of two bytes per block where the codes need a scale.
 * For one of eight elements sparse has a bit, a bit for each eight to count by, and four for place
 * and sign. */
static uint64_t formula_bytes(int wire, uint64_t count, uint64_t block)
{
    static const uint64_t bits[MSDU__WIRE_COUNT] = {32, 16, 16, 8, 4, 2, 0};
    const uint64_t header = bits[wire] < 16 ? 2 : 0;
    uint64_t bytes = 0;
    for (uint64_t start = 0; start < count; start += block) {
        const uint64_t n = count - start < block ? count - start : block;
        const uint64_t eighths = (n + 7) / 8;
        const uint64_t sparse = (2 * eighths + 7) / 8 + (4 * eighths + 7) / 8;
        bytes += header + (bits[wire] > 0 ? (n * bits[wire] + 7) / 8 : sparse);
    }
    return bytes;
}

static float value[MOST];
static float residual[MOST];
static float back[MOST + 1];
static float sum[MOST];
static unsigned char coded[4 * MOST + 1];

/* Encode and decode `count` values; nothing beyond the exact bytes and elements may be touched. */
static void there_and_back(const msdu__wire *wire, float *lost, uint64_t count, uint32_t block)
{
    const uint64_t bytes = msdu__wire_bytes(wire, count, block);
    coded[bytes] = GUARD;
    back[count] = 42.0F;
    (void)msdu__wire_encode(wire, value, lost, count, block, coded);
    msdu__wire_decode(wire, coded, count, block, back);
    ck_assert(coded[bytes] == GUARD && back[count] == 42.0F);
}

START_TEST(names_find_their_index)
{
    static const char *const names[] = {"float32", "bfloat16", "float16", "int8",
                                        "int4",    "int2",     "sparse"};
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        ck_assert_str_eq(msdu__wire_at(i)->name, names[i]);
        ck_assert_int_eq(msdu__wire_find(names[i]), i);
        ck_assert_double_eq(msdu__wire_at(i)->bits,
                            8.0 * (double)formula_bytes(i, BLOCK, BLOCK) / BLOCK);
    }
    ck_assert_int_eq(msdu__wire_find("int3"), -1);
    ck_assert_ptr_null(msdu__wire_at(-1));
    ck_assert_ptr_null(msdu__wire_at(MSDU__WIRE_COUNT));
}
END_TEST

static const uint64_t counts[] = {1,   2,   3,   4,    5,    31,   32,   33,   63,  64,
                                  65,  100, 127, 255,  256,  257,  300,  511,  512, 513,
                                  767, 769, 999, 1023, 1024, 1025, 2047, 4095, 4096};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))
static const uint32_t blocks[] = {1, 16, 48, 256, 272, 1024, 65536};
#define BLOCKS (sizeof(blocks) / sizeof(blocks[0]))

START_TEST(bytes_equal_the_formula_and_are_all_that_is_written)
{
    for (int i = 0; i < MOST; i++) {
        value[i] = (float)gaussian();
    }
    for (size_t b = 0; b < BLOCKS; b++) {
        for (size_t c = 0; c < COUNTS; c++) {
            const msdu__wire *wire = msdu__wire_at(_i);
            ck_assert_uint_eq(msdu__wire_bytes(wire, counts[c], blocks[b]),
                              formula_bytes(_i, counts[c], blocks[b]));
            there_and_back(wire, NULL, counts[c], blocks[b]);
        }
    }
    ck_assert_uint_eq(msdu__wire_bytes(msdu__wire_at(_i), 0, BLOCK), 0);
}
END_TEST

/* Largest error of a block whose largest magnitude is `most`, relative to it. */
static const double worst[MSDU__WIRE_COUNT] = {0.0,        1.0 / 256.0, 1.0 / 2048.0, 0.51 / 127.,
                                               0.51 / 7.0, 1.0,         1.02};

START_TEST(error_stays_within_the_formats_bound)
{
    for (size_t c = 0; c < COUNTS; c++) {
        const uint64_t count = counts[c];
        double most = 0.0;
        for (uint64_t i = 0; i < count; i++) {
            value[i] = (float)(gaussian() * exp(gaussian()));
            most = fmax(most, fabs((double)value[i]));
        }
        there_and_back(msdu__wire_at(_i), NULL, count, 65536);
        double error = 0.0;
        for (uint64_t i = 0; i < count; i++) {
            error = fmax(error, fabs((double)back[i] - (double)value[i]));
        }
        ck_assert_double_le(error, worst[_i] * most);
    }
}
END_TEST

START_TEST(residual_is_what_was_lost_and_its_energy_is_returned)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    static float before[MOST];
    for (int i = 0; i < MOST; i++) {
        value[i] = (float)gaussian();
        residual[i] = (float)(0.3 * gaussian());
        before[i] = residual[i];
    }
    const uint64_t count = MOST - 37;
    const double energy = msdu__wire_encode(wire, value, residual, count, BLOCK, coded);
    msdu__wire_decode(wire, coded, count, BLOCK, back);
    double want = 0.0;
    int wrong = 0;
    for (uint64_t i = 0; i < MOST; i++) {
        const float x = before[i] + value[i];
        wrong += residual[i] != (i < count ? x - back[i] : before[i]);
        want += i < count ? (double)residual[i] * (double)residual[i] : 0.0;
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_double_le(fabs(energy - want), 1e-12 * want);
}
END_TEST

START_TEST(decode_add_adds_what_decode_gives)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    for (int i = 0; i < MOST; i++) {
        value[i] = (float)gaussian();
        sum[i] = (float)i;
    }
    there_and_back(wire, NULL, 1000, 272);
    msdu__wire_decode_add(wire, coded, 1000, 272, sum);
    int wrong = 0;
    for (int i = 0; i < MOST; i++) {
        wrong += sum[i] != (float)i + (i < 1000 ? back[i] : 0.0F);
    }
    ck_assert_int_eq(wrong, 0);
}
END_TEST

START_TEST(blocks_can_be_coded_in_pieces)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    static unsigned char pieces[4 * MOST];
    for (int i = 0; i < MOST; i++) {
        value[i] = (float)gaussian();
    }
    (void)msdu__wire_encode(wire, value, NULL, 1000, BLOCK, coded);
    (void)msdu__wire_encode(wire, value, NULL, 2 * BLOCK, BLOCK, pieces);
    (void)msdu__wire_encode(wire, value + 2 * BLOCK, NULL, 1000 - 2 * BLOCK, BLOCK,
                            pieces + msdu__wire_bytes(wire, 2 * BLOCK, BLOCK));
    ck_assert_mem_eq(coded, pieces, msdu__wire_bytes(wire, 1000, BLOCK));
}
END_TEST

START_TEST(zeros_stay_zero)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    memset(value, 0, sizeof(value));
    memset(residual, 0, sizeof(residual));
    value[700] = 1.0F; /* one block is not zero */
    there_and_back(wire, residual, 1500, BLOCK);
    const float most = _i == MSDU__WIRE_SPARSE ? 0.5F : 0.08F;
    int wrong = 0;
    for (int i = 0; i < 1500; i++) {
        wrong += !(fabsf(back[i] - value[i]) <= (i / BLOCK == 2 ? most : 0.0F));
    }
    ck_assert_int_eq(wrong, 0);
}
END_TEST

/* Blocks of one magnitude only, from subnormal to the largest. */
static const float magnitudes[] = {1e-45F, 1e-40F, FLT_MIN, 3e-36F, 1e-20F,
                                   1.0F,   6.5e4F, 1e20F,   2e38F,  FLT_MAX};
#define MAGNITUDES 10

START_TEST(equal_magnitudes_from_subnormal_to_largest_stay_finite)
{
    const float magnitude = magnitudes[_i % MAGNITUDES];
    const int index = _i / MAGNITUDES;
    int wrong = 0;
    memset(residual, 0, sizeof(residual));
    for (int i = 0; i < MOST; i++) {
        value[i] = i % 3 == 0 ? -magnitude : magnitude;
    }
    for (int round = 0; round < 20; round++) {
        there_and_back(msdu__wire_at(index), residual, MOST, BLOCK);
        for (int i = 0; i < MOST; i++) {
            wrong += !isfinite(back[i]) || !isfinite(residual[i]);
        }
    }
    ck_assert_int_eq(wrong, 0);
    const bool is_normal = magnitude > 2e-36F && magnitude < 1.5e38F && index != MSDU__WIRE_SPARSE;
    if (is_normal && (index != MSDU__WIRE_FLOAT16 || (magnitude > 1e-4F && magnitude < 65504.0F))) {
        ck_assert_double_eq_tol((double)(back[5] / value[5]), 1.0, 0.2);
    }
}
END_TEST

/* Of the block with a bad value: NaN where there is a scale, else what it was; nothing held back.
 */
static int wrong_in_bad_block(bool has_scale, const float *lost)
{
    const int first = 1000 / BLOCK * BLOCK;
    int wrong = 0;
    for (int i = first; i < first + BLOCK; i++) {
        const bool is_same = i != 1000 ? isfinite(back[i]) != 0
                                       : memcmp(&back[i], &value[i], sizeof(*back)) == 0 ||
                                             (isnan(back[i]) && isnan(value[i]));
        wrong += has_scale ? !isnan(back[i]) : !is_same;
        wrong += has_scale && lost != NULL && lost[i] != 0.0F;
    }
    return wrong;
}

START_TEST(values_that_are_not_finite_are_told_and_do_no_harm_elsewhere)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    static const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 6; k++) {
        float *lost = k < 3 && wire->has_feedback ? residual : NULL;
        for (int i = 0; i < MOST; i++) {
            value[i] = (float)gaussian();
            residual[i] = wire->has_feedback ? (float)(0.1 * gaussian()) : 0.0F;
            sum[i] = 1.0F;
        }
        value[1000] = bad[k % 3];
        there_and_back(wire, lost, 2000, BLOCK);
        msdu__wire_decode_add(wire, coded, 2000, BLOCK, sum);
        int wrong = wrong_in_bad_block(wire->has_feedback, lost);
        for (int i = 0; i < 2000; i++) {
            const bool is_near = fabsf(back[i] - value[i]) < 4.0F && isfinite(sum[i]);
            wrong += i / BLOCK != 1000 / BLOCK && !is_near;
            wrong += isfinite(back[i]) != isfinite(sum[i]) || !isfinite(residual[i]);
        }
        ck_assert_int_eq(wrong, 0);
        value[1000] = 1.0F; /* the next step is clean */
        there_and_back(wire, lost, 2000, BLOCK);
        for (int i = 0; i < 2000; i++) {
            wrong += !isfinite(back[i]) || !isfinite(residual[i]);
        }
        ck_assert_int_eq(wrong, 0);
    }
}
END_TEST

/* --- error feedback --- */

/* Steady-state residual energy relative to one contribution's, on Gaussian values. */
static double steady_ratio(const msdu__wire *wire)
{
    double lost = 0.0;
    double sent = 0.0;
    memset(residual, 0, sizeof(residual));
    for (uint32_t round = 0; round < 80; round++) {
        double energy = 0.0;
        for (int i = 0; i < MOST; i++) {
            value[i] = (float)gaussian();
            energy += (double)value[i] * (double)value[i];
        }
        const double left = msdu__wire_encode(wire, value, residual, MOST, BLOCK, coded);
        lost += round < 30 ? 0.0 : left;
        sent += round < 30 ? 0.0 : energy;
    }
    return lost / sent;
}

START_TEST(residual_ratio_is_what_is_measured)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    const double measured = steady_ratio(wire);
    ck_assert_msg(fabs(measured - wire->residual_ratio) <= 0.2 * measured,
                  "%s: measured %g, stated %g", wire->name, measured, wire->residual_ratio);
}
END_TEST

/* Distance of the sum of what was decoded to the true sum after `rounds`, relative to the latter.
 * Contributions have a constant part that is small against their noise. */
static double sum_error(const msdu__wire *wire, bool has_feedback, int rounds)
{
    static double want[MOST];
    static double got[MOST];
    double error = 0.0;
    double energy = 0.0;
    memset(want, 0, sizeof(want));
    memset(got, 0, sizeof(got));
    memset(residual, 0, sizeof(residual));
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < MOST; i++) {
            value[i] = (float)(0.3 + 0.5 * (i % 7 == 0) + gaussian());
            want[i] += (double)value[i];
        }
        there_and_back(wire, has_feedback ? residual : NULL, MOST, BLOCK);
        for (int i = 0; i < MOST; i++) {
            got[i] += (double)back[i];
        }
    }
    for (int i = 0; i < MOST; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        energy += want[i] * want[i];
    }
    return sqrt(error / energy);
}

START_TEST(few_bits_converge_to_the_true_sum_only_with_feedback)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    const double early = sum_error(wire, true, 20);
    const double late = sum_error(wire, true, 200);
    ck_assert_double_lt(late, 0.2 * early); /* falls as 1 / rounds */
    ck_assert_double_lt(late, _i == MSDU__WIRE_INT2 ? 0.01 : 0.03);
    ck_assert_double_gt(sum_error(wire, false, 200), 5.0 * late);
}
END_TEST

START_TEST(few_bits_reach_small_values_beside_large_ones)
{
    const msdu__wire *wire = msdu__wire_at(_i);
    double got = 0.0;
    memset(residual, 0, sizeof(residual));
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < BLOCK; i++) {
            value[i] = i == 3 ? 1.0F : 0.01F;
        }
        there_and_back(wire, residual, BLOCK, BLOCK);
        got += (double)back[200];
    }
    ck_assert_double_eq_tol(got / 2000.0, 0.01, 0.001);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *cases = suite_case(suite, "wire", 60, setup, NULL);
    tcase_add_test(cases, names_find_their_index);
    tcase_add_loop_test(cases, bytes_equal_the_formula_and_are_all_that_is_written, 0,
                        MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, error_stays_within_the_formats_bound, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, residual_is_what_was_lost_and_its_energy_is_returned, 0,
                        MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, decode_add_adds_what_decode_gives, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, blocks_can_be_coded_in_pieces, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, zeros_stay_zero, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, equal_magnitudes_from_subnormal_to_largest_stay_finite, 0,
                        MSDU__WIRE_COUNT * MAGNITUDES);
    tcase_add_loop_test(cases, values_that_are_not_finite_are_told_and_do_no_harm_elsewhere, 0,
                        MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, residual_ratio_is_what_is_measured, 1, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, few_bits_converge_to_the_true_sum_only_with_feedback,
                        MSDU__WIRE_INT2, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, few_bits_reach_small_values_beside_large_ones, MSDU__WIRE_INT2,
                        MSDU__WIRE_COUNT);
    return suite_run(suite);
}
