/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of real processes over gloo that are resumed from the files of their ranks. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_checks.h"
#include "suite.h"

#define RANKS    3
#define SAVED    12 /* after this step; with overlap delayed a mean waits then */
#define LIMIT_MS 30000

static job *new_job(const char *domain, const char *overlap, const char *wire, const char *folder)
{
    job *j = job_new(RANKS);
    job_set_modes(j, domain, overlap, wire);
    job_set(j, JOB_ALL, "MSDU_DELAY_STEPS=2");
    job_argument(j, JOB_ALL, "steps=24");
    job_argument(j, JOB_ALL, "checkpoint=%s", folder);
    return j;
}

static void check_resumed(const char *domain, const char *overlap, const char *wire)
{
    char folder[PATH_MAX];
    ck_assert(job_make_folder(folder));
    job *whole = new_job(domain, overlap, wire, folder);
    job_argument(whole, JOB_ALL, "save=%d", SAVED);
    job_run(whole, LIMIT_MS);
    job *resumed = new_job(domain, overlap, wire, folder);
    job_argument(resumed, JOB_ALL, "load=1");
    job_run(resumed, LIMIT_MS);
    for (int rank = 0; rank < RANKS; rank++) {
        char steps[32];
        snprintf(steps, sizeof(steps), "stepped.%d", rank);
        job_check_ok(resumed, rank, rank);
        ck_assert_int_eq(job_lines(whole, rank, steps), 24);
        ck_assert_int_eq(job_lines(resumed, rank, steps), 24 - SAVED - 1);
        ck_assert_str_eq(job_value(resumed, rank, rank, "history"), /* of all steps' parameters */
                         job_value(whole, rank, rank, "history"));
        ck_assert_str_eq(job_value(resumed, rank, rank, "rounds"),
                         job_value(whole, rank, rank, "rounds"));
    }
    job_free(whole);
    job_free(resumed);
    job_remove_folder(folder);
}

START_TEST(delayed_rounds_go_on)
{
    check_resumed("parameter", "delayed", "int4");
}
END_TEST

START_TEST(gradients_and_then_parameters_go_on)
{
    check_resumed("auto", "backward", "int2");
}
END_TEST

START_TEST(a_lost_file_fails_on_all_ranks)
{
    char folder[PATH_MAX];
    char path[PATH_MAX + 16];
    ck_assert(job_make_folder(folder));
    job *whole = new_job("parameter", "delayed", "int4", folder);
    job_argument(whole, JOB_ALL, "save=%d", SAVED);
    job_run(whole, LIMIT_MS);
    snprintf(path, sizeof(path), "%s/rank1", folder);
    ck_assert_int_eq(remove(path), 0);
    job *resumed = new_job("parameter", "delayed", "int4", folder);
    job_argument(resumed, JOB_ALL, "load=1");
    job_run(resumed, LIMIT_MS);
    for (int rank = 0; rank < RANKS; rank += 2) {
        job_check_failed(resumed, rank, rank, "MSDU_ERR_PEER_LOST", "rank 1");
    }
    job_free(whole);
    job_free(resumed);
    job_remove_folder(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_jobs");
    TCase *tcase = suite_case(suite, "gloo", 100, NULL, job_free_all);
    tcase_add_test(tcase, delayed_rounds_go_on);
    tcase_add_test(tcase, gradients_and_then_parameters_go_on);
    tcase_add_test(tcase, a_lost_file_fails_on_all_ranks);
    return job_suite_run(suite);
}
