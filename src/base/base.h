/* SPDX-License-Identifier: Apache-2.0 */
/* Types shared inside src: error text, log, clock. Under 100 lines. */
#ifndef MSDU_IMPL_H
#define MSDU_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/backend.h>
#include <msdu/msdu.h>

#include "clock.h"
#include "dtype.h"

#if defined(__GNUC__)
#define MSDU_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define MSDU_PRINTF(format_at, args_at)
#endif

#define MSDU__TEXT_BYTES 512 /* longest error or log line, with its zero */

/* error.c: set this thread's error text and return status. First to know calls it. */
msdu_status msdu__fail(msdu_status status, const char *format, ...) MSDU_PRINTF(2, 3);
/* Copy a text made on another thread into this thread's error text; returns status. */
msdu_status msdu__fail_text(msdu_status status, const char *text);

/* log.c: where lines go; copied by value into whoever logs. */
typedef struct msdu__log {
    msdu_log_fn fn; /* NULL: nowhere */
    void *user;
    int level; /* largest msdu_log_level that is let through */
    int rank;  /* put in front of every line once known; -1 before */
} msdu__log;

void msdu__log_line(const msdu__log *log, msdu_log_level level, const char *format, ...)
    MSDU_PRINTF(3, 4);
/* Sink used when MSDU_LOG asks for lines on standard error. */
void msdu__log_stderr(void *user, msdu_log_level level, const char *text);

/* clock: a function pointer, so that tests can drive time by hand. */
typedef uint64_t (*msdu__clock_fn)(void *user); /* nanoseconds, monotonic */
uint64_t msdu__clock_monotonic(void *user);     /* log.c */
/* The time in so many ns, for timed waits on a condition variable of msdu__cond_init(). */
void msdu__clock_after(uint64_t ns, struct timespec *out);

#endif
