/* SPDX-License-Identifier: Apache-2.0 */
/* Drift, residual and link as rounds show them, for the policy divergence. Pure. */
#include "drift.h"

#include <math.h>

/* Weight of the residual beside drift: it arrives a round late, while drift has bent every gradient
 * since. At 0.5 ternary at h ranks with int4 at 2h or better, as it did in trials. */
#define RESIDUAL_WEIGHT 0.5
#define SMOOTH          0.3  /* weight of the newest measurement */
#define SMOOTH_LINK     0.15 /* what does not hide is a small difference of noisy times */
#define POWER_FIRST     1.5
#define SCALE_MOST      4.0  /* measured over predicted residual, at most; and its inverse */
#define FORGET_ROUNDS   64   /* gradient rounds after which drift is measured anew */
#define LINK_MOST       1e18 /* fits an integer time */

static bool is_measure(double value)
{
    return isfinite(value) && value >= 0;
}

bool msdu__drift_is_usable(const msdu__round_stats *stats)
{
    return is_measure(stats->local_sq) && is_measure(stats->mean_sq) &&
           is_measure(stats->weight_sq) && is_measure(stats->residual_sq) && stats->interval > 0;
}

bool msdu__drift_is_known(const msdu__drift *drift)
{
    return drift->state->real[MSDU__REAL_AT] > 0;
}

static void blend(double *smooth, double value, double share)
{
    *smooth += share * (value - *smooth);
}

static void learn_link(msdu__drift *m, msdu__interval_state *state)
{
    double widest = msdu__interval_sync_ns(m->args, &m->stats, m->args->widest_wire);
    double *smooth = &state->real[MSDU__REAL_LINK];

    if (*smooth > 0) {
        blend(smooth, widest, SMOOTH_LINK);
    } else {
        *smooth = widest;
    }
    if (widest > 0) {
        m->stats.link_ns = (uint64_t)fmin((double)m->stats.link_ns * (*smooth / widest), LINK_MOST);
    }
}

static double growth(const msdu__interval_state *state, uint32_t interval)
{
    return pow(interval / state->real[MSDU__REAL_AT], state->real[MSDU__REAL_POWER]);
}

static void learn_power(const msdu__interval_state *state, double drift, uint32_t interval,
                        double *power)
{
    double at = state->real[MSDU__REAL_AT];
    double before = state->real[MSDU__REAL_DRIFT];

    if (interval == (uint32_t)at || !(before > 0) || !(drift > 0)) {
        return;
    }
    blend(power, fmin(fmax(log(drift / before) / log(interval / at), 1), 2), SMOOTH);
}

/* A local round: drift and contribution, in units of the weights where those are known. */
static void learn_drift(const msdu__drift *m, msdu__interval_state *state)
{
    const msdu__round_stats *stats = &m->stats;
    double weight = state->real[MSDU__REAL_WEIGHT] > 0 ? state->real[MSDU__REAL_WEIGHT] : 1;
    double drift = fmax(stats->local_sq - stats->mean_sq, 0) / weight;
    double contribution = stats->local_sq / weight;

    if (state->real[MSDU__REAL_AT] > 0) {
        double grown = 0;

        learn_power(state, drift, stats->interval, &state->real[MSDU__REAL_POWER]);
        grown = growth(state, stats->interval);
        drift += (1 - SMOOTH) * (state->real[MSDU__REAL_DRIFT] * grown - drift);
        contribution +=
            (1 - SMOOTH) * (state->real[MSDU__REAL_CONTRIBUTION] * grown - contribution);
    }
    state->real[MSDU__REAL_DRIFT] = drift;
    state->real[MSDU__REAL_CONTRIBUTION] = contribution;
    state->real[MSDU__REAL_AT] = stats->interval;
    state->count[MSDU__COUNT_SINCE] = 0;
}

