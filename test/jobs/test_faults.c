/* SPDX-License-Identifier: Apache-2.0 */
/* Faults while real processes train over gloo: each ends on every rank with a status and a line. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS     15000 /* stands for "no hang" on a busy machine */
#define MEETING      9     /* a step at whose end the ranks meet: 0, 1, 5, 9 */
#define MEETING_LATE 7     /* with delayed results: 0, 3, 7, 11 */
#define KILLS        5
#define NOBODY       (-1)
#define DEADLINE_MS  2500 /* where a deadline is what ends the wait */

static const char *const wires[] = {"float32", "bfloat16", "float16", "int8",
                                    "int4",    "int2",     "sparse"};

/* Three ranks, several slices, an interval that does not depend on time. */
static job *new_job(const char *domain, const char *overlap)
{
    job *j = job_new(3);
    job_set_modes(j, domain, overlap, "float32");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=10000");
    if (strcmp(domain, "accumulated") == 0) {
        job_set_sgd(j);
    }
    return j;
}

/* What every rank that failed must have said. */
static void check_failed(const job *j, int rank, const char *status, const char *words)
{
    job_check_failed(j, rank, rank, status, words);
    ck_assert_str_eq(job_value(j, rank, rank, "again"), "same");
    ck_assert_msg(strcmp(job_value(j, rank, rank, "params"), "kept") == 0,
                  "rank %d: parameters are not what its training made them", rank);
}

/* Ranks other than `lost` failed alike. */
static void check_survivors(const job *j, int lost, const char *status, const char *words)
{
    for (int i = 0; i < j->count; i++) {
        if (i != lost) {
            check_failed(j, i, status, words);
        }
    }
}

/* --- a rank is lost --- */

static void lose_rank(job *j, int lost, const char *fault, int at, const char *what)
{
    job_argument(j, JOB_ALL, "rollback=1");
    job_argument(j, lost, "fault=%s", fault);
    job_argument(j, lost, "at=%d", at);
    job_argument(j, lost, "what=%s", what);
    job_run(j, LIMIT_MS);
}

/* Ranks other than `lost` went back to the same bits. */
static void check_rolled_back(const job *j, int lost)
{
    const char *first = job_value(j, lost == 0, lost == 0, "rollback");
    ck_assert_msg(strncmp(first, "MSDU_OK ", 8) == 0, "%s", first);
    for (int i = 0; i < j->count; i++) {
        if (i != lost) {
            ck_assert_str_eq(job_value(j, i, i, "rollback"), first);
        }
    }
}

/* A rank is killed in the middle of a round: the others name it and keep whole parameters. */
static void kill_rank(job *j, int lost, int at, const char *what)
{
    char name[16];
    (void)snprintf(name, sizeof(name), "rank %d ", lost);
    lose_rank(j, lost, "kill", at, what);
    check_survivors(j, lost, "MSDU_ERR_PEER_LOST", name);
    if (strcmp(what, "parameter") == 0) {
        check_rolled_back(j, lost);
    }
}

START_TEST(killed_in_a_parameter_round_leaves_parameters_whole)
{
    job *j = new_job("parameter", "backward");
    kill_rank(j, 2, MEETING, "parameter");
    ck_assert_int_eq(job_lines(j, 2, "half.2 9"), 1);
    ck_assert_str_eq(job_value(j, 0, 0, "rounds"), job_value(j, 1, 1, "rounds"));
    job_free(j);
}
END_TEST

START_TEST(killed_in_a_gradient_round_leaves_parameters_whole)
{
    job *j = new_job("gradient", "backward");
    kill_rank(j, 1, 5, "gradient");
    ck_assert_str_eq(job_value(j, 0, 0, "step"), "5");
    ck_assert_str_eq(job_value(j, 0, 0, "hash"), job_value(j, 2, 2, "hash"));
    ck_assert_int_eq(strncmp(job_value(j, 0, 0, "rollback"), "MSDU_ERR_STATE ", 15), 0);
    job_free(j);
}
END_TEST

static const struct {
    const char *domain, *overlap;
    const char *settings[2];
    int lost, at;
    const char *what;
} kills[] = {
    {"parameter", "blocking", {NULL, NULL}, 0, MEETING, "parameter"}, /* the first rank, too */
    {"accumulated", "backward", {NULL, NULL}, 1, MEETING, "gradient"},
    {"parameter", "delayed", {"MSDU_DELAY_STEPS=2", NULL}, 1, MEETING_LATE, "parameter"},
    /* fragments meet after steps 0 and 1, 2 and 3, 10 and 11, and are applied a step later: none is
     * applied while the first one of the last two fails */
    {"parameter", "streamed", {"MSDU_FRAGMENTS=2", "MSDU_INTERVAL_STEPS=8"}, 1, 10, "parameter"},
    {"parameter", "backward", {"MSDU_WIRE=int4", NULL}, 2, MEETING, "parameter"},
};

