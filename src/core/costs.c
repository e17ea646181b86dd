/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What coding takes on this machine. A thread that is stopped, or a neighbor that has the memory
 * bus, makes a pass look slow, so the quickest of several counts.
 */
#include "costs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Elements: more than the first cache levels hold, together with the codes. */
#define COUNT 131072U
#define BLOCK 256U
/* Passes of each kind: at least so many, of which the first fills caches, then for as long. */
#define PASSES_LEAST 4
#define PASSES_MOST  16
#define PASSES_NS    1000000U

#define SCALE_MOST 8.0 /* and an eighth: beyond that something else was measured */

/* Room for one slice in all its forms. */
typedef struct bench {
    const msdu__wire *wire;
    float *value;
    float *residual;
    float *sum;
    uint8_t *codes;
} bench;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static msdu__wire_costs here; /* written once */

static void encode(const bench *b)
{
    (void)msdu__wire_encode(b->wire, b->value, b->wire->has_feedback ? b->residual : NULL, COUNT,
                            BLOCK, b->codes);
}

static void sum_up(const bench *b)
{
    msdu__wire_decode_add(b->wire, b->codes, COUNT, BLOCK, b->sum);
}

static void decode(const bench *b)
{
    msdu__wire_decode(b->wire, b->codes, COUNT, BLOCK, b->value);
}

static void copy(const bench *b)
{
    memcpy(b->sum, b->value, COUNT * sizeof(float));
}

/* An element of it. */
static double quickest(const bench *b, void (*pass)(const bench *b))
{
    uint64_t best = UINT64_MAX;
    uint64_t first = msdu__clock_now();
    uint64_t began = first;
    for (int i = 0; i < PASSES_LEAST || (i < PASSES_MOST && began - first < PASSES_NS); i++) {
        pass(b);
        uint64_t now = msdu__clock_now();
        best = now - began < best ? now - began : best;
        began = now;
    }
    return (double)best / COUNT;
}

/* As gradients are: of both signs, most of them small. */
static void fill(const bench *b)
{
    uint32_t x = 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            x = x * 1664525U + 1013904223U;
            sum += (double)(x >> 8) * 0x1p-24 - 0.5;
        }
        b->value[i] = (float)sum;
    }
}

static void measure_all(bench *b)
{
    fill(b);
    here.copy_ns = quickest(b, copy) / sizeof(float);
    for (int wire = MSDU__WIRE_FLOAT32 + 1; wire < MSDU__WIRE_COUNT; wire++) {
        b->wire = msdu__wire_at(wire);
        memset(b->residual, 0, COUNT * sizeof(float));
        here.of[wire].encode = quickest(b, encode);
        here.of[wire].sum = quickest(b, sum_up);
        /* into `value`, which then is what this format made of it */
        here.of[wire].decode = quickest(b, decode);
        fill(b);
    }
}

static void measure(void)
{
    float *memory = malloc(4 * COUNT * sizeof(float));
    here = msdu__wire_costs_server;
    if (memory == NULL) {
        return;
    }
    memset(memory, 0, 4 * COUNT * sizeof(float));
    bench b = {.value = memory,
               .residual = memory + COUNT,
               .sum = memory + 2 * COUNT,
               .codes = (uint8_t *)(memory + 3 * COUNT)};
    measure_all(&b);
    free(memory);
}

const msdu__wire_costs *msdu__costs_here(void)
{
    pthread_once(&once, measure);
    return &here;
}

/* A format is chosen, by what it takes. With a clock of a test nothing else is measured either. On
 * a device its own kernels run, of which nothing is known before they do. */
static bool is_measured(const msdu__job *job)
{
    return job->clock == msdu__clock_monotonic && job->device == NULL && job->ranks > 1 &&
           job->settings.wire < 0;
}

msdu__wire_costs msdu__costs_own(const msdu__engine *e)
{
    return is_measured(e->job) ? *e->job->measure_costs() : msdu__wire_costs_server;
}

void msdu__costs_agree(msdu__engine *e, const msdu__wire_costs *of)
{
    e->job->costs = of[0];
    for (int32_t rank = 1; rank < e->job->ranks; rank++) {
        msdu__wire_costs_slower(&e->job->costs, &of[rank]);
    }
    msdu__derive_costs(e->job);
}

static double bounded(double value)
{
    return value < SCALE_MOST ? (value > 1 / SCALE_MOST ? value : 1 / SCALE_MOST) : SCALE_MOST;
}

/* One format stands for all: what slows one down, such as the memory bus, slows the others too.
 * Over two levels not every rank codes every slice. */
void msdu__costs_learn(msdu__engine *e, msdu__round_stats *stats)
{
    const msdu__interval_args *args = &e->job->interval_args;
    msdu__costs_told *told = &e->costs;
    double expected = args->wires[stats->link_wire].code_ns * (double)stats->elements;
    if (stats->coding_ns > 0 && expected > 0 && !e->is_two_level) {
        double scale = bounded(stats->coding_ns / expected);
        told->code_scale += (told->code_scale > 0 ? MSDU__SMOOTH : 1) * (scale - told->code_scale);
    }
    told->taken_share += MSDU__SMOOTH * (stats->taken_share - told->taken_share);
    stats->code_scale = told->code_scale;
    stats->taken_share = told->taken_share;
}
