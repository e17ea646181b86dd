/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the wire format sparse: the same as a plain reference, whatever the block holds; bounds
 * that hold for any bytes. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "simd/vec.h"
#include "suite.h"
#include "wire/wire.h"

#define MOST  4200
#define BLOCK 65536 /* one block, whatever the count */

static uint64_t random_state;

static void setup(void)
{
    random_state = 0xd1342543de82ef95U;
}

static const msdu__wire *sparse(void)
{
    return msdu__wire_at(MSDU__WIRE_SPARSE);
}

/* --- the reference: sort, then go through the elements --- */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static int by_magnitude(const void *a, const void *b)
{
    const float x = fabsf(*(const float *)a);
    const float y = fabsf(*(const float *)b);
    return (x < y) - (x > y);
}

/* Twice the (count / 8)-th largest magnitude, 5 bits of its mantissa kept; at least half the
 * largest; as bfloat16, rounded up. */
static float reference_magnitude(const float *x, uint64_t count)
{
    static float sorted[MOST];
    memcpy(sorted, x, count * sizeof(*x));
    qsort(sorted, count, sizeof(*sorted), by_magnitude);
    const float nth = fabsf(sorted[(count + 7) / 8 - 1]);
    const float kept = float_of(bits_of(nth) >> 18 << 18);
    const float threshold = fmaxf(kept, 0.25F * fabsf(sorted[0]));
    const float twice = threshold < FLT_MAX / 4.0F ? 2.0F * threshold : FLT_MAX / 2.0F;
    return twice < FLT_MIN ? 0.0F : float_of((bits_of(twice) + 0xffffU) >> 16 << 16);
}

static void reference(const float *x, uint64_t count, float *decoded)
{
    const float magnitude = reference_magnitude(x, count);
    uint64_t left = (count + 7) / 8;
    for (uint64_t i = 0; i < count; i++) {
        const bool is_sent = left > 0 && fabsf(x[i]) >= 0.5F * magnitude;
        decoded[i] = is_sent ? copysignf(magnitude, x[i]) : 0.0F;
        left -= is_sent ? 1 : 0;
    }
}

/* --- blocks of all kinds --- */

static float value[MOST];
static float back[MOST + 1];
static float left[MOST];
static float kept[MOST];
static float want[MOST];
static unsigned char coded[MOST + 1];

enum { PLAIN, HEAVY, TINY, HUGE_VALUES, FEW, EQUAL, ZERO, KINDS };

static float value_of(int kind, uint64_t i)
{
    const double x = random_gaussian(&random_state);
    switch (kind) {
    case HEAVY:
        return (float)(x * exp(3.0 * random_gaussian(&random_state)));
    case TINY:
        return (float)(x * 1e-39);
    case HUGE_VALUES:
        return (float)(x * 6e37);
    case FEW:
        return i % 23 == 5 ? (float)x : 0.0F;
    case EQUAL:
        return i % 3 == 0 ? -1.25F : 1.25F;
    case ZERO:
        return 0.0F;
    default:
        return (float)x;
    }
}

static const uint64_t counts[] = {1,  2,   7,   8,   9,   15,   16,   17,   63,   64,   65,
                                  71, 127, 128, 129, 500, 1000, 1023, 1024, 1025, 2047, 4099};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

/* An eighth is sent, where there is that much. */
START_TEST(it_is_the_plain_reference_and_sends_an_eighth)
{
    for (size_t c = 0; c < COUNTS; c++) {
        const uint64_t count = counts[c];
        for (uint64_t i = 0; i < count; i++) {
            value[i] = value_of(_i, i);
        }
        (void)msdu__wire_encode(sparse(), value, NULL, count, BLOCK, coded);
        msdu__wire_decode(sparse(), coded, count, BLOCK, back);
        reference(value, count, want);
        int wrong = 0;
        uint64_t sent = 0;
        for (uint64_t i = 0; i < count; i++) {
            wrong += back[i] != want[i];
            sent += back[i] != 0.0F ? 1 : 0;
        }
        ck_assert_msg(wrong == 0, "count %llu: %d", (unsigned long long)count, wrong);
        ck_assert_uint_le(sent, (count + 7) / 8);
        ck_assert(_i != EQUAL || sent == (count + 7) / 8);
        ck_assert(_i != PLAIN || count < 500 || 20 * sent >= 19 * (count + 7) / 8);
    }
}
END_TEST

/* What a peer sends, or a broken link, may be anything. */
START_TEST(garbage_touches_nothing_else_and_is_finite_or_not_but_defined)
{
    const uint64_t count = counts[_i];
    const uint64_t bytes = msdu__wire_bytes(sparse(), count, BLOCK);
    unsigned char *garbage = malloc(bytes); /* exact, for sanitizers */
    float *exact = malloc(count * sizeof(*exact));
    ck_assert(garbage != NULL && exact != NULL);
    for (int round = 0; round < 2000; round++) {
        for (uint64_t i = 0; i < bytes; i++) {
            const uint64_t drawn = random_next(&random_state) >> 24;
            garbage[i] = (unsigned char)(round % 3 == 0   ? drawn
                                         : round % 3 == 1 ? 255U
                                                          : drawn | 129U);
        }
        msdu__wire_decode(sparse(), garbage, count, BLOCK, exact);
        msdu__wire_decode_add(sparse(), garbage, count, BLOCK, exact);
        uint64_t sent = 0;
        for (uint64_t i = 0; i < count; i++) {
            /* of a bad block all elements are NaN, also those that were not sent */
            sent += exact[i] != 0.0F && !isnan(exact[i]) ? 1 : 0;
        }
        ck_assert_uint_le(sent, (count + 7) / 8);
    }
    free(garbage);
    free(exact);
}
END_TEST

