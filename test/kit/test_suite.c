/* SPDX-License-Identifier: Apache-2.0 */
/* The tests' own end: what a test leaves behind fails its program, and is removed all the same. */
#include "suite.h"

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void leave_a_tree(void)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/kept", suite_folder());
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/kept/forgotten", suite_folder());
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(nothing)
{
}
END_TEST

START_TEST(well_but_untidy)
{
    leave_a_tree();
}
END_TEST

START_TEST(untidy_and_then_failing)
{
    leave_a_tree();
    ck_abort_msg("as a test that fails");
}
END_TEST

/* Runs the test alone, in a place of its own; true: it ended with this code, and the place is
 * empty. */
static bool ends_with(const TTest *test, int wanted)
{
    char place[] = "/tmp/msdu-suite-XXXXXX";
    if (mkdtemp(place) == NULL || setenv("TMPDIR", place, 1) != 0) {
        return false;
    }
    Suite *suite = suite_create("of a test");
    TCase *cases = suite_case(suite, "alone", 10, NULL, NULL);
    tcase_add_test(cases, test);
    int code = suite_run(suite);
    return rmdir(place) == 0 && code == wanted;
}

int main(void)
{
    bool is_good = ends_with(nothing, EXIT_SUCCESS) && ends_with(well_but_untidy, EXIT_FAILURE) &&
                   ends_with(untidy_and_then_failing, EXIT_FAILURE);
    (void)puts(is_good ? "as it should be" : "a suite does not end as it should");
    return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
