/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that a forked child must not keep. */
#include "port.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#define NOTED_MOST 65536 /* a descriptor beyond is a child's as well */

/* The process' own, as descriptors are: a byte each, so that threads do not share one. */
static unsigned char is_noted[NOTED_MOST];
static pthread_once_t is_watched = PTHREAD_ONCE_INIT;

static void close_noted(void)
{
    for (int fd = 0; fd < NOTED_MOST; fd++) {
        if (is_noted[fd] != 0) {
            is_noted[fd] = 0;
            (void)close(fd);
        }
    }
}

static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, close_noted);
}

void msdu__port_watch_forks(void)
{
    (void)pthread_once(&is_watched, watch);
}

int msdu__port_note(int fd)
{
    if (fd >= 0 && fd < NOTED_MOST) {
        is_noted[fd] = 1;
    }
    return fd;
}

void msdu__port_close(int fd)
{
    if (fd >= 0 && fd < NOTED_MOST) {
        is_noted[fd] = 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}
