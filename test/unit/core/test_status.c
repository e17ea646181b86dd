/* SPDX-License-Identifier: Apache-2.0 */
/* Version, status names and texts, per-thread error text, log lines. */
#include "base/base.h"
#include "suite.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

START_TEST(version_is_that_of_the_header)
{
    char text[32];
    snprintf(text, sizeof(text), "%d.%d.%d", MSDU_VERSION_MAJOR, MSDU_VERSION_MINOR,
             MSDU_VERSION_PATCH);
    ck_assert_str_eq(msdu_version(), text);
}
END_TEST

START_TEST(every_status_has_a_name_and_a_text)
{
    ck_assert_str_eq(msdu_status_name(MSDU_OK), "MSDU_OK");
    ck_assert_str_eq(msdu_status_name(MSDU_IN_PROGRESS), "MSDU_IN_PROGRESS");
    ck_assert_str_eq(msdu_status_name(MSDU_REGROUPED), "MSDU_REGROUPED");
    ck_assert_str_eq(msdu_status_text(MSDU_ERR_TIMEOUT), "deadline passed");
    for (int value = -12; value <= 1; value++) {
        ck_assert_str_ne(msdu_status_name((msdu_status)value), "MSDU_UNKNOWN");
        ck_assert_str_ne(msdu_status_text((msdu_status)value), "unknown status");
    }
}
END_TEST

START_TEST(an_unknown_status_has_a_name_too)
{
    int values[] = {-13, 3, 1000, -2147483647};
    for (size_t i = 0; i < 4; i++) {
        msdu_status status = MSDU_OK;
        memcpy(&status, &values[i], sizeof(status)); /* as a caller through ctypes may */
        ck_assert_str_eq(msdu_status_name(status), "MSDU_UNKNOWN");
        ck_assert_str_eq(msdu_status_text(status), "unknown status");
    }
}
END_TEST

START_TEST(fail_sets_one_line_and_returns_its_status)
{
    ck_assert_int_eq(msdu__fail(MSDU_ERR_IO, "file %s: %d\nsecond\033[2J", "x", 7), MSDU_ERR_IO);
    ck_assert_str_eq(msdu_last_error(), "file x: 7 second [2J");
}
END_TEST

START_TEST(an_error_may_quote_the_error_before)
{
    ck_assert_int_eq(msdu__fail(MSDU_ERR_IO, "cause"), MSDU_ERR_IO);
    ck_assert_int_eq(msdu__fail(MSDU_ERR_STATE, "after: %s", msdu_last_error()), MSDU_ERR_STATE);
    ck_assert_str_eq(msdu_last_error(), "after: cause");
    ck_assert_int_eq(msdu__fail_text(MSDU_ERR_STATE, msdu_last_error() + 7), MSDU_ERR_STATE);
    ck_assert_str_eq(msdu_last_error(), "cause");
}
END_TEST

START_TEST(a_long_text_is_cut_within_its_bound)
{
    char text[2 * MSDU__TEXT_BYTES];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(msdu__fail_text(MSDU_ERR_IO, text), MSDU_ERR_IO);
    ck_assert_uint_eq(strlen(msdu_last_error()), MSDU__TEXT_BYTES - 1);
    ck_assert_int_eq(msdu__fail(MSDU_ERR_IO, "%s", text), MSDU_ERR_IO);
    ck_assert_uint_eq(strlen(msdu_last_error()), MSDU__TEXT_BYTES - 1);
}
END_TEST

static void *read_other_thread(void *user)
{
    snprintf(user, 32, "%s", msdu_last_error());
    (void)msdu__fail(MSDU_ERR_IO, "of the other thread");
    return NULL;
}

START_TEST(threads_have_texts_of_their_own)
{
    pthread_t thread;
    char seen[32] = "unset";
    (void)msdu__fail(MSDU_ERR_IO, "of this thread");
    ck_assert_int_eq(pthread_create(&thread, NULL, read_other_thread, seen), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_str_eq(seen, "");
    ck_assert_str_eq(msdu_last_error(), "of this thread");
}
END_TEST

static char last_line[MSDU__TEXT_BYTES + 1];
static int line_count;

static void keep_line(void *user, msdu_log_level level, const char *text)
{
    *(msdu_log_level *)user = level;
    snprintf(last_line, sizeof(last_line), "%s", text);
    line_count++;
}

START_TEST(a_line_passes_at_its_level_with_the_rank_in_front)
{
    msdu_log_level level = MSDU_LOG_DEFAULT;
    msdu__log log = {keep_line, &level, MSDU_LOG_INFO, -1};
    line_count = 0;
    msdu__log_line(&log, MSDU_LOG_INFO, "window %d", 4);
    ck_assert_str_eq(last_line, "window 4");
    ck_assert_int_eq(level, MSDU_LOG_INFO);
    log.rank = 3;
    msdu__log_line(&log, MSDU_LOG_ERROR, "lost");
    ck_assert_str_eq(last_line, "rank 3: lost");
    msdu__log_line(&log, MSDU_LOG_DEBUG, "not this");
    ck_assert_int_eq(line_count, 2);
    log.fn = NULL;
    msdu__log_line(&log, MSDU_LOG_ERROR, "nor this");
    ck_assert_int_eq(line_count, 2);
}
END_TEST

START_TEST(a_long_line_is_cut_within_its_bound)
{
    msdu_log_level level = MSDU_LOG_DEFAULT;
    msdu__log log = {keep_line, &level, MSDU_LOG_INFO, 12};
    char text[2 * MSDU__TEXT_BYTES];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    msdu__log_line(&log, MSDU_LOG_INFO, "%s", text);
    ck_assert_uint_eq(strlen(last_line), MSDU__TEXT_BYTES - 1);
}
END_TEST

START_TEST(the_clock_never_goes_back)
{
    uint64_t before = msdu__clock_monotonic(NULL);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = msdu__clock_monotonic(NULL);
        ck_assert_uint_ge(now, before);
        before = now;
    }
}
END_TEST

START_TEST(elements_have_the_bytes_of_their_type)
{
    ck_assert_uint_eq(msdu__dtype_bytes(MSDU_FLOAT64), 8);
    ck_assert_uint_eq(msdu__dtype_bytes(MSDU_FLOAT32), 4);
    ck_assert_uint_eq(msdu__dtype_bytes(MSDU_FLOAT16), 2);
    ck_assert_uint_eq(msdu__dtype_bytes(MSDU_BFLOAT16), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *tcase = suite_case(suite, "status", 0, NULL, NULL);
    tcase_add_test(tcase, version_is_that_of_the_header);
    tcase_add_test(tcase, every_status_has_a_name_and_a_text);
    tcase_add_test(tcase, an_unknown_status_has_a_name_too);
    tcase_add_test(tcase, fail_sets_one_line_and_returns_its_status);
    tcase_add_test(tcase, an_error_may_quote_the_error_before);
    tcase_add_test(tcase, a_long_text_is_cut_within_its_bound);
    tcase_add_test(tcase, threads_have_texts_of_their_own);
    tcase_add_test(tcase, a_line_passes_at_its_level_with_the_rank_in_front);
    tcase_add_test(tcase, a_long_line_is_cut_within_its_bound);
    tcase_add_test(tcase, the_clock_never_goes_back);
    tcase_add_test(tcase, elements_have_the_bytes_of_their_type);
    return suite_run(suite);
}