START_TEST(feedback_sums_to_the_truth)
{
    static float residual[MOST];
    static double sent[MOST];
    static double truth[MOST];
    memset(residual, 0, sizeof(residual));
    memset(sent, 0, sizeof(sent));
    memset(truth, 0, sizeof(truth));
    const uint64_t count = 3000;
    for (int round = 0; round < 300; round++) {
        for (uint64_t i = 0; i < count; i++) {
            value[i] = (float)(0.05 + random_gaussian(&random_state));
            truth[i] += (double)value[i];
        }
        (void)msdu__wire_encode(sparse(), value, residual, count, 256, coded);
        msdu__wire_decode(sparse(), coded, count, 256, back);
        for (uint64_t i = 0; i < count; i++) {
            sent[i] += (double)back[i];
        }
    }
    int wrong = 0;
    double most = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        wrong += !(fabs(sent[i] + (double)residual[i] - truth[i]) < 1e-4);
        most = fmax(most, fabs((double)residual[i]));
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_double_lt(most, 20.0); /* it does not grow with the rounds */
}
END_TEST

/* --- loops of all variants --- */

START_TEST(every_variant_gives_the_same_bits)
{
    static unsigned char one[MOST];
    static unsigned char two[MOST];
    const msdu__vec_wire *a = msdu__vec_variant(0)->wire;
    const msdu__vec_wire *b = msdu__vec_variant((uint32_t)_i)->wire;
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t c = 0; c < COUNTS; c++) {
            const uint64_t count = counts[c];
            for (uint64_t i = 0; i < count; i++) {
                value[i] = value_of(kind, i);
            }
            float most = 0.0F;
            (void)a->absmax(value, count, &most);
            const float nth = a->nth(value, (count + 7) / 8, most, count);
            ck_assert_uint_eq(bits_of(nth), bits_of(b->nth(value, (count + 7) / 8, most, count)));
            value[count / 2] = c % 4 == 0 ? NAN : value[count / 2];
            memset(one, 0, sizeof(one));
            memset(two, 0, sizeof(two));
            memset(back, 0, sizeof(back));
            memset(want, 0, sizeof(want));
            memcpy(left, value, count * sizeof(*left));
            a->encode_sparse(value, nth, one, count, NULL, 0.0F);
            b->encode_sparse(left, nth, two, count, left, 1.5F);
            ck_assert_mem_eq(one, two, sizeof(one));
            memcpy(kept, value, count * sizeof(*kept));
            a->add_sparse(one, -1.5F, kept, count);
            ck_assert_mem_eq(left, kept, count * sizeof(*left));
            a->add_sparse(one, 1.5F, back, count);
            b->add_sparse(one, 1.5F, want, count);
            ck_assert_mem_eq(back, want, sizeof(want));
        }
    }
}
END_TEST

/* Bit by bit over all magnitudes there are. */
static float searched(const float *x, uint64_t wanted, uint64_t count)
{
    uint32_t least = 0;
    for (uint32_t bit = 30; bit >= 18; bit--) {
        const uint32_t higher = least | 1U << bit;
        uint64_t found = 0;
        for (uint64_t i = 0; i < count; i++) {
            found += (bits_of(x[i]) & 0x7fffffffU) >= higher ? 1 : 0;
        }
        least = found >= wanted ? higher : least;
    }
    return float_of(least);
}

/* Any finite bits, within a spread of exponents around one. */
static float any_value(uint32_t middle, uint32_t spread)
{
    const uint32_t random = (uint32_t)(random_next(&random_state) >> 32);
    const uint32_t exponent = (middle + random % spread) % 255U;
    return float_of((random & 0x807fffffU) | exponent << 23);
}

static void check_search(const msdu__vec_wire *loops, uint64_t count)
{
    const uint64_t wanted = (count + 7) / 8;
    float most = 0.0F;
    (void)loops->absmax(value, count, &most);
    const float found = fmaxf(loops->nth(value, wanted, most, count), 0.25F * most);
    const float full = fmaxf(searched(value, wanted, count), 0.25F * most);
    ck_assert_msg(bits_of(found) == bits_of(full), "count %llu: %a, not %a",
                  (unsigned long long)count, (double)found, (double)full);
}

START_TEST(the_search_near_the_largest_finds_what_one_over_all_finds)
{
    const msdu__vec_wire *loops = msdu__vec_variant((uint32_t)_i)->wire;
    for (size_t c = 0; c < COUNTS; c++) {
        for (int kind = 0; kind < KINDS; kind++) {
            for (uint64_t i = 0; i < counts[c]; i++) {
                value[i] = value_of(kind, i);
            }
            check_search(loops, counts[c]);
        }
        for (uint32_t middle = 0; middle < 255; middle++) { /* denormals to the largest */
            for (uint64_t i = 0; i < counts[c]; i++) {
                value[i] = any_value(middle, 1 + middle % 5);
            }
            check_search(loops, counts[c]);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sparse");
    TCase *cases = suite_case(suite, "sparse", 60, setup, NULL);
    int variants = 0;
    while (msdu__vec_variant((uint32_t)variants) != NULL) {
        variants++;
    }
    tcase_add_loop_test(cases, it_is_the_plain_reference_and_sends_an_eighth, 0, KINDS);
    tcase_add_loop_test(cases, the_search_near_the_largest_finds_what_one_over_all_finds, 0,
                        variants);
    tcase_add_loop_test(cases, garbage_touches_nothing_else_and_is_finite_or_not_but_defined, 0,
                        (int)COUNTS);
    tcase_add_test(cases, feedback_sums_to_the_truth);
    tcase_add_loop_test(cases, every_variant_gives_the_same_bits, 0, variants);
    return suite_run(suite);
}
