/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of passes on a device, through the backend's own table: gigabytes per second that each
 * moves, beside the speed of a copy on the same device, as JSON on standard output.
 *
 *     gpu_passes [backend [MiB per array]]
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

/* A pass and the bytes it reads and writes for each element. */
typedef struct line {
    const char *name;
    double bytes;
    msdu_pass pass;
} line;

static msdu_status fail(msdu_status status, const char *text)
{
    (void)fprintf(stderr, "gpu_passes: %s\n", text);
    return status;
}

/* Seconds of one run, 0 if it failed. */
static double measure(const bench *b, const msdu_pass *pass)
{
    uint64_t began = 0;
    for (int i = 0; i <= REPEATS; i++) {
        if (b->device->run(b->comm, pass) != MSDU_OK) {
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

static msdu_pass basic(const bench *b, int32_t kind)
{
    return (msdu_pass){.size = sizeof(msdu_pass),
                       .kind = kind,
                       .dtype = MSDU_FLOAT32,
                       .count = b->count,
                       .factor = 1.0,
                       .in = b->arrays[0],
                       .out = b->arrays[1],
                       .param = b->arrays[0],
                       .anchor = b->arrays[1],
                       .update = b->arrays[2],
                       .drift = b->arrays[3],
                       .velocity = b->arrays[4],
                       .trace = b->arrays[5],
                       .sums = b->sums,
                       .sketch = b->sketch,
                       .block = BLOCK,
                       .ranks = 1};
}

static msdu_pass coded(const bench *b, int32_t kind, int32_t format)
{
    msdu_pass pass = basic(b, kind);
    pass.format = format;
    pass.residual = kind == MSDU_PASS_ENCODE && format >= MSDU_FORMAT_INT8 ? b->arrays[2] : NULL;
    return pass;
}

static msdu_pass rule(const bench *b, int32_t kind)
{
    msdu_pass pass = basic(b, MSDU_PASS_APPLY);
    pass.rule_count = 1;
    pass.rules[0] = (msdu_rule_step){.rule = kind, .a = 0.5};
    pass.snapshot = b->arrays[3];
    return pass;
}

static void print_lines(const bench *b, const char *version)
{
    msdu_pass copy = basic(b, MSDU_PASS_COPY);
    copy.count = b->count * sizeof(float);
    const line lines[] = {
        {"copy", 8, copy},
        {"norm", 4, basic(b, MSDU_PASS_NORM)},
        {"scale and norm", 8, basic(b, MSDU_PASS_SCALE)},
        {"capture", 12, basic(b, MSDU_PASS_CAPTURE)},
        {"apply average", 16, rule(b, MSDU_RULE_AVERAGE)},
        {"apply delayed", 24, rule(b, MSDU_RULE_DELAYED)},
        {"recursion local", 32, basic(b, MSDU_PASS_LOCAL)},
        {"sketch", 4, basic(b, MSDU_PASS_SKETCH)},
        {"encode bfloat16", 6, coded(b, MSDU_PASS_ENCODE, MSDU_FORMAT_BFLOAT16)},
        {"encode int8", 13, coded(b, MSDU_PASS_ENCODE, MSDU_FORMAT_INT8)},
        {"encode int4", 12.5, coded(b, MSDU_PASS_ENCODE, MSDU_FORMAT_INT4)},
        {"encode ternary", 12.25, coded(b, MSDU_PASS_ENCODE, MSDU_FORMAT_TERNARY)},
        {"encode sparse", 12.1, coded(b, MSDU_PASS_ENCODE, MSDU_FORMAT_SPARSE)},
        {"decode int4", 4.5, coded(b, MSDU_PASS_DECODE, MSDU_FORMAT_INT4)},
    };
    const size_t count = sizeof(lines) / sizeof(lines[0]);
    double copied = 0;
    (void)printf("{\"device\": \"%s\", \"nccl\": \"%s\", \"elements\": %llu, \"passes\": [",
                 b->device->name, version, (unsigned long long)b->count);
    for (size_t i = 0; i < count; i++) {
        double seconds = measure(b, &lines[i].pass);
        double rate = seconds > 0 ? lines[i].bytes * (double)b->count / seconds / 1e9 : 0;
        copied = i == 0 ? rate : copied;
        (void)printf("%s\n  {\"pass\": \"%s\", \"GB/s\": %.1f, \"of copy\": %.3f}",
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
                      .job = "gpu_passes",
                      .deadline_ns = 60000000000ULL,
                      .lanes = 1,
                      .requests = 1,
                      .fail = fail};
    if (mib < 1 || msdu__backend_find(name, &backend) != MSDU_OK ||
        !MSDU_BACKEND_HAS(backend, device)) {
        (void)fprintf(stderr, "gpu_passes: %s\n", msdu_last_error());
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
