/* SPDX-License-Identifier: Apache-2.0 */
/* From settings to the arguments of the pure stages: policy, correction chain, host of the backend.
 */
#include "start.h"

#include <math.h>
#include <string.h>

/* A backward pass is about two thirds of a step; slices of its first half can hide under the rest.
 */
#define HIDDEN_UNDER_BACKWARD 0.5
/* Most steps that overlap auto may come late: a step more costs less than a much longer round. */
#define DELAY_MOST 4

/* What sparse holds back waits for its turn and is no noise: h = 2 in sparse costs a little less
 * than h = 4 in four bits, whose harm the cap is (src/interval/DESIGN.md). */
#define SPARSE_HARM 0.34

/* Of an element: encoded by its rank and its owner, summed, decoded; on one core of a server, from
 * `msdu bench kernels` (src/wire/DESIGN.md). */
static const double code_ns[MSDU__WIRE_COUNT] = {
    [MSDU__WIRE_BFLOAT16] = 0.4, [MSDU__WIRE_FLOAT16] = 0.6, [MSDU__WIRE_INT8] = 0.8,
    [MSDU__WIRE_INT4] = 0.9,     [MSDU__WIRE_TERNARY] = 2.0, [MSDU__WIRE_SPARSE] = 2.3,
};

/* A narrower format must save this share of a round's bytes, statistics included. */
#define SAVED_LEAST 0.25

/* What rank 0 sends in a round of this format, as slices are cut now; it has most to send. */
static uint64_t round_bytes(const msdu__pipeline *p, int wire)
{
    uint64_t ranks = (uint64_t)p->ranks;
    uint64_t bytes = sizeof(msdu__control) * (ranks - 1);
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        const msdu__slice *cut = &p->slicing.slices[slice];
        int format = msdu__wire_of(cut->dtype, wire);
        bool is_narrow = format != MSDU__WIRE_FLOAT32;
        uint64_t width = cut->dtype == MSDU_FLOAT64 ? 8 : 4;
        bytes += is_narrow ? msdu__exchange_sent(msdu__wire_at(format), p->runs[slice].share_count,
                                                 (uint32_t)p->settings.wire_block, p->ranks)
                           : 2 * cut->count * width * (ranks - 1) / ranks;
    }
    return bytes;
}

static bool is_smaller(const msdu__pipeline *p, int wire)
{
    double whole = p->runs == NULL ? 0 : (double)round_bytes(p, MSDU__WIRE_FLOAT32);
    return p->runs == NULL || (double)round_bytes(p, wire) <= (1 - SAVED_LEAST) * whole;
}

void msdu__derive_wires(msdu__pipeline *p)
{
    msdu__interval_args *a = &p->interval_args;
    a->wire_count = MSDU__WIRE_COUNT;
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        const msdu__wire *wire = msdu__wire_at(i);
        double residual = msdu__wire_residual(wire, p->settings.wire_is_stochastic != 0);
        bool may_be = is_smaller(p, i);
        a->wires[i] = (msdu__interval_wire){
            .name = wire->name,
            .bits = wire->bits,
            .residual_ratio = residual,
            .code_ns = code_ns[i],
            .harm_ratio = i == MSDU__WIRE_SPARSE ? SPARSE_HARM : residual,
            /* In the accumulated domain it has not been tried. */
            .is_allowed = may_be && (i != MSDU__WIRE_SPARSE ||
                                     p->settings.domain != MSDU__DOMAIN_ACCUMULATED),
            /* Gradients in 2 bits and less cost accuracy: momentum adds their noise up, and its
             * square spoils Adam's second moment (1-bit Adam). Pseudo-gradients stand them;
             * src/interval/DESIGN.md has the numbers. */
            .is_allowed_h1 = may_be && i != MSDU__WIRE_TERNARY && i != MSDU__WIRE_SPARSE,
        };
    }
}

static bool is_late(const msdu__settings *s)
{
    return s->overlap == MSDU__OVERLAP_DELAYED || s->overlap == MSDU__OVERLAP_STREAMED;
}

