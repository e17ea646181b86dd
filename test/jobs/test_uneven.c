/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes over gloo with uneven batches, weights and refused steps: the same as threads. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "expect.h"
#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS 50000 /* stands for "no hang" on a busy machine */
#define RANKS    3

typedef struct mode {
    const char *domain;
    const char *overlap;
    const char *wire;
} mode;

static const mode modes[] = {
    {"gradient", "backward", "float32"},     {"gradient", "blocking", "int4"},
    {"parameter", "backward", "int8"},       {"parameter", "delayed", "float32"},
    {"parameter", "streamed", "float32"},    {"auto", "auto", "float32"},
    {"accumulated", "backward", "bfloat16"},
};
#define MODES ((int)(sizeof(modes) / sizeof(modes[0])))

static job *new_job(const mode *m, int count)
{
    job *j = job_new(count);
    job_beside("uneven_rank", j->program);
    job_set_modes(j, m->domain, m->overlap, m->wire);
    job_set_fragments(j);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=30000");
    return j;
}

static job *new_threads(const mode *m)
{
    job *j = new_job(m, 1);
    job_set_threads(j, RANKS);
    return j;
}

static void run_both(job *processes, job *threads)
{
    ck_assert(job_start(threads, 0));
    job_run(processes, LIMIT_MS);
    ck_assert(job_wait(threads, JOB_ALL, LIMIT_MS));
}

static void check_same(const job *processes, const job *threads, const char *key)
{
    for (int i = 0; i < RANKS; i++) {
        ck_assert_str_ne(job_value(processes, i, i, key), "");
        ck_assert_str_eq(job_value(processes, i, i, key), job_value(threads, 0, i, key));
    }
}

static void check_end(const job *processes, const job *threads)
{
    static const char *const keys[] = {"joined0", "joined1", "synced0", "synced1",
                                       "hash",    "rounds",  "steps"};
    for (int i = 0; i < RANKS; i++) {
        job_check_ok(processes, i, i);
        for (int k = 2; k < 7; k++) { /* all but what a rank holds after msdu_join() */
            ck_assert_str_eq(job_value(processes, i, i, keys[k]),
                             job_value(processes, 0, 0, keys[k]));
        }
    }
    for (int k = 0; k < 7; k++) {
        check_same(processes, threads, keys[k]);
    }
}

START_TEST(uneven_epochs_end_as_over_local)
{
    const mode *m = &modes[_i % MODES];
    job *processes = new_job(m, RANKS);
    job *threads = new_threads(m);
    job_argument(processes, JOB_ALL, "weigh=%d", _i / MODES);
    job_argument(threads, 0, "weigh=%d", _i / MODES);
    run_both(processes, threads);
    check_end(processes, threads);
    job_free(threads);
    job_free(processes);
}
END_TEST

/* One rank's NaN: every rank leaves the same step out, and training goes on to the same end. */
START_TEST(a_refused_step_is_skipped_on_all_ranks)
{
    const mode *m = &modes[_i];
    job *processes = new_job(m, RANKS);
    job *threads = new_threads(m);
    job_set(processes, JOB_ALL, "MSDU_CHECK_FINITE=skip");
    job_set(threads, JOB_ALL, "MSDU_CHECK_FINITE=skip");
    job_argument(processes, JOB_ALL, "nan=2");
    job_argument(threads, 0, "nan=2");
    run_both(processes, threads);
    check_end(processes, threads);
    for (int i = 0; i < RANKS; i++) {
        const char *text = job_value(processes, i, i, "skipped");
        ck_assert_int_eq(job_lines(processes, i, "skipped."), 1);
        ck_assert_msg(strncmp(text, "2: ", 3) == 0, "%s", text);
        expect_words(text, "rank 1|'layer2'");
    }
    job_free(threads);
    job_free(processes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("uneven");
    TCase *tcase = suite_case(suite, "processes", 110, NULL, job_free_all);
    tcase_add_loop_test(tcase, uneven_epochs_end_as_over_local, 0, 2 * MODES);
    tcase_add_loop_test(tcase, a_refused_step_is_skipped_on_all_ranks, 0, 2);
    return job_suite_run(suite);
}
