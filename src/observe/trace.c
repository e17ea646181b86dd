/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timeline in the Trace Event Format (array form), for Perfetto and chrome://tracing. Events are
 * kept in a buffer of fixed size and written at round ends; nothing is allocated after opening.
 */
#include "observe.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENTS      16384 /* kept between two flushes */
#define LABEL_BYTES 48
#define OUT_BYTES   (64 * 1024)
#define LINE_BYTES  1024 /* longest event as text */
#define NAME_BYTES  128  /* of a slice, as text */

/* Tracks, one row each: Perfetto shows them as threads of the rank's process. */
enum { TRACK_STEP = 1, TRACK_ROUND, TRACK_OTHER, TRACK_QUEUE, TRACK_APPLY, TRACK_LANE };

enum { EVENT_SLICE, EVENT_SPAN, EVENT_COUNTER };

typedef struct event {
    int kind;
    int track;
    char label[LABEL_BYTES]; /* spans and counters */
    uint64_t begin_ns;       /* counters: when */
    uint64_t end_ns;
    double value;
    msdu__trace_slice slice;
} event;

struct msdu__trace {
    int fd;
    int32_t rank;
    uint64_t start_ns;
    uint64_t dropped;     /* events past the buffer's end since the last flush */
    uint32_t lanes_named; /* channels that have their name in the file */
    msdu_status status;   /* first failure ever */
    char text[MSDU__TEXT_BYTES];
    char *path;
    char (*slice_names)[NAME_BYTES]; /* escaped */
    uint32_t slice_count;
    uint32_t count;
    event *events;
    size_t out_used;
    char *out;
    locale_t plain;
};

/* --- output --- */

static void trace_fail(msdu__trace *trace, int cause)
{
    if (trace->status != MSDU_OK) {
        return;
    }
    trace->status = MSDU_ERR_IO;
    snprintf(trace->text, sizeof(trace->text), "rank %d: trace file %.400s: %s", trace->rank,
             trace->path, strerror(cause));
}

static void write_out(msdu__trace *trace)
{
    size_t done = 0;
    while (trace->status == MSDU_OK && done < trace->out_used) {
        ssize_t written = write(trace->fd, trace->out + done, trace->out_used - done);
        if (written > 0) {
            done += (size_t)written;
        } else if (written == 0 || errno != EINTR) {
            trace_fail(trace, written == 0 ? ENOSPC : errno);
        }
    }
    trace->out_used = 0;
}

static void put(msdu__trace *trace, const char *format, ...) MSDU_PRINTF(2, 3);
static void put(msdu__trace *trace, const char *format, ...)
{
    if (trace->out_used + LINE_BYTES > OUT_BYTES) {
        write_out(trace);
    }
    va_list args;
    va_start(args, format);
    int length = vsnprintf(trace->out + trace->out_used, LINE_BYTES, format, args);
    va_end(args);
    trace->out_used += length < LINE_BYTES ? (size_t)length : LINE_BYTES - 1;
}

/* JSON string without its quotes: what JSON does not allow becomes a '?', at most bytes - 1. */
static void escape(const char *in, char *out, size_t bytes)
{
    size_t used = 0;
    for (; *in != '\0' && used + 2 < bytes; in++) {
        unsigned char c = (unsigned char)*in;
        if (c == '"' || c == '\\') {
            out[used++] = '\\';
        }
        out[used++] = (char)(c < ' ' || c >= 0x7f ? '?' : c);
    }
    out[used] = '\0';
}

/* --- events as text; times in microseconds with three decimals --- */

typedef struct micros {
    unsigned long long whole;
    unsigned part;
} micros;

static micros micros_of(uint64_t ns)
{
    return (micros){(unsigned long long)(ns / 1000), (unsigned)(ns % 1000)};
}

static void put_metadata(msdu__trace *trace, const char *kind, int track, const char *name)
{
    put(trace, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
        kind, trace->rank, track, name);
}

/* Head of a complete event; the caller adds arguments and closes it. An event that began before
 * the trace did starts at 0. */
static void put_span(msdu__trace *trace, int track, const char *name, uint64_t begin_ns,
                     uint64_t end_ns)
{
    uint64_t begin = begin_ns > trace->start_ns ? begin_ns - trace->start_ns : 0;
    uint64_t end = end_ns > trace->start_ns ? end_ns - trace->start_ns : 0;
    micros at = micros_of(begin);
    micros lasts = micros_of(end > begin ? end - begin : 0);
    put(trace,
        ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%llu.%03u,\"dur\":%llu.%03u",
        name, trace->rank, track, at.whole, at.part, lasts.whole, lasts.part);
}

