/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policy divergence, the default: of all choices that hide communication, the most exact one. Pure.
 *
 * Every choice (h, wire, delay) has a predicted error (drift.h) and a predicted share of time
 * waited (waiting.h). Among the choices whose error is below the budget and whose waiting is below
 * the target, the one of least error is taken; among equals, the one of fewest bytes.
 */
#include <math.h>
#include <stdio.h>

#include "backlog.h"
#include "drift.h"
#include "policies.h"
#include "waiting.h"

/* Hysteresis: a choice is entered inside the bounds and left outside of them, or for a clear gain.
 */
#define ENTER_TARGET 0.7
#define STAY_BUDGET  1.2
#define GAIN_ERROR   0.7
#define GAIN_WAIT    0.85
#define SAME_ERROR   1.04 /* no difference that trials could tell */
#define SAME_WAIT    0.01 /* likewise, of the wait itself */
/* Plain float32 is exact, and from local steps there is no way back to gradients: each is left only
 * when that was wanted so many rounds, in a row or nearly so; float32 sooner where waiting is
 * alarming. */
#define LEAVE_ROUNDS  12
#define FORGIVEN      2 /* of these, by one that wants to stay */
#define NARROW_ROUNDS 12
#define ALARM         0.3 /* share of time waited: two rounds do */
#define ALARM_MOST    0.7 /* one does */
#define ALARM_STEPS   16  /* of a run; later it would be a hiccup */

/* What a decision is made from. */
typedef struct model {
    msdu__drift drift;
    msdu__hiding hiding;
    uint32_t low; /* h may be low .. high */
    uint32_t high;
    bool has_plain; /* float32 gradients may be had: what is no faster is not taken */
} model;

typedef struct option {
    msdu__choice choice; /* interval 0: none */
    double error;
    double overhead;
    double traffic; /* time on the link per step */
} option;

/* Best options of a search. */
typedef struct found {
    option both;  /* within budget and target, least error */
    option exact; /* within the budget, least overhead */
    option fast;  /* within the target, least error */
    option least; /* least error of all */
    option rush;  /* least overhead of all */
    option now;   /* the last decision */
} found;

static void set_range(model *m, const msdu__interval_state *state)
{
    const msdu__interval_args *args = m->drift.args;
    uint64_t last = state->count[MSDU__COUNT_INTERVAL];
    uint32_t previous = last > 0 ? (uint32_t)last : m->drift.stats.interval;

    m->low = msdu__interval_limit(args, previous, 0);
    m->high = msdu__interval_limit(args, previous, (double)INFINITY);
}

static bool is_allowed(const model *m, uint32_t interval, int wire)
{
    const msdu__interval_args *args = m->drift.args;
    const msdu__interval_wire *format = &args->wires[wire];

    if (args->fixed_wire >= 0) {
        return wire == args->fixed_wire;
    }
    if (interval == 1 && format->has_backlog &&
        (!m->drift.stats.is_gradient || msdu__backlog_is_given_up(m->drift.state))) {
        return false;
    }
    return wire == args->widest_wire || (interval > 1 ? format->is_allowed : format->is_allowed_h1);
}

static option evaluate(const model *m, const msdu__choice *choice)
{
    const msdu__interval_args *args = m->drift.args;
    const msdu__round_stats *stats = &m->drift.stats;

    return (option){
        .choice = *choice,
        .error = msdu__drift_error(&m->drift, choice),
        .overhead = msdu__interval_overhead(args, stats, &m->hiding, choice),
        .traffic = msdu__interval_sync_ns(args, stats, choice->wire) / choice->interval,
    };
}

/* --- search --- */

/* Less error, or about as little at fewer bytes. The least is kept beside the best, so that small
 * differences do not add up along a search. */
static void keep_less_error(option *best, const option *o, double *least)
{
    *least = fmin(*least, o->error);
    if (best->choice.interval == 0 || best->error > SAME_ERROR * *least ||
        (o->error <= SAME_ERROR * *least && o->traffic < best->traffic)) {
        *best = *o;
    }
}

/* Time waited per time trained: unlike the share it does not flatten where waiting dominates. */
static double wait_ratio(const option *o)
{
    return o->overhead < 1 ? o->overhead / (1 - o->overhead) : (double)INFINITY;
}

/* Less waiting, or as little at less error, or both alike at fewer bytes: late rounds that hide
 * wait for the same whatever their wire. */