/* How far the residual is from what the wire's table entry predicts. */
static void learn_scale(const msdu__drift *m, msdu__interval_state *state)
{
    const msdu__round_stats *stats = &m->stats;
    double predicted = 0;

    if (stats->wire >= 0 && (uint32_t)stats->wire < m->args->wire_count) {
        predicted = m->args->wires[stats->wire].residual_ratio * stats->local_sq;
    }
    if (predicted > 0 && stats->residual_sq > 0) {
        blend(&state->real[MSDU__REAL_SCALE],
              fmin(fmax(stats->residual_sq / predicted, 1 / SCALE_MOST), SCALE_MOST), SMOOTH);
    }
}

/* The reference is the largest rate, not the first: a learning rate that warms up must not loosen
 * the cap. */
void msdu__drift_learn_lr(const msdu__round_stats *stats, msdu__interval_state *state)
{
    if (isfinite(stats->lr) && stats->lr > state->real[MSDU__REAL_LR]) {
        state->real[MSDU__REAL_LR] = stats->lr;
    }
}

static void learn(msdu__drift *m, msdu__interval_state *state)
{
    if (!(state->real[MSDU__REAL_POWER] > 0)) {
        state->real[MSDU__REAL_POWER] = POWER_FIRST;
        state->real[MSDU__REAL_SCALE] = 1;
    }
    if (m->stats.weight_sq > 0) {
        state->real[MSDU__REAL_WEIGHT] = m->stats.weight_sq;
    }
    learn_link(m, state);
    learn_scale(m, state);
    msdu__drift_learn_lr(&m->stats, state);
    if (!m->stats.is_gradient) {
        learn_drift(m, state);
    } else if (++state->count[MSDU__COUNT_SINCE] > FORGET_ROUNDS) {
        state->real[MSDU__REAL_AT] = 0;
    }
}

static double relative_cap(const msdu__drift *m)
{
    const double *real = m->state->real;
    double limit = m->args->drift_limit > 0 ? m->args->drift_limit : MSDU__DRIFT_LIMIT;
    double lr = m->stats.lr;
    double share = 1;

    if (m->args->drift_exponent > 0 && isfinite(lr) && lr > 0) {
        share = pow(lr / real[MSDU__REAL_LR], m->args->drift_exponent);
    }
    if (real[MSDU__REAL_WEIGHT] > 0 || !msdu__drift_is_known(m)) {
        return share * limit;
    }
    /* Without weights there is no scale: the cap is the drift of the user's own interval. */
    return share * real[MSDU__REAL_DRIFT] * growth(m->state, m->args->interval_steps);
}

/* Energy of a contribution at h = 1. Gradients become parameter units through the learning rate. */
static double first_energy(const msdu__drift *m)
{
    const msdu__round_stats *stats = &m->stats;
    double weight = m->state->real[MSDU__REAL_WEIGHT];

    if (stats->is_gradient && weight > 0 && isfinite(stats->lr) && stats->lr > 0) {
        return stats->local_sq * stats->lr * stats->lr / weight;
    }
    if (msdu__drift_is_known(m)) {
        return m->state->real[MSDU__REAL_CONTRIBUTION] * growth(m->state, 1);
    }
    return -1;
}

void msdu__drift_learn(const msdu__interval_args *args, const msdu__round_stats *stats,
                       msdu__interval_state *state, msdu__drift *drift_out)
{
    *drift_out = (msdu__drift){.args = args, .state = state, .stats = *stats};
    learn(drift_out, state);
    drift_out->cap = relative_cap(drift_out);
    drift_out->energy = first_energy(drift_out);
}

double msdu__drift_harm(const msdu__drift *drift, uint32_t interval, int wire)
{
    const double *real = drift->state->real;
    double lost =
        RESIDUAL_WEIGHT * real[MSDU__REAL_SCALE] * drift->args->wires[wire].residual_ratio;

    if (interval > 1) {
        return growth(drift->state, interval) *
               (real[MSDU__REAL_DRIFT] + lost * real[MSDU__REAL_CONTRIBUTION]);
    }
    if (drift->energy < 0) {
        return drift->cap * lost / (1 + lost); /* no scale: below the cap, in order of width */
    }
    return lost > 0 ? lost * drift->energy : 0;
}