/* `auto` is late only where that throws nothing away: the correction keeps the steps taken since
 * the snapshot. */
static bool may_be_late(const msdu__pipeline *p)
{
    const msdu__settings *s = &p->settings;
    bool is_local = s->domain == MSDU__DOMAIN_AUTO || s->domain == MSDU__DOMAIN_PARAMETER;
    bool keeps_steps = (p->chain.needs & MSDU__NEEDS_SNAPSHOT) != 0;
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

static void derive_interval(msdu__pipeline *p)
{
    const msdu__settings *s = &p->settings;
    p->interval_args = (msdu__interval_args){
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
        .warmup_wire = (int)s->wire_warmup,
        .widest_wire = MSDU__WIRE_FLOAT32,
        .fragments = s->overlap == MSDU__OVERLAP_STREAMED ? (uint32_t)s->fragments : 1,
        .hide_share = s->overlap == MSDU__OVERLAP_BLOCKING ? 0.0 : HIDDEN_UNDER_BACKWARD,
    };
    derive_hiding(s, &p->interval_args);
    msdu__derive_wires(p);
    p->policy = msdu__policy_find(s->interval);
}

msdu_status msdu__derive(msdu__pipeline *p)
{
    msdu__settings *s = &p->settings;
    bool keeps = is_late(s) || s->overlap == MSDU__OVERLAP_AUTO;
    char why[MSDU__TEXT_BYTES];
    if (!msdu__chain_parse(s->correct, keeps, &p->chain, why, sizeof(why))) {
        return msdu__fail(MSDU_ERR_INVALID, "setting correct: %s", why);
    }
    (void)msdu__chain_parse("average", false, &p->mean_chain, why, sizeof(why));
    s->delay_steps = may_be_late(p) ? s->delay_steps : 0;
    derive_interval(p);
    if (p->policy == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "setting interval: no policy '%s'", s->interval);
    }
    if (s->domain == MSDU__DOMAIN_ACCUMULATED && is_late(s)) {
        return msdu__fail(MSDU_ERR_INVALID, "setting overlap: domain accumulated meets within a "
                                            "step; use blocking or backward");
    }
    p->correct_args = (msdu__correct_args){
        .elastic_alpha = s->elastic_alpha,
        .outer_lr = s->outer_lr,
        .outer_momentum = s->outer_momentum,
        .outer_is_nesterov = s->outer_is_nesterov != 0,
        .delayed_keep = s->delayed_keep,
        .clip_scale = 1.0,
        .staleness = (uint32_t)s->delay_steps,
        .ranks = p->ranks,
    };
    return MSDU_OK;
}

static const char *or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

static void host_notify(void *user)
{
    msdu__pipeline *p = user;
    msdu__worker_kick(&p->worker);
}

static void host_log(void *user, msdu_log_level level, const char *text)
{
    const msdu__pipeline *p = user;
    msdu__log_line(&p->log, level, "%s", text);
}

static msdu_status host_fail(msdu_status status, const char *text)
{
    return msdu__fail_text(status, text);
}

void msdu__derive_host(msdu__pipeline *p)
{
    const msdu__settings *s = &p->settings;
    p->host = (msdu_host){
        .size = sizeof(msdu_host),
        .rank = p->rank,
        .ranks = p->ranks,
        .job = s->job,
        .secret = or_null(s->secret),
        .rendezvous = or_null(s->rendezvous),
        .interface = or_null(s->interface),
        .tls_key = or_null(s->tls_key),
        .tls_cert = or_null(s->tls_cert),
        .tls_ca = or_null(s->tls_ca),
        .deadline_ns = (uint64_t)s->deadline_ms * 1000000ULL,
        /* first phase, second phase, control, plan */
        .lanes = (uint32_t)(2 * s->lanes + 2),
        .requests =
            (s->window < 0 ? MSDU__WINDOW_TUNED : (uint32_t)s->window) + 2 * MSDU__FRAGMENTS_MAX,
        .user = p,
        .notify = host_notify,
        .log = host_log,
        .fail = host_fail,
        .store = s->store.size > 0 ? &s->store : NULL,
    };
}
