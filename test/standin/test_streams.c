/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training that never waits for the device: gradients are computed, and parameters updated, by work
 * on a stream of the trainer's, which the library's streams follow and lead by events. Against the
 * same training on the host. Over a stand-in for NCCL and CUDA.
 *
 * Jobs "alone" wait for each gradient before they announce the next; "held" ones besides keep the
 * device from beginning with a step until all of it was enqueued.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <msdu/msdu.h>

#include "ranks_place.h"
#include "suite.h"

#define RANKS   3
#define TENSORS 3
#define COUNT   700
#define STEPS   30
#define LR      0.05F

/* What a piece of work on the stream does. */
typedef struct job {
    float *w;
    float *g;
    int rank;
    int step;
    int tensor;
} job;

typedef struct trainer {
    const char *const *settings; /* domain, overlap, wire, interval steps, order, reduce */
    const char *rendezvous;
    bool is_device;
    int rank;
    cudaStream_t stream;
    _Atomic int opened; /* steps that the device may begin with */
    msdu_ctx *ctx;
    float *w[TENSORS];
    float *g[TENSORS];
    float result[TENSORS * COUNT];
    msdu_status status;
    char text[300];
} trainer;

static void compute(void *argument)
{
    const job *j = argument;
    for (int i = 0; i < COUNT; i++) {
        int seed = (j->rank * 7 + j->step * 13 + j->tensor * 29 + i) % 17;
        j->g[i] = 0.1F * j->w[i] + (float)(seed - 8) / 16.0F;
    }
}

static void update(void *argument)
{
    const job *j = argument;
    for (int i = 0; i < COUNT; i++) {
        j->w[i] -= LR * j->g[i];
    }
}

typedef struct gate {
    _Atomic int *opened;
    int step;
} gate;

static void pass_gate(void *argument)
{
    const gate *g = argument;
    while (atomic_load(g->opened) <= g->step) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

static bool is_ok(trainer *t, msdu_status status)
{
    if (status != MSDU_OK && t->status == MSDU_OK) {
        t->status = status;
        snprintf(t->text, sizeof(t->text), "%.290s", msdu_last_error());
    }
    return t->status == MSDU_OK;
}

static void work(const trainer *t, void (*function)(void *), int step, int tensor)
{
    job j = {t->w[tensor], t->g[tensor], t->rank, step, tensor};
    if (t->is_device) {
        (void)standin_launch(t->stream, function, &j, sizeof(j));
    } else {
        function(&j);
    }
}

static bool ready(trainer *t, int tensor, msdu_what what)
{
    uint32_t id = (uint32_t)tensor;
    return is_ok(t, t->is_device ? msdu_tensor_ready_on(t->ctx, id, what, t->stream)
                                 : msdu_tensor_ready(t->ctx, id, what));
}

static bool wait_for(trainer *t, int tensor, msdu_what what)
{
    uint32_t id = (uint32_t)tensor;
    return is_ok(t, t->is_device ? msdu_tensor_wait_on(t->ctx, id, what, t->stream)
                                 : msdu_tensor_wait(t->ctx, id, what));
}

static bool take_step(trainer *t, int step)
{
    for (int k = TENSORS; k-- > 0;) {
        if (!wait_for(t, k, MSDU_PARAMETER)) {
            return false;
        }
        work(t, compute, step, k);
        if (!ready(t, k, MSDU_GRADIENT)) {
            return false;
        }
    }
    for (int k = 0; k < TENSORS; k++) {
        if (!wait_for(t, k, MSDU_GRADIENT)) {
            return false;
        }
        work(t, update, step, k);
        if (!ready(t, k, MSDU_PARAMETER)) {
            return false;
        }
    }
    return is_ok(t, msdu_step(t->ctx));
}

/* One after another, as a trainer does that reduces gradients by itself. */
static bool take_step_alone(trainer *t, int step)
{
    const msdu_what what = (msdu_what)(MSDU_GRADIENT | MSDU_ALONE);
    bool is_held = t->is_device && strcmp(t->settings[4], "held") == 0;
    bool is_well = true;
    if (is_held) {
        gate g = {&t->opened, step};
        (void)standin_launch(t->stream, pass_gate, &g, sizeof(g));
    }
    for (int k = 0; k < TENSORS && is_well; k++) {
        work(t, compute, step, k);
        is_well = ready(t, k, MSDU_GRADIENT) && wait_for(t, k, what);
        work(t, update, step, k);
    }
    atomic_store(&t->opened, step + 1);
    return is_well && is_ok(t, msdu_step(t->ctx));
}

static bool create(trainer *t)
{
    msdu_config config = MSDU_SIZED(msdu_config);
    config.ranks = RANKS;
    config.rank = t->rank;
    config.backend = "local";
    config.deadline_ms = 30000;
    if (t->is_device) {
        ranks_place_config(&config, t->rendezvous);
    }
    config.domain = t->settings[0];
    config.overlap = t->settings[1];
    config.wire = t->settings[2];
    config.optimizer = "sgd";
    config.lr = (double)LR;
    config.interval = "fixed";
    config.interval_steps = (int)strtol(t->settings[3], NULL, 10);
    config.delay_steps = 1;
    config.fragments = 2;
    config.warmup_steps = 2;
    config.slice_bytes = 1024;
    config.wire_block = 64;
    if (strcmp(t->settings[4], "late") != 0) {
        config.commit = "tensor";
        config.reduce = t->settings[5];
        config.settings = "fuse_bytes = 0\n";
    }
    return is_ok(t, msdu_create(&config, &t->ctx));
}

static bool start(trainer *t)
{
    for (int k = 0; k < TENSORS; k++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "t%d", k);
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = name;
        desc.parameter = t->w[k];
        desc.gradient = t->g[k];
        desc.count = COUNT;
        desc.priority = -k;
        desc.place = t->is_device ? MSDU_PLACE_DEVICE : MSDU_PLACE_HOST;
        if (!is_ok(t, msdu_tensor_add(t->ctx, &desc, NULL))) {
            return false;
        }
    }
    return is_ok(t, msdu_start(t->ctx));
}

