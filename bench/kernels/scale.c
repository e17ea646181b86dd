/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `msdu bench scale`: what thousands of tensors cost: adding them, starting, planning, a step. Two
 * ranks as threads over the backend "local"; every tensor is a slice of its own.
 */
#include "harness/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

#include "slicer/plan.h"

#define RANKS         2
#define TENSORS       4096
#define SMOKE_TENSORS 256
#define SIZES         4 /* number of tensors: an eighth of the largest, a quarter, a half, all */
#define BYTES         2000000000 /* of the largest model */
#define SMOKE_BYTES   4000000
#define STEPS         15
#define SMOKE_STEPS   3
#define WARM_STEPS    2
#define PLANS         9 /* simulations timed; the least counts, as it is a loop without waits */

typedef struct model {
    uint32_t tensors;
    uint64_t elements; /* of a tensor */
    uint32_t steps;
} model;

typedef struct rank_work {
    const model *model;
    pthread_barrier_t *barrier;
    int32_t rank;
    bool has_broadcast;
    float *memory; /* parameters, then gradients */
    double add_ns;
    double start_ns;
    double *step_ns;
    msdu_status status;
    char error[512];
} rank_work;

/* --- a rank --- */

static msdu_status add_tensors(msdu_ctx *ctx, const rank_work *w)
{
    const model *m = w->model;
    msdu_status status = MSDU_OK;
    for (uint32_t i = 0; i < m->tensors && status == MSDU_OK; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer%u", i);
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = name;
        desc.parameter = w->memory + i * m->elements;
        desc.gradient = w->memory + (m->tensors + i) * m->elements;
        desc.count = m->elements;
        desc.priority = (int32_t)i;
        status = msdu_tensor_add(ctx, &desc, NULL);
    }
    return status;
}

static msdu_status begin(rank_work *w, msdu_ctx **ctx_out)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    config.job = "bench scale";
    config.ranks = RANKS;
    config.rank = w->rank;
    config.interval = "fixed";
    config.interval_steps = 1;
    config.wire = "float32";
    config.broadcast = w->has_broadcast ? "yes" : "no";
    config.slice_bytes = w->model->elements * sizeof(float);
    config.settings = "fuse_bytes = 0";
    msdu_status status = msdu_create(&config, ctx_out);
    double began = msdu__bench_now();
    if (status == MSDU_OK) {
        status = add_tensors(*ctx_out, w);
    }
    w->add_ns = msdu__bench_now() - began;
    pthread_barrier_wait(w->barrier);
    began = msdu__bench_now();
    if (status == MSDU_OK) {
        status = msdu_start(*ctx_out);
    }
    w->start_ns = msdu__bench_now() - began;
    return status;
}

static msdu_status train_step(msdu_ctx *ctx, uint32_t tensors)
{
    msdu_status status = MSDU_OK;
    for (uint32_t i = tensors; i-- > 0 && status == MSDU_OK;) {
        status = msdu_tensor_ready(ctx, i, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    }
    for (uint32_t i = tensors; i-- > 0 && status == MSDU_OK;) {
        status = msdu_tensor_ready(ctx, i, MSDU_PARAMETER);
    }
    return status == MSDU_OK ? msdu_step(ctx) : status;
}

static void *rank_main(void *argument)
{
    rank_work *w = argument;
    msdu_ctx *ctx = NULL;
    w->status = begin(w, &ctx);
    for (uint32_t step = 0; step < w->model->steps && w->status == MSDU_OK; step++) {
        double began = msdu__bench_now();
        w->status = train_step(ctx, w->model->tensors);
        w->step_ns[step] = msdu__bench_now() - began;
    }
    if (w->status == MSDU_OK) {
        w->status = msdu_finish(ctx);
    }
    if (w->status != MSDU_OK) {
        snprintf(w->error, sizeof(w->error), "%s", msdu_last_error());
    }
    msdu_destroy(ctx);
    return NULL;
}

/* --- a model --- */

static bool run_ranks(rank_work *work)
{
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; i++) {
        if (pthread_create(&threads[i], NULL, rank_main, &work[i]) != 0) {
            fprintf(stderr, "msdu bench: no thread for rank %d\n", i);
            exit(EXIT_FAILURE); /* ranks already started would wait for it */
        }
    }
    bool is_fine = true;
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        if (work[i].status != MSDU_OK) {
            fprintf(stderr, "msdu bench: rank %d: %s\n", i, work[i].error);
            is_fine = false;
        }
    }
    return is_fine;
}

/* Slices that become ready one after another, each needing as long on the link: what a plan is made
 * of where the link is the bottleneck, so that many are ready at once. */
static double plan_ns(uint32_t count)
{
    msdu__plan_item *items = calloc(count, sizeof(*items));
    uint32_t *order = calloc(2 * (size_t)count, sizeof(*order));
    double least = 0;
    for (uint32_t i = 0; items != NULL && i < count; i++) {
        items[i] = (msdu__plan_item){
            .ready_ns = i * 1000ULL, .cost_ns = 2000, .priority = (int32_t)(count - i)};
    }
    for (int k = 0; items != NULL && order != NULL && k < PLANS; k++) {
        double began = msdu__bench_now();
        (void)msdu__plan_simulate(items, count, 4, order, order + count);
        double took = msdu__bench_now() - began;
        least = k == 0 || took < least ? took : least;
    }
    free(items);
    free(order);
    return least;
}

