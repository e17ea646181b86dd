/* SPDX-License-Identifier: Apache-2.0 */
/* Tuner: fits the cost of slices to measured rounds and chooses the slicing of least loss. Pure. */
#include "tuner.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#define KIB           1024U
#define SLICES_WANTED 64 /* at the start, so that 4 in flight are a sixteenth of the model */
#define LARGEST       (4096U * KIB)
#define SLICES_MOST   4096 /* a slice has some hundred bytes of tables, on every rank */
#define FIRST_LEAST   (256U * KIB)
#define FIRST_MOST    (1024U * KIB)
#define LEAST         (32U * KIB)
#define SKIP          2          /* a round tells the link time of the one before */
#define GUESSED_SHARE (1.0 / 16) /* of the latency, for g before two slicings were measured */
#define SHARE_LEAST   (1.0 / 64)
#define SHARE_STEP    1.125 /* 48 of them: up to 4 */
#define SHARES        48
#define RATE_SHARE    0.1     /* at least so much of T is bytes */
#define GAIN_SHARE    0.02    /* of T, and */
#define GAIN_NS       50000.0 /* so much must be won by a change */
#define SAME_BYTES    1.2     /* rounds whose bytes differ by less are of one kind */
#define DOUBT         0.06    /* of T, for each point but the latest: half a step of shares */
#define TRIAL_FACTOR  4
#define LANES_SHARE   0.05 /* of T must be won by other channels */

/* Of compressed rounds. A quarter more than in float32 is as much: scales come on top of bits. */
#define NARROW_SLICES  16
#define COMPRESSED_FEW 8 /* are enough where slices would be below NARROW_MIDDLE */
#define NARROW_MIDDLE  (1024U * KIB)
#define NARROW_PARTS   4 /* slices of a fragment, so that all fragments are alike */
#define NARROW_LARGEST (2048U * KIB)
#define NARROW_EXCESS  1.25
/* What a slice sends at least, whatever the model: less costs more in messages than it hides. */
#define NARROW_SENDS (64U * KIB)

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static uint64_t larger_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Largest power of two that is not above value, which is at least 1. */
static uint64_t power_of_two(uint64_t value)
{
    uint64_t power = 1;
    while (power <= value / 2) {
        power *= 2;
    }
    return power;
}

uint64_t msdu__tuner_slice_least(uint64_t model_bytes)
{
    uint64_t least = LEAST;
    while (least < model_bytes / SLICES_MOST) {
        least *= 2;
    }
    return least;
}

uint64_t msdu__tuner_slice_most(uint64_t model_bytes)
{
    uint64_t most = power_of_two(model_bytes + 1);
    uint64_t least = msdu__tuner_first(model_bytes, 0, 0).slice_bytes;
    uint64_t other = msdu__tuner_slice_least(model_bytes);
    most = most > LARGEST ? LARGEST : most;
    least = other > least ? other : least;
    return most > least ? most : least;
}

msdu__tuning msdu__tuner_first(uint64_t model_bytes, uint32_t window, uint32_t lanes)
{
    uint64_t wanted = model_bytes / SLICES_WANTED;
    wanted = wanted < FIRST_LEAST ? FIRST_LEAST : wanted;
    wanted = wanted > FIRST_MOST ? FIRST_MOST : wanted;
    return (msdu__tuning){.slice_bytes = power_of_two(wanted), .window = window, .lanes = lanes};
}

uint64_t msdu__tuner_compressed(uint64_t slice_bytes, uint64_t model_bytes, uint64_t sent_bytes,
                                uint32_t fragments)
{
    uint64_t slices = fragments > 1 ? (uint64_t)fragments * NARROW_PARTS : NARROW_SLICES;
    uint64_t few = fragments > 1 ? 0 : model_bytes / COMPRESSED_FEW;
    uint64_t most = larger_of(model_bytes / slices, few < NARROW_MIDDLE ? few : NARROW_MIDDLE);
    double share = (double)sent_bytes / (double)model_bytes; /* of a slice's bytes, that it sends */
    uint64_t bytes = slice_bytes;
    most = most > NARROW_LARGEST ? NARROW_LARGEST : most;
    while (bytes < model_bytes && 2 * bytes <= NARROW_LARGEST) {
        double sent = 2.0 * (double)bytes * share; /* by slices twice as large */
        bool is_small = fragments <= 1 && sent <= NARROW_EXCESS * NARROW_SENDS;
        bool is_fine = 2 * bytes <= most && sent <= NARROW_EXCESS * (double)slice_bytes;
        if (!is_small && !is_fine) {
            break;
        }
        bytes *= 2;
    }
    return bytes;
}

