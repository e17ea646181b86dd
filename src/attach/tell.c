/* SPDX-License-Identifier: Apache-2.0 */
#include "tell.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "settings.h"

void msdu__tell_bad_list(int rank, const msdu__attach_comm *comm)
{
    static atomic_flag was_told = ATOMIC_FLAG_INIT;
    char text[512];
    if (msdu__attach_has_bad_setting(comm, text, sizeof(text)) &&
        !atomic_flag_test_and_set(&was_told)) {
        (void)fprintf(stderr, "msdu: rank %d: nothing is attached: %s\n", rank, text);
    }
}

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

void msdu__tell_break(const msdu__engine *engine, const msdu__call *seen)
{
    (void)fprintf(
        stderr,
        "msdu: rank 0: the pattern of reductions changed after %" PRIu64 " steps: one of %" PRIu64
        " elements came unexpectedly; %spassing through, and "
        "learning anew\n",
        engine->steps, seen->count,
        engine->is_accumulated ? "the next two reductions of each gradient join the ranks; " : "");
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
