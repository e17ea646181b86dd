/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: no kick and no stop is lost, whatever it is doing at that moment. */
#include "core/worker.h"
#include "suite.h"

#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct work {
    _Atomic uint64_t asked;
    _Atomic uint64_t done;
    uint64_t sleep_ns;
} work;

/* Catches up with what was asked for, then sleeps. */
static uint64_t catch_up(void *user)
{
    work *self = user;
    atomic_store(&self->done, atomic_load(&self->asked));
    return self->sleep_ns;
}

START_TEST(every_kick_is_answered)
{
    msdu__worker worker;
    work todo = {.sleep_ns = UINT64_MAX};
    msdu__worker_init(&worker, catch_up, &todo);
    ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
    for (uint64_t i = 1; i <= 20000; i++) {
        atomic_store(&todo.asked, i);
        msdu__worker_kick(&worker);
        while (atomic_load(&todo.done) != i) {
            sched_yield();
        }
    }
    msdu__worker_stop(&worker);
    msdu__worker_free(&worker);
}
END_TEST

START_TEST(stop_is_seen_at_any_moment)
{
    for (int i = 0; i < 5000; i++) {
        msdu__worker worker;
        work todo = {.sleep_ns = UINT64_MAX};
        msdu__worker_init(&worker, catch_up, &todo);
        ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
        for (int spin = 0; spin < i % 7; spin++) {
            sched_yield();
        }
        msdu__worker_stop(&worker);
        msdu__worker_free(&worker);
    }
}
END_TEST

START_TEST(a_limited_sleep_ends_by_itself)
{
    msdu__worker worker;
    work todo = {.sleep_ns = 1000};
    msdu__worker_init(&worker, catch_up, &todo);
    ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
    atomic_store(&todo.asked, 1);
    while (atomic_load(&todo.done) != 1) {
        sched_yield();
    }
    msdu__worker_stop(&worker);
    msdu__worker_free(&worker);
}
END_TEST

START_TEST(stop_without_start_and_twice_is_allowed)
{
    msdu__worker worker;
    work todo = {.sleep_ns = 0};
    msdu__worker_init(&worker, catch_up, &todo);
    msdu__worker_stop(&worker);
    ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
    msdu__worker_stop(&worker);
    msdu__worker_stop(&worker);
    msdu__worker_free(&worker);
}
END_TEST

typedef struct kicker {
    msdu__worker *worker;
    _Atomic bool is_done;
} kicker;

static void *kick_on(void *argument)
{
    kicker *self = argument;
    while (!atomic_load(&self->is_done)) {
        msdu__worker_kick(self->worker);
    }
    return NULL;
}

/* Ranks of backend "local" tell one that has finished; ThreadSanitizer sees what they touch. */
START_TEST(a_kick_may_come_after_stop)
{
    for (int i = 0; i < 200; i++) {
        msdu__worker worker;
        work todo = {.sleep_ns = UINT64_MAX};
        kicker late = {.worker = &worker};
        pthread_t thread;
        msdu__worker_init(&worker, catch_up, &todo);
        ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
        ck_assert_int_eq(pthread_create(&thread, NULL, kick_on, &late), 0);
        sched_yield();
        msdu__worker_stop(&worker);
        atomic_store(&late.is_done, true);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        msdu__worker_free(&worker);
    }
}
END_TEST

static _Atomic uint64_t handled;         /* signals */
static _Atomic uint64_t handled_by_work; /* of these, on the communication thread */
static _Thread_local bool is_work;

static void note_signal(int number)
{
    (void)number;
    atomic_fetch_add(&handled, 1);
    atomic_fetch_add(&handled_by_work, is_work ? 1 : 0);
}

static uint64_t work_on(void *user)
{
    is_work = true;
    return catch_up(user);
}

/* The test's own thread blocks them, so only the communication thread could take them. */
START_TEST(signals_are_the_trainers)
{
    msdu__worker worker;
    sigset_t one;
    sigset_t before;
    work todo = {.sleep_ns = UINT64_MAX};
    const struct sigaction action = {.sa_handler = note_signal};
    ck_assert_int_eq(sigaction(SIGUSR1, &action, NULL), 0);
    msdu__worker_init(&worker, work_on, &todo);
    ck_assert_int_eq(msdu__worker_start(&worker), MSDU_OK);
    atomic_store(&todo.asked, 1);
    msdu__worker_kick(&worker);
    while (atomic_load(&todo.done) != 1) {
        sched_yield();
    }
    (void)sigemptyset(&one);
    (void)sigaddset(&one, SIGUSR1);
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &one, &before), 0);
    ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
    atomic_store(&todo.asked, 2);
    msdu__worker_kick(&worker); /* a thread that is woken takes what is pending */
    while (atomic_load(&todo.done) != 2) {
        sched_yield();
    }
    msdu__worker_stop(&worker);
    msdu__worker_free(&worker);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, &before, NULL), 0); /* now it is taken */
    ck_assert_uint_eq(atomic_load(&handled), 1);
    ck_assert_uint_eq(atomic_load(&handled_by_work), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *cases = suite_case(suite, "worker", 60, NULL, NULL);
    tcase_add_test(cases, every_kick_is_answered);
    tcase_add_test(cases, stop_is_seen_at_any_moment);
    tcase_add_test(cases, a_limited_sleep_ends_by_itself);
    tcase_add_test(cases, stop_without_start_and_twice_is_allowed);
    tcase_add_test(cases, a_kick_may_come_after_stop);
    tcase_add_test(cases, signals_are_the_trainers);
    return suite_run(suite);
}