static void keep_less_wait(option *best, const option *o)
{
    bool is_less = wait_ratio(o) < (1 - SAME_WAIT) * wait_ratio(best);
    bool is_same = wait_ratio(o) <= (1 + SAME_WAIT) * wait_ratio(best);
    bool is_better = o->error * SAME_ERROR < best->error ||
                     (o->error <= SAME_ERROR * best->error && o->traffic < best->traffic);

    if (best->choice.interval == 0 || is_less || (is_same && is_better)) {
        *best = *o;
    }
}

typedef struct least_error {
    double both;
    double fast;
    double all;
} least_error;

static bool is_last(const msdu__interval_state *state, const msdu__choice *choice)
{
    return choice->interval == state->count[MSDU__COUNT_INTERVAL] &&
           (uint64_t)choice->wire == state->count[MSDU__COUNT_WIRE] &&
           choice->delay_steps == state->count[MSDU__COUNT_DELAY];
}

static void consider(const model *m, const option *o, found *best, least_error *least)
{
    bool is_exact = o->error <= m->drift.budget;
    bool is_fast = o->overhead <= ENTER_TARGET * m->drift.args->target_overhead;

    keep_less_error(&best->least, o, &least->all);
    keep_less_wait(&best->rush, o);
    if (is_exact) {
        keep_less_wait(&best->exact, o);
    }
    if (is_fast) {
        keep_less_error(&best->fast, o, &least->fast);
    }
    if (is_exact && is_fast) {
        keep_less_error(&best->both, o, &least->both);
    }
    if (is_last(m->drift.state, &o->choice)) {
        best->now = *o;
    }
}

/* A round at once, where the overlap allows it, or late by less than its length. */
static bool may_delay(const msdu__interval_args *args, uint32_t interval, uint32_t delay)
{
    return delay == 0 ? args->delay_min == 0 || interval == 1
                      : delay >= args->delay_min && delay < interval;
}

/* By what is predicted: steps are as long as those of plain float32, or longer. */
static bool is_no_faster(const model *m, const option *o)
{
    int plain = m->drift.args->widest_wire;

    if (!m->has_plain || (o->choice.interval == 1 && o->choice.wire == plain)) {
        return false;
    }
    return o->overhead >= evaluate(m, &(msdu__choice){.interval = 1, .wire = plain}).overhead;
}

static void search_wires(const model *m, uint32_t interval, uint32_t delay, found *best,
                         least_error *least)
{
    const msdu__interval_args *args = m->drift.args;

    for (int wire = 0; (uint32_t)wire < args->wire_count; wire++) {
        if (is_allowed(m, interval, wire)) {
            option o = evaluate(m, &(msdu__choice){interval, delay, wire});

            if (!is_no_faster(m, &o)) {
                consider(m, &o, best, least);
            }
        }
    }
}

static void search_delays(const model *m, uint32_t interval, found *best, least_error *least)
{
    for (uint32_t delay = 0; delay <= m->drift.args->delay_max; delay++) {
        if (may_delay(m->drift.args, interval, delay)) {
            search_wires(m, interval, delay, best, least);
        }
    }
}

/* Every interval up to a few dozen, then steps that no one could tell; and always the last. */
static void search(const model *m, uint32_t low, uint32_t high, found *best)
{
    least_error least = {(double)INFINITY, (double)INFINITY, (double)INFINITY};
    uint64_t last = m->drift.state->count[MSDU__COUNT_INTERVAL];

    *best = (found){.both = {.error = 0}};
    for (uint32_t interval = low; interval <= high; interval += 1 + interval / 64) {
        search_delays(m, interval, best, &least);
    }
    if (best->now.choice.interval == 0 && last >= low && last <= high) {
        search_delays(m, (uint32_t)last, best, &least);
    }
}

/* Is the last decision still within what was asked for, and `better` no clear gain? */
static bool is_kept(const model *m, const found *best, const option *better)
{
    const option *now = &best->now;
    bool is_exact = now->error <= STAY_BUDGET * m->drift.budget;
    bool is_fast = now->overhead <= m->drift.args->target_overhead;

    if (now->choice.interval == 0) {
        return false;
    }
    if (is_fast && is_exact) {
        return better != &best->both || better->error > GAIN_ERROR * now->error;
    }
    if (is_fast) {
        return better == &best->fast && better->error > GAIN_ERROR * now->error;
    }
    return better == &best->exact && is_exact && wait_ratio(better) > GAIN_WAIT * wait_ratio(now);
}

