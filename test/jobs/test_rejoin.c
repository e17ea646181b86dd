/* SPDX-License-Identifier: Apache-2.0 */
/* A rank is killed and a new process takes its place: the survivors go on, in a job of another
 * name, without being started again. The same with threads, bit for bit. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS 30000 /* stands for "no hang" on a busy machine */
#define RANKS    3
#define AT       9  /* the step of the accident; ranks meet at the ends of 0, 1, 5, 9 */
#define STEPS    21 /* in all */

static const struct mode {
    const char *domain;
    const char *overlap;
    const char *wire;
    int lost; /* rank 0 sends its parameters to all: the newcomer is never rank 0 */
} modes[] = {
    {"gradient", "backward", "float32", 2},
    {"gradient", "backward", "int4", 1},
    {"parameter", "backward", "float32", 1},
    {"parameter", "delayed", "int8", 2},
};
#define MODES ((int)(sizeof(modes) / sizeof(modes[0])))

static job *new_job(const struct mode *m, int count)
{
    job *j = job_new(count);
    job_set_modes(j, m->domain, m->overlap, m->wire);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=10000");
    job_argument(j, JOB_ALL, "rejoin=1");
    job_argument(j, JOB_ALL, "steps=%d", STEPS);
    job_argument(j, JOB_ALL, "at=%d", AT);
    job_argument(j, JOB_ALL, "what=%s", m->domain);
    return j;
}

static void check_end(const job *j, int process, int rank)
{
    job_check_ok(j, process, rank);
    char last[16];
    (void)snprintf(last, sizeof(last), "%d", STEPS);
    ck_assert_str_eq(job_value(j, process, rank, "step"), last);
}

/* The survivors and the newcomer; rank by rank as in one process each. */
static job *run_processes(const struct mode *m)
{
    job *j = new_job(m, RANKS);
    job_argument(j, m->lost, "fault=kill");
    ck_assert(job_start(j, JOB_ALL));
    for (int i = 0; i < RANKS; i++) {
        ck_assert_msg(i == m->lost || job_wait_text(j, i, "back.", LIMIT_MS), "rank %d:\n%s", i,
                      j->ranks[i].text);
    }
    job *late = new_job(m, 1);
    job_set(late, 0, "MSDU_RANKS=%d", RANKS);
    job_set(late, 0, "MSDU_RANK=%d", m->lost);
    job_set(late, 0, "MSDU_RENDEZVOUS=file://%s", j->folder);
    job_argument(late, 0, "newcomer=1");
    job_run(late, LIMIT_MS);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    check_end(late, 0, m->lost);
    ck_assert_str_eq(job_value(late, 0, m->lost, "hash"), job_value(j, 0, 0, "hash"));
    job_free(late);
    return j;
}

static job *run_threads(const struct mode *m)
{
    job *j = new_job(m, 1);
    job_set_threads(j, RANKS);
    job_argument(j, 0, "fault=destroy");
    job_argument(j, 0, "who=%d", m->lost);
    job_run(j, LIMIT_MS);
    for (int i = 0; i < RANKS; i++) {
        check_end(j, 0, i);
    }
    return j;
}

START_TEST(newcomer_takes_the_place_of_a_killed_rank)
{
    const struct mode *m = &modes[_i];
    job *threads = run_threads(m);
    job *processes = run_processes(m);
    for (int i = 0; i < RANKS; i++) {
        if (i != m->lost) {
            check_end(processes, i, i);
        }
        /* of a late mean one learns sooner or later, and so goes on from one step or another */
        if (i != m->lost && strcmp(m->overlap, "delayed") != 0) {
            ck_assert_str_eq(job_value(processes, i, i, "back"), job_value(threads, 0, i, "back"));
            ck_assert_str_eq(job_value(processes, i, i, "hash"), job_value(threads, 0, i, "hash"));
        }
    }
    job_free(processes);
    job_free(threads);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rejoin");
    TCase *tcase = suite_case(suite, "processes", 100, NULL, job_free_all);
    tcase_add_loop_test(tcase, newcomer_takes_the_place_of_a_killed_rank, 0, MODES);
    return job_suite_run(suite);
}
