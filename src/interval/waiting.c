/* SPDX-License-Identifier: Apache-2.0 */
/* What a synchronization costs, and how much of it is waited for. Pure. */
#include "waiting.h"

#include <math.h>

#include "cost.h"

/* Most of a measured time that is taken for what does not go with bytes. Slices in flight overlap
 * their latencies, so messages x latency is an upper bound only; what is left makes a narrower wire
 * worth a try, and the rounds after it measure what it gained. */
#define LATENCY_SHARE_MAX 0.75
#define SMOOTH_TIME       0.3 /* of a format's time */
#define SMOOTH            0.05 /* weight of the newest round: what does not hide is a small difference */
#define SMOOTH_EXACT      0.1 /* of exact rounds; those in which slices are tuned are soon forgotten */
#define NOT_WAITED        0.002 /* of a step: no more than the calls themselves take */
#define SURE_ROUNDS       3     /* measured before a very different one is doubted */
#define SMOOTH_FASTER     0.5
#define SHARE_STEP        0.25 /* of a step, that one round may tell */
#define SHARE_MOST        4.0  /* bound of what waits beyond the link's time, in steps */
#define LINK_MOST         1e18 /* fits an integer time */
/* Cost of a choice = wait for the link + LATE_WEIGHT x other waiting in late rounds. The latter
 * counts for less: no format shortens it, and on shared cores no interval does. */
#define LATE_WEIGHT 0.5
/* Of a step, that a core idles at a synchronization of ranks that take turns there, on loopback
 * too: the last of them computes alone. */
#define TURNS_SHARE 0.1
/* Likewise while sizes of slices are tried, of which some are far from the best. */
#define TURNS_TRIAL 0.4

#define BLOCK_ROUNDS   16 /* whose second lowest time is the least */
#define SMOOTH_PACE    0.1
#define TRIED_ROUNDS   32    /* of a narrower format, until its pace is judged */
#define FASTER         0.985 /* by which it must be, of the time a step took in float32 */
#define SHOWN_ROUNDS   4     /* of a narrower format show whether bytes are waited for, ... */
#define SHOWN_GAIN     0.33  /* ... by this share of what float32 waited; four bits gain 0.87 */
#define IN_FLIGHT      8     /* messages at a time, at most, where they are tuned */
#define RESTING_ROUNDS 256ULL
#define RESTING_MOST   6 /* doublings */

/* What a round is, as far as waiting is concerned. */
enum { KIND_GRADIENT = 1, KIND_LOCAL, KIND_LATE };

/* --- model --- */

static double wire_bits(const msdu__interval_args *args, int wire)
{
    return wire >= 0 && (uint32_t)wire < args->wire_count ? args->wires[wire].bits : 0;
}

double msdu__interval_sync_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                              int wire)
{
    double link = (double)stats->link_ns;
    double latency = (double)stats->messages * (double)stats->latency_ns;
    double fixed = fmin(stats->fixed_ns > 0 ? stats->fixed_ns : latency, LATENCY_SHARE_MAX * link);
    double bits = wire_bits(args, wire);
    double measured = wire_bits(args, stats->link_wire);

    if (bits <= 0 || measured <= 0) {
        return link;
    }
    /* one thread makes the codes of slices, under transfers of others */
    return fmax(fixed + (link - fixed) * bits / measured, msdu__cost_code_ns(args, stats, wire));
}

/* Of a gradient round, what the network takes beyond what any exchange takes on one host, while the
 * machine is quiet: ranks that wait longer wait for each other's computing. */
static double network_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                         const msdu__hiding *hiding, int wire)
{
    msdu__round_stats quiet = *stats;
    double ring = stats->ranks > 0 ? 2.0 * (stats->ranks - 1) / stats->ranks : 0;
    double bytes = ring * (double)stats->elements * wire_bits(args, wire) / 8;

    if (hiding->least_ns <= 0) {
        return (double)INFINITY;
    }
    quiet.link_ns = (uint64_t)fmin(hiding->least_ns, LINK_MOST);
    quiet.link_wire = hiding->least_wire;
    double local = args->local_ns + args->local_byte_ns * bytes;
    return fmax(msdu__interval_sync_ns(args, &quiet, wire) - local, 0);
}

/* Steps a late round hides under: its fragments follow each other, each late by as much. */
static double late_steps(const msdu__interval_args *args, const msdu__choice *choice)
{
    double fragments = args->fragments > 0 ? args->fragments : 1;

    return fmin(fragments * choice->delay_steps, choice->interval);
}

static bool is_late(const msdu__choice *choice)
{
    return choice->delay_steps > 0 && choice->interval > choice->delay_steps;
}