/* The promise first, then what the user prefers when both bounds cannot be kept. */
static const option *prefer(const model *m, const found *best, const char **why)
{
    if (best->both.choice.interval > 0) {
        *why = "least error in both bounds";
        return &best->both;
    }
    if (m->drift.args->prefer_speed) {
        *why = best->fast.choice.interval > 0 ? "over the budget, prefer speed"
                                              : "target not in reach";
        return best->fast.choice.interval > 0 ? &best->fast : &best->rush;
    }
    *why = best->exact.choice.interval == 0 ? "over the budget, going back"
           : best->exact.choice.interval >= m->drift.args->interval_max
               ? "target not in reach"
               : "at the budget, prefer accuracy";
    return best->exact.choice.interval > 0 ? &best->exact : &best->least;
}

static bool is_warm_up(const model *m)
{
    return m->drift.stats.step < m->drift.args->warmup_steps;
}

/* May float32 be left for `better`? */
static bool is_certain(const model *m, msdu__interval_state *state, const option *better)
{
    const msdu__interval_args *args = m->drift.args;
    option exact = evaluate(m, &(msdu__choice){.interval = 1, .wire = args->widest_wire});
    uint64_t *count = &state->count[MSDU__COUNT_NARROWING];

    if (better->choice.wire == args->widest_wire) {
        *count = 0;
        return true;
    }
    *count += 1;
    bool is_alarming = m->drift.stats.step <= ALARM_STEPS && exact.overhead > ALARM;
    if (is_alarming && args->local_ns <= 0) { /* one host may just be busy */
        *count += exact.overhead > ALARM_MOST ? NARROW_ROUNDS : NARROW_ROUNDS / 2;
    }
    return *count >= NARROW_ROUNDS || args->fixed_wire >= 0;
}

/* Is float32 to be kept, or gone back to, because a narrower wire was tried and was no faster? Not
 * where its rounds wait alarmingly, by what is predicted and by what was measured. */
static bool is_resting(const model *m, msdu__interval_state *state, const option *better)
{
    const msdu__interval_args *args = m->drift.args;
    option exact = evaluate(m, &(msdu__choice){.interval = 1, .wire = args->widest_wire});

    double pace = state->real[MSDU__REAL_PACE_EXACT];
    double waited = pace > 0 ? 1 - (double)m->drift.stats.step_ns / pace : 0;
    bool is_refused = msdu__waiting_refuses(state);

    if (!is_refused || args->fixed_wire >= 0 || fmin(exact.overhead, waited) > ALARM ||
        better->choice.wire == args->widest_wire) {
        return false;
    }
    state->count[MSDU__COUNT_NARROWING] = 0;
    return true;
}

/* Single steps: the wire only. */
static option choose_wire(const model *m, msdu__interval_state *state, found *best,
                          const char **why)
{
    const option *better = NULL;

    search(m, 1, 1, best);
    better = prefer(m, best, why);
    *why = is_warm_up(m) ? "warm-up" : *why;
    if (is_resting(m, state, better)) {
        *why = "a narrower wire was no faster";
        return evaluate(m, &(msdu__choice){.interval = 1, .wire = m->drift.args->widest_wire});
    }
    if (!is_certain(m, state, better)) {
        *why = "a narrower wire wanted";
        return evaluate(m, &(msdu__choice){.interval = 1, .wire = m->drift.args->widest_wire});
    }
    return is_kept(m, best, better) ? best->now : *better;
}

/* Time waited in float32, as a share: by what is predicted, and by what was measured but for the
 * time that a thread waited for a core. */
static double exact_wait(const model *m, const msdu__interval_state *state)
{
    const msdu__round_stats *stats = &m->drift.stats;
    option exact = evaluate(m, &(msdu__choice){.interval = 1, .wire = m->drift.args->widest_wire});
    double pace = state->real[MSDU__REAL_PACE_EXACT] - (double)stats->queued_ns;

    return pace > 0 ? fmin(exact.overhead, 1 - (double)stats->step_ns / pace) : 0;
}

/* There is no way back from local steps, so they are not taken for a slow rank or a busy machine: a
 * narrower wire must have shown that bytes are what is waited for, or a message's latency does. A
 * fast link and slow codes show neither: between hosts an alarming wait in float32 is enough. */
static bool is_shown(const model *m, const msdu__interval_state *state)
{
    const msdu__interval_args *args = m->drift.args;
    bool is_alarming = args->local_ns <= 0 && exact_wait(m, state) > ALARM_MOST;

    return is_alarming || msdu__waiting_is_network(args, &m->drift.stats, state);
}

