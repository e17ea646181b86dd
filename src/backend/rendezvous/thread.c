/* SPDX-License-Identifier: Apache-2.0 */
/* Start and stop of the rendezvous' threads. */
#include "thread.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool msdu__thread_start(struct msdu__thread *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    thread->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (thread->stop_fd < 0) {
        return false;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    thread->is_running = pthread_create(&thread->id, NULL, run, argument) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!thread->is_running) {
        (void)close(thread->stop_fd);
    }
    return thread->is_running;
}

void msdu__thread_stop(struct msdu__thread *thread)
{
    uint64_t one = 1;
    if (thread->is_running) {
        while (write(thread->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
        }
        (void)pthread_join(thread->id, NULL);
        (void)close(thread->stop_fd);
        thread->is_running = false;
    }
}
