/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for test_epochs.c, through the public header: it trains while others are killed and
 * started. Prints lines "key.ID value", where ID is what it was started as.
 *
 * usage: epochs_rank id=N [key=value ...]
 *   steps=N   (60)
 *   pause=MS  in each step (5)
 *   kill=N    it kills itself in this step, before all its gradients are announced
 *   stop=N    it stops there, until someone lets it go on
 *   apart=1   its parameters are not those of the others when it starts
 *   nan=N     a gradient of this step is NaN
 *   other=1   another program: it lacks a tensor
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <msdu/msdu.h>

#include "fault_model.h"

typedef struct rank_self {
    int id;
    int steps;
    int pause;
    int kill;
    int stop;
    int apart;
    int nan;
    int other;
    msdu_ctx *ctx;
    fault_model model;
} rank_self;

static msdu_status add_tensors(rank_self *self)
{
    msdu_status status = MSDU_OK;
    uint64_t tensors = FAULT_TENSORS - (self->other ? 1 : 0);
    for (uint64_t t = 0; t < tensors && status == MSDU_OK; t++) {
        char name[32];
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        (void)snprintf(name, sizeof(name), "layer%d", (int)t);
        desc.name = name;
        desc.parameter = self->model.parameter[t];
        desc.gradient = self->model.gradient[t];
        desc.count = fault_model_count(t);
        status = msdu_tensor_add(self->ctx, &desc, NULL);
    }
    return status;
}

/* What rank 0 has beside parameters: momentum. */
static msdu_status take_rest(rank_self *self, const msdu_summary *summary)
{
    msdu_status status = MSDU_OK;
    for (uint64_t t = 0; t < FAULT_TENSORS && status == MSDU_OK && summary->has_given; t++) {
        status =
            msdu_share(self->ctx, self->model.velocity[t], fault_model_count(t) * sizeof(float));
    }
    return status == MSDU_OK ? msdu_share(self->ctx, NULL, 0) : status;
}

/* The group changed: say so, and take what is missing, while it changes on. */
static msdu_status follow(rank_self *self, msdu_status status)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    while (status == MSDU_REGROUPED) {
        status = msdu_summary_get(self->ctx, &summary);
        if (status == MSDU_OK) {
            printf("epoch.%d %d of %d ranks, step %d, lost %u, joined %u\n", self->id,
                   (int)summary.epoch, summary.ranks, (int)summary.steps, summary.ranks_lost,
                   summary.ranks_joined);
            status = take_rest(self, &summary);
        }
    }
    return status;
}

static msdu_status train_step(rank_self *self, int step)
{
    msdu_status status = MSDU_OK;
    (void)nanosleep(&(struct timespec){.tv_nsec = self->pause * 1000000L}, NULL);
    fault_model_gradients(&self->model, self->id, step);
    self->model.gradient[1][1] = step == self->nan ? NAN : self->model.gradient[1][1];
    for (uint32_t t = FAULT_TENSORS; t-- > 0 && status == MSDU_OK;) {
        if (t == 1 && (step == self->kill || step == self->stop)) {
            printf("accident.%d %d\n", self->id, step);
            (void)raise(step == self->kill ? SIGKILL : SIGSTOP);
        }
        status = msdu_tensor_ready(self->ctx, t, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    }
    if (status != MSDU_OK) {
        return follow(self, status); /* those gradients are lost */
    }
    for (uint32_t t = 0; t < FAULT_TENSORS && status == MSDU_OK; t++) {
        fault_model_update(&self->model, t);
        status = msdu_tensor_ready(self->ctx, t, MSDU_PARAMETER);
    }
    status = status == MSDU_OK ? msdu_step(self->ctx) : status;
    return follow(self, status);
}

static msdu_status run(rank_self *self)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    msdu_status status = msdu_create(NULL, &self->ctx);
    status = status == MSDU_OK ? add_tensors(self) : status;
    status = status == MSDU_OK ? msdu_start(self->ctx) : status;
    status = status == MSDU_OK ? msdu_summary_get(self->ctx, &summary) : status;
    if (status != MSDU_OK) {
        return status;
    }
    printf("started.%d %d of %d ranks, step %d, given %d\n", self->id, (int)summary.epoch,
           summary.ranks, (int)summary.steps, summary.was_given);
    status = follow(self, take_rest(self, &summary));
    while (status == MSDU_OK && (int)summary.steps < self->steps) {
        status = follow(self, msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER));
        status = status == MSDU_OK ? train_step(self, (int)summary.steps) : status;
        status = status == MSDU_OK ? msdu_summary_get(self->ctx, &summary) : status;
    }
    return status == MSDU_OK ? msdu_finish(self->ctx) : status;
}

int main(int argc, char **argv)
{
    rank_self self = {.steps = 60, .pause = 5, .kill = -1, .stop = -1, .nan = -1};
    msdu_summary summary = MSDU_SUMMARY_INIT;
    for (int i = 1; i < argc; i++) {
        self.id = fault_number(argv[i], "id=", self.id);
        self.steps = fault_number(argv[i], "steps=", self.steps);
        self.pause = fault_number(argv[i], "pause=", self.pause);
        self.kill = fault_number(argv[i], "kill=", self.kill);
        self.stop = fault_number(argv[i], "stop=", self.stop);
        self.apart = fault_number(argv[i], "apart=", self.apart);
        self.nan = fault_number(argv[i], "nan=", self.nan);
        self.other = fault_number(argv[i], "other=", self.other);
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    bool is_made = fault_model_make(&self.model);
    for (uint64_t i = 0; is_made && self.apart && i < fault_model_count(0); i++) {
        self.model.parameter[0][i] += 1.0F;
    }
    msdu_status status = is_made ? run(&self) : MSDU_ERR_NO_MEMORY;
    printf("status.%d %s\n", self.id, msdu_status_name(status));
    printf("error.%d %s\n", self.id, status == MSDU_OK ? "" : msdu_last_error());
    printf("hash.%d %016llx\n", self.id, (unsigned long long)fault_model_hash(&self.model, 1));
    if (self.ctx != NULL && msdu_summary_get(self.ctx, &summary) == MSDU_OK) {
        printf("steps.%d %llu\n", self.id, (unsigned long long)summary.steps);
        printf("ranks.%d %d\n", self.id, summary.ranks);
        printf("lost.%d %u\n", self.id, summary.ranks_lost);
        printf("joined.%d %u\n", self.id, summary.ranks_joined);
    }
    msdu_destroy(self.ctx);
    fault_model_free(&self.model);
    return 0;
}
