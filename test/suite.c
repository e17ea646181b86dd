/* SPDX-License-Identifier: Apache-2.0 */
/* What every test program needs: the end of main(), cases with a limit. */
#include "suite.h"

#include <stdlib.h>

int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

TCase *suite_case(Suite *suite, const char *name, double limit_s, SFun before, SFun after)
{
    TCase *cases = tcase_create(name);
    tcase_set_timeout(cases, limit_s);
    tcase_add_checked_fixture(cases, before, after);
    suite_add_tcase(suite, cases);
    return cases;
}