static void report(msdu__bench *bench, const rank_work *work, double broadcast_ns,
                   double *per_slice)
{
    const model *m = work->model;
    msdu__bench_stats steps =
        msdu__bench_summarize(work->step_ns + WARM_STEPS, m->steps - WARM_STEPS);
    double plan = plan_ns(m->tensors);
    char name[48];
    snprintf(name, sizeof(name), "%u tensors", m->tensors);
    *per_slice = steps.median / m->tensors / 1e3;
    fprintf(bench->text, "%8u %9.1f %9.2f %9.1f %11.1f %9.3f %10.1f %12.2f\n", m->tensors,
            (double)m->tensors * (double)m->elements * 4 / 1e6, work->add_ns / 1e6,
            work->start_ns / 1e6, broadcast_ns / 1e6, plan / 1e6, steps.median / 1e6, *per_slice);
    cJSON *record = msdu__bench_record(bench, name);
    cJSON_AddNumberToObject(record, "tensors", m->tensors);
    cJSON_AddNumberToObject(record, "model_bytes",
                            (double)m->tensors * (double)m->elements * sizeof(float));
    cJSON_AddNumberToObject(record, "add_ms", work->add_ns / 1e6);
    cJSON_AddNumberToObject(record, "start_ms", work->start_ns / 1e6);
    cJSON_AddNumberToObject(record, "start_with_broadcast_ms", broadcast_ns / 1e6);
    cJSON_AddNumberToObject(record, "plan_ms", plan / 1e6);
    cJSON_AddNumberToObject(record, "step_ms", steps.median / 1e6);
    cJSON_AddNumberToObject(record, "slice_us", *per_slice);
    cJSON_AddNumberToObject(record, "steps", m->steps - WARM_STEPS);
}

/* Once without and once with the broadcast of rank 0's parameters. */
static bool measure(msdu__bench *bench, const model *m, float *const *memory, double *per_slice)
{
    pthread_barrier_t barrier;
    rank_work work[RANKS] = {{0}};
    double broadcast_ns = 0;
    bool is_fine = true;
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (int k = 1; k >= 0 && is_fine; k--) {
        for (int i = 0; i < RANKS; i++) {
            double *step_ns = k == 1 ? calloc(m->steps, sizeof(double)) : work[i].step_ns;
            is_fine = is_fine && step_ns != NULL;
            work[i] = (rank_work){.model = m,
                                  .barrier = &barrier,
                                  .rank = i,
                                  .has_broadcast = k == 1,
                                  .memory = memory[i],
                                  .step_ns = step_ns};
        }
        is_fine = is_fine && run_ranks(work);
        broadcast_ns = k == 1 ? work[0].start_ns : broadcast_ns;
    }
    if (is_fine) {
        report(bench, work, broadcast_ns, per_slice);
    }
    for (int i = 0; i < RANKS; i++) {
        free(work[i].step_ns);
    }
    pthread_barrier_destroy(&barrier);
    return is_fine;
}

int msdu__bench_scale(msdu__bench *bench)
{
    const msdu__bench_options *o = &bench->options;
    uint64_t bytes = o->bytes > 0 ? o->bytes : o->is_smoke ? SMOKE_BYTES : BYTES;
    uint32_t tensors = o->is_smoke ? SMOKE_TENSORS : TENSORS;
    uint32_t steps = o->runs > 0 ? o->runs + WARM_STEPS : o->is_smoke ? SMOKE_STEPS : STEPS;
    uint64_t elements = bytes / sizeof(float) / tensors;
    double per_slice[SIZES] = {0};
    float *memory[RANKS];
    bool is_fine = true;
    if (elements < 16) {
        fprintf(stderr, "msdu bench: --bytes %llu is too little for %u tensors\n",
                (unsigned long long)bytes, tensors);
        return EXIT_FAILURE;
    }
    uint64_t pages = 2 * elements * tensors * sizeof(float);
    for (int i = 0; i < RANKS; i++) {
        memory[i] = msdu__bench_pages(pages);
    }
    fprintf(bench->text,
            "# %d ranks as threads, backend local, a slice a tensor; start: without and with the "
            "broadcast\n%8s %9s %9s %9s %11s %9s %10s %12s\n",
            RANKS, "#tensors", "MB", "add ms", "start ms", "broadcast", "plan ms", "step ms",
            "us a slice");
    for (int i = 0; i < SIZES && is_fine; i++) {
        model m = {.tensors = tensors >> (SIZES - 1 - i), .elements = elements, .steps = steps};
        is_fine = measure(bench, &m, memory, &per_slice[i]);
    }
    if (is_fine) {
        fprintf(bench->text, "# a slice costs %.2f times as much among %u as among %u\n",
                per_slice[SIZES - 1] / per_slice[0], tensors, tensors >> (SIZES - 1));
    }
    for (int i = 0; i < RANKS; i++) {
        msdu__bench_pages_free(memory[i], pages);
    }
    return is_fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
