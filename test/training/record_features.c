/* SPDX-License-Identifier: Apache-2.0 */
/* What cases of test_record do beside the plain: policies, correction rules, and all the rest. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "record_cases.h"

#define COUNT(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

static double falling_lr(const ranks_job *job, int step)
{
    return job->config.lr / (1 + 0.25 * step);
}

static double uneven_weights(const ranks_job *job, int rank, int step)
{
    static const double weights[] = {3, 0.5, 1.25};
    (void)job;
    (void)step;
    return weights[rank % 3];
}

/* Now and then a rank counts for nothing. */
static double changing_weights(const ranks_job *job, int rank, int step)
{
    (void)job;
    return (rank + step) % 5 == 3 ? 0 : 1 + (rank + step) % 3;
}

static int uneven_batches(int rank, int epoch)
{
    return 4 + (2 * rank + 3 * epoch) % 5;
}

/* Falls by a tenth a step for a while, stands still, falls again. */
static void tell_loss(ranks_self *self, int step)
{
    int moved = step < 7 ? step : step < 14 ? 7 : step - 7;
    double loss = 2.0 + 0.01 * self->rank;
    for (int i = 0; i < moved; i++) {
        loss *= 0.9;
    }
    msdu_status status = msdu_set_loss(self->ctx, loss);
    self->status = self->status == MSDU_OK ? status : self->status;
}

/* As an average that no longer moves. */
static void tell_constant(ranks_self *self, int step)
{
    (void)step;
    msdu_status status = msdu_set_loss(self->ctx, 0.75);
    self->status = self->status == MSDU_OK ? status : self->status;
}

static void meet(ranks_self *self, int step)
{
    msdu_status status = step == 5 || step == 11 ? msdu_sync_after_step(self->ctx) : MSDU_OK;
    self->status = self->status == MSDU_OK ? status : self->status;
}

/* For a checkpoint that nobody reads; what it holds of times differs. */
static void take_state(ranks_self *self, int step)
{
    static const size_t room = 1U << 20;
    size_t bytes = 0;
    void *state = step == 4 || step == 9 ? malloc(room) : NULL;
    msdu_status status = state != NULL ? msdu_state_get(self->ctx, state, room, &bytes) : MSDU_OK;
    self->status = self->status == MSDU_OK ? status : self->status;
    free(state);
}

static bool syncs_at(int step)
{
    return step == 0 || step == 7 || step == 8;
}

static void spoil(ranks_self *self, int step, uint32_t tensor)
{
    if (self->rank == 1 && step == 6 && tensor == 2) {
        ranks_put(self->job->tensors[tensor].dtype, self->gradient[tensor], 3, (double)NAN);
    }
}

/* In the rounds around the end of the warm-up, while gradients are still exchanged. */
static void spoil_early(ranks_self *self, int step, uint32_t tensor)
{
    if (self->rank == step / 2 && (step == 0 || step == 2) && tensor == 2) {
        ranks_put(self->job->tensors[tensor].dtype, self->gradient[tensor], 3, (double)NAN);
    }
}

/* Ranks compute the same from here on. */
static void compute_same(ranks_self *self, int step, uint32_t tensor)
{
    const ranks_tensor *t = &self->job->tensors[tensor];
    for (uint64_t i = 0; i < t->count; i++) {
        double w = ranks_get(t->dtype, self->parameter[tensor], i);
        ranks_put(t->dtype, self->gradient[tensor], i,
                  ranks_gradient(self->job, 0, step, t->dtype, i, w));
    }
}

static void set_plain(ranks_job *job)
{
    job->config.momentum = 0;
}

static void set_nesterov(ranks_job *job)
{
    job->config.momentum = 0.8;
    job->config.weight_decay = 0.05;
    job->config.nesterov = "yes";
}

static void set_dampening(ranks_job *job)
{
    job->config.momentum = 0.9;
    job->config.dampening = 0.3;
    job->config.weight_decay = 0.1;
}

static void set_epochs(ranks_job *job)
{
    job->ranks = 3;
    job->steps = 3 * 12;
    job->epochs = 3;
    job->batches = uneven_batches;
}

/* Domain auto begins with gradients. */
static void set_early(ranks_job *job)
{
    bool is_parameter = strcmp(job->config.domain, "parameter") == 0;
    job->config.domain = is_parameter ? "auto" : job->config.domain;
    job->computed = spoil_early;
}

static void set_no_gradients(ranks_job *job)
{
    job->hides_gradients = true;
    job->config.domain = "parameter";
}

/* --- the tables --- */

/*
 * Policies whose decisions follow from steps, settings and what the trainer tells: not divergence,
 * which measures time. Of a round whose mean is late it depends on the time whether the loss and
 * the learning rate of its last step are heard, or those of the step after it.
 */
