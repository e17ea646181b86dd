/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policy divergence, the default: the least approximation that hides the communication. Pure.
 *
 * Every pair (h, wire) has a predicted harm (drift.h) and a predicted share of time waited
 * (interval.h). Among the pairs whose harm is below the cap and whose waiting is below the target,
 * the one of least harm is taken.
 */
#include <math.h>
#include <stdio.h>

#include "drift.h"
#include "policies.h"

/* Hysteresis: a pair is entered inside the bounds and left outside of them, or for a clear gain. */
#define ENTER_TARGET 0.8
#define STAY_CAP     1.2
#define GAIN_HARM    0.7
#define GAIN_WAIT    0.85

/* What a decision is made from. */
typedef struct model {
    msdu__drift drift;
    uint32_t low; /* h may be low .. high */
    uint32_t high;
} model;

typedef struct pair {
    uint32_t interval; /* 0: none */
    int wire;
    double harm;
    double overhead;
} pair;

/* Best pairs of a search. */
typedef struct found {
    pair both;  /* within cap and target, least harm */
    pair exact; /* within the cap, least overhead */
    pair fast;  /* within the target, least harm */
    pair least; /* least harm of all */
    pair rush;  /* least overhead of all */
    pair now;   /* the last decision */
} found;

static uint64_t cooldown_start(const msdu__interval_args *args)
{
    return args->total_steps - args->total_steps / 32; /* the last 3 % */
}

static void set_range(model *m, msdu__interval_state *state)
{
    const msdu__interval_args *args = m->drift.args;
    uint64_t last = state->count[MSDU__COUNT_INTERVAL];
    uint32_t previous = last > 0 ? (uint32_t)last : m->drift.stats.interval;

    m->low = msdu__interval_limit(args, previous, 0);
    m->high = msdu__interval_limit(args, previous, (double)INFINITY);
    if (args->total_steps == 0 || m->drift.stats.step < cooldown_start(args)) {
        return;
    }
    if (state->count[MSDU__COUNT_COOLDOWN] == 0) {
        state->count[MSDU__COUNT_COOLDOWN] = previous >= 4 ? previous / 4 : 1;
    }
    if (m->high > state->count[MSDU__COUNT_COOLDOWN]) {
        m->high = (uint32_t)state->count[MSDU__COUNT_COOLDOWN];
        m->high = m->high > m->low ? m->high : m->low;
    }
}

static bool is_allowed(const model *m, uint32_t interval, int wire)
{
    const msdu__interval_args *args = m->drift.args;

    if (args->fixed_wire >= 0) {
        return wire == args->fixed_wire;
    }
    return wire == args->widest_wire ||
           (interval > 1 ? args->wires[wire].is_allowed : args->wires[wire].is_allowed_h1);
}

static pair evaluate(const model *m, uint32_t interval, int wire)
{
    pair p = {
        .interval = interval, .wire = wire, .harm = msdu__drift_harm(&m->drift, interval, wire)};

    p.overhead = msdu__interval_overhead(m->drift.args, &m->drift.stats, interval, wire);
    return p;
}

/* --- search --- */

static void keep_less_harm(pair *best, const pair *p)
{
    if (best->interval == 0 || p->harm < best->harm) {
        *best = *p;
    }
}

static void keep_less_wait(pair *best, const pair *p)
{
    if (best->interval == 0 || p->overhead < best->overhead ||
        (p->overhead <= best->overhead && p->harm < best->harm)) {
        *best = *p;
    }
}

static void consider(const model *m, const pair *p, found *best)
{
    bool is_exact = p->harm <= m->drift.cap;
    bool is_fast = p->overhead <= ENTER_TARGET * m->drift.args->target_overhead;

    keep_less_harm(&best->least, p);
    keep_less_wait(&best->rush, p);
    if (is_exact) {
        keep_less_wait(&best->exact, p);
    }
    if (is_fast) {
        keep_less_harm(&best->fast, p);
    }
    if (is_exact && is_fast) {
        keep_less_harm(&best->both, p);
    }
    if (p->interval == m->drift.state->count[MSDU__COUNT_INTERVAL] &&
        p->wire == (int)m->drift.state->count[MSDU__COUNT_WIRE]) {
        best->now = *p;
    }
}

static void search(const model *m, uint32_t low, uint32_t high, found *best)
{
    *best = (found){{0}, {0}, {0}, {0}, {0}, {0}};
    for (uint32_t interval = low; interval <= high; interval++) {
        for (int wire = 0; (uint32_t)wire < m->drift.args->wire_count; wire++) {
            if (is_allowed(m, interval, wire)) {
                pair p = evaluate(m, interval, wire);

                consider(m, &p, best);
            }
        }
    }
}

/* Time waited per time trained: unlike the share it does not flatten where waiting dominates. */
static double wait_ratio(const pair *p)
{
    return p->overhead < 1 ? p->overhead / (1 - p->overhead) : (double)INFINITY;
}