void msdu__tuner_begin(msdu__tuner *tuner, msdu__tuning present)
{
    *tuner = (msdu__tuner){.present = present, .skip = SKIP};
}

/* --- the model --- */

double msdu__tuner_busy_ns(const msdu__tuner_cost *cost, const msdu__tuner_round *round)
{
    double bytes_ns = (double)round->bytes / round->slices / cost->bytes_per_ns;
    uint32_t window = round->window < round->slices ? round->window : round->slices;
    double hidden = (cost->latency_ns + bytes_ns) / window;
    return round->slices * larger(cost->slice_ns + bytes_ns, hidden);
}

double msdu__tuner_loss_ns(const msdu__tuner_cost *cost, const msdu__tuner_round *round,
                           uint32_t ahead, double largest)
{
    double least = (double)round->bytes / cost->bytes_per_ns;
    double busy = msdu__tuner_busy_ns(cost, round);
    return busy - least + ahead * (largest / cost->bytes_per_ns + cost->slice_ns);
}

/* The rate with which a round takes as long as measured: T of the model, solved for B / R. */
static double rate_of(const msdu__tuner_round *round, double slice_ns, double latency_ns)
{
    double busy = round->link_ns - round->slices * slice_ns;
    uint32_t window = round->window < round->slices ? round->window : round->slices;
    double hidden = window * round->link_ns - round->slices * latency_ns;
    double bytes_ns = busy < hidden ? busy : hidden;
    return (double)round->bytes / larger(bytes_ns, RATE_SHARE * round->link_ns);
}

/* How far the model is from what was measured: the sum over the points, each as a share of T. */
static double error_of(const msdu__tuner_cost *cost, const msdu__tuner_point *points,
                       uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        const msdu__tuner_round *round = &points[i].round;
        sum += fabs(msdu__tuner_busy_ns(cost, round) - round->link_ns) / round->link_ns;
    }
    return sum;
}

/* The cost whose g is this share of the latency, exact for the latest point. */
static msdu__tuner_cost cost_of(const msdu__tuner_point *last, double share, double latency_ns)
{
    msdu__tuner_cost cost = {.slice_ns = share * latency_ns, .latency_ns = latency_ns};
    cost.bytes_per_ns = rate_of(&last->round, cost.slice_ns, latency_ns);
    return cost;
}

msdu__tuner_cost msdu__tuner_fit(const msdu__tuner_point *points, uint32_t count, double latency_ns)
{
    const msdu__tuner_point *last = &points[count - 1];
    msdu__tuner_cost best = cost_of(last, GUESSED_SHARE, latency_ns);
    double least = error_of(&best, points, count);
    double share = SHARE_LEAST;
    for (int i = 0; i < SHARES && count > 1; i++) {
        msdu__tuner_cost cost = cost_of(last, share, latency_ns);
        double error = error_of(&cost, points, count);
        best = error < least ? cost : best;
        least = error < least ? error : least;
        share *= SHARE_STEP;
    }
    return best;
}

/* The same round under another slicing: as many slices more as they are smaller. */
static msdu__tuner_round cut_anew(const msdu__tuner_round *now, uint64_t from, msdu__tuning to)
{
    msdu__tuner_round other = *now;
    double slices = (double)now->slices * (double)from / (double)to.slice_bytes;
    other.window = to.window;
    other.slices = slices < 1 ? 1 : (uint32_t)(slices + 0.5);
    return other;
}

/* Slices that one waits for which is needed first and ready last, itself among them. */
static uint32_t ahead_of(const msdu__tuner_args *args, uint32_t window)
{
    if (args->is_single) {
        return 0;
    }
    return args->is_whole ? 1 : window;
}

static double loss_of(const msdu__tuner_args *args, const msdu__tuner_cost *cost,
                      const msdu__tuner_round *now, msdu__tuning present, msdu__tuning choice)
{
    msdu__tuner_round round = cut_anew(now, present.slice_bytes, choice);
    double share = (double)choice.slice_bytes / (double)args->model_bytes;
    return msdu__tuner_loss_ns(cost, &round, ahead_of(args, round.window),
                               (double)now->bytes * (share < 1 ? share : 1));
}

msdu__tuning msdu__tuner_best(const msdu__tuner_args *args, const msdu__tuner_cost *cost,
                              const msdu__tuner_round *now, msdu__tuning present)
{
    msdu__tuning best = present;
    double least = loss_of(args, cost, now, present, present);
    /* largest first, so that of equals the one with fewer messages stays */
    for (uint64_t bytes = args->slice_most; bytes >= args->slice_least; bytes /= 2) {
        for (uint32_t window = args->window_least; window <= args->window_most; window++) {
            msdu__tuning choice = {.slice_bytes = bytes, .window = window, .lanes = present.lanes};
            double loss = loss_of(args, cost, now, present, choice);
            best = loss < least ? choice : best;
            least = loss < least ? loss : least;
        }
    }
    return best;
}

