/* SPDX-License-Identifier: Apache-2.0 */
/* A build without the rendezvous says so. */
#include "suite.h"

#include "members/members.h"

#include <string.h>

static const char *said;

static msdu_status note(msdu_status status, const char *text)
{
    said = text;
    return status;
}

START_TEST(ranks_that_come_and_go_are_refused_with_the_reason)
{
    const msdu_host host = {.size = sizeof(host), .ranks = 2, .fail = note};
    const msdu__members_settings settings = {.silence_ns = 0};
    msdu__members *members = NULL;
    msdu__epoch epoch;
    ck_assert_int_eq(msdu__members_open(&host, &settings, &members, &epoch), MSDU_ERR_UNSUPPORTED);
    ck_assert(strstr(said, "MSDU_WITH_GLOO") != NULL);
    ck_assert_ptr_null(members);
    msdu__members_close(members);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("no_members");
    TCase *refusal = suite_case(suite, "refusal", 0, NULL, NULL);
    tcase_add_test(refusal, ranks_that_come_and_go_are_refused_with_the_reason);
    return suite_run(suite);
}
