/* SPDX-License-Identifier: Apache-2.0 */
/* MSDU_ATTACH_ALLOW and MSDU_ATTACH_DENY: what they let through, and what cannot be read. */
#include "attach/settings.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

typedef struct row {
    const char *list;
    msdu__attach_facts facts;
    bool is_met;
} row;

static const msdu__attach_comm four = {.ranks = 4, .name = "data parallel"};
static const msdu__attach_comm eight = {.ranks = 8};

static const row rows[] = {
    {"1000", {1000, MSDU_FLOAT32, &four, -1}, true},
    {"1000", {1001, MSDU_FLOAT32, &four, -1}, false},
    {"10,1000-2000", {1000, MSDU_FLOAT32, &four, -1}, true},
    {"10,1000-2000", {2000, MSDU_FLOAT32, &four, 7}, true},
    {"10,1000-2000", {2001, MSDU_FLOAT32, &four, -1}, false},
    {"1000-", {999, MSDU_FLOAT32, &four, -1}, false},
    {"1000-", {1000000000000, MSDU_FLOAT32, &four, -1}, true},
    {"float64", {5, MSDU_FLOAT64, &four, -1}, true},
    {"float64", {5, MSDU_FLOAT32, &four, -1}, false},
    {"bfloat16,float16", {5, MSDU_FLOAT16, &four, -1}, true},
    {"ranks=4", {5, MSDU_FLOAT32, &four, -1}, true},
    {"ranks=5-8,ranks=2", {5, MSDU_FLOAT32, &four, -1}, false},
    {"float32:1000-:ranks=4", {1000, MSDU_FLOAT32, &four, -1}, true},
    {"float32:1000-:ranks=4", {1000, MSDU_FLOAT32, &eight, -1}, false},
    {"float32:1000-:ranks=4", {1000, MSDU_FLOAT64, &four, -1}, false},
    {"float32:1000-:ranks=4", {999, MSDU_FLOAT32, &four, -1}, false},
    {"comm=data parallel", {5, MSDU_FLOAT32, &four, -1}, true},
    {"comm=data*:5-", {5, MSDU_FLOAT32, &four, -1}, true},
    {"comm=data", {5, MSDU_FLOAT32, &four, -1}, false},
    {"comm=data*,ranks=5", {5, MSDU_FLOAT32, &eight, -1}, false},
    {"comm=*", {5, MSDU_FLOAT32, &eight, -1}, true},
    {"at=3", {5, MSDU_FLOAT32, &four, 3}, true},
    {"at=3", {5, MSDU_FLOAT32, &four, 2}, false},
    {"at=0-1:float32,at=5-", {5, MSDU_FLOAT64, &four, 6}, true},
    {"at=0-1:float32,at=5-", {5, MSDU_FLOAT64, &four, 1}, false},
};

static void set(const char *allow, const char *deny)
{
    ck_assert_int_eq(setenv("MSDU_ATTACH_ALLOW", allow, 1), 0);
    ck_assert_int_eq(setenv("MSDU_ATTACH_DENY", deny, 1), 0);
    msdu__attach_forget();
}

START_TEST(rows_are_met_or_not_by_either_list)
{
    char text[256];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const row *one = &rows[i];
        set(one->list, "");
        ck_assert_msg(msdu__attach_is_allowed(&one->facts) == one->is_met, "allow, row %zu", i);
        set("", one->list);
        ck_assert_msg(msdu__attach_is_allowed(&one->facts) == !one->is_met, "deny, row %zu", i);
        ck_assert(!msdu__attach_has_bad_list(&four, text, sizeof(text)));
    }
    set("", "");
    ck_assert(msdu__attach_is_allowed(&rows[0].facts));
    ck_assert_int_eq(unsetenv("MSDU_ATTACH_ALLOW") + unsetenv("MSDU_ATTACH_DENY"), 0);
    msdu__attach_forget();
    ck_assert(msdu__attach_is_allowed(&rows[0].facts));
}
END_TEST

/* Before a pattern is known nothing is denied by a place, and nothing is kept out by one. */
START_TEST(a_place_that_is_not_known_denies_nothing)
{
    const msdu__attach_facts facts = {5, MSDU_FLOAT32, &four, -1};
    set("at=3", "");
    ck_assert(msdu__attach_is_allowed(&facts));
    set("", "at=3");
    ck_assert(msdu__attach_is_allowed(&facts));
    set("at=3:float64", "");
    ck_assert(!msdu__attach_is_allowed(&facts));
    set("at=3", "5");
    ck_assert(!msdu__attach_is_allowed(&facts));
}
END_TEST

START_TEST(what_cannot_be_read_is_named_and_allows_nothing)
{
    static const char *const bad[] = {"flot32",   "5-3",  "-3",       "5--3",  "5x",
                                      "at=",      "at=x", "5,,6",     "5 ,6",  "ranks=-1",
                                      "float32:", ":5",   "stride=1", "comm=", "comm=:5"};
    const msdu__attach_facts facts = {5, MSDU_FLOAT32, &four, 0};
    char text[256];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        set(bad[i], "");
        ck_assert_msg(msdu__attach_has_bad_list(&four, text, sizeof(text)), "%s", bad[i]);
        ck_assert_ptr_nonnull(strstr(text, "MSDU_ATTACH_ALLOW"));
        ck_assert(!msdu__attach_is_allowed(&facts));
        set("", bad[i]);
        ck_assert_msg(msdu__attach_has_bad_list(&four, text, sizeof(text)), "%s", bad[i]);
        ck_assert(!msdu__attach_is_allowed(&facts));
    }
    set("1-3,flot32,5", "");
    ck_assert(msdu__attach_has_bad_list(&four, text, sizeof(text)));
    ck_assert_str_eq(text, "MSDU_ATTACH_ALLOW: \"flot32\" is no count, type, ranks=, at= or comm=, "
                           "nor a range");
}
END_TEST

/* NCCL has no call that would tell a name. */
START_TEST(what_a_communicator_does_not_tell_cannot_be_asked)
{
    const msdu__attach_comm silent = {.ranks = 4, .is_nameless = true};
    const msdu__attach_facts facts = {5, MSDU_FLOAT32, &silent, 0};
    static const char *const lists[] = {"comm=a", "5:comm=*"};
    char text[256];
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        set("", lists[i]);
        ck_assert(msdu__attach_has_bad_list(&silent, text, sizeof(text)));
        ck_assert_ptr_nonnull(strstr(text, "NCCL tells no name"));
        ck_assert(!msdu__attach_is_allowed(&facts));
    }
    set("ranks=4", "");
    ck_assert(msdu__attach_is_allowed(&facts));
}
END_TEST

START_TEST(a_launcher_tells_the_place)
{
    static const char *const names[] = {"SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ck_assert_int_eq(unsetenv(names[i]), 0);
    }
    ck_assert_int_eq(msdu__attach_place(), -1);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char digit[] = {(char)('3' + i), '\0'};
        ck_assert_int_eq(setenv(names[i], digit, 1), 0);
        ck_assert_int_eq(msdu__attach_place(), 3 + (int)i);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attach_lists");
    TCase *cases = suite_case(suite, "attach_lists", 0, NULL, NULL);
    tcase_add_test(cases, rows_are_met_or_not_by_either_list);
    tcase_add_test(cases, a_place_that_is_not_known_denies_nothing);
    tcase_add_test(cases, what_cannot_be_read_is_named_and_allows_nothing);
    tcase_add_test(cases, what_a_communicator_does_not_tell_cannot_be_asked);
    tcase_add_test(cases, a_launcher_tells_the_place);
    return suite_run(suite);
}