double msdu__interval_overhead(const msdu__interval_args *args, const msdu__round_stats *stats,
                               const msdu__hiding *hiding, const msdu__choice *choice)
{
    double step = msdu__cost_step_ns(args, stats);
    double steps = choice->interval > 0 ? choice->interval : 1;
    double sync = msdu__interval_sync_ns(args, stats, choice->wire);
    double waited = sync;
    double total = 0;

    if (is_late(choice)) {
        waited = fmax(waited - late_steps(args, choice) * step, 0);
        waited += LATE_WEIGHT * hiding->late_ns;
    } else {
        bool is_gradient = stats->is_gradient && choice->interval == 1;

        waited -= (is_gradient ? hiding->gradient_share : hiding->local_share) * step;
        if (is_gradient && choice->wire == args->widest_wire) {
            double turns = stats->is_trial ? TURNS_TRIAL : TURNS_SHARE;

            waited = fmin(waited, hiding->exact_ns - turns * step);
        }
        if (is_gradient) {
            waited = fmin(waited, network_ns(args, stats, hiding, choice->wire));
        }
    }
    waited = fmax(waited, 0);
    double lost = waited + msdu__cost_hidden_ns(args, stats, choice, sync, waited);
    total = steps * step + lost;
    return total > 0 ? lost / total : 0;
}

/* --- measurement --- */

msdu__hiding msdu__waiting_hiding(const msdu__interval_args *args,
                                  const msdu__interval_state *state)
{
    msdu__hiding hiding = {.gradient_share = args->hide_share,
                           .local_share = args->hide_local,
                           .exact_ns = (double)INFINITY};

    if (state != NULL) {
        hiding.gradient_share += state->real[MSDU__REAL_HID];
        hiding.local_share += state->real[MSDU__REAL_HID_LOCAL];
        hiding.late_ns = state->real[MSDU__REAL_WAITED_LATE];
        hiding.least_ns = state->count[MSDU__COUNT_LEAST] > 0 ? state->real[MSDU__REAL_LEAST] : 0;
        hiding.least_wire = (int)state->count[MSDU__COUNT_LEAST] - 1;
    }
    if (state != NULL && state->real[MSDU__REAL_SHARED] > 0) {
        hiding.exact_ns = state->real[MSDU__REAL_WAITED_EXACT];
    }
    return hiding;
}

/* A mean of all rounds at first, later of the newest ones. */
static double weight_now(const msdu__interval_state *state, double least)
{
    return fmax(least, 1.0 / (double)state->count[MSDU__COUNT_MEASURED]);
}

/* No round may move a measure far: a hiccup is not the network. */
static double innovation(const msdu__interval_state *state, double measured, double smooth,
                         double most)
{
    bool is_sure = state->count[MSDU__COUNT_MEASURED] > SURE_ROUNDS;

    return is_sure ? fmin(fmax(measured - smooth, -most), most) : measured - smooth;
}

/*
 * Two formats tell what of their times goes with their bytes; the rest is latency and coding, in
 * four bits often most. A single message's latency would not do: it scatters with what is under way
 * beside it.
 */
static void learn_fixed(const msdu__interval_args *args, msdu__round_stats *stats,
                        msdu__interval_state *state)
{
    double *now = &state->real[MSDU__REAL_TIME];
    double *other = &state->real[MSDU__REAL_TIME_OTHER];
    uint64_t *formats = &state->count[MSDU__COUNT_FORMATS];
    uint64_t wire = (uint64_t)stats->link_wire + 1;

    if (stats->link_ns == 0 || wire_bits(args, stats->link_wire) <= 0) {
        return;
    }
    if (wire != (*formats & 0xff)) {
        double known = wire == *formats >> 8 ? *other : (double)stats->link_ns;

        *other = *now;
        *now = known;
        *formats = wire | (*formats & 0xff) << 8;
    }
    *now += SMOOTH_TIME * ((double)stats->link_ns - *now);
    double bits = wire_bits(args, stats->link_wire);
    double bits_other = wire_bits(args, (int)(*formats >> 8 & 0xff) - 1);
    if (bits_other > 0 && fabs(bits_other - bits) > 1) {
        double fixed = (*now * bits_other - *other * bits) / (bits_other - bits);

        stats->fixed_ns = fmax(fmin(fixed, fmin(*now, *other)), 1);
    }
}

static void begin_block(msdu__interval_state *state)
{
    state->real[MSDU__REAL_LOWEST] = state->real[MSDU__REAL_LOW] = LINK_MOST;
    state->count[MSDU__COUNT_BLOCK] = 0;
}