static void *train(void *argument)
{
    trainer *t = argument;
    bool is_alone = strcmp(t->settings[4], "late") != 0;
    bool is_well = create(t) && start(t);
    for (int step = 0; is_well && step < STEPS; step++) {
        is_well = is_alone ? take_step_alone(t, step) : take_step(t, step);
    }
    /* the last update is still on its way */
    (void)cudaStreamSynchronize(t->stream);
    (void)(is_well && is_ok(t, msdu_finish(t->ctx)));
    msdu_destroy(t->ctx);
    for (int k = 0; k < TENSORS; k++) {
        memcpy(t->result + k * COUNT, t->w[k], COUNT * sizeof(float));
    }
    return NULL;
}

static void run(trainer *all, const char *const *settings, bool is_device)
{
    char rendezvous[128];
    pthread_t threads[RANKS];
    memset(all, 0, RANKS * sizeof(*all));
    ranks_place_begin(rendezvous, sizeof(rendezvous));
    for (int rank = 0; rank < RANKS; rank++) {
        trainer *t = &all[rank];
        t->settings = settings;
        t->rendezvous = rendezvous;
        t->is_device = is_device;
        t->rank = rank;
        ck_assert_int_eq(cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, 0), 0);
        for (int k = 0; k < TENSORS; k++) {
            t->w[k] = ranks_place_take(COUNT * sizeof(float));
            t->g[k] = ranks_place_take(COUNT * sizeof(float));
            for (int i = 0; i < COUNT; i++) {
                t->w[k][i] = (float)(i % 11) / 8.0F;
            }
        }
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, train, t), 0);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
        ck_assert_msg(all[rank].status == MSDU_OK, "rank %d: %s", rank, all[rank].text);
        (void)cudaStreamDestroy(all[rank].stream);
        for (int k = 0; k < TENSORS; k++) {
            ranks_place_give(all[rank].w[k]);
            ranks_place_give(all[rank].g[k]);
        }
    }
    ranks_place_end(rendezvous);
}

static const char *const jobs[][6] = {
    {"gradient", "backward", "float32", "1", "late", "mean"},
    {"gradient", "backward", "int4", "1", "late", "mean"},
    {"gradient", "blocking", "bfloat16", "1", "late", "mean"},
    {"parameter", "backward", "float32", "4", "late", "mean"},
    {"parameter", "delayed", "int8", "4", "late", "mean"},
    {"parameter", "streamed", "float32", "6", "late", "mean"},
    {"auto", "auto", "float32", "4", "late", "mean"},
    {"parameter", "blocking", "int2", "3", "late", "mean"},
    {"parameter", "blocking", "sparse", "3", "late", "mean"},
    {"gradient", "backward", "sparse", "1", "late", "mean"},
    {"accumulated", "backward", "float32", "3", "late", "mean"},
    {"gradient", "backward", "float32", "1", "held", "mean"},
    {"gradient", "backward", "int4", "1", "held", "sum"},
    {"accumulated", "backward", "float32", "3", "alone", "mean"},
    {"accumulated", "backward", "int8", "3", "alone", "sum"},
};
#define JOBS ((int)(sizeof(jobs) / sizeof(jobs[0])))

START_TEST(streams_give_the_bits_of_the_host)
{
    static trainer host[RANKS];
    static trainer device[RANKS];
    run(host, jobs[_i], false);
    run(device, jobs[_i], true);
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_mem_eq(host[rank].result, device[rank].result, sizeof(host[rank].result));
    }
}
END_TEST

START_TEST(tensors_of_the_host_have_no_streams)
{
    float w = 0;
    msdu_ctx *ctx = NULL;
    msdu_config config = MSDU_SIZED(msdu_config);
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    config.ranks = 1;
    desc.name = "w";
    desc.parameter = &w;
    desc.count = 1;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_OK);
    desc.name = "v";
    desc.place = MSDU_PLACE_DEVICE;
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready_on(ctx, 0, MSDU_PARAMETER, NULL), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_tensor_wait_on(ctx, 0, MSDU_PARAMETER, NULL), MSDU_ERR_UNSUPPORTED);
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("streams");
    TCase *tcase = suite_case(suite, "streams", 100, NULL, NULL);
    tcase_add_loop_test(tcase, streams_give_the_bits_of_the_host, 0, JOBS);
    tcase_add_test(tcase, tensors_of_the_host_have_no_streams);
    return suite_run(suite);
}
