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

/* A kernel and the bytes it reads and writes for each element. */
typedef struct line {
    const char *name;
    double bytes;
    msdu_status (*run)(const bench *b, int32_t variant);
    int32_t variant; /* rule or format */
} line;

static msdu_status fail(msdu_status status, const char *text)
{
    (void)fprintf(stderr, "gpu_kernels: %s\n", text);
    return status;
}

/* Seconds of one run, 0 if it failed. */
static double measure(const bench *b, const line *l)
{
    uint64_t began = 0;
    for (int i = 0; i <= REPEATS; i++) {
        if (l->run(b, l->variant) != MSDU_OK) {
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

static msdu_launch at(const bench *b, uint64_t count)
{
    return (msdu_launch){.comm = b->comm, .count = count, .dtype = MSDU_FLOAT32};
}

static msdu_status copy(const bench *b, int32_t variant)
{
    const msdu_launch bytes = at(b, b->count * sizeof(float));
    (void)variant;
    return b->device->kernels->copy(&bytes, b->arrays[1], b->arrays[0]);
}

static msdu_status norm(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    (void)variant;
    return b->device->kernels->norm(&all, b->arrays[0], b->sums);
}

static msdu_status scale(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    (void)variant;
    return b->device->kernels->scale(&all, b->arrays[1], 1.0, b->sums);
}

static msdu_arrays arrays_of(const bench *b, void *snapshot)
{
    return (msdu_arrays){.param = b->arrays[0],
                         .anchor = b->arrays[1],
                         .update = b->arrays[2],
                         .snapshot = snapshot};
}

static msdu_status capture(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    const msdu_arrays arrays = arrays_of(b, NULL);
    uint64_t hash = 0;
    (void)variant;
    return b->device->kernels->capture(&all, &arrays, b->sums, &hash);
}

static msdu_status apply(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    const msdu_arrays arrays = arrays_of(b, b->arrays[3]);
    const msdu_rules rules = {.count = 1, .steps = {{.rule = variant, .a = 0.5}}};
    return b->device->kernels->apply(&all, &arrays, &rules, b->sums);
}

static msdu_status local(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    const msdu_recursion recursion = {.factor = 1};
    const msdu_recursion_state state = {b->arrays[3], b->arrays[4], b->arrays[5]};
    (void)variant;
    return b->device->kernels->local(&all, &recursion, &state, b->arrays[1]);
}

static msdu_status sketch(const bench *b, int32_t variant)
{
    const msdu_launch all = at(b, b->count);
    (void)variant;
    return b->device->kernels->sketch(&all, b->arrays[0], 0, b->sketch);
}

static msdu_exchange exchange_of(int32_t format)
{
    return (msdu_exchange){.format = format, .block = BLOCK, .ranks = 1, .factor = 1};
}

static msdu_status encode(const bench *b, int32_t format)
{
    const msdu_launch all = at(b, b->count);
    const msdu_exchange exchange = exchange_of(format);
    return b->device->kernels->encode(&all, &exchange, b->arrays[0],
                                      format >= MSDU_FORMAT_INT8 ? b->arrays[2] : NULL,
                                      b->arrays[1], b->sums);
}

static msdu_status decode(const bench *b, int32_t format)
{
    const msdu_launch all = at(b, b->count);
    const msdu_exchange exchange = exchange_of(format);
    return b->device->kernels->decode(&all, &exchange, b->arrays[0], b->arrays[1]);
}

static void print_lines(const bench *b, const char *version)
{
    static const line lines[] = {
        {"copy", 8, copy, 0},
        {"norm", 4, norm, 0},
        {"scale and norm", 8, scale, 0},
        {"capture", 12, capture, 0},
        {"apply average", 16, apply, MSDU_RULE_AVERAGE},
        {"apply delayed", 24, apply, MSDU_RULE_DELAYED},
        {"recursion local", 32, local, 0},
        {"sketch", 4, sketch, 0},
        {"encode bfloat16", 6, encode, MSDU_FORMAT_BFLOAT16},
        {"encode int8", 13, encode, MSDU_FORMAT_INT8},
        {"encode int4", 12.5, encode, MSDU_FORMAT_INT4},
        {"encode ternary", 12.25, encode, MSDU_FORMAT_TERNARY},
        {"encode sparse", 12.1, encode, MSDU_FORMAT_SPARSE},
        {"decode int4", 4.5, decode, MSDU_FORMAT_INT4},
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
