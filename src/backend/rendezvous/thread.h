/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the rendezvous: it polls a descriptor of its own, so that it ends when told to. */
#ifndef MSDU_RENDEZVOUS_THREAD_H
#define MSDU_RENDEZVOUS_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Zeros: not running. */
struct msdu__thread {
    int stop_fd; /* eventfd: the owner wants the thread to end */
    bool is_running;
    pthread_t id;
};

/* All signals are left to the trainer's threads. False: no descriptor, or no thread. */
bool msdu__thread_start(struct msdu__thread *thread, void *(*run)(void *), void *argument);
/* Nothing if it does not run. */
void msdu__thread_stop(struct msdu__thread *thread);

#endif
