/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: a loop around one step function; sleeps on a condition variable. */
#ifndef MSDU_WORKER_H
#define MSDU_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "base/cell.h"

/*
 * One step of work. Returns how long the thread may sleep if nobody kicks it: 0 to be called again
 * at once, UINT64_MAX for no limit.
 */
typedef uint64_t (*msdu__worker_fn)(void *user);

typedef struct msdu__worker {
    pthread_t thread;
    pthread_mutex_t lock; /* innermost: nothing else is locked while it is held */
    pthread_cond_t wake;
    msdu__flag is_kicked;
    msdu__flag is_asleep;
    msdu__flag is_stopping;
    msdu__flag is_running; /* from start() to stop() */
    msdu__worker_fn step;
    void *user;
} msdu__worker;

void msdu__worker_init(msdu__worker *worker, msdu__worker_fn step, void *user);
msdu_status msdu__worker_start(msdu__worker *worker);
/*
 * There is something to do. Cheap when the thread is awake. Thread: any, from init() to free(): a
 * backend tells of its last operations on threads of other ranks, after this rank's thread ended.
 */
void msdu__worker_kick(msdu__worker *worker);
/* End the thread after its present step and join it. Allowed when it never started. */
void msdu__worker_stop(msdu__worker *worker);
/* After stop(), and when nobody can kick any more: after the backend's close(). */
void msdu__worker_free(msdu__worker *worker);

#endif
