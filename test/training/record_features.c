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

static void set_falling(ranks_job *job)
{
    job->lr_at = falling_lr;
    job->needs_lr = true;
}

static void set_loss(ranks_job *job)
{
    job->stepped = tell_loss;
}

static void set_constant_loss(ranks_job *job)
{
    job->stepped = tell_constant;
}

static void set_uneven(ranks_job *job)
{
    job->weight_at = uneven_weights;
}

static void set_changing(ranks_job *job)
{
    job->weight_at = changing_weights;
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
    set_falling(job);
}

static void set_syncs(ranks_job *job)
{
    job->syncs_at = syncs_at;
}

static void set_epochs(ranks_job *job)
{
    job->ranks = 3;
    job->steps = 3 * 12;
    job->epochs = 3;
    job->batches = uneven_batches;
}

static void set_skip(ranks_job *job)
{
    job->computed = spoil;
    job->goes_on = true;
}

static void set_pass(ranks_job *job)
{
    job->computed = spoil;
    job->looks = true;
}

/* Domain auto begins with gradients. */
static void be_auto(ranks_job *job)
{
    bool is_parameter = strcmp(job->config.domain, "parameter") == 0;
    job->config.domain = is_parameter ? "auto" : job->config.domain;
    job->computed = spoil_early;
}

static void set_skip_early(ranks_job *job)
{
    set_skip(job);
    be_auto(job);
}

static void set_pass_early(ranks_job *job)
{
    set_pass(job);
    be_auto(job);
}

static void set_same(ranks_job *job)
{
    job->computed = compute_same;
}

static void set_apart(ranks_job *job)
{
    job->starts_apart = true;
}

static void set_silent(ranks_job *job)
{
    job->style = RANKS_SILENT;
}

static void set_threads(ranks_job *job)
{
    job->style = RANKS_THREADS;
}

static void set_deferred(ranks_job *job)
{
    job->style = RANKS_DEFERRED;
}

static void set_one(ranks_job *job)
{
    job->ranks = 1;
}

static void set_four(ranks_job *job)
{
    job->ranks = 4;
}

static void set_alone(ranks_job *job)
{
    job->style = RANKS_ALONE;
}

static void set_no_parameters(ranks_job *job)
{
    job->hides_parameters = true;
}

static void set_no_gradients(ranks_job *job)
{
    job->hides_gradients = true;
    job->config.domain = "parameter";
}

static void set_meet(ranks_job *job)
{
    job->stepped = meet;
}

static void set_state(ranks_job *job)
{
    job->stepped = take_state;
}

/* --- the tables --- */

/*
 * Policies whose decisions follow from steps, settings and what the trainer tells: not divergence,
 * which measures time. Of a round whose mean is late it depends on the time whether the loss and
 * the learning rate of its last step are heard, or those of the step after it.
 */
static const record_feature policies[] = {
    {"fixed 3", "interval = fixed\ninterval_steps = 3\nwarmup_steps = 5", NULL, 0},
    {"fixed 16", "interval = fixed\ninterval_steps = 16\nwarmup_steps = 0", NULL, 0},
    {"post_local", "interval = post_local\nswitch_step = 7\nwarmup_steps = 0", NULL, 0},
    {"qsr", "interval = qsr\nqsr_alpha = 0.06\ninterval_steps = 1\ninterval_max = 8", set_falling,
     RECORD_NO_LATE},
    {"qsr total", "interval = qsr\nqsr_alpha = 0.06\ninterval_steps = 2\ntotal_steps = 20",
     set_falling, RECORD_NO_LATE},
    {"qsr constant", "interval = qsr\nqsr_alpha = 0.11\ninterval_steps = 1", NULL, 0},
    {"plateau", "interval = plateau\nplateau_patience = 1", set_loss, RECORD_NO_LATE},
    {"plateau soon", "interval = plateau\nplateau_patience = 1\nplateau_threshold = 0.02", set_loss,
     RECORD_NO_LATE},
    {"plateau constant", "interval = plateau\nplateau_patience = 1", set_constant_loss, 0},
    {"plateau untold", "interval = plateau\ninterval_steps = 2", NULL, 0},
};

