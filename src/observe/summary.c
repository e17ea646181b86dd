/* SPDX-License-Identifier: Apache-2.0 */
/* The summary at exit, as a few lines of text. */
#include "observe.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct text_buf {
    char *text;
    size_t bytes;
    size_t used;
} text_buf;

static void add(text_buf *out, const char *format, ...) MSDU_PRINTF(2, 3);
static void add(text_buf *out, const char *format, ...)
{
    if (out->used >= out->bytes) {
        return;
    }
    va_list args;
    va_start(args, format);
    int length = vsnprintf(out->text + out->used, out->bytes - out->used, format, args);
    va_end(args);
    out->used += length > 0 ? (size_t)length : 0;
}

static void add_bytes(text_buf *out, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    add(out, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

static const char *or_none(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : "none";
}

void msdu__summary_fewer(const msdu_summary *summary, char text[MSDU__FEWER_BYTES])
{
    double sent = (double)summary->bytes_sent;
    double plain = (double)summary->bytes_plain;
    bool is_more = sent > plain;
    double times = is_more ? sent / plain : plain / sent;
    snprintf(text, MSDU__FEWER_BYTES, "%.1f times %s", times, is_more ? "more" : "fewer");
}

void msdu__summary_text(const msdu_summary *summary, char *text, size_t bytes)
{
    text_buf out = {text, bytes, 0};
    if (bytes > 0) {
        text[0] = '\0';
    }
    add(&out, "rank %d of %d: steps %llu, rounds %llu, domain %s, policy %s, wire %s\n",
        summary->rank, summary->ranks, (unsigned long long)summary->steps,
        (unsigned long long)summary->rounds, or_none(summary->domain), or_none(summary->interval),
        or_none(summary->wire));
    add(&out, "sent ");
    add_bytes(&out, summary->bytes_sent);
    add(&out, ", plain allreduce ");
    add_bytes(&out, summary->bytes_plain);
    if (summary->bytes_sent > 0 && summary->bytes_plain > 0) {
        char fewer[MSDU__FEWER_BYTES];
        msdu__summary_fewer(summary, fewer);
        add(&out, ", %s", fewer);
    }
    double elapsed = (double)summary->elapsed_ns;
    add(&out, "\nwaited %.2f s of %.2f s (%.1f %%), plan renewed %llu times\n",
        (double)summary->wait_ns * 1e-9, elapsed * 1e-9,
        elapsed > 0 ? 100 * (double)summary->wait_ns / elapsed : 0.0,
        (unsigned long long)summary->plan_renewals);
    add(&out, "communication thread %.2f s of processor time", (double)summary->cpu_ns * 1e-9);
    if (summary->bytes_sent > 0) {
        add(&out, ", %.3f s for each GB sent",
            (double)summary->cpu_ns / (double)summary->bytes_sent);
    }
    add(&out, "\nslices of ");
    add_bytes(&out, summary->slice_bytes);
    add(&out, ", %u in flight, %u lanes, chosen anew %u times", summary->window, summary->lanes,
        summary->slice_cuts);
    if (summary->network_ns + summary->straggler_ns > 0) {
        add(&out, "\nwaited for the network %.2f s, for slow ranks %.2f s on average, now %s",
            (double)summary->network_ns * 1e-9, (double)summary->straggler_ns * 1e-9,
            or_none(summary->state));
    }
    if (summary->missed > 0) {
        add(&out, "\nmissed %llu rounds by the clock, and came in later ones",
            (unsigned long long)summary->missed);
    }
    if (summary->carriers > 0) {
        add(&out,
            "\n%d ranks on %u hosts: gradients averaged over %u ranks now, local steps exchanged "
            "by "
            "%u of each host, ",
            summary->ranks, summary->hosts, summary->gradient_ranks, summary->carriers);
        add_bytes(&out, summary->bytes_inside);
        add(&out, " inside it");
    }
    add(&out, "\nh %llu, drift %.3g, divergence %.3g, last reason: %.*s",
        (unsigned long long)summary->interval_steps, summary->drift, summary->divergence,
        (int)sizeof(summary->reason), or_none(summary->reason));
}