/* --- decisions --- */

static double median(const double values[MSDU__TUNER_ROUNDS])
{
    double sorted[MSDU__TUNER_ROUNDS];
    for (uint32_t i = 0; i < MSDU__TUNER_ROUNDS; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = values[i];
    }
    return (sorted[(MSDU__TUNER_ROUNDS - 1) / 2] + sorted[MSDU__TUNER_ROUNDS / 2]) / 2;
}

static bool is_same(uint64_t a, uint64_t b)
{
    double low = (double)(a < b ? a : b);
    double high = (double)(a < b ? b : a);
    return high <= SAME_BYTES * low;
}

/* Rounds of another wire: nothing measured so far is of use. */
static void begin_anew(msdu__tuner *tuner, uint64_t bytes)
{
    tuner->bytes = bytes;
    tuner->count = 0;
    tuner->skip = SKIP;
    tuner->point_count = 0;
    tuner->has_cut = false;
    tuner->is_settled = tuner->changes + 1 >= MSDU__TUNER_CHANGES;
}

/* Another number of slices, once, without which g stays a guess. Smaller ones tell more. */
static uint64_t trial_of(const msdu__tuner *tuner, const msdu__tuner_args *args)
{
    uint64_t bytes = tuner->present.slice_bytes;
    for (uint64_t factor = TRIAL_FACTOR; factor > 1; factor /= 2) {
        if (bytes / factor >= args->slice_least) {
            return bytes / factor;
        }
    }
    for (uint64_t factor = TRIAL_FACTOR; factor > 1; factor /= 2) {
        if (bytes * factor <= args->slice_most) {
            return bytes * factor;
        }
    }
    return bytes;
}

/* What a choice has cost, by its own measurement. */
static double measured_loss(const msdu__tuner *tuner, const msdu__tuner_args *args,
                            const msdu__tuner_point *point)
{
    double share = (double)point->tuning.slice_bytes / (double)args->model_bytes;
    double largest = (double)point->round.bytes * (share < 1 ? share : 1);
    double each = largest / tuner->cost.bytes_per_ns + tuner->cost.slice_ns;
    return point->round.link_ns + ahead_of(args, point->tuning.window) * each;
}

static bool is_measured(const msdu__tuner *tuner, msdu__tuning choice)
{
    for (uint32_t i = 0; i < tuner->point_count; i++) {
        if (msdu__tuning_is_equal(tuner->points[i].tuning, choice)) {
            return true;
        }
    }
    return false;
}

/*
 * Where most would be won from the present choice, and how much. Few points often allow several
 * costs: either latency or slices were too slow. Whatever explains the points about as well as the
 * best fit is believed where it promises most; the measurement there confirms or refutes it.
 */
static double promise_of(const msdu__tuner *tuner, const msdu__tuner_args *args,
                         msdu__tuning *choice)
{
    const msdu__tuner_point *last = &tuner->points[tuner->point_count - 1];
    double most = 0;
    double allowed = error_of(&tuner->cost, tuner->points, tuner->point_count) +
                     DOUBT * (tuner->point_count - 1);
    double share = SHARE_LEAST;
    for (int i = 0; i < SHARES; i++) {
        msdu__tuner_cost cost = cost_of(last, share, args->latency_ns);
        share *= SHARE_STEP;
        if (error_of(&cost, tuner->points, tuner->point_count) > allowed) {
            continue;
        }
        msdu__tuning best = msdu__tuner_best(args, &cost, &last->round, last->tuning);
        double gain = loss_of(args, &cost, &last->round, last->tuning, last->tuning) -
                      loss_of(args, &cost, &last->round, last->tuning, best);
        if (gain > most && !is_measured(tuner, best)) {
            most = gain;
            *choice = best;
        }
    }
    return most;
}

/* --- channels --- */

/* Twice or half as many as are best, if that was not measured yet; 0: neither is left. */
static uint32_t next_lanes(const msdu__tuner *tuner, const msdu__tuner_args *args)
{
    uint32_t more = 2 * tuner->lanes_best;
    uint32_t fewer = tuner->lanes_best / 2;
    if (args->lanes_most == 0 || tuner->lane_changes + 1 >= MSDU__TUNER_LANES) {
        return 0; /* the last change is kept for going back */
    } else if (more <= args->lanes_most && (tuner->lanes_tried >> more & 1) == 0) {
        return more;
    }
    return (tuner->lanes_tried >> fewer & 1) == 0 ? fewer : 0;
}

