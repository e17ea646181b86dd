/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock; inline, so that modules need nothing of the library for it. */
#ifndef MSDU_CLOCK_H
#define MSDU_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define MSDU__NS_PER_S UINT64_C(1000000000)

/* In nanoseconds. */
static inline uint64_t msdu__clock_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * MSDU__NS_PER_S + (uint64_t)now.tv_nsec;
}

/* A time or a span, as the calls that wait take it. */
static inline struct timespec msdu__clock_spec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / MSDU__NS_PER_S),
                             .tv_nsec = (long)(ns % MSDU__NS_PER_S)};
}

/* A poll's next sleep: half as long again as the one before, 10 us to 1 ms. 0 stands for none yet.
 */
static inline void msdu__clock_pause(uint64_t *pause_ns)
{
    uint64_t next = *pause_ns + *pause_ns / 2;
    next = next < UINT64_C(10000) ? UINT64_C(10000) : next;
    *pause_ns = next > UINT64_C(1000000) ? UINT64_C(1000000) : next;
    const struct timespec span = msdu__clock_spec(*pause_ns);
    (void)nanosleep(&span, NULL);
}

/* A condition variable whose timed waits go by this clock. */
static inline void msdu__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

#endif
