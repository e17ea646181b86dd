/* SPDX-License-Identifier: Apache-2.0 */
/* What every test program needs: the end of main(), cases with a limit. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <check.h>

/* Run a suite and release it; what main() returns. Fails if tests left anything in the folder,
 * which is removed whatever becomes of them. */
int suite_run(Suite *suite);
/* Where this program's tests make files and folders; NULL outside suite_run(). */
const char *suite_folder(void);
/* Remove a file, or a folder with all in it. */
void suite_remove(const char *path);
/* Run a test for each row of a table, whose index is _i. */
#define suite_table(tcase, test, rows)                                                             \
    tcase_add_loop_test(tcase, test, 0, (int)(sizeof(rows) / sizeof((rows)[0])))
/* A new case of a suite, with its longest time (0: Check's own) and what runs before and after each
 * test or NULL. */
TCase *suite_case(Suite *suite, const char *name, double limit_s, SFun before, SFun after);

#endif
