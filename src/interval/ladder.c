/* SPDX-License-Identifier: Apache-2.0 */
/* When rounds by the clock begin, and how long and wide they are. Pure. */
#include "ladder.h"

#include <math.h>
#include <stdio.h>

#include "drift.h"
#include "policies.h"
#include "waiting.h"

#define SMOOTH        0.1
#define STEP_SHARE    0.25 /* of a step: one round may tell no more, a hiccup is no slow rank */
#define BURST_STEPS   4    /* likewise where bursts are to count */
#define WINDOW        128  /* rounds of an average */
#define NOISE_STAYS   8    /* rounds for which noise stays with a rank */
#define LARGE         0.15 /* of the time: what noise must exceed, and what needs no long look */
#define WANTED        12   /* rounds, as exact gradients are left for the network */
#define WANTED_NOISY  48   /* where no rank is slow for long */
#define WANTED_LITTLE 200  /* where little is lost meanwhile, and noise may look like it */
#define TRIED         200  /* rounds in all, for shares to reach the target */
#define FORGIVEN      2    /* of these, by one that wants to stay */
#define WARM_ROUNDS   8    /* connections and caches */
#define LINK_MARGIN   1.1
#define SAME_ERROR    1.04 /* as in divergence.c: no difference that trials could tell */
#define GAIN_ERROR    0.7
#define SHORTER       0.8 /* a try to keep to the error budget */

static void blend(double *smooth, double value, double weight, double most)
{
    *smooth += weight * fmin(fmax(value - *smooth, -most), most);
}

static double median(const msdu__round_stats *stats)
{
    return stats->times[(stats->time_count - 1) / 2];
}

/* --- what is waited --- */

void msdu__ladder_init(msdu__ladder *ladder, double *late_ns)
{
    *ladder = (msdu__ladder){.late_ns = late_ns};
}

/* Rounds in the averages. */
static double rounds(const msdu__ladder *ladder)
{
    return fmin(ladder->heard - fmin(ladder->heard, WARM_ROUNDS), WINDOW);
}

void msdu__ladder_learn(const msdu__round_stats *stats, bool is_clocked, msdu__ladder *ladder)
{
    /* not of the slowest: that may be the one with the hiccup */
    double step = stats->time_count > 0 ? median(stats) : (double)stats->step_ns;
    double straggler = (double)stats->straggler_ns;
    double network = (double)stats->wait_ns;

    ladder->heard += ladder->heard < WARM_ROUNDS + WINDOW ? 1 : 0;
    if (ladder->heard <= WARM_ROUNDS) {
        return;
    }
    double weight = 1 / rounds(ladder);
    double most = STEP_SHARE * step;
    for (int32_t i = 0; i < stats->ranks && stats->late != NULL; i++) {
        blend(&ladder->late_ns[i], stats->late[i], weight, most);
    }
    blend(&ladder->latest_ns, straggler, weight, most);
    most = BURST_STEPS * step;
    blend(&ladder->straggler_ns, straggler, weight, most);
    blend(&ladder->time_ns, (double)stats->step_ns * stats->interval + network, weight, most);
    if (is_clocked) { /* before, slow ranks were waited for */
        blend(&ladder->passes_ns, network + straggler, SMOOTH, STEP_SHARE * step);
    }
}

double msdu__ladder_waits(const msdu__ladder *ladder)
{
    return ladder->time_ns > 0 ? ladder->straggler_ns / ladder->time_ns : 0;
}

/* How late the latest rank is on average, noise taken off. */
static double lasting_ns(const msdu__round_stats *stats, const msdu__ladder *ladder)
{
    double left = sqrt(NOISE_STAYS / fmax(rounds(ladder), 1)); /* of noise, in an average */
    double latest = 0;

    for (int32_t i = 0; i < stats->ranks; i++) {
        latest = fmax(latest, ladder->late_ns[i]);
    }
    return left < 1 ? fmax(latest - left * ladder->latest_ns, 0) / (1 - left) : 0;
}

double msdu__ladder_lasting(const msdu__round_stats *stats, const msdu__ladder *ladder)
{
    return ladder->time_ns > 0 ? lasting_ns(stats, ladder) / ladder->time_ns : 0;
}

/* What all wait for one rank. Its lateness itself, which hiccups shall not move, follows slowly. */
static double one_waits(const msdu__round_stats *stats, const msdu__ladder *ladder)
{
    double part = ladder->latest_ns > 0 ? lasting_ns(stats, ladder) / ladder->latest_ns : 0;

    return part * msdu__ladder_waits(ladder);
}

bool msdu__ladder_wants_clock(const msdu__interval_args *args, const msdu__round_stats *stats,
                              msdu__ladder *ladder)
{
    double large = fmax(args->target_overhead, LARGE);
    bool is_lasting = msdu__ladder_lasting(stats, ladder) > args->target_overhead;
    const struct {
        bool is_so;
        uint32_t rounds; /* for which it must be so; those of one reason are none of another */
    } reasons[] = {
        {is_lasting && one_waits(stats, ladder) > large, WANTED},
        {msdu__ladder_waits(ladder) > large, WANTED_NOISY},
        {is_lasting, WANTED_LITTLE},
    };
    bool wants = false;

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        uint32_t *wanted = &ladder->wanted[i];
        *wanted =
            reasons[i].is_so ? *wanted + 1 : *wanted - (*wanted < FORGIVEN ? *wanted : FORGIVEN);
        wants = wants || (reasons[i].is_so && *wanted >= reasons[i].rounds);
    }
    return wants;
}