static const char *slice_name(const msdu__trace *trace, uint32_t slice)
{
    return slice < trace->slice_count ? trace->slice_names[slice] : "slice";
}

static void put_lane(msdu__trace *trace, uint32_t lane)
{
    for (; trace->lanes_named <= lane; trace->lanes_named++) {
        char name[32];
        snprintf(name, sizeof(name), "lane %u", trace->lanes_named);
        put_metadata(trace, "thread_name", TRACK_LANE + (int)trace->lanes_named, name);
    }
}

/*
 * Waiting and applying overlap between slices, and nesting is all a track can show; so these two
 * are async events (b, e), which get a row each, and only the link is a track.
 */
static void put_async(msdu__trace *trace, const msdu__trace_slice *s, int track, const char *name,
                      const uint64_t ends_ns[2])
{
    const char *category = track == TRACK_QUEUE ? "queued" : "apply";
    for (int i = 0; i < 2; i++) {
        uint64_t ns = ends_ns[i] > trace->start_ns ? ends_ns[i] - trace->start_ns : 0;
        micros at = micros_of(ns);
        put(trace,
            ",\n{\"ph\":\"%s\",\"cat\":\"%s\",\"id\":\"%d.%llu.%u\",\"name\":\"%s %s\",\"pid\":%d,"
            "\"tid\":%d,\"ts\":%llu.%03u,\"args\":{\"round\":%llu,\"slice\":%u}}",
            i == 0 ? "b" : "e", category, trace->rank, (unsigned long long)s->round, s->slice,
            category, name, trace->rank, track, at.whole, at.part, (unsigned long long)s->round,
            s->slice);
    }
}

static void put_slice(msdu__trace *trace, const msdu__trace_slice *s)
{
    const char *name = slice_name(trace, s->slice);
    put_lane(trace, s->lane);
    put_async(trace, s, TRACK_QUEUE, name, (uint64_t[2]){s->ready_ns, s->issued_ns});
    put_span(trace, TRACK_LANE + (int)s->lane, name, s->issued_ns, s->done_ns);
    put(trace, ",\"cat\":\"link\",\"args\":{\"round\":%llu,\"slice\":%u,\"bytes\":%llu}}",
        (unsigned long long)s->round, s->slice, (unsigned long long)s->bytes);
    put_async(trace, s, TRACK_APPLY, name, (uint64_t[2]){s->done_ns, s->applied_ns});
}

static void put_counter(msdu__trace *trace, const event *e)
{
    uint64_t ns = e->begin_ns > trace->start_ns ? e->begin_ns - trace->start_ns : 0;
    micros at = micros_of(ns);
    put(trace,
        ",\n{\"ph\":\"C\",\"name\":\"%s\",\"pid\":%d,\"tid\":0,\"ts\":%llu.%03u,"
        "\"args\":{\"value\":%.9g}}",
        e->label, trace->rank, at.whole, at.part, isfinite(e->value) ? e->value : 0.0);
}

static void put_event(msdu__trace *trace, const event *e)
{
    if (e->kind == EVENT_SLICE) {
        put_slice(trace, &e->slice);
    } else if (e->kind == EVENT_SPAN) {
        put_span(trace, e->track, e->label, e->begin_ns, e->end_ns);
        put(trace, "}");
    } else {
        put_counter(trace, e);
    }
}

/* --- life --- */

static void put_head(msdu__trace *trace)
{
    static const char *const names[] = {"step", "round", "other", "queued", "apply"};
    char process[32];
    snprintf(process, sizeof(process), "rank %d", trace->rank);
    put(trace,
        "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"%s\"}"
        "}",
        trace->rank, process);
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++) {
        put_metadata(trace, "thread_name", TRACK_STEP + i, names[i]);
    }
}

static void free_trace(msdu__trace *trace)
{
    if (trace->plain != (locale_t)0) {
        freelocale(trace->plain);
    }
    free(trace->path);
    free(trace->slice_names);
    free(trace->events);
    free(trace->out);
    free(trace);
}

static msdu__trace *allocate(const char *path, uint32_t slice_count)
{
    msdu__trace *trace = calloc(1, sizeof(*trace));
    if (trace == NULL) {
        return NULL;
    }
    trace->path = strdup(path);
    trace->slice_names = calloc((size_t)slice_count + 1, sizeof(*trace->slice_names));
    trace->events = calloc(EVENTS, sizeof(*trace->events));
    trace->out = malloc(OUT_BYTES);
    trace->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (trace->path == NULL || trace->slice_names == NULL || trace->events == NULL ||
        trace->out == NULL || trace->plain == (locale_t)0) {
        free_trace(trace);
        return NULL;
    }
    return trace;
}

