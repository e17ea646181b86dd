/* SPDX-License-Identifier: Apache-2.0 */
/* How processes that are started one by one, as by agents of their own, become one job. */
#include "members_process.h"
#include "processes.h"
#include "suite.h"

#include "backend/rendezvous/net.h"
#include "backend/rendezvous/redis.h"
#include "base/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS         UINT64_C(1000000)
#define LATE_MS    30000
#define NO_SILENCE (60000 * MS)

static struct process them[PROCESSES_MOST];
static struct launch launches[PROCESSES_MOST];
static char folder[PATH_MAX];
static char url[PATH_MAX + 16];
static pid_t redis;

static void set_up(void)
{
    memset(them, 0, sizeof(them));
    ck_assert(job_make_folder(folder));
}

static void tear_down(void)
{
    process_kill_all();
    if (redis > 0) {
        (void)kill(redis, SIGKILL);
        (void)waitpid(redis, NULL, 0);
    }
    suite_remove(folder);
}

enum { FILE_PLACE, TCP_PLACE, LIST_OF_PLACES, REDIS_PLACE, PLACES };

/* False: there is no server on this machine, or this build cannot talk to one. */
static bool start_redis(int port)
{
    char text[16];
    struct msdu__redis parsed;
    msdu_store store;
    char cause[MSDU__CAUSE_BYTES];
    struct msdu__address address;
    (void)snprintf(text, sizeof(text), "%d", port);
    (void)snprintf(url, sizeof(url), "redis://127.0.0.1:%d", port);
    if (msdu__redis_open(url, &parsed, &store, cause) != MSDU_OK) {
        return false;
    }
    redis = fork();
    if (redis == 0) {
        int null = open("/dev/null", O_WRONLY);
        (void)dup2(null, 1);
        (void)execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1", "--dir",
                     folder, "--save", "", (char *)NULL);
        _exit(127);
    }
    msdu__net_loopback(&address);
    msdu__net_set_port(&address, (uint16_t)port);
    for (int i = 0; i < 500 && waitpid(redis, NULL, WNOHANG) == 0; i++) {
        int fd = msdu__net_connect(&address, NULL, msdu__clock_now() + 1000 * MS);
        if (fd >= 0) {
            (void)close(fd);
            return true;
        }
        msdu__net_sleep(20 * MS);
    }
    redis = 0;
    return false;
}