void msdu__ladder_try_shares(const msdu__round_stats *stats, bool is_moving, msdu__ladder *ladder)
{
    if (is_moving && ladder->tried < TRIED) {
        for (int32_t i = 0; i < stats->ranks; i++) {
            ladder->late_ns[i] = 0;
        }
        *ladder = (msdu__ladder){
            .late_ns = ladder->late_ns, .heard = WARM_ROUNDS, .tried = ladder->tried + 1};
    }
}

/* --- by the clock --- */

typedef struct option {
    double period_ns;
    double error;
    int wire; /* negative: none */
} option;

/* What an exchange and a step take: shorter rounds gain nothing. */
static double least_period(const msdu__interval_args *args, const msdu__round_stats *stats,
                           int wire)
{
    double link = LINK_MARGIN * msdu__interval_sync_ns(args, stats, wire);

    return fmin(fmax(args->clock_period, link / median(stats)), args->interval_max) * median(stats);
}

static double error_of(const msdu__drift *drift, const option *o)
{
    const msdu__round_stats *stats = &drift->stats;
    double link = msdu__interval_sync_ns(drift->args, stats, o->wire);
    double grace = drift->args->clock_grace * median(stats);
    double sum = 0;

    for (int32_t i = 0; i < stats->time_count; i++) {
        double step = stats->times[i];
        double late = link + (step > o->period_ns + grace ? step : 0);
        double steps = fmax(round(o->period_ns / step), 1);
        msdu__choice choice = {.interval = (uint32_t)fmin(steps, UINT32_MAX / 2),
                               .delay_steps = (uint32_t)fmin(round(late / step), UINT32_MAX / 4),
                               .wire = o->wire};

        sum += msdu__drift_error_late(drift, &choice);
    }
    return sum / stats->time_count;
}

/* So long that passes keep to the target; but not over the error budget, unless speed goes first.
 */
static option option_of(const msdu__drift *drift, const msdu__ladder *ladder, int wire)
{
    const msdu__interval_args *args = drift->args;
    double least = least_period(args, &drift->stats, wire);
    double most = fmax(least, args->interval_max * median(&drift->stats));
    option o = {.wire = wire,
                .period_ns = fmin(fmax(least, ladder->passes_ns / args->target_overhead), most)};

    o.error = error_of(drift, &o);
    while (!args->prefer_speed && o.error > drift->budget && o.period_ns > least) {
        o.period_ns = fmax(least, SHORTER * o.period_ns);
        o.error = error_of(drift, &o);
    }
    return o;
}

static bool is_allowed(const msdu__interval_args *args, int wire)
{
    return args->fixed_wire >= 0 ? wire == args->fixed_wire
                                 : wire == args->widest_wire || args->wires[wire].is_allowed;
}

/* Of least error; among those that no trial could tell apart, the shortest rounds' narrowest. */
static option search(const msdu__drift *drift, const msdu__ladder *ladder, int last, option *now)
{
    option best = {.wire = -1};

    for (int wire = 0; (uint32_t)wire < drift->args->wire_count; wire++) {
        if (!is_allowed(drift->args, wire)) {
            continue;
        }
        option o = option_of(drift, ladder, wire);
        *now = wire == last ? o : *now;
        bool is_narrower = best.wire >= 0 && o.error <= SAME_ERROR * best.error &&
                           drift->args->wires[wire].bits < drift->args->wires[best.wire].bits;
        if (best.wire < 0 || o.error * SAME_ERROR < best.error || is_narrower) {
            best = o;
        }
    }
    return best;
}

void msdu__ladder_clock(const msdu__interval_args *args, const msdu__round_stats *stats,
                        const msdu__ladder *ladder, msdu__interval_state *state,
                        msdu__decision *decision)
{
    msdu__round_stats learned = *stats;
    msdu__drift drift;
    option now = {.wire = -1};

    msdu__waiting_learn(args, &learned, state);
    if (stats->time_count == 0 || !msdu__drift_is_usable(stats)) {
        snprintf(decision->reason, sizeof decision->reason, "by the clock: as before");
        return;
    }
    msdu__drift_learn(args, &learned, state, &drift);
    option best = search(&drift, ladder, decision->wire, &now);
    best = now.wire >= 0 && best.error > GAIN_ERROR * now.error ? now : best;
    double steps = best.period_ns / median(stats);
    decision->interval = steps > 1 ? (uint32_t)lround(steps) : 1;
    decision->delay_steps = 0;
    decision->wire = best.wire;
    decision->period_ns = best.period_ns;
    snprintf(decision->reason, sizeof decision->reason,
             "by the clock: every %.2f median steps, error %.2e of %.2e", steps, best.error,
             drift.budget);
}
