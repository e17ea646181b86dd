/* SPDX-License-Identifier: Apache-2.0 */
/* One log callback with four levels, the sink for standard error, and the real clock. */
#include "base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void msdu__log_line(const msdu__log *log, msdu_log_level level, const char *format, ...)
{
    if (log->fn == NULL || (int)level > log->level) {
        return;
    }
    char text[MSDU__TEXT_BYTES];
    int used = 0;
    if (log->rank >= 0) {
        used = snprintf(text, sizeof(text), "rank %d: ", log->rank);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof(text) - (size_t)used, format, args);
    va_end(args);
    log->fn(log->user, level, text);
}

static const char *level_name(msdu_log_level level)
{
    static const char *const names[] = {"default", "error", "warn", "info", "debug"};
    unsigned index = (unsigned)level;
    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "?";
}

void msdu__log_stderr(void *user, msdu_log_level level, const char *text)
{
    (void)user;
    char line[MSDU__TEXT_BYTES + 32];
    int length = snprintf(line, sizeof(line), "msdu %s: %s\n", level_name(level), text);
    if ((size_t)length >= sizeof(line)) {
        length = (int)sizeof(line) - 1;
        line[length - 1] = '\n';
    }
    /* One write, so that lines of several ranks on one terminal stay whole. */
    while (write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR) {
    }
}

uint64_t msdu__clock_monotonic(void *user)
{
    (void)user;
    return msdu__clock_now();
}

void msdu__clock_after(uint64_t ns, struct timespec *out)
{
    *out = msdu__clock_spec(msdu__clock_now() + ns);
}
