/* SPDX-License-Identifier: Apache-2.0 */
/* Faults while two hosts of two ranks train over gloo, and average gradients over shared memory. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS    15000 /* stands for "no hang" on a busy machine */
#define LOCAL       7     /* a step between two rounds of local steps: those end 5 and 9 */
#define DEADLINE_MS 2500  /* where a deadline is what ends the wait */

static job *new_job(void)
{
    job *j = job_new(4);
    job_set_modes(j, "auto", "backward", "float32");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=10000");
    job_set(j, JOB_ALL, "MSDU_TARGET_OVERHEAD=1");
    job_argument(j, JOB_ALL, "rollback=1");
    for (int i = 0; i < j->count; i++) {
        job_set(j, i, "MSDU_HOSTS=%s", i < 2 ? "a" : "b");
    }
    return j;
}

static void give_fault(job *j, int rank, const char *fault, const char *what)
{
    job_argument(j, rank, "fault=%s", fault);
    job_argument(j, rank, "at=%d", LOCAL);
    job_argument(j, rank, "what=%s", what);
}

/* Nothing of a round is half applied, neither of gradients nor of parameters. */
static void check_survivors(const job *j, int lost, const char *status, const char *words)
{
    char first[64] = "";
    for (int i = 0; i < j->count; i++) {
        if (i == lost) {
            continue;
        }
        job_check_failed(j, i, i, status, words);
        ck_assert_str_eq(job_value(j, i, i, "again"), "same");
        ck_assert_str_eq(job_value(j, i, i, "params"), "kept");
        if (first[0] == '\0') {
            (void)snprintf(first, sizeof(first), "%s", job_value(j, i, i, "rollback"));
        }
        ck_assert_int_eq(strncmp(first, "MSDU_OK ", 8), 0);
        ck_assert_str_eq(job_value(j, i, i, "rollback"), first);
    }
}

static const struct {
    int rank;
    const char *fault, *what;
} losses[] = {
    {1, "kill", "gradient"}, /* half of its gradients are with its host */
    {3, "kill", "parameter"},
    {0, "kill", "gradient"}, /* the first, whom the others of its host listen to */
    {1, "exit", "gradient"},
    {3, "destroy", "gradient"},
};

START_TEST(a_rank_that_is_lost_is_named_on_its_host_and_on_the_others)
{
    char name[16];
    job *j = new_job();
    (void)snprintf(name, sizeof(name), "rank %d ", losses[_i].rank);
    give_fault(j, losses[_i].rank, losses[_i].fault, losses[_i].what);
    job_run(j, LIMIT_MS);
    check_survivors(j, losses[_i].rank, "MSDU_ERR_PEER_LOST", name);
    job_free(j);
}
END_TEST

/* Its host waits for it in the very step, the other host in the next round: nobody of that is
 * named. */
START_TEST(a_rank_that_stops_is_named_by_deadline)
{
    job *j = new_job();
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=%d", DEADLINE_MS);
    give_fault(j, 1, "stop", "gradient");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait(j, 1, LIMIT_MS));
    job_check_failed(j, 0, 0, "MSDU_ERR_TIMEOUT", "rank 1 ");
    for (int i = 2; i < j->count; i++) {
        ck_assert_str_ne(job_value(j, i, i, "status"), "MSDU_OK");
        ck_assert_ptr_nonnull(strstr(job_value(j, i, i, "error"), "rank "));
        ck_assert_ptr_null(strstr(job_value(j, i, i, "error"), "rank 2 did"));
        ck_assert_ptr_null(strstr(job_value(j, i, i, "error"), "rank 3 did"));
        ck_assert_str_eq(job_value(j, i, i, "params"), "kept");
    }
    job_free(j);
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_is_refused_everywhere)
{
    job *j = new_job();
    give_fault(j, 3, "nan", "gradient");
    job_run(j, LIMIT_MS);
    check_survivors(j, -1, "MSDU_ERR_NOT_FINITE", "rank 3: |'layer2.weight'|step 7");
    job_free(j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("faults_hosts");
    TCase *tcase = suite_case(suite, "hosts", 60, NULL, job_free_all);
    suite_table(tcase, a_rank_that_is_lost_is_named_on_its_host_and_on_the_others, losses);
    tcase_add_test(tcase, a_rank_that_stops_is_named_by_deadline);
    tcase_add_test(tcase, a_gradient_that_is_not_finite_is_refused_everywhere);
    return job_suite_run(suite);
}
