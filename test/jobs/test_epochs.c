/* SPDX-License-Identifier: Apache-2.0 */
/* Processes over Gloo that are killed, stopped and started while the others train on (setting
 * ranks_least). test_train_epochs.c has what becomes of parameters, with ranks as threads. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS 40000 /* stands for "no hang" on a busy machine */
#define RANKS    4

static const struct mode {
    const char *domain;
    int interval;
    const char *wire;
} modes[] = {{"gradient", 1, "float32"}, {"auto", 1, "int4"}, {"auto", 6, "float32"}};

static job *new_job(const struct mode *m, int count)
{
    job *j = job_new(count);
    job_beside("epochs_rank", j->program);
    job_set(j, JOB_ALL, "MSDU_RANKS=%d", RANKS);
    job_set(j, JOB_ALL, "MSDU_RANKS_LEAST=1");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=10000");
    job_set(j, JOB_ALL, "MSDU_INTERVAL=fixed");
    job_set(j, JOB_ALL, "MSDU_INTERVAL_STEPS=%d", m->interval);
    job_set(j, JOB_ALL, "MSDU_DOMAIN=%s", m->domain);
    job_set(j, JOB_ALL, "MSDU_WIRE=%s", m->wire);
    for (int i = 0; i < count; i++) {
        job_argument(j, i, "id=%d", i);
    }
    return j;
}

/* A process that comes later, as `id`; its job needs `least` ranks. */
static job *start_late(const job *j, const struct mode *m, int id, int least)
{
    job *late = new_job(m, 1);
    job_set(late, 0, "MSDU_RANKS_LEAST=%d", least);
    job_set(late, 0, "MSDU_RANKS_WAIT_MS=%d", least > 1 ? 20000 : 0);
    job_set(late, 0, "MSDU_RANK=%d", id % RANKS);
    job_set(late, 0, "MSDU_RENDEZVOUS=file://%s", j->folder);
    job_argument(late, 0, "id=%d", id);
    job_argument(late, 0, "apart=1");
    ck_assert(job_start(late, 0));
    return late;
}

static void check_number(const job *j, int process, int id, const char *key, int number)
{
    ck_assert_msg(strtol(job_value(j, process, id, key), NULL, 10) == number,
                  "%s.%d is %s, not %d:\n%s", key, id, job_value(j, process, id, key), number,
                  j->ranks[process].text);
}

/* It trained to the end, and holds what rank `as` holds. */
static void check_well(const job *j, int process, int id, int ranks, const char *hash)
{
    job_check_ok(j, process, id);
    check_number(j, process, id, "steps", 60);
    check_number(j, process, id, "ranks", ranks);
    ck_assert_str_eq(job_value(j, process, id, "hash"), hash);
}

START_TEST(a_killed_rank_is_done_without)
{
    const struct mode *m = &modes[_i / RANKS];
    int lost = _i % RANKS; /* rank 0 as any other */
    job *j = new_job(m, RANKS);
    job_argument(j, lost, "kill=20");
    job_run(j, LIMIT_MS);
    int first = lost == 0 ? 1 : 0;
    char *hash = strdup(job_value(j, first, first, "hash"));
    for (int i = 0; i < RANKS; i++) {
        if (i != lost) {
            check_well(j, i, i, RANKS - 1, hash);
            check_number(j, i, i, "lost", 1);
        }
    }
    free(hash);
    job_free(j);
}
END_TEST

START_TEST(a_killed_rank_comes_back)
{
    const struct mode *m = &modes[_i];
    job *j = new_job(m, RANKS);
    job_argument(j, JOB_ALL, "pause=30");
    job_argument(j, _i, "kill=10");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait_text(j, _i, "accident", LIMIT_MS));
    job *late = start_late(j, m, 7, 1);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS) && job_wait(late, JOB_ALL, LIMIT_MS));
    int first = _i == 0 ? 1 : 0;
    char *hash = strdup(job_value(j, first, first, "hash"));
    check_well(late, 0, 7, RANKS, hash);
    for (int i = 0; i < RANKS; i++) {
        if (i != _i) {
            check_well(j, i, i, RANKS, hash);
            check_number(j, i, i, "lost", 1);
            check_number(j, i, i, "joined", 1);
        }
    }
    free(hash);
    job_free(late);
    job_free(j);
}
END_TEST

/* Of four one is silent: three go on, and it does not disturb when it wakes up. */
START_TEST(a_stopped_rank_is_done_without)
{
    job *j = new_job(&modes[0], RANKS);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=2000");
    job_argument(j, JOB_ALL, "pause=50");
    job_argument(j, 2, "stop=10");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait_text(j, 0, "epoch.", LIMIT_MS));
    ck_assert_int_eq(kill(j->ranks[2].pid, SIGCONT), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    ck_assert_str_eq(job_value(j, 2, 2, "status"), "MSDU_ERR_PEER_LOST");
    char *hash = strdup(job_value(j, 0, 0, "hash"));
    for (int i = 0; i < RANKS; i++) {
        if (i != 2) {
            check_well(j, i, i, RANKS - 1, hash);
        }
    }
    free(hash);
    job_free(j);
}
END_TEST