/* A number of channels was measured. True: another one is next, or an earlier one was better. */
static bool decide_lanes(msdu__tuner *tuner, const msdu__tuner_args *args, double link_ns)
{
    tuner->lanes_tried |= 1U << tuner->present.lanes;
    tuner->count = 0;
    tuner->skip = SKIP;
    if (link_ns < (1 - LANES_SHARE) * tuner->lanes_ns) {
        tuner->lanes_best = tuner->present.lanes;
        tuner->lanes_ns = link_ns;
    }
    uint32_t next = next_lanes(tuner, args);
    tuner->is_settled = next == 0;
    next = next == 0 ? tuner->lanes_best : next;
    bool is_other = next != tuner->present.lanes;
    tuner->present.lanes = next;
    tuner->lane_changes += is_other ? 1 : 0;
    return is_other;
}

/* With the cut as it is now, which took that long. */
static bool begin_lanes(msdu__tuner *tuner, const msdu__tuner_args *args, double link_ns)
{
    tuner->has_cut = true;
    tuner->lanes_tried = 1U; /* never 0 of them */
    tuner->lanes_ns = (double)INFINITY;
    return decide_lanes(tuner, args, link_ns);
}

/* --- the slicing --- */

/* Nothing better is in sight: whatever the model says, the choice that did best stays. */
static bool settle(msdu__tuner *tuner, const msdu__tuner_args *args)
{
    const msdu__tuner_point *last = &tuner->points[tuner->point_count - 1];
    const msdu__tuner_point *best = last;
    for (uint32_t i = 0; i < tuner->point_count; i++) {
        const msdu__tuner_point *point = &tuner->points[i];
        if (measured_loss(tuner, args, point) < measured_loss(tuner, args, best)) {
            best = point;
        }
    }
    double gain = measured_loss(tuner, args, last) - measured_loss(tuner, args, best);
    if (gain <= GAIN_SHARE * last->round.link_ns) {
        return begin_lanes(tuner, args, last->round.link_ns);
    }
    tuner->present = best->tuning;
    tuner->changes++;
    (void)begin_lanes(tuner, args, best->round.link_ns);
    return true;
}

/* A slicing was measured: on to the next one, or to the end. */
static bool decide(msdu__tuner *tuner, const msdu__tuner_args *args, const msdu__tuner_round *now)
{
    tuner->points[tuner->point_count++] = (msdu__tuner_point){tuner->present, *now};
    tuner->cost = msdu__tuner_fit(tuner->points, tuner->point_count, args->latency_ns);
    tuner->count = 0;
    tuner->skip = SKIP;
    msdu__tuning next = tuner->present;
    if (tuner->point_count == 1) {
        next = msdu__tuner_best(args, &tuner->cost, now, tuner->present);
    }
    double gain = tuner->point_count == 1
                      ? loss_of(args, &tuner->cost, now, tuner->present, tuner->present) -
                            loss_of(args, &tuner->cost, now, tuner->present, next)
                      : promise_of(tuner, args, &next);
    if (gain <= GAIN_NS || gain <= GAIN_SHARE * now->link_ns) {
        next = tuner->present;
    }
    if (tuner->point_count == 1 && next.slice_bytes == tuner->present.slice_bytes) {
        next.slice_bytes = trial_of(tuner, args);
    }
    /* the last change of all is kept for going back */
    if (msdu__tuning_is_equal(next, tuner->present) || tuner->changes + 1 >= MSDU__TUNER_CHANGES) {
        return settle(tuner, args);
    }
    tuner->present = next;
    tuner->changes++;
    return true;
}

bool msdu__tuner_hear(msdu__tuner *tuner, const msdu__tuner_args *args,
                      const msdu__tuner_round *round)
{
    if (round->slices == 0 || round->bytes == 0 || !(round->link_ns > 0)) {
        return false;
    }
    if (tuner->bytes > 0 && !is_same(tuner->bytes, round->bytes)) {
        begin_anew(tuner, round->bytes);
    }
    tuner->bytes = round->bytes;
    if (tuner->is_settled) {
        return false;
    }
    if (tuner->skip > 0) {
        tuner->skip--;
        return false;
    }
    assert(tuner->count < MSDU__TUNER_ROUNDS);
    tuner->link_ns[tuner->count++] = round->link_ns;
    if (tuner->count < MSDU__TUNER_ROUNDS) {
        return false;
    }
    msdu__tuner_round now = *round;
    now.link_ns = median(tuner->link_ns);
    return tuner->has_cut ? decide_lanes(tuner, args, now.link_ns) : decide(tuner, args, &now);
}
