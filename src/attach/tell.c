/* SPDX-License-Identifier: Apache-2.0 */
#include "tell.h"

#include <inttypes.h>
#include <stdio.h>

void msdu__tell_summary(const msdu_summary *s)
{
    if (s->bytes_sent == 0) {
        return;
    }
    (void)fprintf(stderr,
                  "msdu: %" PRIu64 " steps, %" PRIu64 " rounds, domain %s, interval %" PRIu64
                  ", wire %s: %" PRIu64 " bytes sent by rank 0 instead of %" PRIu64
                  ", %.1f times fewer\n",
                  s->steps, s->rounds, s->domain, s->interval_steps, s->wire, s->bytes_sent,
                  s->bytes_plain, (double)s->bytes_plain / (double)s->bytes_sent);
}

void msdu__tell_passed(const uint64_t *passed, const char *const *reasons, int count)
{
    (void)fprintf(stderr, "msdu: passed through:");
    const char *comma = " ";
    for (int i = 0; i < count; i++) {
        if (passed[i] > 0) {
            (void)fprintf(stderr, "%s%" PRIu64 " %s", comma, passed[i], reasons[i]);
            comma = ", ";
        }
    }
    (void)fprintf(stderr, "%s\n", comma[0] == ' ' ? " nothing" : "");
}
