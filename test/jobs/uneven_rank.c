/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for test_uneven.c: epochs in which ranks have different numbers of batches, weights, and a
 * gradient that is not finite, through the public header. Prints lines "key.RANK value".
 *
 * usage: uneven_rank [key=value ...]
 *   threads=N    N ranks as threads over the backend "local" instead of one rank
 *   epochs=N     (2)
 *   batches=N    of rank r in epoch e: N + (3 r + 2 e) mod 5 (4)
 *   weigh=1      rank r has weight r + 1
 *   nan=STEP     rank 1 has a NaN in this step's gradient
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

#include "fault_model.h"

#define RANKS_MOST 8

typedef struct plan {
    int threads;
    int epochs;
    int batches;
    int is_weighed;
    int nan_at; /* -1: never */
} plan;

typedef struct rank_self {
    const plan *plan;
    int rank;
    msdu_ctx *ctx;
    fault_model model;
    int step; /* of this rank's own */
} rank_self;

static msdu_status add_tensors(rank_self *self)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        char name[32];
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        (void)snprintf(name, sizeof(name), "layer%d", (int)t);
        desc.name = name;
        desc.parameter = self->model.parameter[t];
        desc.gradient = self->model.gradient[t];
        desc.count = fault_model_count(t);
        msdu_status status = msdu_tensor_add(self->ctx, &desc, NULL);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}

/* The optimizer; a step that is refused on all ranks is left out. */
static msdu_status update(rank_self *self)
{
    msdu_status status = msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    if (status == MSDU_ERR_NOT_FINITE) {
        printf("skipped.%d %d: %s\n", self->rank, self->step, msdu_last_error());
        return MSDU_OK;
    }
    for (uint64_t t = 0; t < FAULT_TENSORS && status == MSDU_OK; t++) {
        fault_model_update(&self->model, t);
    }
    return status;
}

static msdu_status train_step(rank_self *self)
{
    msdu_status status = MSDU_OK;
    if (self->plan->is_weighed) {
        status = msdu_set_weight(self->ctx, self->rank + 1);
    }
    fault_model_gradients(&self->model, self->rank, self->step);
    if (self->rank == 1 && self->step == self->plan->nan_at) {
        self->model.gradient[2][100] = NAN;
    }
    for (uint32_t t = FAULT_TENSORS; t-- > 0 && status == MSDU_OK;) {
        status = msdu_tensor_ready(self->ctx, t, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = update(self);
    }
    for (uint32_t t = 0; t < FAULT_TENSORS && status == MSDU_OK; t++) {
        status = msdu_tensor_ready(self->ctx, t, MSDU_PARAMETER);
    }
    if (status == MSDU_OK) {
        status = msdu_step(self->ctx);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    self->step++;
    return status;
}

static msdu_status train_epoch(rank_self *self, int epoch)
{
    int batches = self->plan->batches + (3 * self->rank + 2 * epoch) % 5;
    msdu_status status = MSDU_OK;
    for (int i = 0; i < batches && status == MSDU_OK; i++) {
        status = train_step(self);
    }
    if (status == MSDU_OK) {
        status = msdu_join(self->ctx);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    if (status == MSDU_OK) {
        printf("joined%d.%d %016llx\n", epoch, self->rank,
               (unsigned long long)fault_model_hash(&self->model, 1));
        status = msdu_synchronize(self->ctx);
    }
    if (status == MSDU_OK) {
        printf("synced%d.%d %016llx\n", epoch, self->rank,
               (unsigned long long)fault_model_hash(&self->model, 1));
    }
    return status;
}

static msdu_status run(rank_self *self)
{
    msdu_config config = MSDU_CONFIG_INIT;
    if (self->plan->threads > 0) {
        config.backend = "local";
        config.ranks = self->plan->threads;
        config.rank = self->rank;
    }
    msdu_status status = msdu_create(&config, &self->ctx);
    if (status == MSDU_OK) {
        status = add_tensors(self);
    }
    if (status == MSDU_OK) {
        status = msdu_start(self->ctx);
    }
    for (int epoch = 0; epoch < self->plan->epochs && status == MSDU_OK; epoch++) {
        status = train_epoch(self, epoch);
    }
    return status == MSDU_OK ? msdu_finish(self->ctx) : status;
}

static void *rank_main(void *user)
{
    rank_self *self = user;
    msdu_summary summary = MSDU_SUMMARY_INIT;
    msdu_status status = fault_model_make(&self->model) ? run(self) : MSDU_ERR_NO_MEMORY;
    printf("status.%d %s\n", self->rank, msdu_status_name(status));
    printf("error.%d %s\n", self->rank, status == MSDU_OK ? "" : msdu_last_error());
    printf("hash.%d %016llx\n", self->rank, (unsigned long long)fault_model_hash(&self->model, 1));
    if (self->ctx != NULL && msdu_summary_get(self->ctx, &summary) == MSDU_OK) {
        printf("steps.%d %llu\n", self->rank, (unsigned long long)summary.steps);
        printf("rounds.%d %llu\n", self->rank, (unsigned long long)summary.rounds);
    }
    msdu_destroy(self->ctx);
    fault_model_free(&self->model);
    return NULL;
}

int main(int argc, char **argv)
{
    static rank_self selves[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    const char *rank = getenv("MSDU_RANK");
    plan p = {.epochs = 2, .batches = 4, .nan_at = -1};
    for (int i = 1; i < argc; i++) {
        p.threads = fault_number(argv[i], "threads=", p.threads);
        p.epochs = fault_number(argv[i], "epochs=", p.epochs);
        p.batches = fault_number(argv[i], "batches=", p.batches);
        p.is_weighed = fault_number(argv[i], "weigh=", p.is_weighed);
        p.nan_at = fault_number(argv[i], "nan=", p.nan_at);
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    int count = p.threads > 0 ? p.threads : 1;
    for (int i = 0; i < count && i < RANKS_MOST; i++) {
        int own = rank != NULL ? (int)strtol(rank, NULL, 10) : 0;
        selves[i] = (rank_self){.plan = &p, .rank = p.threads > 0 ? i : own};
        if (pthread_create(&threads[i], NULL, rank_main, &selves[i]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < count && i < RANKS_MOST; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return 0;
}