/* Would rounds of some h that the budget will allow be faster than plain float32? */
static bool is_worth(const model *m)
{
    found best;

    search(m, 2, m->drift.args->interval_steps > 2 ? m->drift.args->interval_steps : 2, &best);
    return best.rush.choice.interval > 0;
}

/* Drift was never measured: h = 1 if that does, else h = 2 once that is certain. */
static option choose_unmeasured(const model *m, msdu__interval_state *state, const char **why)
{
    found best;
    option single = choose_wire(m, state, &best, why);
    uint64_t *leaving = &state->count[MSDU__COUNT_LEAVING];

    bool is_refused = state->count[MSDU__COUNT_RESTING] > 0 && !is_shown(m, state);
    if (best.both.choice.interval > 0 || m->high < 2 || is_refused) {
        *leaving -= *leaving < FORGIVEN ? *leaving : FORGIVEN;
        return single;
    }
    if (++*leaving < LEAVE_ROUNDS || !is_shown(m, state)) {
        *why = "local steps wanted";
        return single;
    }
    if (!is_worth(m)) {
        *why = "local steps would be no faster";
        return single;
    }
    *why = "h 2 to measure drift";
    model first = *m;
    first.has_plain = false; /* it is on the way to a longer one */
    search(&first, 2, 2, &best);
    return best.both.choice.interval > 0 ? best.both : best.rush;
}

static option choose(const model *m, msdu__interval_state *state, const char **why)
{
    found best;
    const option *better = NULL;

    if (is_warm_up(m)) {
        return choose_wire(m, state, &best, why);
    }
    if (!msdu__drift_is_known(&m->drift)) {
        return choose_unmeasured(m, state, why);
    }
    search(m, m->low, m->high, &best);
    better = prefer(m, &best, why);
    return is_kept(m, &best, better) ? best.now : *better;
}

/* In place of a format that comes later: the narrowest that may come now. */
static option choose_early(const model *m)
{
    const msdu__interval_args *args = m->drift.args;
    int narrowest = args->widest_wire;

    for (int wire = 0; (uint32_t)wire < args->wire_count; wire++) {
        bool may_be = !args->wires[wire].has_backlog && is_allowed(m, 1, wire);
        narrowest =
            may_be && args->wires[wire].bits < args->wires[narrowest].bits ? wire : narrowest;
    }
    return evaluate(m, &(msdu__choice){.interval = 1, .wire = narrowest});
}

static bool is_too_early(const model *m, const option *o)
{
    const msdu__interval_args *args = m->drift.args;

    return o->choice.interval == 1 && args->fixed_wire < 0 &&
           args->wires[o->choice.wire].has_backlog &&
           msdu__backlog_is_early(&m->drift.stats, m->drift.state);
}

/* --- decision --- */

static void remember(msdu__interval_state *state, const msdu__decision *decision)
{
    state->count[MSDU__COUNT_INTERVAL] = decision->interval;
    state->count[MSDU__COUNT_WIRE] = decision->wire > 0 ? (uint64_t)decision->wire : 0;
    state->count[MSDU__COUNT_DELAY] = decision->delay_steps;
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
    option o = {0};

    const char *given_up = msdu__backlog_learn(args, stats, state);
    msdu__drift_learn(args, stats, state, &m.drift);
    m.hiding = msdu__waiting_hiding(args, state);
    set_range(&m, state);
    m.has_plain = stats->is_gradient && is_allowed(&m, 1, args->widest_wire);
    o = choose(&m, state, &why);
    if (is_too_early(&m, &o)) {
        why = "sparse later";
        o = choose_early(&m);
    }
    why = given_up != NULL ? given_up : why;
    decision->interval = o.choice.interval > 0 ? o.choice.interval : m.low; /* no format allowed */
    decision->wire = o.choice.interval > 0 ? o.choice.wire : args->widest_wire;
    decision->delay_steps = o.choice.delay_steps;
    snprintf(decision->reason, sizeof decision->reason,
             "error %.2e of %.2e, waits %.1f%% of %.1f%%: %s", o.error, m.drift.budget,
             msdu__interval_percent(o.overhead), msdu__interval_percent(args->target_overhead),
             why);
}

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    msdu__round_stats learned = *stats;

    msdu__waiting_learn(args, &learned, state);
    if (!msdu__drift_is_usable(stats)) {
        decide_unusable(args, stats, decision);
    } else {
        decide_usable(args, &learned, state, decision);
    }
    remember(state, decision);
}

const msdu__policy msdu__policy_divergence = {
    .name = "divergence",
    .help = "the most exact choice that hides communication, within drift_limit",
    .decide = decide,
};
