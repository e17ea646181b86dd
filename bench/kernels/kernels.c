/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench kernels`: bytes per second of each pass beside memcpy, in turns. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define RUNS        15
#define SMOKE_RUNS  3
#define LEAST_BYTES (64ULL << 20)
#define SMOKE_BYTES (4ULL << 20)
#define POINTS      4096
#define REFILL_RUNS 32    /* repeated passes must not wear the values out */
#define STAGGER     1088U /* bytes between the arrays' places in their pages, see place() */

typedef struct work {
    msdu__kernel_arrays arrays;
    float *copy_from;
    float *copy_to;
    uint64_t bytes; /* of one array */
    uint32_t runs;
    double *pass_ns;
    double *copy_ns;
} work;

/* Arrays that all begin at the same place of a page fight for the same cache sets; the library's
 * own allocations and a trainer's do not, as a rule. */
static float *place(uint64_t bytes, uint32_t index)
{
    unsigned char *pages = msdu__bench_pages(bytes + (uint64_t)STAGGER * 8);
    return (float *)(void *)(pages + (size_t)STAGGER * index);
}

static uint64_t array_bytes(const msdu__bench_options *o)
{
    uint64_t wanted = 2 * msdu__bench_cache_bytes();
    if (o->is_smoke) {
        wanted = SMOKE_BYTES;
    } else if (wanted < LEAST_BYTES) {
        wanted = LEAST_BYTES;
    }
    wanted = o->bytes > 0 ? o->bytes : wanted;
    return wanted < 1U << 16 ? 1U << 16 : wanted & ~63ULL;
}

static void allocate(const msdu__bench_options *o, work *w)
{
    w->bytes = array_bytes(o);
    w->runs = o->runs > 0 ? o->runs : o->is_smoke ? SMOKE_RUNS : RUNS;
    w->arrays.count = w->bytes / sizeof(float);
    for (uint32_t i = 0; i < MSDU__ARRAYS; i++) {
        w->arrays.array[i] = place(w->bytes, i);
    }
    w->arrays.codes = (uint8_t *)place(w->bytes, MSDU__ARRAYS);
    w->copy_from = place(w->bytes, 0);
    w->copy_to = place(w->bytes, 1);
    w->pass_ns = msdu__bench_pages(w->runs * sizeof(double));
    w->copy_ns = msdu__bench_pages(w->runs * sizeof(double));
}

/* --- correctness --- */

static uint64_t stride_of(const work *w)
{
    /* odd: meets every place in a vector, a chunk and a block */
    return w->arrays.count / POINTS | 1U;
}

static void gather(const work *w, msdu__kernel_point *points)
{
    const uint64_t stride = stride_of(w);
    for (uint64_t i = 0; i * stride < w->arrays.count; i++) {
        for (uint32_t k = 0; k < MSDU__ARRAYS; k++) {
            points[i].value[k] = w->arrays.array[k][i * stride];
        }
    }
}

static bool is_as_expected(const msdu__kernel *kernel, const work *w, msdu__kernel_point *points)
{
    const uint64_t stride = stride_of(w);
    for (uint64_t i = 0; i * stride < w->arrays.count; i++) {
        kernel->expect(&points[i]);
        for (uint32_t k = 0; k < MSDU__ARRAYS; k++) {
            float is = w->arrays.array[k][i * stride];
            if ((kernel->changed >> k & 1U) != 0 &&
                memcmp(&is, &points[i].value[k], sizeof(is)) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* One pass over fresh values, compared with plain arithmetic on a sample. */
static bool check(const msdu__kernel *kernel, work *w)
{
    /* the stride is rounded down, so there may be up to twice as many */
    static msdu__kernel_point points[2 * POINTS + 2];
    msdu__kernel_prepare(kernel, &w->arrays);
    gather(w, points);
    kernel->run(kernel, &w->arrays);
    if (kernel->expect != NULL) {
        return is_as_expected(kernel, w, points);
    }
    return kernel->is_right(kernel, &w->arrays, points, stride_of(w));
}

/* --- measurement --- */

static void measure(const msdu__kernel *kernel, work *w)
{
    for (uint32_t run = 0; run < w->runs; run++) {
        if (run % REFILL_RUNS == 0) {
            msdu__kernel_prepare(kernel, &w->arrays);
        }
        double began = msdu__bench_now();
        memcpy(w->copy_to, w->copy_from, w->bytes);
        double copied = msdu__bench_now();
        kernel->run(kernel, &w->arrays);
        w->pass_ns[run] = msdu__bench_now() - copied;
        w->copy_ns[run] = copied - began;
        w->arrays.sink += (double)w->copy_to[run];
    }
}

static double moved_bytes(const msdu__kernel *kernel, const work *w)
{
    uint64_t coded = msdu__kernel_coded_bytes(kernel, w->arrays.count);
    return (double)(kernel->floats * w->bytes + kernel->coded * coded);
}

static void report(msdu__bench *bench, const msdu__kernel *kernel, work *w, bool is_right)
{
    msdu__bench_stats pass = msdu__bench_summarize(w->pass_ns, w->runs);
    msdu__bench_stats copy = msdu__bench_summarize(w->copy_ns, w->runs);
    double bytes = moved_bytes(kernel, w);
    double gbps = bytes / pass.median;
    double memcpy_gbps = 2.0 * (double)w->bytes / copy.median;
    fprintf(bench->text, "%-26s %10.1f %9.2f %9.2f %9.2f %7.2f %7.2f %6.2f %4s  %s\n", kernel->name,
            bytes / (1 << 20), pass.median / 1e6, pass.min / 1e6, pass.p90 / 1e6, gbps, memcpy_gbps,
            gbps / memcpy_gbps, is_right ? "yes" : "NO", kernel->moves);
    cJSON *record = msdu__bench_record(bench, kernel->name);
    cJSON_AddStringToObject(record, "group", kernel->group);
    cJSON_AddStringToObject(record, "moves", kernel->moves);
    cJSON_AddNumberToObject(record, "array_bytes", (double)w->bytes);
    cJSON_AddNumberToObject(record, "bytes", bytes);
    cJSON_AddNumberToObject(record, "runs", pass.count);
    cJSON_AddNumberToObject(record, "median_ms", pass.median / 1e6);
    cJSON_AddNumberToObject(record, "min_ms", pass.min / 1e6);
    cJSON_AddNumberToObject(record, "p90_ms", pass.p90 / 1e6);
    cJSON_AddNumberToObject(record, "gbps", gbps);
    cJSON_AddNumberToObject(record, "memcpy_gbps", memcpy_gbps);
    cJSON_AddNumberToObject(record, "ratio", gbps / memcpy_gbps);
    cJSON_AddBoolToObject(record, "is_right", is_right);
}

int msdu__bench_kernels(msdu__bench *bench)
{
    work w = {.runs = 0};
    const msdu__kernel *kernel = NULL;
    const char *only = bench->options.only;
    allocate(&bench->options, &w);
    fprintf(bench->text,
            "# arrays of %.1f MiB (last-level cache %.1f MiB), median, min and p90 of %u runs in "
            "turn with memcpy\n%-26s %10s %9s %9s %9s %7s %7s %6s %4s  %s\n",
            (double)w.bytes / (1 << 20), (double)msdu__bench_cache_bytes() / (1 << 20), w.runs,
            "# pass", "MiB moved", "ms", "min ms", "p90 ms", "GB/s", "memcpy", "ratio", "ok",
            "bytes counted");
    for (uint32_t i = 0; (kernel = msdu__kernel_at(i)) != NULL; i++) {
        if (only != NULL && strstr(kernel->name, only) == NULL) {
            continue;
        }
        bool is_right = check(kernel, &w);
        bench->is_wrong = bench->is_wrong || !is_right;
        measure(kernel, &w);
        report(bench, kernel, &w, is_right);
        fflush(bench->text);
    }
    return EXIT_SUCCESS;
}