START_TEST(killed_in_any_other_round_leaves_parameters_whole)
{
    job *j = new_job(kills[_i].domain, kills[_i].overlap);
    for (int i = 0; i < 2 && kills[_i].settings[i] != NULL; i++) {
        job_set(j, JOB_ALL, "%s", kills[_i].settings[i]);
    }
    kill_rank(j, kills[_i].lost, kills[_i].at, kills[_i].what);
    job_free(j);
}
END_TEST

/* Wherever the kill hits: the parameters are those of local training, or of a whole round. */
START_TEST(killed_at_any_time_leaves_parameters_whole)
{
    char line[32];
    job *j = new_job("parameter", "backward");
    job_set(j, JOB_ALL, "MSDU_INTERVAL_STEPS=2");
    job_argument(j, JOB_ALL, "steps=1000000");
    job_argument(j, JOB_ALL, "rollback=1");
    ck_assert(job_start(j, JOB_ALL));
    (void)snprintf(line, sizeof(line), "stepped.1 %d\n", 10 + 7 * _i);
    ck_assert(job_wait_text(j, 1, line, LIMIT_MS));
    ck_assert_int_eq(kill(j->ranks[1].pid, SIGKILL), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    for (int i = 0; i < j->count; i += 2) {
        bool is_kept = strcmp(job_value(j, i, i, "params"), "kept") == 0;
        const char *hash = job_value(j, i, i, "hash");
        ck_assert_str_eq(job_value(j, i, i, "status"), "MSDU_ERR_PEER_LOST");
        ck_assert_ptr_nonnull(strstr(job_value(j, i, i, "error"), "rank 1 "));
        ck_assert(is_kept || strstr(job_value(j, i, i, "rollback"), hash) != NULL);
    }
    job_free(j);
}
END_TEST

START_TEST(early_exit_is_a_lost_rank)
{
    job *j = new_job("parameter", "backward");
    lose_rank(j, 1, "exit", MEETING, "parameter");
    ck_assert(job_exited(j, 1, 0));
    check_survivors(j, 1, "MSDU_ERR_PEER_LOST", "rank 1 ");
    job_free(j);
}
END_TEST

START_TEST(destroy_in_the_middle_is_a_lost_rank)
{
    job *j = new_job("gradient", "backward");
    lose_rank(j, 1, "destroy", 5, "gradient");
    ck_assert_str_eq(job_value(j, 1, 1, "left"), "5");
    check_survivors(j, 1, "MSDU_ERR_PEER_LOST", "rank 1 ");
    job_free(j);
}
END_TEST

/* One rank ends after fewer steps: its final average meets the others' training. Nobody waits for
 * the deadline, which is longer than this test may take. */
START_TEST(fewer_steps_on_one_rank_end_everywhere)
{
    job *j = new_job("parameter", "backward");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=3600000");
    lose_rank(j, 1, "leave", 6, "parameter");
    check_survivors(j, NOBODY, "MSDU_ERR_MISMATCH", "rank 1 ended its steps");
    job_free(j);
}
END_TEST

/* --- a rank is late --- */

/* One rank stops: the others end, by a deadline that is short. */
static job *stop_rank(const char *domain, int rank, int at)
{
    job *j = new_job(domain, "backward");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=%d", DEADLINE_MS);
    job_argument(j, rank, "fault=stop");
    job_argument(j, rank, "at=%d", at);
    job_argument(j, rank, "what=%s", domain);
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait(j, rank, LIMIT_MS));
    check_survivors(j, rank, "MSDU_ERR_TIMEOUT", rank == 0 ? "rank 0" : "rank 1 ");
    return j;
}

