/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the kernels of a device, through the backend's own table: gigabytes per second that each
 * moves, beside the speed of a copy on the same device, as JSON on standard output.
 *
 *     gpu_kernels [backend [MiB per array]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "base/base.h"

#define REPEATS 30
#define ARRAYS  6
#define BLOCK   256

typedef struct bench {
    const msdu_device *device;
    msdu_comm *comm;
    uint64_t count; /* floats of an array */
    void *arrays[ARRAYS];
    msdu_sums *sums;
    float *sketch;
} bench;

typedef enum kernel { COPY, NORM, SCALE, CAPTURE, APPLY, LOCAL, SKETCH, ENCODE, DECODE } kernel;

/* A kernel and the bytes it reads and writes for each element. */
typedef struct line {
    const char *name;
    double bytes;
    kernel kernel;
    int32_t variant; /* rule or format */
} line;

static msdu_status fail(msdu_status status, const char *text)
{
    (void)fprintf(stderr, "gpu_kernels: %s\n", text);
    return status;
}

static msdu_status run(const bench *b, const line *l)
{
    const msdu_kernels *table = b->device->kernels;
    void *const *x = b->arrays;
    const msdu_launch at = {.comm = b->comm, .count = b->count, .dtype = MSDU_FLOAT32};
    const msdu_launch bytes = {.comm = b->comm, .count = b->count * sizeof(float)};
    const msdu_arrays now = {.param = x[0], .anchor = x[1], .update = x[2]};
    const msdu_arrays late = {.param = x[0], .anchor = x[1], .update = x[2], .snapshot = x[3]};
    const msdu_rules rules = {.count = 1, .steps = {{.rule = l->variant, .a = 0.5}}};
    const msdu_recursion recursion = {.factor = 1};
    const msdu_recursion_state state = {x[3], x[4], x[5]};
    const msdu_exchange exchange = {.format = l->variant, .block = BLOCK, .ranks = 1, .factor = 1};
    uint64_t hash = 0;
    switch (l->kernel) {
    case COPY:
        return table->copy(&bytes, x[1], x[0]);
    case NORM:
        return table->norm(&at, x[0], b->sums);
    case SCALE:
        return table->scale(&at, x[1], 1.0, b->sums);
    case CAPTURE:
        return table->capture(&at, &now, b->sums, &hash);
    case APPLY:
        return table->apply(&at, &late, &rules, b->sums);
    case LOCAL:
        return table->local(&at, &recursion, &state, x[1]);
    case SKETCH:
        return table->sketch(&at, x[0], 0, b->sketch);
    case ENCODE:
        return table->encode(&at, &exchange, x[0], l->variant >= MSDU_FORMAT_INT8 ? x[2] : NULL,
                             x[1], b->sums);
    case DECODE:
        break;
    }
    return table->decode(&at, &exchange, x[0], x[1]);
}

/* Seconds of one run, 0 if it failed. */
static double measure(const bench *b, const line *l)
{
    uint64_t began = 0;
    for (int i = 0; i <= REPEATS; i++) {
        if (run(b, l) != MSDU_OK) {
            return 0;
        }
        if (i == 0) { /* warm */
            (void)b->device->before(b->comm, NULL, 1);
            began = msdu__clock_monotonic(NULL);
        }
    }
    if (b->device->before(b->comm, NULL, 1) != MSDU_OK) {
        return 0;
    }
    return (double)(msdu__clock_monotonic(NULL) - began) / 1e9 / REPEATS;
}

static void print_lines(const bench *b, const char *version)
{
    static const line lines[] = {
        {"copy", 8, COPY, 0},
        {"norm", 4, NORM, 0},
        {"scale and norm", 8, SCALE, 0},
        {"capture", 12, CAPTURE, 0},
        {"apply average", 16, APPLY, MSDU_RULE_AVERAGE},
        {"apply delayed", 24, APPLY, MSDU_RULE_DELAYED},
        {"recursion local", 32, LOCAL, 0},
        {"sketch", 4, SKETCH, 0},
        {"encode bfloat16", 6, ENCODE, MSDU_FORMAT_BFLOAT16},
        {"encode int8", 13, ENCODE, MSDU_FORMAT_INT8},
        {"encode int4", 12.5, ENCODE, MSDU_FORMAT_INT4},
        {"encode int2", 12.25, ENCODE, MSDU_FORMAT_INT2},
        {"encode sparse", 12.1, ENCODE, MSDU_FORMAT_SPARSE},
        {"decode int4", 4.5, DECODE, MSDU_FORMAT_INT4},
    };
    const size_t count = sizeof(lines) / sizeof(lines[0]);
    double copied = 0;
    (void)printf("{\"device\": \"%s\", \"nccl\": \"%s\", \"elements\": %llu, \"kernels\": [",
                 b->device->name, version, (unsigned long long)b->count);
    for (size_t i = 0; i < count; i++) {
        double seconds = measure(b, &lines[i]);
        double rate = seconds > 0 ? lines[i].bytes * (double)b->count / seconds / 1e9 : 0;
        copied = i == 0 ? rate : copied;
        (void)printf("%s\n  {\"kernel\": \"%s\", \"GB/s\": %.1f, \"of copy\": %.3f}",
                     i == 0 ? "" : ",", lines[i].name, rate, copied > 0 ? rate / copied : 0);
    }
    (void)printf("\n]}\n");
}

static bool reserve(bench *b)
{
    bool is_there = true;
    for (int i = 0; i < ARRAYS; i++) {
        b->arrays[i] = b->device->allocate(b->comm, b->count * sizeof(float), 0);
        is_there = is_there && b->arrays[i] != NULL;
    }
    b->sums = b->device->allocate(b->comm, sizeof(*b->sums), 1);
    b->sketch = b->device->allocate(b->comm, 64 * sizeof(float), 1);
    return is_there && b->sums != NULL && b->sketch != NULL;
}

static void release(bench *b)
{
    for (int i = 0; i < ARRAYS; i++) {
        b->device->release(b->comm, b->arrays[i], 0);
    }
    b->device->release(b->comm, b->sums, 1);
    b->device->release(b->comm, b->sketch, 1);
}

int main(int argc, char **argv)
{
    const msdu_backend *backend = NULL;
    const char *name = argc > 1 ? argv[1] : "nccl";
    long mib = argc > 2 ? strtol(argv[2], NULL, 10) : 256;
    msdu_host host = {.size = sizeof(host),
                      .ranks = 1,
                      .job = "gpu_kernels",
                      .deadline_ns = 60000000000ULL,
                      .lanes = 1,
                      .requests = 1,
                      .fail = fail};
    if (mib < 1 || msdu__backend_find(name, &backend) != MSDU_OK ||
        !MSDU_BACKEND_HAS(backend, device)) {
        (void)fprintf(stderr, "gpu_kernels: %s\n", msdu_last_error());
        return 1;
    }
    bench b = {.device = backend->device, .count = (uint64_t)mib << 18};
    if (backend->open(&host, &b.comm) != MSDU_OK) {
        return 1;
    }
    bool is_there = reserve(&b);
    if (is_there) {
        print_lines(&b, backend->version);
    }
    release(&b);
    backend->close(b.comm);
    return is_there ? 0 : 1;
}