/* The others trained to the end and left: for who stood still so long, that is no proof of their
 * death. */
START_TEST(a_stopped_rank_does_not_train_on_alone)
{
    job *j = new_job(&modes[0], RANKS);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=2000");
    job_argument(j, 2, "stop=50");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait(j, 2, LIMIT_MS));
    ck_assert_int_eq(kill(j->ranks[2].pid, SIGCONT), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    ck_assert_str_eq(job_value(j, 2, 2, "status"), "MSDU_ERR_PEER_LOST");
    ck_assert_str_eq(job_value(j, 0, 0, "status"), "MSDU_OK");
    job_free(j);
}
END_TEST

/* Two of four: nobody knows whether the others train on. */
START_TEST(half_of_the_ranks_do_not_train_on)
{
    job *j = new_job(&modes[0], RANKS);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=2000");
    job_argument(j, 1, "stop=20");
    job_argument(j, 2, "stop=20");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait_text(j, 0, "hash", LIMIT_MS) && job_wait_text(j, 3, "hash", LIMIT_MS));
    ck_assert_msg(strstr(j->ranks[0].text, "no majority") != NULL, "%s", j->ranks[0].text);
    ck_assert_msg(strstr(j->ranks[3].text, "status.3 MSDU_ERR_") != NULL, "%s", j->ranks[3].text);
    ck_assert_int_eq(kill(j->ranks[1].pid, SIGKILL), 0);
    ck_assert_int_eq(kill(j->ranks[2].pid, SIGKILL), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    job_free(j);
}
END_TEST

START_TEST(fewer_than_ranks_least_end_the_job)
{
    job *j = new_job(&modes[0], RANKS);
    job_set(j, JOB_ALL, "MSDU_RANKS_LEAST=4");
    job_argument(j, 3, "kill=20");
    job_run(j, LIMIT_MS);
    for (int i = 0; i < 3; i++) {
        ck_assert_str_eq(job_value(j, i, i, "status"), "MSDU_ERR_PEER_LOST");
        ck_assert_msg(strstr(job_value(j, i, i, "error"), "ranks_least") != NULL, "%s",
                      j->ranks[i].text);
    }
    job_free(j);
}
END_TEST

START_TEST(a_job_may_wait_for_another_rank)
{
    job *j = new_job(&modes[0], 2);
    job_set(j, JOB_ALL, "MSDU_RANKS=2");
    job_set(j, JOB_ALL, "MSDU_RANKS_LEAST=2");
    job_set(j, JOB_ALL, "MSDU_RANKS_WAIT_MS=20000");
    job_argument(j, 0, "kill=20");
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait_text(j, 0, "accident", LIMIT_MS));
    job *late = start_late(j, &modes[0], 5, 2);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS) && job_wait(late, JOB_ALL, LIMIT_MS));
    char *hash = strdup(job_value(j, 1, 1, "hash"));
    check_well(j, 1, 1, 2, hash);
    check_well(late, 0, 5, 2, hash);
    free(hash);
    job_free(late);
    job_free(j);
}
END_TEST

/* One rank begins; others come while it trains, up to ranks_most. */
START_TEST(a_job_grows)
{
    job *j = new_job(&modes[0], 1);
    job_set(j, 0, "MSDU_RANKS=1");
    job_argument(j, 0, "pause=60");
    job_argument(j, 0, "steps=60");
    job_set(j, 0, "MSDU_RANKS_MOST=2");
    ck_assert(job_start(j, 0));
    ck_assert(job_wait_text(j, 0, "started", LIMIT_MS));
    job *late = new_job(&modes[0], 1);
    job_set(late, 0, "MSDU_RANKS=1");
    job_set(late, 0, "MSDU_RANKS_MOST=2");
    job_set(late, 0, "MSDU_RENDEZVOUS=file://%s", j->folder);
    job_argument(late, 0, "id=5");
    ck_assert(job_start(late, 0));
    ck_assert(job_wait(late, JOB_ALL, LIMIT_MS) && job_wait(j, JOB_ALL, LIMIT_MS));
    char *hash = strdup(job_value(j, 0, 0, "hash"));
    check_well(j, 0, 0, 2, hash);
    check_well(late, 0, 5, 2, hash);
    free(hash);
    job_free(late);
    job_free(j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("epochs");
    TCase *tcase = suite_case(suite, "processes", 100, NULL, job_free_all);
    tcase_add_loop_test(tcase, a_killed_rank_is_done_without, 0, 3 * RANKS);
    tcase_add_loop_test(tcase, a_killed_rank_comes_back, 0, 3);
    tcase_add_test(tcase, a_stopped_rank_is_done_without);
    tcase_add_test(tcase, a_stopped_rank_does_not_train_on_alone);
    tcase_add_test(tcase, half_of_the_ranks_do_not_train_on);
    tcase_add_test(tcase, fewer_than_ranks_least_end_the_job);
    tcase_add_test(tcase, a_job_may_wait_for_another_rank);
    tcase_add_test(tcase, a_job_grows);
    return job_suite_run(suite);
}