static const record_feature rules[] = {
    {"average", "correct = average", NULL, 0},
    {"elastic", "correct = elastic\nelastic_alpha = 0.3", NULL, 0},
    {"delayed", "correct = delayed", NULL, 0},
    {"delayed keep 0.7", "correct = delayed\ndelayed_keep = 0.7", NULL, 0},
    {"blend", "correct = blend", NULL, 0},
    {"outer", "correct = outer", NULL, 0},
    {"outer momentum", "correct = outer\nouter_kind = momentum\nouter_momentum = 0.4", NULL, 0},
    {"clip", "correct = clip\nclip_ratio = 1", NULL, 0},
    {"clip,outer,elastic", "correct = clip,outer,elastic\nclip_ratio = 1.1", NULL, 0},
    {"clip,outer,blend", "correct = clip,outer,blend\nclip_ratio = 1.1\nouter_lr = 0.9", NULL, 0},
    {"outer,delayed", "correct = outer,delayed\nouter_momentum = 0.3", NULL, 0},
};

static const record_feature features[] = {
    {"weights", "", set_uneven, 0},
    {"changing weights", "", set_changing, 0},
    {"falling lr", "", set_falling, 0},
    {"no momentum", "", set_plain, 0},
    {"nesterov", "", set_nesterov, 0},
    {"dampening", "", set_dampening, 0},
    {"commit tensor", "commit = tensor", NULL, RECORD_NO_PARAMETER},
    {"alone", "commit = tensor\nfuse_bytes = 0", set_alone, RECORD_NO_PARAMETER},
    {"reduce sum", "reduce = sum", NULL, RECORD_NO_ACCUMULATED},
    {"state average", "state = average", NULL, 0},
    {"state reset", "state = reset", NULL, 0},
    {"broadcast", "broadcast = yes", set_apart, 0},
    {"check no", "check_finite = no", NULL, 0},
    {"check skip", "check_finite = skip", set_skip, RECORD_NO_ACCUMULATED | RECORD_NO_PARAMETER},
    {"check pass", "check_finite = pass", set_pass, RECORD_NO_ACCUMULATED},
    {"check skip early", "check_finite = skip", set_skip_early, RECORD_NO_ACCUMULATED},
    {"check pass early", "check_finite = pass", set_pass_early, RECORD_NO_ACCUMULATED},
    {"same gradients", "", set_same, 0},
    {"no parameters", "", set_no_parameters, RECORD_NO_PARAMETER},
    {"no gradients", "", set_no_gradients, RECORD_NO_GRADIENT | RECORD_NO_ACCUMULATED},
    {"synchronize", "", set_syncs, 0},
    {"meet", "interval_steps = 8", set_meet, RECORD_NO_GRADIENT | RECORD_NO_PARAMETER},
    {"join", "", set_epochs, 0},
    {"take state", "", set_state, 0},
    {"silent", "", set_silent, 0},
    {"threads", "", set_threads, 0},
    {"deferred", "", set_deferred, 0},
    {"one rank", "", set_one, 0},
    {"four ranks", "", set_four, 0},
    {"delay 2", "delay_steps = 2", NULL, 0},
    {"delay 5", "delay_steps = 5\ninterval_steps = 6", NULL, 0},
    {"fragments 8", "fragments = 8\ninterval_steps = 8", NULL, 0},
    {"window 1", "window = 1\nlanes = 1", NULL, 0},
    {"slices 64", "slice_bytes = 64\nfuse_bytes = 0\nwindow = 7\nlanes = 5\nwire_block = 16", NULL,
     0},
    {"one slice", "slice_bytes = 1MiB\nfuse_bytes = 1MiB", NULL, 0},
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
