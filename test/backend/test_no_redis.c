/* SPDX-License-Identifier: Apache-2.0 */
/* What a build without hiredis says to redis://. */
#include "backend/rendezvous/redis.h"
#include "suite.h"

#include <check.h>

START_TEST(redis_without_hiredis_says_what_is_missing)
{
    struct msdu__redis redis;
    msdu_store store;
    char cause[MSDU__CAUSE_BYTES] = "";
    ck_assert_int_eq(msdu__redis_open("redis://127.0.0.1:6379", &redis, &store, cause),
                     MSDU_ERR_UNSUPPORTED);
    ck_assert_str_eq(cause, "redis:// needs hiredis, which this build is without");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("no_redis");
    tcase_add_test(suite_case(suite, "no_redis", 10, NULL, NULL),
                   redis_without_hiredis_says_what_is_missing);
    return suite_run(suite);
}
