/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: a loop around one step function; sleeps on a condition variable. */
#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static void sleep_until_kicked(msdu__worker *worker, uint64_t limit_ns)
{
    struct timespec deadline;
    pthread_mutex_lock(&worker->lock);
    /* seq_cst on both flags: either kick() sees us asleep, or we see its kick */
    msdu__flag_set(&worker->is_asleep, true);
    if (limit_ns != UINT64_MAX) {
        msdu__clock_after(limit_ns, &deadline);
    }
    while (!msdu__flag_get(&worker->is_kicked)) {
        if (limit_ns == UINT64_MAX) {
            pthread_cond_wait(&worker->wake, &worker->lock);
        } else if (pthread_cond_timedwait(&worker->wake, &worker->lock, &deadline) == ETIMEDOUT) {
            break;
        }
    }
    msdu__flag_set(&worker->is_asleep, false);
    pthread_mutex_unlock(&worker->lock);
}

static void *worker_main(void *argument)
{
    msdu__worker *worker = argument;
    for (;;) {
        /* before anything is looked at: a kick from here on means another look */
        msdu__flag_set(&worker->is_kicked, false);
        if (msdu__flag_get(&worker->is_stopping)) {
            break;
        }
        uint64_t limit_ns = worker->step(worker->user);
        if (limit_ns > 0) {
            sleep_until_kicked(worker, limit_ns);
        }
    }
    return NULL;
}

void msdu__worker_init(msdu__worker *worker, msdu__worker_fn step, void *user)
{
    worker->step = step;
    worker->user = user;
    msdu__flag_set(&worker->is_running, false);
    msdu__flag_set(&worker->is_kicked, false);
    msdu__flag_set(&worker->is_asleep, false);
    msdu__flag_set(&worker->is_stopping, false);
    pthread_mutex_init(&worker->lock, NULL);
    msdu__cond_init(&worker->wake);
}

/* All signals are left to the trainer's threads. */
static int create_thread(msdu__worker *worker)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

msdu_status msdu__worker_start(msdu__worker *worker)
{
    msdu__flag_set(&worker->is_running, true);
    int error = create_thread(worker);
    if (error != 0) {
        msdu__flag_set(&worker->is_running, false);
        return msdu__fail(MSDU_ERR_NO_MEMORY, "cannot start the communication thread: %s",
                          strerror(error));
    }
    return MSDU_OK;
}

void msdu__worker_kick(msdu__worker *worker)
{
    /* A kick that was not yet answered covers this one: what was pushed before it will be seen. */
    if (msdu__flag_swap(&worker->is_kicked, true) || !msdu__flag_get(&worker->is_asleep)) {
        return;
    }
    pthread_mutex_lock(&worker->lock);
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

void msdu__worker_stop(msdu__worker *worker)
{
    if (!msdu__flag_get(&worker->is_running)) {
        return;
    }
    msdu__flag_set(&worker->is_stopping, true);
    msdu__worker_kick(worker);
    pthread_join(worker->thread, NULL);
    msdu__flag_set(&worker->is_running, false);
}

void msdu__worker_free(msdu__worker *worker)
{
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->lock);
}
