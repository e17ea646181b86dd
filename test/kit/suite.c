/* SPDX-License-Identifier: Apache-2.0 */
/* What every test program needs: the end of main(), cases with a limit, a folder. */
#include "suite.h"

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OPEN_MOST 16 /* folders that are open at once while a tree is walked */

static char folder[100]; /* short: tests put paths below it into small arrays */
static int left_behind;

const char *suite_folder(void)
{
    return folder[0] == '\0' ? NULL : folder;
}

static bool make_folder(void)
{
    static const char name[] = "/msdu-test-XXXXXX";
    const char *place = getenv("TMPDIR");
    bool is_fit =
        place != NULL && place[0] == '/' && strlen(place) + sizeof(name) <= sizeof(folder);
    (void)snprintf(folder, sizeof(folder), "%s%s", is_fit ? place : "/tmp", name);
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return false;
    }
    return true;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status;
    (void)kind;
    (void)at;
    (void)remove(path);
    return 0;
}

void suite_remove(const char *path)
{
    (void)nftw(path, remove_entry, OPEN_MOST, FTW_DEPTH | FTW_PHYS);
}

static int tell_entry(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status;
    (void)kind;
    if (at->level > 0) {
        left_behind++;
        printf("left behind: %s\n", path);
    }
    return 0;
}

/* In the process that Check's children came from: a test that failed may have ended anywhere. */
static bool is_left_clean(void)
{
    left_behind = 0;
    (void)nftw(folder, tell_entry, OPEN_MOST, FTW_PHYS);
    suite_remove(folder);
    folder[0] = '\0';
    return left_behind == 0;
}

int suite_run(Suite *suite)
{
    if (!make_folder()) {
        return EXIT_FAILURE;
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return is_left_clean() && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

TCase *suite_case(Suite *suite, const char *name, double limit_s, SFun before, SFun after)
{
    TCase *cases = tcase_create(name);
    if (limit_s > 0) {
        tcase_set_timeout(cases, limit_s);
    }
    tcase_add_checked_fixture(cases, before, after);
    suite_add_tcase(suite, cases);
    return cases;
}