static bool choose_place(int kind)
{
    if (kind == REDIS_PLACE && !start_redis(job_free_port())) {
        (void)printf("redis: skipped: redis-server does not start, or this build has no hiredis\n");
        return false;
    }
    if (kind == FILE_PLACE) {
        (void)snprintf(url, sizeof(url), "file://%s", folder);
    } else if (kind == TCP_PLACE) {
        (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", job_free_port());
    } else if (kind == LIST_OF_PLACES) {
        (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d,127.0.0.1:%d", job_free_port(),
                       job_free_port());
    }
    return true;
}

/* A launch of one process, which trains in a group of `least` or more. */
static void start(int32_t i, int32_t least)
{
    launches[i] = (struct launch){
        .ranks = 1,
        .rendezvous = url,
        .deadline_ns = 20000 * MS,
        .settings = {.silence_ns = NO_SILENCE, .ranks_least = least, .join_wait_ns = 20000 * MS}};
    process_start(&them[i], &launches[i]);
}

static struct outcome take(int32_t i, int32_t ranks)
{
    struct outcome outcome = process_take(&them[i], LATE_MS);
    ck_assert_msg(outcome.status == MSDU_OK, "process %d: %s", i, outcome.text);
    ck_assert_int_eq(outcome.epoch.ranks, ranks);
    return outcome;
}

/* Processes 0, 1, ... in one epoch. */
static void begin(int32_t ranks)
{
    uint32_t seen = 0;
    for (int32_t i = 0; i < ranks; i++) {
        start(i, ranks);
    }
    uint32_t number = 0;
    for (int32_t i = 0; i < ranks; i++) {
        struct outcome outcome = take(i, ranks);
        ck_assert(i == 0 || outcome.epoch.number == number);
        ck_assert_int_eq(outcome.epoch.is_newcomer, outcome.epoch.rank != 0);
        number = outcome.epoch.number;
        seen |= 1U << outcome.epoch.rank;
        launches[i].rank = outcome.epoch.rank;
    }
    ck_assert_uint_eq(seen, (1U << ranks) - 1);
}

static int32_t who_is(int32_t rank, int32_t ranks)
{
    int32_t i = 0;
    while (i < ranks && launches[i].rank != rank) {
        i++;
    }
    return i;
}

static void end(int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (them[i].pid != 0) {
            process_close(&them[i]);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (them[i].pid != 0) {
            process_ended(&them[i]);
        }
    }
}

START_TEST(processes_that_begin_at_once_are_one_job)
{
    if (choose_place(_i)) {
        begin(4);
        end(4);
    }
}
END_TEST

/* The members do not know yet that rank 0 is dead, and a step of theirs lasts. */
START_TEST(a_process_that_comes_between_a_death_and_the_next_epoch_joins)
{
    if (!choose_place(_i)) {
        return;
    }
    begin(3);
    int32_t lost = who_is(0, 3);
    process_kill(&them[lost]);
    start(3, 1);
    ck_assert(process_is_quiet(&them[3], 5000));
    for (int32_t i = 0; i < 3; i++) {
        if (i != lost) {
            process_next(&them[i], 7);
        }
    }
    for (int32_t i = 0; i < 4; i++) {
        if (i != lost) {
            ck_assert_int_eq(take(i, 3).epoch.is_newcomer, i == 3);
        }
    }
    end(4);
}
END_TEST

/* As if the first host were gone: what is at its place answers nobody, or nobody is there. */
START_TEST(a_list_of_places_leads_to_the_job_without_the_first_of_them)
{
    struct msdu__address first;
    int port = job_free_port();
    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d,127.0.0.1:%d", port, job_free_port());
    msdu__net_loopback(&first);
    msdu__net_set_port(&first, (uint16_t)port);
    if (_i == 0) { /* from the start */
        int fd = msdu__net_listen(&first);
        ck_assert_int_ge(fd, 0);
        begin(2);
        (void)close(fd);
    } else {
        begin(2);
        int32_t lost = who_is(0, 2);
        process_kill(&them[lost]);
        process_next(&them[1 - lost], 3);
        start(2, 2);
        (void)take(1 - lost, 2);
        ck_assert(take(2, 2).epoch.is_newcomer);
    }
    end(3);
}
END_TEST

START_TEST(a_launch_of_too_few_that_may_not_wait_is_told_so)
{
    (void)choose_place(FILE_PLACE);
    start(0, 1);
    (void)take(0, 1);
    end(1);
    them[0].pid = 0;
    launches[1] = launches[0];
    launches[1].settings.ranks_least = 2;
    launches[1].settings.join_wait_ns = 0;
    process_start(&them[1], &launches[1]);
    struct outcome outcome = process_take(&them[1], LATE_MS);
    ck_assert_int_eq(outcome.status, MSDU_ERR_PEER_LOST);
    ck_assert_ptr_nonnull(strstr(outcome.text, "fewer than ranks_least 2"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("members meet");
    TCase *meet = suite_case(suite, "meet", 120, set_up, tear_down);
    tcase_add_loop_test(meet, processes_that_begin_at_once_are_one_job, 0, PLACES);
    tcase_add_loop_test(meet, a_process_that_comes_between_a_death_and_the_next_epoch_joins, 0,
                        PLACES);
    tcase_add_loop_test(meet, a_list_of_places_leads_to_the_job_without_the_first_of_them, 0, 2);
    tcase_add_test(meet, a_launch_of_too_few_that_may_not_wait_is_told_so);
    return suite_run(suite);
}