START_TEST(stopped_rank_is_named_by_deadline)
{
    job *j = stop_rank("parameter", 1, MEETING);
    /* when it wakes up, the group is gone: it ends as well */
    ck_assert_int_eq(kill(j->ranks[1].pid, SIGCONT), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    ck_assert(job_exited(j, 1, 0));
    ck_assert_str_ne(job_value(j, 1, 1, "status"), "MSDU_OK");
    ck_assert_str_eq(job_value(j, 1, 1, "params"), "kept");
    job_free(j);
}
END_TEST

START_TEST(stopped_first_rank_is_named_by_deadline)
{
    job_free(stop_rank("gradient", 0, 5));
}
END_TEST

START_TEST(missing_rank_is_named_by_deadline)
{
    job *j = new_job("parameter", "backward");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=%d", DEADLINE_MS);
    ck_assert(job_start(j, 0));
    ck_assert(job_start(j, 1));
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    check_failed(j, 0, "MSDU_ERR_TIMEOUT", "rank 2");
    check_failed(j, 1, "MSDU_ERR_TIMEOUT", "rank 2");
    ck_assert_str_eq(job_value(j, 0, 0, "where"), "start");
    job_free(j);
}
END_TEST

/* --- values that are not finite --- */

static void check_not_finite(int wire, const char *domain, const char *fault)
{
    bool is_gradient = strcmp(domain, "gradient") == 0;
    job *j = new_job(domain, "backward");
    job_set(j, JOB_ALL, "MSDU_WIRE=%s", wires[wire]);
    job_set(j, JOB_ALL, "MSDU_OPTIMIZER=sgd"); /* int2 gradients */
    lose_rank(j, 1, fault, MEETING, domain);
    for (int i = 0; i < j->count; i++) {
        check_failed(j, i, "MSDU_ERR_NOT_FINITE", "rank 1: |'layer2.weight'|step 9;");
    }
    if (!is_gradient) {
        check_rolled_back(j, NOBODY);
    }
    job_free(j);
}

START_TEST(gradient_that_is_not_finite_is_refused)
{
    check_not_finite(_i, "gradient", _i % 2 == 0 ? "nan" : "infinity");
}
END_TEST

START_TEST(parameter_that_is_not_finite_is_refused)
{
    check_not_finite(_i, "parameter", _i % 2 == 0 ? "infinity" : "nan");
}
END_TEST

/* --- files --- */

static void check_full_disk(job *j, const char *words)
{
    job_run(j, LIMIT_MS);
    for (int i = 0; i < j->count; i++) {
        ck_assert(job_exited(j, i, 0));
        ck_assert_str_eq(job_value(j, i, i, "status"), i == 1 ? "MSDU_ERR_IO" : "MSDU_OK");
        ck_assert_str_eq(job_value(j, i, i, "hash"), job_value(j, 0, 0, "hash"));
        ck_assert_str_eq(job_value(j, i, i, "step"), "12");
    }
    ck_assert_str_eq(job_value(j, 1, 1, "where"), "finish");
    job_check_failed(j, 1, 1, "MSDU_ERR_IO", words);
}

START_TEST(full_disk_under_the_trace_costs_only_the_trace)
{
    job *j = new_job("parameter", "backward");
    job_set(j, 1, "MSDU_TRACE_FILE=/dev/full");
    check_full_disk(j, "rank 1|/dev/full|No space left");
    job_free(j);
}
END_TEST

START_TEST(full_disk_under_the_metrics_costs_only_the_metrics)
{
    job *j = new_job("parameter", "backward");
    job_set(j, JOB_ALL, "MSDU_METRICS_FILE=%s/metrics.%%r", j->folder);
    job_set(j, JOB_ALL, "MSDU_METRICS_PERIOD_MS=10");
    job_argument(j, 1, "file_bytes=100");
    check_full_disk(j, "rank 1|metrics.1|File too large");
    job_free(j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("faults");
    TCase *lost = suite_case(suite, "lost", 60, NULL, job_free_all);
    tcase_add_test(lost, killed_in_a_parameter_round_leaves_parameters_whole);
    tcase_add_test(lost, killed_in_a_gradient_round_leaves_parameters_whole);
    suite_table(lost, killed_in_any_other_round_leaves_parameters_whole, kills);
    tcase_add_loop_test(lost, killed_at_any_time_leaves_parameters_whole, 0, KILLS);
    tcase_add_test(lost, early_exit_is_a_lost_rank);
    tcase_add_test(lost, destroy_in_the_middle_is_a_lost_rank);
    tcase_add_test(lost, fewer_steps_on_one_rank_end_everywhere);
    TCase *late = suite_case(suite, "late", 60, NULL, job_free_all);
    tcase_add_test(late, stopped_rank_is_named_by_deadline);
    tcase_add_test(late, stopped_first_rank_is_named_by_deadline);
    tcase_add_test(late, missing_rank_is_named_by_deadline);
    TCase *values = suite_case(suite, "values", 60, NULL, job_free_all);
    int wire_count = (int)(sizeof(wires) / sizeof(wires[0]));
    tcase_add_loop_test(values, gradient_that_is_not_finite_is_refused, 0, wire_count);
    tcase_add_loop_test(values, parameter_that_is_not_finite_is_refused, 0, wire_count);
    TCase *files = suite_case(suite, "files", 60, NULL, job_free_all);
    tcase_add_test(files, full_disk_under_the_trace_costs_only_the_trace);
    tcase_add_test(files, full_disk_under_the_metrics_costs_only_the_metrics);
    return job_suite_run(suite);
}
