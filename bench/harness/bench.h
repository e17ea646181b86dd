/* SPDX-License-Identifier: Apache-2.0 */
/* What the microbenchmarks share: options, time, medians, records for JSON. */
#ifndef MSDU_BENCH_H
#define MSDU_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

/* Zero in any field: the bench's own choice. */
typedef struct msdu__bench_options {
    const char *json;    /* file of the records; "-": standard output, the text goes to stderr */
    const char *only;    /* kernels: rows whose name holds this */
    const char *backend; /* allreduce, overlap: backend of the library */
    const char *profile; /* overlap: name or file, and all that follows to is_spinning */
    const char *methods; /* names joined by commas */
    const char *trace;   /* files of timelines */
    double scale;
    double ratio; /* communication over computation; -1: default, 0: the profile's */
    double link_mbit;
    double latency_us;
    uint32_t ranks;
    uint32_t steps;
    uint32_t warmup;
    uint32_t interval;
    bool is_spinning;
    bool is_smoke; /* seconds only: does it run, are the results right? */
    uint32_t runs;
    uint64_t bytes;     /* kernels: of one array; allreduce: the only size; scale: the model */
    uint32_t rate_mbit; /* allreduce: shape the link */
    uint32_t mtu;       /* allreduce: of the shaped link */
    const char *wire;   /* allreduce: of the sliced path */
} msdu__bench_options;

typedef struct msdu__bench {
    msdu__bench_options options;
    FILE *text;     /* where tables go */
    cJSON *records; /* flat objects */
    bool is_wrong;  /* a result was not right */
} msdu__bench;

typedef struct msdu__bench_stats {
    double min;
    double median;
    double p90;
    uint32_t count;
} msdu__bench_stats;

double msdu__bench_now(void); /* nanoseconds, monotonic */
double msdu__bench_cpu(void); /* nanoseconds of processor time, all threads of the process */
/* Sorts values; count is at least 1. */
msdu__bench_stats msdu__bench_summarize(double *values, uint32_t count);
/* A new record with the fields every record has: bench, machine, cores, isa, commit, version. */
cJSON *msdu__bench_record(msdu__bench *bench, const char *name);
/* Size of the last-level cache, 0 if it is not known. */
uint64_t msdu__bench_cache_bytes(void);
/* malloc() of pages that were written once; ends the process with a line if there are none. */
void *msdu__bench_pages(uint64_t bytes);
void msdu__bench_pages_free(void *pages, uint64_t bytes);

/* The benches; each prints its table and adds its records. EXIT_SUCCESS or EXIT_FAILURE. */
int msdu__bench_kernels(msdu__bench *bench);
int msdu__bench_hooks(msdu__bench *bench);
int msdu__bench_allreduce(msdu__bench *bench);
int msdu__bench_overlap(msdu__bench *bench);
int msdu__bench_scale(msdu__bench *bench);

#endif
