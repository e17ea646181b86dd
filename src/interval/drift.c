/* SPDX-License-Identifier: Apache-2.0 */
/* Drift, residual and link as rounds show them, for the policy divergence. Pure. */
#include "drift.h"

#include <math.h>

/* Constants of the trade between interval, delay and wire; bench/results/trials/policy.txt. */
/* Of withheld energy beside disagreement: from h = 2 on, int2 costs hardly more than int4. */
#define RESIDUAL_WEIGHT  0.25
#define SMOOTH           0.3 /* weight of the newest measurement */
#define POWER_FIRST      1.5
#define SCALE_MOST       4.0 /* measured over predicted residual, at most; and its inverse */
#define CALIBRATE_ROUNDS 8   /* that are averaged to the first peak */
#define RATE_LEAST       0.1 /* an lr that goes to zero is ahead of the drift measured at it */
#define SMOOTH_PEAK      0.1 /* later it only rises, and slowly: one noisy round is no peak */

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
    double drift = msdu__interval_drift(stats) / weight;
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
}

/* Sum of s^p over s = first .. last, by the midpoint rule; s = 0 adds nothing. */
static double sum_of_powers(double first, double last, double power)
{
    double low = first > 0 ? first - 0.5 : 0.5;

    return (pow(last + 0.5, power + 1) - pow(low, power + 1)) / (power + 1);
}

/* V averaged over the gradients of a round. */
static double disagreement(const msdu__interval_state *state, uint32_t interval, uint32_t delay)
{
    double last = (double)interval + delay - 1;

    if (last < 1) {
        return 0;
    }
    return state->real[MSDU__REAL_DRIFT] * growth(state, 1) *
           sum_of_powers(delay, last, state->real[MSDU__REAL_POWER]) / interval;
}

static double plain_error(const msdu__drift *m)
{
    uint32_t steps = m->args->interval_steps > 2 ? m->args->interval_steps : 2;

    return fmax(m->stats.host_ranks, 1) * disagreement(m->state, steps, 0);
}

static void learn_peak(const msdu__drift *m, msdu__interval_state *state)
{
    double *peak = &state->real[MSDU__REAL_PEAK];
    double error = plain_error(m);

    if (state->count[MSDU__COUNT_CALIBRATED] < CALIBRATE_ROUNDS) {
        state->count[MSDU__COUNT_CALIBRATED]++;
        blend(peak, error, 1.0 / (double)state->count[MSDU__COUNT_CALIBRATED]);
    } else if (error > *peak) {
        blend(peak, error, SMOOTH_PEAK);
    }
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
 * the budget. */
static void learn_lr(const msdu__round_stats *stats, msdu__interval_state *state)
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
    learn_scale(m, state);
    learn_lr(&m->stats, state);
    if (!m->stats.is_gradient) {
        learn_drift(m, state);
        learn_peak(m, state);
    }
}

/* Where the trainer does not tell its learning rate, drift does: V goes as its square. */
static double rate_now(const msdu__drift *m)
{
    const double *real = m->state->real;
    double lr = m->stats.lr;

    double rate = 1;

    if (isfinite(lr) && lr > 0) {
        rate = lr / real[MSDU__REAL_LR];
    } else if (real[MSDU__REAL_PEAK] > 0) {
        rate = sqrt(plain_error(m) / real[MSDU__REAL_PEAK]);
    }
    return fmin(fmax(rate, RATE_LEAST), 1);
}

static double cap_now(const msdu__drift *m)
{
    bool is_absolute = m->args->drift_limit > 0 && m->state->real[MSDU__REAL_WEIGHT] > 0;

    if (!msdu__drift_is_known(m)) {
        return (double)INFINITY;
    }
    return (is_absolute ? m->args->drift_limit : m->state->real[MSDU__REAL_PEAK]) *
           pow(rate_now(m), fmax(m->args->drift_exponent, 0));
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
    drift_out->budget = cap_now(drift_out);
    drift_out->energy = first_energy(drift_out);
}

/* Before the first local round: units of the drift of one step, all of it noise. */
static const msdu__interval_state unmeasured = {.real = {[MSDU__REAL_DRIFT] = 1,
                                                         [MSDU__REAL_CONTRIBUTION] = 1,
                                                         [MSDU__REAL_AT] = 1,
                                                         [MSDU__REAL_POWER] = POWER_FIRST,
                                                         [MSDU__REAL_SCALE] = 1}};

static double lost_share(const msdu__interval_state *state, double ratio)
{
    return RESIDUAL_WEIGHT * state->real[MSDU__REAL_SCALE] * ratio;
}

double msdu__drift_error_late(const msdu__drift *drift, const msdu__choice *choice)
{
    const msdu__interval_state *state = msdu__drift_is_known(drift) ? drift->state : &unmeasured;

    return disagreement(state, choice->interval, choice->delay_steps) +
           lost_share(state, drift->args->wires[choice->wire].error_ratio) *
               growth(state, choice->interval) * state->real[MSDU__REAL_CONTRIBUTION];
}

double msdu__drift_error(const msdu__drift *drift, const msdu__choice *choice)
{
    const msdu__interval_state *state = msdu__drift_is_known(drift) ? drift->state : &unmeasured;
    const msdu__interval_wire *wire = &drift->args->wires[choice->wire];

    if (choice->interval > 1) {
        return msdu__drift_error_late(drift, choice);
    }
    /* of gradients all that is held back counts, because momentum waits for it as well */
    double ratio = drift->stats.is_gradient ? wire->residual_ratio : wire->error_ratio;
    double lost = lost_share(state, ratio);
    /* without a scale, no more than an order of width */
    return drift->energy < 0 ? lost : lost * drift->energy;
}
