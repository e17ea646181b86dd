/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication thread and a stop, in every order of their steps: the thread's loop runs in the
 * test's own thread, and the two halves of a stop happen before any two of its looks at a flag.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static void before_flag(void);
static int pretend_wait(void);

/* The loop as it is, but with a hook before each use of a flag, and without waiting or locking. */
#undef atomic_load
#undef atomic_store
#undef atomic_exchange
#define atomic_load(flag)                   (before_flag(), atomic_load_explicit(flag, memory_order_seq_cst))
#define atomic_store(flag, value)           (before_flag(), (void)((*(flag)) = (value)))
#define atomic_exchange(flag, value)        atomic_exchange_explicit(flag, value, memory_order_seq_cst)
#define pthread_cond_wait(condition, mutex) pretend_wait()
#define pthread_cond_signal(condition)      ((void)0)
#define pthread_mutex_lock(mutex)           ((void)0)
#define pthread_mutex_unlock(mutex)         ((void)0)
#define msdu__worker_start                  order_worker_start
#define msdu__worker_kick                   order_worker_kick
#define msdu__worker_stop                   order_worker_stop
#define msdu__worker_init                   order_worker_init
#define msdu__worker_free                   order_worker_free
#include "core/worker.c"
#include "suite.h"

#define LOOKS_MOST 40 /* more than the loop has until it sleeps for good */
#define WORK       3  /* steps that find something to do */

static struct {
    msdu__worker worker;
    int looks;      /* at flags, so far */
    int steps;      /* of work */
    int stop_at;    /* the look before which is_stopping is set ... */
    int kick_at;    /* ... and before which the kick comes */
    bool is_set;    /* that happened */
    bool is_kicked; /* that too */
    bool is_nested; /* in the kick's own looks */
} order;

static void other_thread(void)
{
    if (!order.is_set && order.looks >= order.stop_at) {
        atomic_store_explicit(&order.worker.is_stopping.value, true, memory_order_seq_cst);
        order.is_set = true;
    }
    if (!order.is_kicked && order.looks >= order.kick_at) {
        order.is_nested = true;
        order_worker_kick(&order.worker);
        order.is_nested = false;
        order.is_kicked = true;
    }
}

static void before_flag(void)
{
    if (!order.is_nested) {
        other_thread();
        order.looks++;
    }
}

/* Asleep: only what the other thread still has to do can end it. */
static int pretend_wait(void)
{
    if (order.is_kicked) {
        ck_abort_msg("lost: stop before look %d, its kick before look %d", order.stop_at,
                     order.kick_at);
    }
    order.looks = order.looks > order.kick_at ? order.looks : order.kick_at;
    other_thread();
    return 0;
}

static uint64_t work(void *user)
{
    (void)user;
    return ++order.steps < WORK ? 0 : UINT64_MAX;
}

START_TEST(stop_is_seen_in_any_order)
{
    for (int stop_at = 0; stop_at < LOOKS_MOST; stop_at++) {
        for (int kick_at = stop_at; kick_at < LOOKS_MOST; kick_at++) {
            memset(&order, 0, sizeof(order));
            order.worker.step = work;
            order.stop_at = stop_at;
            order.kick_at = kick_at;
            (void)worker_main(&order.worker);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker_order");
    TCase *cases = suite_case(suite, "order", 0, NULL, NULL);
    tcase_add_test(cases, stop_is_seen_in_any_order);
    return suite_run(suite);
}
