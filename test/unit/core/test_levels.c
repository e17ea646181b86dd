/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank is on which host: all layouts of few ranks, against what the words say. */
#include <check.h>

#include "core/levels.h"
#include "suite.h"

#define RANKS_MAX 6

/* The layout of this number: a host for each rank, as a digit. */
static void keys_of(int number, int ranks, uint64_t *keys)
{
    for (int i = 0; i < ranks; i++) {
        keys[i] = (uint64_t)(number % ranks) + 1;
        number /= ranks;
    }
}

static void check_layout(const uint64_t *keys, int ranks)
{
    int32_t host[RANKS_MAX];
    int32_t index[RANKS_MAX];
    int hosts = 0;
    int least = ranks;
    for (int i = 0; i < ranks; i++) {
        int before = 0;
        int size = 0;
        for (int k = 0; k < ranks; k++) {
            size += keys[k] == keys[i] ? 1 : 0;
            before += k < i && keys[k] == keys[i] ? 1 : 0;
        }
        msdu__levels levels = msdu__levels_of(keys, ranks, i, host, index);
        ck_assert_int_eq(levels.index, before);
        ck_assert_int_eq(levels.size, size);
        ck_assert_int_eq(levels.host, host[i]);
        ck_assert_int_eq(index[i], before);
        hosts += before == 0 ? 1 : 0;
        least = size < least ? size : least;
        for (int k = 0; k < i; k++) {
            ck_assert_int_eq(host[k] == host[i], keys[k] == keys[i]);
        }
    }
    msdu__levels levels = msdu__levels_of(keys, ranks, 0, host, index);
    ck_assert_int_eq(levels.hosts, hosts);
    ck_assert_int_eq(levels.carriers, least);
    ck_assert_int_eq(host[0], 0);
    ck_assert_int_eq(msdu__levels_are_two(&levels, ranks), hosts > 1 && hosts < ranks);
}

START_TEST(all_layouts_of_few_ranks)
{
    uint64_t keys[RANKS_MAX];
    int ranks = _i;
    int count = 1;
    for (int i = 0; i < ranks; i++) {
        count *= ranks;
    }
    for (int number = 0; number < count; number++) {
        keys_of(number, ranks, keys);
        check_layout(keys, ranks);
    }
}
END_TEST

START_TEST(a_host_that_is_not_known_is_one_of_its_own)
{
    static const uint64_t keys[] = {0, 5, 0, 5};
    int32_t host[4];
    int32_t index[4];
    msdu__levels levels = msdu__levels_of(keys, 4, 3, host, index);
    ck_assert_int_eq(levels.hosts, 3);
    ck_assert_int_eq(levels.carriers, 1);
    ck_assert_int_eq(host[2], 2);
    ck_assert_int_eq(levels.host, 1);
    ck_assert_int_eq(levels.index, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("levels");
    TCase *tcase = suite_case(suite, "levels", 60, NULL, NULL);
    tcase_add_loop_test(tcase, all_layouts_of_few_ranks, 1, RANKS_MAX + 1);
    tcase_add_test(tcase, a_host_that_is_not_known_is_one_of_its_own);
    return suite_run(suite);
}