static void name_slices(msdu__trace *trace, const char *const *slice_names, uint32_t slice_count)
{
    for (uint32_t i = 0; i < slice_count; i++) {
        escape(slice_names[i], trace->slice_names[i], NAME_BYTES);
    }
}

msdu_status msdu__trace_open(const char *path, int32_t rank, uint64_t start_ns,
                             const char *const *slice_names, uint32_t slice_count,
                             msdu__trace **trace_out)
{
    msdu__trace *trace = allocate(path, slice_count);
    if (trace == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: out of memory for the trace", rank);
    }
    trace->rank = rank;
    trace->start_ns = start_ns;
    trace->slice_count = slice_count;
    name_slices(trace, slice_names, slice_count);
    trace->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (trace->fd < 0) {
        msdu_status status =
            msdu__fail(MSDU_ERR_IO, "rank %d: trace file %s: %s", rank, path, strerror(errno));
        free_trace(trace);
        return status;
    }
    put_head(trace);
    *trace_out = trace;
    return MSDU_OK;
}

/* The next free place, NULL if the buffer is full, the file was given up, or there is no trace. */
static event *next_event(msdu__trace *trace, int kind, const char *label, uint64_t begin_ns)
{
    if (trace == NULL || trace->status != MSDU_OK) {
        return NULL;
    }
    if (trace->count == EVENTS) {
        trace->dropped++;
        return NULL;
    }
    event *e = &trace->events[trace->count++];
    e->kind = kind;
    escape(label, e->label, sizeof(e->label));
    e->begin_ns = begin_ns;
    return e;
}

void msdu__trace_slice_done(msdu__trace *trace, const msdu__trace_slice *slice)
{
    event *e = next_event(trace, EVENT_SLICE, "", 0);
    if (e != NULL) {
        e->slice = *slice;
    }
}

static int track_of(const char *track)
{
    if (strcmp(track, "step") == 0) {
        return TRACK_STEP;
    }
    return strcmp(track, "round") == 0 ? TRACK_ROUND : TRACK_OTHER;
}

void msdu__trace_span(msdu__trace *trace, const char *track, const char *label, uint64_t begin_ns,
                      uint64_t end_ns)
{
    event *e = next_event(trace, EVENT_SPAN, label, begin_ns);
    if (e != NULL) {
        e->track = track_of(track);
        e->end_ns = end_ns;
    }
}

void msdu__trace_counter(msdu__trace *trace, const char *name, uint64_t at_ns, double value)
{
    event *e = next_event(trace, EVENT_COUNTER, name, at_ns);
    if (e != NULL) {
        e->value = value;
    }
}

static void put_dropped(msdu__trace *trace)
{
    const event *last = &trace->events[EVENTS - 1];
    uint64_t ns = last->kind == EVENT_SLICE ? last->slice.applied_ns : last->begin_ns;
    event lost = {.kind = EVENT_COUNTER, .label = "events lost", .begin_ns = ns};
    lost.value = (double)trace->dropped;
    put_counter(trace, &lost);
}

static void put_all(msdu__trace *trace)
{
    locale_t before = uselocale(trace->plain); /* JSON wants decimal points */
    for (uint32_t i = 0; i < trace->count && trace->status == MSDU_OK; i++) {
        put_event(trace, &trace->events[i]);
    }
    if (trace->dropped > 0) {
        put_dropped(trace);
    }
    uselocale(before);
    trace->count = 0;
    trace->dropped = 0;
    write_out(trace);
}

msdu_status msdu__trace_flush(msdu__trace *trace)
{
    if (trace == NULL || trace->status != MSDU_OK) {
        return MSDU_OK;
    }
    put_all(trace);
    return trace->status == MSDU_OK ? MSDU_OK : msdu__fail_text(trace->status, trace->text);
}

msdu_status msdu__trace_rename(msdu__trace *trace, const char *const *slice_names,
                               uint32_t slice_count)
{
    char(*names)[NAME_BYTES] = calloc((size_t)slice_count + 1, sizeof(*names));
    if (names == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the trace", trace->rank);
    }
    msdu_status status = msdu__trace_flush(trace);
    free(trace->slice_names);
    trace->slice_names = names;
    trace->slice_count = slice_count;
    name_slices(trace, slice_names, slice_count);
    return status;
}

msdu_status msdu__trace_close(msdu__trace *trace)
{
    if (trace == NULL) {
        return MSDU_OK;
    }
    if (trace->status == MSDU_OK) {
        put_all(trace);
        put(trace, "\n]\n");
        write_out(trace);
    }
    if (close(trace->fd) != 0) {
        trace_fail(trace, errno);
    }
    msdu_status status = trace->status;
    if (status != MSDU_OK) {
        msdu__fail_text(status, trace->text);
    }
    free_trace(trace);
    return status;
}
