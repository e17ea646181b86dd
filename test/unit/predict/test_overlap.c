/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of `msdu bench overlap`: its gradients add up to the same bits in every order, and what was
 * made is what is compared with. */
#include "overlap/overlap.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 70000 /* more than a period of the pattern */
#define RANKS 64

static msdu__overlap_values values;

static void make(void)
{
    ck_assert(msdu__overlap_values_make(&values));
}

static void drop(void)
{
    msdu__overlap_values_free(&values);
}

START_TEST(sums_do_not_depend_on_the_order)
{
    static float up[COUNT];
    static float down[COUNT];
    static float one[COUNT];
    memset(up, 0, sizeof(up));
    memset(down, 0, sizeof(down));
    for (int32_t r = 0; r < RANKS; r++) {
        msdu__overlap_fill(&values, r, 3, 9, one, COUNT);
        for (int i = 0; i < COUNT; i++) {
            up[i] += one[i];
        }
        msdu__overlap_fill(&values, RANKS - 1 - r, 3, 9, one, COUNT);
        for (int i = 0; i < COUNT; i++) {
            down[i] += one[i];
        }
    }
    ck_assert_mem_eq(up, down, sizeof(up));
    for (uint64_t i = 0; i < COUNT; i += 101) {
        ck_assert_double_eq((double)up[i], msdu__overlap_sum(&values, RANKS, 3, 9, i));
    }
    ck_assert_uint_eq(msdu__overlap_hash(up, COUNT, 1), msdu__overlap_hash(down, COUNT, 1));
    down[COUNT - 1] += 1.0F / 64;
    ck_assert_uint_ne(msdu__overlap_hash(up, COUNT, 1), msdu__overlap_hash(down, COUNT, 1));
}
END_TEST

START_TEST(gradients_look_like_noise)
{
    static float a[COUNT];
    static float b[COUNT];
    double square = 0;
    double product = 0;
    msdu__overlap_fill(&values, 0, 3, 9, a, COUNT);
    msdu__overlap_fill(&values, 1, 3, 9, b, COUNT);
    for (int i = 0; i < COUNT; i++) {
        square += (double)a[i] * (double)a[i] / COUNT;
        product += (double)a[i] * (double)b[i] / COUNT;
    }
    ck_assert_double_eq_tol(square, 1, 0.05);
    ck_assert_double_eq_tol(product, 0, 0.05);
}
END_TEST

START_TEST(updates_are_those_that_are_expected)
{
    static float w[COUNT];
    static float again[COUNT];
    static float gradient[COUNT];
    msdu__overlap_fill(&values, -1, 0, 5, w, COUNT);
    memcpy(again, w, sizeof(w));
    ck_assert_double_eq((double)w[123], msdu__overlap_start(&values, 5, 123));
    msdu__overlap_update(&values, 2, 7, 5, w, COUNT);
    msdu__overlap_fill(&values, 2, 7, 5, gradient, COUNT);
    msdu__overlap_apply(again, gradient, COUNT);
    ck_assert_mem_eq(w, again, sizeof(w));
    ck_assert_double_eq((double)w[9],
                        msdu__overlap_start(&values, 5, 9) - (double)gradient[9] / 16);
}
END_TEST

START_TEST(methods_are_found_by_name)
{
    const msdu__overlap_method *method = NULL;
    uint32_t count = 0;
    for (; (method = msdu__overlap_method_at(count)) != NULL; count++) {
        ck_assert_ptr_null(msdu__overlap_unknown(method->name));
        ck_assert(msdu__overlap_is_wanted(NULL, method->name));
        ck_assert(msdu__overlap_is_wanted(method->name, method->name));
        ck_assert(!msdu__overlap_is_wanted("fre,freed", method->name));
    }
    ck_assert_uint_ge(count, 13);
    ck_assert(msdu__overlap_is_wanted("int8,free", "free"));
    ck_assert(!msdu__overlap_is_wanted("int8,free-fifo", "free"));
    char *unknown = msdu__overlap_unknown("free,freed,x");
    ck_assert_str_eq(unknown, "freed");
    free(unknown);
    unknown = msdu__overlap_unknown("");
    ck_assert_str_eq(unknown, "");
    free(unknown);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlap");
    TCase *c = suite_case(suite, "parts", 60, make, drop);
    tcase_add_test(c, sums_do_not_depend_on_the_order);
    tcase_add_test(c, gradients_look_like_noise);
    tcase_add_test(c, updates_are_those_that_are_expected);
    tcase_add_test(c, methods_are_found_by_name);
    return suite_run(suite);
}