/* Another format: what its least time should be, until rounds tell. */
static void change_least(const msdu__interval_args *args, const msdu__round_stats *stats,
                         double now, msdu__interval_state *state)
{
    msdu__round_stats before = *stats;

    before.link_ns = (uint64_t)fmin(state->real[MSDU__REAL_LEAST], LINK_MOST);
    before.link_wire = (int)state->count[MSDU__COUNT_LEAST] - 1;
    state->real[MSDU__REAL_LEAST] =
        before.link_wire < 0 ? now
                             : fmin(msdu__interval_sync_ns(args, &before, stats->link_wire), now);
    state->count[MSDU__COUNT_LEAST] = (uint64_t)stats->link_wire + 1;
    begin_block(state);
}

/* On a busy machine most rounds take longer than the network does, but not all; and what the
 * threads that move them waited for a core is not the network's. The second lowest of a block,
 * because a thread that was stopped between a start and its time stamp tells almost nothing. */
static void learn_least(const msdu__interval_args *args, const msdu__round_stats *stats,
                        msdu__interval_state *state)
{
    double *least = &state->real[MSDU__REAL_LEAST];
    double *lowest = &state->real[MSDU__REAL_LOWEST];
    double *low = &state->real[MSDU__REAL_LOW];
    double now = fmax((double)stats->link_ns - (double)stats->queued_ns, 1);

    if (stats->link_ns == 0 || wire_bits(args, stats->link_wire) <= 0) {
        return;
    }
    if ((uint64_t)stats->link_wire + 1 != state->count[MSDU__COUNT_LEAST]) {
        change_least(args, stats, now, state);
    }
    *low = fmin(*low, fmax(now, *lowest));
    *lowest = fmin(*lowest, now);
    if (++state->count[MSDU__COUNT_BLOCK] >= BLOCK_ROUNDS) {
        *least = *low;
        begin_block(state);
    } else {
        *least = fmin(*least, *low);
    }
}

static void learn_link(const msdu__interval_args *args, msdu__round_stats *stats,
                       msdu__interval_state *state)
{
    double measured = msdu__interval_sync_ns(args, stats, args->widest_wire);
    double *smooth = &state->real[MSDU__REAL_LINK];

    if (stats->link_ns == 0) { /* the first round after a state was set: what was known before */
        stats->link_ns = (uint64_t)fmin(*smooth, LINK_MOST);
        stats->link_wire = args->widest_wire;
        return;
    }
    /* a link that was fast once is fast: only delays make it look slower */
    double weight = weight_now(state, measured < *smooth ? SMOOTH_FASTER : SMOOTH);
    *smooth += weight * innovation(state, measured, *smooth, *smooth);
    if (measured > 0) {
        stats->link_ns = (uint64_t)fmin((double)stats->link_ns * (*smooth / measured), LINK_MOST);
    }
}

/* How much of a step hid is only known where something was waited for; else it is a lower bound. */
static void learn_share(const msdu__round_stats *stats, const msdu__interval_state *state,
                        double sync_ns, double expected, double *beyond)
{
    double step = (double)stats->step_ns;
    double waited = (double)stats->wait_ns;
    double hid = (sync_ns - waited) / step - expected;

    if (waited > NOT_WAITED * step || hid > *beyond) {
        *beyond += weight_now(state, SMOOTH) * innovation(state, hid, *beyond, SHARE_STEP);
        *beyond = fmin(fmax(*beyond, -SHARE_MOST), 1 - expected); /* a round at once has one step */
    }
}

static void learn_late(const msdu__interval_args *args, const msdu__round_stats *stats,
                       const msdu__choice *before, msdu__interval_state *state)
{
    double step = (double)stats->step_ns;
    double sync = msdu__interval_sync_ns(args, stats, before->wire);
    double beyond = (double)stats->wait_ns - fmax(sync - late_steps(args, before) * step, 0);
    double *smooth = &state->real[MSDU__REAL_WAITED_LATE];

    *smooth += weight_now(state, SMOOTH) * innovation(state, beyond, *smooth, SHARE_STEP * step);
}

/*
 * Where ranks take turns on cores, each waits while others compute, on the fastest network too.
 * That is no reason to leave plain synchronous SGD, so its rounds are judged by what was measured
 * in them: the wait that left a core idle.
 */
static void learn_exact(const msdu__round_stats *stats, msdu__interval_state *state)
{
    double most = SHARE_STEP * (double)stats->step_ns;
    double shared = fmin((double)stats->shared_ns, (double)stats->wait_ns);
    double *alone = &state->real[MSDU__REAL_WAITED_EXACT];
    double *smooth = &state->real[MSDU__REAL_SHARED];
    double weight = weight_now(state, SMOOTH_EXACT);

    *alone += weight * innovation(state, (double)stats->wait_ns - shared, *alone, most);
    *smooth += weight * innovation(state, shared, *smooth, most);
}