static const record_feature policies[] = {
    {"fixed 3", "interval = fixed\ninterval_steps = 3\nwarmup_steps = 5", .without = 0},
    {"fixed 16", "interval = fixed\ninterval_steps = 16\nwarmup_steps = 0", .without = 0},
    {"post_local", "interval = post_local\nswitch_step = 7\nwarmup_steps = 0", .without = 0},
    {"qsr", "interval = qsr\nqsr_alpha = 0.06\ninterval_steps = 1\ninterval_max = 8",
     .without = RECORD_NO_LATE, .with = {.lr_at = falling_lr}},
    {"qsr total", "interval = qsr\nqsr_alpha = 0.06\ninterval_steps = 2\ntotal_steps = 20",
     .without = RECORD_NO_LATE, .with = {.lr_at = falling_lr}},
    {"qsr constant", "interval = qsr\nqsr_alpha = 0.11\ninterval_steps = 1", .without = 0},
    {"plateau", "interval = plateau\nplateau_patience = 1", .without = RECORD_NO_LATE,
     .with = {.stepped = tell_loss}},
    {"plateau soon", "interval = plateau\nplateau_patience = 1\nplateau_threshold = 0.02",
     .without = RECORD_NO_LATE, .with = {.stepped = tell_loss}},
    {"plateau constant", "interval = plateau\nplateau_patience = 1",
     .with = {.stepped = tell_constant}},
    {"plateau untold", "interval = plateau\ninterval_steps = 2", .without = 0},
};

static const record_feature rules[] = {
    {"average", "correct = average", .without = 0},
    {"elastic", "correct = elastic\nelastic_alpha = 0.3", .without = 0},
    {"delayed", "correct = delayed", .without = 0},
    {"delayed keep 0.7", "correct = delayed\ndelayed_keep = 0.7", .without = 0},
    {"blend", "correct = blend", .without = 0},
    {"outer", "correct = outer", .without = 0},
    {"outer momentum", "correct = outer\nouter_kind = momentum\nouter_momentum = 0.4",
     .without = 0},
    {"clip", "correct = clip\nclip_ratio = 1", .without = 0},
    {"clip,outer,elastic", "correct = clip,outer,elastic\nclip_ratio = 1.1", .without = 0},
    {"clip,outer,blend", "correct = clip,outer,blend\nclip_ratio = 1.1\nouter_lr = 0.9",
     .without = 0},
    {"outer,delayed", "correct = outer,delayed\nouter_momentum = 0.3", .without = 0},
};

static const record_feature features[] = {
    {"weights", "", .with = {.weight_at = uneven_weights}},
    {"changing weights", "", .with = {.weight_at = changing_weights}},
    {"falling lr", "", .with = {.lr_at = falling_lr}},
    {"no momentum", "", .set = set_plain},
    {"nesterov", "", .set = set_nesterov},
    {"dampening", "", .with = {.lr_at = falling_lr}, .set = set_dampening},
    {"commit tensor", "commit = tensor", .without = RECORD_NO_PARAMETER},
    {"alone", "commit = tensor\nfuse_bytes = 0", .without = RECORD_NO_PARAMETER,
     .with = {.style = RANKS_ALONE}},
    {"reduce sum", "reduce = sum", .without = RECORD_NO_ACCUMULATED},
    {"state average", "state = average", .without = 0},
    {"state reset", "state = reset", .without = 0},
    {"broadcast", "broadcast = yes", .with = {.starts_apart = true}},
    {"check no", "check_finite = no", .without = 0},
    {"check skip", "check_finite = skip", .without = RECORD_NO_ACCUMULATED | RECORD_NO_PARAMETER,
     .with = {.computed = spoil, .goes_on = true}},
    {"check pass", "check_finite = pass", .without = RECORD_NO_ACCUMULATED,
     .with = {.computed = spoil, .looks = true}},
    {"check skip early", "check_finite = skip", .without = RECORD_NO_ACCUMULATED,
     .with = {.goes_on = true}, .set = set_early},
    {"check pass early", "check_finite = pass", .without = RECORD_NO_ACCUMULATED,
     .with = {.looks = true}, .set = set_early},
    {"same gradients", "", .with = {.computed = compute_same}},
    {"no parameters", "", .without = RECORD_NO_PARAMETER, .with = {.hides_parameters = true}},
    {"no gradients", "", .without = RECORD_NO_GRADIENT | RECORD_NO_ACCUMULATED,
     .set = set_no_gradients},
    {"synchronize", "", .with = {.syncs_at = syncs_at}},
    {"meet", "interval_steps = 8", .without = RECORD_NO_GRADIENT | RECORD_NO_PARAMETER,
     .with = {.stepped = meet}},
    {"join", "", .set = set_epochs},
    {"take state", "", .with = {.stepped = take_state}},
    {"silent", "", .with = {.style = RANKS_SILENT}},
    {"threads", "", .with = {.style = RANKS_THREADS}},
    {"deferred", "", .with = {.style = RANKS_DEFERRED}},
    {"one rank", "", .with = {.ranks = 1}},
    {"four ranks", "", .with = {.ranks = 4}},
    {"delay 2", "delay_steps = 2", .without = 0},
    {"delay 5", "delay_steps = 5\ninterval_steps = 6", .without = 0},
    {"fragments 8", "fragments = 8\ninterval_steps = 8", .without = 0},
    {"window 1", "window = 1\nlanes = 1", .without = 0},
    {"slices 64", "slice_bytes = 64\nfuse_bytes = 0\nwindow = 7\nlanes = 5\nwire_block = 16",
     .without = 0},
    {"one slice", "slice_bytes = 1MiB\nfuse_bytes = 1MiB", .without = 0},
};

const record_feature *record_policy_at(unsigned i)
{
    return i < COUNT(policies) ? &policies[i] : NULL;
}

const record_feature *record_rule_at(unsigned i)
{
    return i < COUNT(rules) ? &rules[i] : NULL;
}

const record_feature *record_feature_at(unsigned i)
{
    return i < COUNT(features) ? &features[i] : NULL;
}
