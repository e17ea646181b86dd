/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seen from outside: summary text, Prometheus text file, Chrome/Perfetto trace. Fed by the
 * communication thread only. File errors never disturb training: one warning, the file is given
 * up, and msdu_finish() reports ERR_IO.
 */
#ifndef MSDU_OBSERVE_H
#define MSDU_OBSERVE_H

#include "base/base.h"

/* --- summary.c --- */
/* Write the summary as a few lines of text (no trailing newline), at most bytes with the zero. */
void msdu__summary_text(const msdu_summary *summary, char *text, size_t bytes);
/* "3.2 times fewer", or "5.0 times more": bytes sent beside plain ones; neither is 0. */
#define MSDU__FEWER_BYTES 64
void msdu__summary_fewer(const msdu_summary *summary, char text[MSDU__FEWER_BYTES]);

/* --- metrics.c --- */
/* Replace the Prometheus file `path` (written beside it, then renamed). Metric names msdu_...,
 * label rank. Returns MSDU_OK or ERR_IO with text naming rank, file and cause. */
msdu_status msdu__metrics_write(const char *path, const msdu_summary *summary);

/* Replace %r in a path by the rank. False if it does not fit. */
bool msdu__observe_path(const char *pattern, int32_t rank, char *path_out, size_t bytes);

/* --- trace.c --- */
typedef struct msdu__trace msdu__trace;

/* Times of one slice in one round, ns on the context's clock. */
typedef struct msdu__trace_slice {
    uint64_t round;
    uint32_t slice;
    uint32_t lane;
    uint64_t bytes;    /* sent */
    uint64_t ready_ns; /* its last tensor became ready */
    uint64_t issued_ns;
    uint64_t done_ns; /* reduced */
    uint64_t applied_ns;
} msdu__trace_slice;

/*
 * Open the trace file and allocate a buffer; no allocation afterwards. Buffered events are written
 * at round ends (msdu__trace_flush). The file is valid JSON after every flush in the sense of
 * the Trace Event Format, whose array form needs no closing bracket.
 * start_ns becomes time 0. Returns MSDU_OK or ERR_IO, ERR_NO_MEMORY.
 */
msdu_status msdu__trace_open(const char *path, int32_t rank, uint64_t start_ns,
                             const char *const *slice_names, uint32_t slice_count,
                             msdu__trace **trace_out);
/* Slices were cut anew; what is kept of the old ones is written first. */
msdu_status msdu__trace_rename(msdu__trace *trace, const char *const *slice_names,
                               uint32_t slice_count);
/* NULL trace is allowed in all of these. Events past the buffer's end are counted, not kept. */
void msdu__trace_slice_done(msdu__trace *trace, const msdu__trace_slice *slice);
/* A span on track "step" or "round" with a short label, and a counter sample (h, bits). */
void msdu__trace_span(msdu__trace *trace, const char *track, const char *label, uint64_t begin_ns,
                      uint64_t end_ns);
void msdu__trace_counter(msdu__trace *trace, const char *name, uint64_t at_ns, double value);
/* Write out. After the first failure it returns ERR_IO with text, later calls do nothing and return
 * MSDU_OK. */
msdu_status msdu__trace_flush(msdu__trace *trace);
/* Flush, close the array, close the file, free. Returns the first failure ever. */
msdu_status msdu__trace_close(msdu__trace *trace);

#endif