/* How long steps take, waiting included: what a narrower format is judged by in the end. */
static void learn_pace(const msdu__round_stats *stats, bool is_exact, msdu__interval_state *state)
{
    double now = (double)stats->step_ns + (double)stats->wait_ns;
    double *pace = &state->real[is_exact ? MSDU__REAL_PACE_EXACT : MSDU__REAL_PACE_NARROW];
    uint64_t *narrow = &state->count[MSDU__COUNT_NARROW];

    *narrow = is_exact ? 0 : *narrow + 1;
    if (*pace <= 0 || *narrow == 1) {
        *pace = now;
    }
    double weight = is_exact ? SMOOTH_PACE : fmax(SMOOTH_PACE, 1.0 / (double)*narrow);
    *pace += weight * fmin(now - *pace, *pace);
}

bool msdu__waiting_is_network(const msdu__interval_args *args, const msdu__round_stats *stats,
                              const msdu__interval_state *state)
{
    double flights = fmax((double)stats->messages / IN_FLIGHT, 1);
    double latency = flights * fmax((double)stats->latency_ns - (double)stats->queued_ns, 0);
    double exact = state->real[MSDU__REAL_PACE_EXACT];
    double narrow = state->real[MSDU__REAL_PACE_NARROW];
    double coded = msdu__cost_code_ns(args, stats, stats->wire);

    if (args->fixed_wire >= 0 || exact <= 0 ||
        latency > args->target_overhead * (double)stats->step_ns) {
        return true;
    }
    return state->count[MSDU__COUNT_NARROW] >= SHOWN_ROUNDS &&
           exact - (narrow - coded) >= SHOWN_GAIN * (exact - (double)stats->step_ns);
}

bool msdu__waiting_refuses(msdu__interval_state *state)
{
    uint64_t *resting = &state->count[MSDU__COUNT_RESTING];
    uint64_t *refused = &state->count[MSDU__COUNT_REFUSED];
    double exact = state->real[MSDU__REAL_PACE_EXACT];

    *resting -= *resting > 0 ? 1 : 0;
    if (state->count[MSDU__COUNT_NARROW] == TRIED_ROUNDS && exact > 0 &&
        state->real[MSDU__REAL_PACE_NARROW] > FASTER * exact) {
        *resting = RESTING_ROUNDS << (*refused < RESTING_MOST ? *refused : RESTING_MOST);
        *refused += 1;
    }
    return *resting > 0;
}

/* The round before, as one count: kind, delay and wire. Its interval tells nothing about the wait
 * at its end but for fragments, which fill theirs. */
static uint64_t pack(const msdu__interval_args *args, const msdu__round_stats *stats)
{
    uint64_t kind = stats->is_gradient       ? KIND_GRADIENT
                    : stats->delay_steps > 0 ? KIND_LATE
                                             : KIND_LOCAL;
    bool is_known = stats->wire >= 0 && (uint32_t)stats->wire < args->wire_count;

    return is_known ? kind | (uint64_t)stats->wire << 8 | (uint64_t)stats->delay_steps << 16 : 0;
}

static void learn_hiding(const msdu__interval_args *args, const msdu__round_stats *stats,
                         msdu__interval_state *state)
{
    uint64_t before = state->count[MSDU__COUNT_BEFORE];
    msdu__choice choice = {.interval = stats->interval,
                           .delay_steps = (uint32_t)(before >> 16),
                           .wire = (int)(before >> 8 & 0xff)};
    double sync = msdu__interval_sync_ns(args, stats, choice.wire);

    if (before == 0 || stats->step_ns == 0) {
        return;
    }
    switch (before & 0xff) {
    case KIND_GRADIENT:
        learn_share(stats, state, sync, args->hide_share, &state->real[MSDU__REAL_HID]);
        learn_pace(stats, choice.wire == args->widest_wire, state);
        if (choice.wire == args->widest_wire) {
            learn_exact(stats, state);
        }
        break;
    case KIND_LOCAL:
        learn_share(stats, state, sync, args->hide_local, &state->real[MSDU__REAL_HID_LOCAL]);
        break;
    default:
        learn_late(args, stats, &choice, state);
    }
}

void msdu__waiting_learn(const msdu__interval_args *args, msdu__round_stats *stats,
                         msdu__interval_state *state)
{
    if (stats->step <= 1) {
        return; /* the first step makes connections and fills caches */
    }
    state->count[MSDU__COUNT_MEASURED]++;
    learn_fixed(args, stats, state);
    learn_least(args, stats, state);
    learn_link(args, stats, state);
    learn_hiding(args, stats, state);
    state->count[MSDU__COUNT_BEFORE] = pack(args, stats);
}