/* Is the last decision still within what was asked for, and `better` no clear gain? */
static bool is_kept(const model *m, const found *best, const pair *better)
{
    const pair *now = &best->now;
    bool is_exact = now->harm <= STAY_CAP * m->drift.cap;
    bool is_fast = now->overhead <= m->drift.args->target_overhead;

    if (now->interval == 0) {
        return false;
    }
    if (is_fast && is_exact) {
        return better != &best->both || better->harm > GAIN_HARM * now->harm;
    }
    if (is_fast) {
        return better == &best->fast && better->harm > GAIN_HARM * now->harm;
    }
    return better == &best->exact && is_exact && wait_ratio(better) > GAIN_WAIT * wait_ratio(now);
}

/* The promise first, then what the user prefers when both bounds cannot be kept. */
static const pair *prefer(const model *m, const found *best, const char **why)
{
    if (best->both.interval > 0) {
        *why = "least harm in both bounds";
        return &best->both;
    }
    if (m->drift.args->prefer_speed) {
        *why = best->fast.interval > 0 ? "over the cap, prefer speed" : "target not in reach";
        return best->fast.interval > 0 ? &best->fast : &best->rush;
    }
    *why = best->exact.interval == 0                             ? "over the cap, going back"
           : best->exact.interval >= m->drift.args->interval_max ? "target not in reach"
                                                                 : "at the cap, prefer accuracy";
    return best->exact.interval > 0 ? &best->exact : &best->least;
}

/* Drift was never measured: h = 1 if that does, else one probe at h = 2. */
static pair choose_unmeasured(const model *m, const char **why)
{
    found best;
    const pair *better = NULL;

    search(m, 1, 1, &best);
    better = prefer(m, &best, why);
    if (best.both.interval > 0 || m->high < 2) {
        return is_kept(m, &best, better) ? best.now : *better;
    }
    *why = "h 2 to measure drift";
    better = &best.rush;
    best.rush.interval = 0;
    for (int wire = 0; (uint32_t)wire < m->drift.args->wire_count; wire++) {
        if (is_allowed(m, 2, wire)) {
            pair p = {2, wire, 0, msdu__interval_overhead(m->drift.args, &m->drift.stats, 2, wire)};

            keep_less_wait(&best.rush, &p);
            if (p.overhead <= ENTER_TARGET * m->drift.args->target_overhead) {
                break;
            }
        }
    }
    return *better;
}

static pair choose(const model *m, const char **why)
{
    found best;
    const pair *better = NULL;

    if (!msdu__drift_is_known(&m->drift)) {
        return choose_unmeasured(m, why);
    }
    search(m, m->low, m->high, &best);
    better = prefer(m, &best, why);
    return is_kept(m, &best, better) ? best.now : *better;
}

/* --- decision --- */

static void remember(msdu__interval_state *state, const msdu__decision *decision)
{
    state->count[MSDU__COUNT_INTERVAL] = decision->interval;
    state->count[MSDU__COUNT_WIRE] = decision->wire > 0 ? (uint64_t)decision->wire : 0;
}

static void decide_unusable(const msdu__interval_args *args, const msdu__round_stats *stats,
                            msdu__decision *decision)
{
    decision->interval = msdu__interval_limit(args, stats->interval, 0);
    decision->wire = args->fixed_wire >= 0 ? args->fixed_wire : args->widest_wire;
    snprintf(decision->reason, sizeof decision->reason,
             "divergence: statistics not finite, h halved");
}

static void decide_usable(const msdu__interval_args *args, const msdu__round_stats *stats,
                          msdu__interval_state *state, msdu__decision *decision)
{
    model m;
    const char *why = "";
    pair p = {0};

    msdu__drift_learn(args, stats, state, &m.drift);
    set_range(&m, state);
    p = choose(&m, &why);
    decision->interval = p.interval > 0 ? p.interval : m.low; /* no format allowed: as it was */
    decision->wire = p.interval > 0 ? p.wire : args->widest_wire;
    snprintf(decision->reason, sizeof decision->reason,
             "harm %.2e of %.2e, waits %.1f%% of %.1f%%: %s", p.harm, m.drift.cap,
             msdu__interval_percent(p.overhead), msdu__interval_percent(args->target_overhead),
             why);
}

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    if (msdu__interval_warm_up(args, stats, decision)) {
        msdu__drift_learn_lr(stats, state);
    } else if (!msdu__drift_is_usable(stats)) {
        decide_unusable(args, stats, decision);
    } else {
        decide_usable(args, stats, state, decision);
    }
    remember(state, decision);
}

const msdu__policy msdu__policy_divergence = {
    .name = "divergence",
    .help = "the least approximation that hides the communication, within drift_limit",
    .decide = decide,
};
