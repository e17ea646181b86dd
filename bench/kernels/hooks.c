/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench hooks`: what a training step pays for msdu_tensor_ready(), and what it allocates. */
#include "harness/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <msdu/msdu.h>

#include "harness/count_alloc.h"

#define TENSORS     200
#define ELEMENTS    16384 /* 64 KiB: 200 of them make about a dozen fused slices */
#define STEPS       200
#define SMOKE_STEPS 24
#define WARM_STEPS  10 /* counted for allocations, not timed */
#define RANKS_MAX   2
#define INTERVAL    8
#define GROUP       4 /* calls timed together: one costs less than reading the clock */
#define GROUPS      (TENSORS / GROUP)
#define COMPUTE_NS  2000000 /* between steps: the communication thread ends its round and sleeps */

/* What a call was for. */
enum { GRADIENT, PARAMETER, KINDS };

typedef struct setup {
    const char *domain;
    int64_t interval; /* of the fixed policy */
    int32_t ranks;
} setup;

typedef struct rank_work {
    const setup *setup;
    pthread_barrier_t *barrier;
    int32_t rank;
    uint32_t steps;
    float *memory;        /* gradients, then parameters */
    float *call_ns;       /* by step, kind and group of calls */
    bool *was_due;        /* by step */
    uint64_t allocations; /* rank 0 */
    msdu_status status;
    char error[512];
} rank_work;

static float *calls_of(const rank_work *w, uint32_t step, int kind)
{
    return w->call_ns + ((size_t)step * KINDS + (size_t)kind) * GROUPS;
}

/* --- a rank --- */

static msdu_status add_tensors(msdu_ctx *ctx, float *memory)
{
    msdu_status status = MSDU_OK;
    for (uint32_t i = 0; i < TENSORS && status == MSDU_OK; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer%u", i);
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = name;
        desc.gradient = memory + (size_t)i * ELEMENTS;
        desc.parameter = memory + (size_t)(TENSORS + i) * ELEMENTS;
        desc.count = ELEMENTS;
        desc.priority = (int32_t)i;
        status = msdu_tensor_add(ctx, &desc, NULL);
    }
    return status;
}

static msdu_status join(const rank_work *w, msdu_ctx **ctx_out)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    config.job = "bench hooks";
    config.ranks = w->setup->ranks;
    config.rank = w->rank;
    config.domain = w->setup->domain;
    config.interval = "fixed";
    config.interval_steps = w->setup->interval;
    config.wire = "float32";
    config.slice_bytes = 1U << 20; /* given, so that nothing is cut anew: that allocates */
    msdu_status status = msdu_create(&config, ctx_out);
    if (status == MSDU_OK) {
        status = add_tensors(*ctx_out, w->memory);
    }
    return status == MSDU_OK ? msdu_start(*ctx_out) : status;
}

/* Announce all tensors in the order of a backward pass. */
static msdu_status announce(msdu_ctx *ctx, msdu_what what, float *call_ns)
{
    msdu_status status = MSDU_OK;
    double began = msdu__bench_now();
    for (uint32_t group = 0; group < GROUPS; group++) {
        for (uint32_t i = 0; i < GROUP; i++) {
            msdu_status one = msdu_tensor_ready(ctx, TENSORS - 1 - group * GROUP - i, what);
            status = one != MSDU_OK ? one : status;
        }
        double now = msdu__bench_now();
        call_ns[group] = (float)((now - began) / GROUP);
        began = now;
    }
    return status;
}

static uint64_t rounds_of(msdu_ctx *ctx)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    return msdu_summary_get(ctx, &summary) == MSDU_OK ? summary.rounds : 0;
}

static msdu_status train_step(msdu_ctx *ctx, rank_work *w, uint32_t step)
{
    uint64_t rounds = rounds_of(ctx);
    msdu_status status = announce(ctx, MSDU_GRADIENT, calls_of(w, step, GRADIENT));
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = announce(ctx, MSDU_PARAMETER, calls_of(w, step, PARAMETER));
    }
    if (status == MSDU_OK) {
        status = msdu_step(ctx);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    const struct timespec compute = {.tv_nsec = COMPUTE_NS};
    nanosleep(&compute, NULL);
    /* domain gradient meets in every step, of which the last round may still be ending */
    w->was_due[step] = w->setup->interval == 1 || rounds_of(ctx) > rounds;
    return status;
}

/* Every rank passes every barrier, whatever failed. */
static msdu_status train(msdu_ctx *ctx, rank_work *w, msdu_status status)
{
    pthread_barrier_wait(w->barrier);
    if (w->rank == 0) {
        msdu__count_alloc_begin();
    }
    pthread_barrier_wait(w->barrier);
    for (uint32_t step = 0; step < w->steps && status == MSDU_OK; step++) {
        status = train_step(ctx, w, step);
    }
    pthread_barrier_wait(w->barrier);
    if (w->rank == 0) {
        w->allocations = msdu__count_alloc_end();
    }
    pthread_barrier_wait(w->barrier);
    return status == MSDU_OK ? msdu_finish(ctx) : status;
}

static void *rank_main(void *argument)
{
    rank_work *w = argument;
    msdu_ctx *ctx = NULL;
    w->status = join(w, &ctx);
    w->status = train(ctx, w, w->status);
    if (w->status != MSDU_OK) {
        snprintf(w->error, sizeof(w->error), "%s", msdu_last_error());
    }
    msdu_destroy(ctx);
    return NULL;
}

/* --- a setup --- */

static bool prepare(rank_work *work, pthread_barrier_t *barrier, const setup *s, uint32_t steps)
{
    bool has_memory = true;
    for (int32_t i = 0; i < s->ranks; i++) {
        work[i] = (rank_work){
            .setup = s,
            .barrier = barrier,
            .rank = i,
            .steps = steps,
            .memory = calloc(2 * (size_t)TENSORS * ELEMENTS, sizeof(float)),
            .call_ns = calloc((size_t)steps * KINDS * GROUPS, sizeof(float)),
            .was_due = calloc(steps, sizeof(bool)),
        };
        has_memory = has_memory && work[i].memory != NULL && work[i].call_ns != NULL &&
                     work[i].was_due != NULL;
    }
    return has_memory;
}

static bool run_ranks(rank_work *work, pthread_barrier_t *barrier, int32_t ranks)
{
    pthread_t threads[RANKS_MAX];
    pthread_barrier_init(barrier, NULL, (unsigned)ranks);
    for (int32_t i = 0; i < ranks; i++) {
        if (pthread_create(&threads[i], NULL, rank_main, &work[i]) != 0) {
            fprintf(stderr, "msdu bench: no thread for rank %d\n", i);
            exit(EXIT_FAILURE); /* ranks already started would wait for it */
        }
    }
    bool is_fine = true;
    for (int32_t i = 0; i < ranks; i++) {
        pthread_join(threads[i], NULL);
        if (work[i].status != MSDU_OK) {
            fprintf(stderr, "msdu bench: rank %d: %s\n", i, work[i].error);
            is_fine = false;
        }
    }
    pthread_barrier_destroy(barrier);
    return is_fine;
}

/* --- report --- */

/* Calls of one kind on steps that were or were not due; the number of groups. */
static uint32_t select_calls(const rank_work *work, int kind, bool is_due, double *out)
{
    uint32_t count = 0;
    for (int32_t r = 0; r < work->setup->ranks; r++) {
        for (uint32_t step = WARM_STEPS; step < work->steps; step++) {
            const float *calls = calls_of(&work[r], step, kind);
            for (uint32_t i = 0; i < GROUPS && work[r].was_due[step] == is_due; i++) {
                out[count++] = (double)calls[i];
            }
        }
    }
    return count;
}

static double mean_of(const double *values, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / count;
}

static void report_allocations(msdu__bench *bench, const rank_work *work, cJSON *record)
{
    if (msdu__count_alloc_is_there()) {
        fprintf(bench->text, "%12llu\n", (unsigned long long)work->allocations);
        cJSON_AddNumberToObject(record, "allocations_after_start", (double)work->allocations);
    } else {
        fprintf(bench->text, "%12s\n", "not counted");
        cJSON_AddNullToObject(record, "allocations_after_start");
    }
}

static void report(msdu__bench *bench, const rank_work *work, int kind, bool is_due, double *calls)
{
    const setup *s = work->setup;
    char name[96];
    uint32_t count = select_calls(work, kind, is_due, calls);
    if (count == 0) {
        return;
    }
    msdu__bench_stats t = msdu__bench_summarize(calls, count);
    double mean = mean_of(calls, count);
    double slowest = calls[count - 1] * GROUP;
    snprintf(name, sizeof(name), "%s domain, %s, %s, %d rank%s", s->domain,
             kind == GRADIENT ? "gradient" : "parameter", is_due ? "due" : "not due", s->ranks,
             s->ranks > 1 ? "s" : "");
    fprintf(bench->text, "%-44s %7u %7.1f %7.1f %7.1f %8.1f %10.0f ", name, count * GROUP, t.median,
            t.min, t.p90, mean, slowest);
    cJSON *record = msdu__bench_record(bench, name);
    cJSON_AddNumberToObject(record, "tensor_ready_ns", t.median);
    cJSON_AddNumberToObject(record, "min_ns", t.min);
    cJSON_AddNumberToObject(record, "p90_ns", t.p90);
    cJSON_AddNumberToObject(record, "mean_ns", mean);
    cJSON_AddNumberToObject(record, "slowest_group_ns", slowest);
    cJSON_AddNumberToObject(record, "calls", count * GROUP);
    cJSON_AddNumberToObject(record, "ranks", s->ranks);
    cJSON_AddNumberToObject(record, "tensors", TENSORS);
    cJSON_AddNumberToObject(record, "steps", work->steps);
    report_allocations(bench, work, record);
}

static bool measure(msdu__bench *bench, const setup *s, uint32_t steps)
{
    rank_work work[RANKS_MAX] = {{.setup = s}};
    pthread_barrier_t barrier;
    double *calls = calloc((size_t)steps * GROUPS * RANKS_MAX, sizeof(double));
    bool is_fine = prepare(work, &barrier, s, steps) && calls != NULL;
    if (!is_fine) {
        fprintf(stderr, "msdu bench: out of memory\n");
    }
    is_fine = is_fine && run_ranks(work, &barrier, s->ranks);
    /* domain gradient does not look at parameters */
    int kinds = s->interval == 1 ? 1 : KINDS;
    for (int kind = GRADIENT; kind < kinds && is_fine; kind++) {
        report(bench, work, kind, false, calls);
        report(bench, work, kind, true, calls);
    }
    free(calls);
    for (int32_t i = 0; i < s->ranks; i++) {
        free(work[i].memory);
        free(work[i].call_ns);
        free(work[i].was_due);
    }
    return is_fine;
}

int msdu__bench_hooks(msdu__bench *bench)
{
    static const setup setups[] = {
        {"gradient", 1, 1},
        {"parameter", INTERVAL, 1},
        {"gradient", 1, 2},
        {"parameter", INTERVAL, 2},
    };
    const msdu__bench_options *o = &bench->options;
    uint32_t steps = o->runs > 0 ? o->runs + WARM_STEPS : o->is_smoke ? SMOKE_STEPS : STEPS;
    bool is_fine = true;
    fprintf(bench->text,
            "# %d tensors of %d float32, %u steps; %d steps between meetings of domain parameter\n"
            "%-44s %7s %7s %7s %7s %8s %10s %12s\n",
            TENSORS, ELEMENTS, steps, INTERVAL, "# call, step", "calls", "ns", "min", "p90", "mean",
            "slowest", "allocations");
    for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++) {
        is_fine = measure(bench, &setups[i], steps) && is_fine;
    }
    return is_fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
