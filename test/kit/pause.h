/* SPDX-License-Identifier: Apache-2.0 */
/* A pause between two looks at what a test waits for, or to mix the order of threads. */
#ifndef TEST_PAUSE_H
#define TEST_PAUSE_H

#include <time.h>

static inline void pause_us(long us)
{
    const struct timespec span = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    (void)nanosleep(&span, NULL);
}

#endif
