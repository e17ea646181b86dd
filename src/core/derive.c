/* SPDX-License-Identifier: Apache-2.0 */
/* From settings to the arguments of the pure stages: policy and correction chain. */
#include "job.h"

#include <math.h>
#include <string.h>

/* A backward pass is about two thirds of a step; slices of its first half can hide under the rest.
 */
#define HIDDEN_UNDER_BACKWARD 0.5
/* Most steps that overlap auto may come late: a step more costs less than a much longer round. */
#define DELAY_MOST 4

/* What sparse holds back waits for its turn and is no noise: h = 2 in sparse costs a little less
 * than h = 4 in four bits, whose error the budget is (src/interval/DESIGN.md). */
#define SPARSE_ERROR 0.34

/* A narrower format must save this share of a round's bytes, statistics included. */
#define SAVED_LEAST 0.25

static bool is_smaller(const uint64_t *round_bytes, int wire)
{
    return round_bytes == NULL ||
           (double)round_bytes[wire] <= (1 - SAVED_LEAST) * (double)round_bytes[MSDU__WIRE_FLOAT32];
}

/* Gradients in 2 bits cost accuracy: momentum adds their noise up, and its square spoils Adam's
 * second moment (1-bit Adam). What sparse holds back is only late, which SGD bears, because it is
 * linear in the gradient. Pseudo-gradients stand both; src/interval/DESIGN.md has the numbers. */
static bool may_carry_gradients(const msdu__settings *s, int wire)
{
    bool is_sgd = s->optimizer == MSDU__OPTIMIZER_SGD && s->domain != MSDU__DOMAIN_ACCUMULATED;
    return wire != MSDU__WIRE_INT2 && (wire != MSDU__WIRE_SPARSE || is_sgd);
}

void msdu__derive_wires(msdu__job *job, const uint64_t *round_bytes)
{
    msdu__interval_args *a = &job->interval_args;
    a->wire_count = MSDU__WIRE_COUNT;
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        const msdu__wire *wire = msdu__wire_at(i);
        bool may_be = is_smaller(round_bytes, i);
        a->wires[i] = (msdu__interval_wire){
            .name = wire->name,
            .bits = wire->bits,
            .residual_ratio = wire->residual_ratio,
            .error_ratio = i == MSDU__WIRE_SPARSE ? SPARSE_ERROR : wire->residual_ratio,
            /* In the accumulated domain it has not been tried. */
            .is_allowed = may_be && (i != MSDU__WIRE_SPARSE ||
                                     job->settings.domain != MSDU__DOMAIN_ACCUMULATED),
            .is_allowed_h1 = may_be && may_carry_gradients(&job->settings, i),
            .has_backlog = i == MSDU__WIRE_SPARSE,
        };
    }
    msdu__derive_costs(job);
}

void msdu__derive_costs(msdu__job *job)
{
    msdu__interval_args *a = &job->interval_args;
    a->copy_ns = job->costs.copy_ns;
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        a->wires[i].code_ns = msdu__wire_code_ns(&job->costs, i, job->ranks);
    }
}

static bool is_late(const msdu__settings *s)
{
    return s->overlap == MSDU__OVERLAP_DELAYED || s->overlap == MSDU__OVERLAP_STREAMED;
}

/* `auto` is late only where that throws nothing away: the correction keeps the steps taken since
 * the snapshot. */
static bool may_be_late(const msdu__job *job)
{
    const msdu__settings *s = &job->settings;
    bool is_local = s->domain == MSDU__DOMAIN_AUTO || s->domain == MSDU__DOMAIN_PARAMETER;
    bool keeps_steps = (job->chain.needs & MSDU__NEEDS_SNAPSHOT) != 0;
    return is_late(s) || (s->overlap == MSDU__OVERLAP_AUTO && is_local && keeps_steps);
}

static void derive_hiding(const msdu__settings *s, msdu__interval_args *a)
{
    bool is_within_step =
        s->overlap == MSDU__OVERLAP_BACKWARD || s->domain == MSDU__DOMAIN_ACCUMULATED;
    uint32_t delay = (uint32_t)s->delay_steps;
    a->delay_min = is_late(s) ? delay : 0;
    a->delay_max = is_late(s) || delay == 0 || delay > DELAY_MOST ? delay : DELAY_MOST;
    a->hide_local = is_within_step ? a->hide_share : 0.0;
}

static void derive_interval(msdu__job *job)
{
    const msdu__settings *s = &job->settings;
    job->interval_args = (msdu__interval_args){
        .interval_steps = (uint32_t)s->interval_steps,
        .interval_max = (uint32_t)s->interval_max,
        .warmup_steps = (uint32_t)s->warmup_steps,
        .total_steps = (uint64_t)s->total_steps,
        .switch_step = (uint64_t)s->switch_step,
        .target_overhead = s->target_overhead,
        .prefer_speed = s->prefer_speed != 0,
        .drift_limit = s->drift_limit,
        .drift_exponent = s->drift_exponent,
        .qsr_alpha = s->qsr_alpha,
        .plateau_patience = (uint32_t)s->plateau_patience,
        .plateau_threshold = s->plateau_threshold,
        .fixed_wire = (int)s->wire,
        .widest_wire = MSDU__WIRE_FLOAT32,
        .fragments = s->overlap == MSDU__OVERLAP_STREAMED ? (uint32_t)s->fragments : 1,
        .clock_period = s->clock_period,
        .clock_grace = s->clock_grace,
        .hide_share = s->overlap == MSDU__OVERLAP_BLOCKING ? 0.0 : HIDDEN_UNDER_BACKWARD,
    };
    derive_hiding(s, &job->interval_args);
    job->costs = msdu__wire_costs_server; /* until ranks have met */
    msdu__derive_wires(job, NULL);
    job->policy = msdu__policy_find(s->interval);
}

msdu_status msdu__derive(msdu__job *job, msdu__correct_args *correct_out)
{
    msdu__settings *s = &job->settings;
    bool keeps = is_late(s) || s->overlap == MSDU__OVERLAP_AUTO;
    char why[MSDU__TEXT_BYTES];
    if (!msdu__chain_parse(s->correct, keeps, &job->chain, why, sizeof(why))) {
        return msdu__fail(MSDU_ERR_INVALID, "setting correct: %s", why);
    }
    (void)msdu__chain_parse("average", false, &job->mean_chain, why, sizeof(why));
    s->delay_steps = may_be_late(job) ? s->delay_steps : 0;
    derive_interval(job);
    if (job->policy == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "setting interval: no policy '%s'", s->interval);
    }
    if (s->domain == MSDU__DOMAIN_ACCUMULATED && is_late(s)) {
        return msdu__fail(MSDU_ERR_INVALID, "setting overlap: domain accumulated meets within a "
                                            "step; use blocking or backward");
    }
    *correct_out = (msdu__correct_args){
        .elastic_alpha = s->elastic_alpha,
        .outer_lr = s->outer_lr,
        .outer_momentum = s->outer_momentum,
        .outer_is_nesterov = s->outer_is_nesterov != 0,
        .delayed_keep = s->delayed_keep,
        .clip_scale = 1.0,
        .staleness = (uint32_t)s->delay_steps,
        .groups = job->ranks,
    };
    return MSDU_OK;
}
