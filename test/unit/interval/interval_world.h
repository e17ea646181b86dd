/* SPDX-License-Identifier: Apache-2.0 */
/* A synthetic training process in a closed loop with the policy divergence. */
#ifndef MSDU_INTERVAL_WORLD_H
#define MSDU_INTERVAL_WORLD_H

#include "interval_fixture.h"

/* Training as the policy sees it: ranks that met s steps ago disagree by drift_one * s^power * (lr
 * / lr_first)^2, in units of the weights' square; a step takes 10 ms, and the link carries float32
 * in link_ms. */
typedef struct world {
    msdu__interval_args args;
    msdu__interval_state state;
    double link_ms;
    double latency_ms;
    double said_ms;     /* if not 0: messages say anything up to this instead */
    double hides;       /* share of a step that truly hides a gradient round */
    double hides_local; /* likewise a local round at once */
    double extra_ms;    /* waited in every local round besides */
    double shared_ms;   /* likewise in every round, while others compute on the same cores */
    double drift_one;
    double host_ranks; /* that average gradients in local steps: drift is as many times less */
    double power;
    double lr;
    double lr_first;
    double jitter; /* relative noise of every measurement */
    uint64_t step;
    uint32_t lag; /* decisions reach the round after the next */
    bool is_local;
    double waited_ms; /* at the end of the round before */
    int wire_before;  /* its format: messages tell its time on the link */
    msdu__decision now;
    msdu__decision coming;
    uint32_t changes;
    uint32_t most; /* largest h seen */
} world;

static inline world default_world(double link_ms, double drift_one)
{
    world w = {
        .args = default_args(),
        .link_ms = link_ms,
        .hides = 0.5,
        .drift_one = drift_one,
        .power = 1.5,
        .lr = 0.1,
        .lr_first = 0.1,
        .now = {.interval = 1, .wire = FLOAT32},
        .coming = {.interval = 1, .wire = FLOAT32},
    };

    return w;
}

/* Overlap backward, whose local rounds hide as gradients do. */
static inline world backward_world(double link_ms, double drift_one)
{
    world w = default_world(link_ms, drift_one);

    w.args.delay_max = 0;
    w.args.hide_local = 0.5;
    w.hides_local = 0.5;
    return w;
}

static inline double jittered(const world *w, double value)
{
    return value * (1 + w->jitter * noise());
}

static inline double world_wait_ms(const world *w, const msdu__decision *d)
{
    double sync = w->latency_ms + w->link_ms * w->args.wires[d->wire].bits / 32;
    bool is_local = w->is_local || d->interval > 1;
    bool is_late = d->delay_steps > 0 && d->interval > d->delay_steps;
    double hidden = is_late ? d->delay_steps : is_local ? w->hides_local : w->hides;

    return fmax(sync - 10 * hidden, 0) + (is_local ? w->extra_ms : 0);
}

/* True share of time waited at a decision. */
static inline double overhead_of(const world *w, const msdu__decision *d)
{
    double waited = world_wait_ms(w, d);

    return waited / (10 * d->interval + waited);
}

static inline double world_overhead(const world *w)
{
    return overhead_of(w, &w->now);
}

static inline double world_drift(const world *w, uint32_t interval)
{
    double rate = w->lr / w->lr_first;

    return w->drift_one / fmax(w->host_ranks, 1) * pow(interval, w->power) * rate * rate;
}

/* As drift.h defines it, summed up. */
static inline double error_of(const world *w, const msdu__decision *d)
{
    double sum = 0;
    bool is_late = d->delay_steps > 0 && d->interval > d->delay_steps;

    for (uint32_t s = 0; s < d->interval; s++) {
        sum += s + (is_late ? d->delay_steps : 0) > 0
                   ? world_drift(w, s + (is_late ? d->delay_steps : 0))
                   : 0;
    }
    return sum / d->interval +
           1.0 * 4 / 3 * w->args.wires[d->wire].residual_ratio * world_drift(w, d->interval);
}

static inline double world_error(const world *w)
{
    return error_of(w, &w->now);
}

/* What the default budget is: a plain round of interval_steps. */
static inline double plain_error(const world *w)
{
    msdu__decision plain = {.interval = w->args.interval_steps, .wire = FLOAT32};

    return error_of(w, &plain);
}

static inline msdu__round_stats world_round(const world *w)
{
    msdu__round_stats stats = default_stats(0);
    uint32_t h = w->now.interval;
    double bits = w->args.wires[w->wire_before].bits;
    double drift = stats.weight_sq * world_drift(w, h);

    stats.step = w->step;
    stats.interval = h;
    stats.wire = w->now.wire;
    stats.link_wire = w->wire_before;
    stats.delay_steps = h > w->now.delay_steps ? w->now.delay_steps : 0;
    stats.is_gradient = !w->is_local;
    stats.host_ranks = w->is_local ? w->host_ranks : 1;
    stats.lr = w->lr;
    stats.link_ns = (uint64_t)jittered(w, 1e6 * (w->latency_ms + w->link_ms * bits / 32));
    double said = w->said_ms > 0 ? w->said_ms * (1 + noise()) / 2 : w->latency_ms;
    stats.latency_ns = (uint64_t)(1e6 * said / stats.messages);
    stats.shared_ns = (uint64_t)(1e6 * w->shared_ms);
    stats.wait_ns = (uint64_t)jittered(w, 1e6 * w->waited_ms) + stats.shared_ns;
    stats.local_sq = jittered(w, drift * 4 / 3 / (stats.is_gradient ? w->lr * w->lr : 1));
    stats.mean_sq = stats.local_sq / 4;
    stats.residual_sq = stats.local_sq * w->args.wires[w->now.wire].residual_ratio;
    return stats;
}

static inline void world_run(world *w, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        msdu__round_stats stats;
        msdu__decision decision;
        uint32_t last = w->coming.interval;

        w->step += w->now.interval;
        w->is_local = w->is_local || w->now.interval > 1;
        stats = world_round(w);
        decision = decide("divergence", &w->args, &stats, &w->state);
        ck_assert_uint_le(decision.interval, 2 * last);
        ck_assert_uint_ge(2 * decision.interval, last);
        ck_assert_uint_le(decision.delay_steps, w->args.delay_max);
        w->changes += decision.interval != last || decision.wire != w->coming.wire;
        w->waited_ms = world_wait_ms(w, &w->now);
        w->wire_before = w->now.wire;
        w->now = w->lag ? w->coming : decision;
        w->coming = decision;
        w->most = decision.interval > w->most ? decision.interval : w->most;
    }
}

#endif
