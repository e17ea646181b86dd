/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of ranks of different speeds. Pure. */
#include "shares.h"

#include <assert.h>
#include <math.h>

#define DEAD_BAND 0.05 /* of the mean step time: nothing moves while no step is longer by more */
#define CALM      4    /* decisions within the band after which nothing moves any more */
#define MOVE      0.25 /* of a share, in one decision */
#define AGREES    1.4  /* two measurements of one speed differ by no more */
#define NEWEST    0.5  /* weight of the newest measurement */
#define HALVINGS  100
#define ROUNDING  1e-9 /* a value that is a whole number but for rounding errors is one */

void msdu__shares_init(msdu__shares *s, int32_t ranks, msdu__share *of, msdu__share_bounds *parts)
{
    *s = (msdu__shares){.ranks = ranks, .of = of, .parts = parts};
    for (int32_t i = 0; i < ranks; i++) {
        of[i] = (msdu__share){.size = 1};
    }
}

/* Values at this scale, and their sum. */
static double scale_parts(msdu__shares *s, double scale)
{
    double sum = 0;
    for (int32_t i = 0; i < s->ranks; i++) {
        msdu__share_bounds *p = &s->parts[i];
        p->value = fmin(fmax(scale * p->weight, p->least), p->most);
        sum += p->value;
    }
    return sum;
}

/* The scale at which the sum is `total`, which the bounds allow; weights are above 0. */
static void level(msdu__shares *s, double total)
{
    double low = 0;
    double high = 0;
    for (int32_t i = 0; i < s->ranks; i++) {
        high = fmax(high, total / s->parts[i].weight);
    }
    for (int i = 0; i < HALVINGS; i++) {
        double middle = low + (high - low) / 2;
        if (scale_parts(s, middle) < total) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (void)scale_parts(s, high);
}

/* The rank that is furthest below its value (sign 1) or above it (-1), and may change. */
static int32_t furthest(const msdu__shares *s, const uint64_t *out, double sign)
{
    int32_t best = -1;
    double most = 0;
    for (int32_t i = 0; i < s->ranks; i++) {
        const msdu__share_bounds *p = &s->parts[i];
        double is = (double)out[i];
        double gap = sign * (p->value - is);
        bool may = sign > 0 || is > p->least;
        if (may && (best < 0 || gap > most)) {
            best = i;
            most = gap;
        }
    }
    return best;
}

void msdu__shares_divide(msdu__shares *s, const double *sizes, uint64_t samples, uint64_t *out)
{
    double least = samples >= (uint64_t)s->ranks ? 1 : 0;
    uint64_t sum = 0;
    for (int32_t i = 0; i < s->ranks; i++) {
        s->parts[i] = (msdu__share_bounds){
            .weight = fmax(sizes[i], ROUNDING), .least = least, .most = (double)samples};
    }
    level(s, (double)samples);
    for (int32_t i = 0; i < s->ranks; i++) {
        out[i] = (uint64_t)floor(s->parts[i].value * (1 + ROUNDING));
        sum += out[i];
    }
    for (; sum < samples; sum++) {
        out[furthest(s, out, 1)]++;
    }
    for (; sum > samples; sum--) {
        out[furthest(s, out, -1)]--;
    }
}

static bool agree(double a, double b)
{
    return a <= AGREES * b && b <= AGREES * a;
}

/* Speeds are believed that are near what was believed, or that were measured twice in a row: a
 * pause, a clock that jumps and a short burst are neither. */
static void hear(msdu__share *r, uint64_t had, double step_ns)
{
    if (had == 0 || !(step_ns > 0) || !isfinite(step_ns)) {
        return;
    }
    double speed = (double)had / step_ns;
    bool is_again = agree(speed, r->measured);
    r->measured = speed;
    if (r->speed > 0 && agree(speed, r->speed)) {
        r->speed += NEWEST * (speed - r->speed);
    } else if (r->speed == 0 || is_again) {
        r->speed = speed;
    }
}

static bool are_known(const msdu__shares *s)
{
    bool are = true;
    for (int32_t i = 0; i < s->ranks; i++) {
        are = are && s->of[i].speed > 0;
    }
    return are;
}

/* Is a step longer than the mean by more than the dead band, and by more than a sample? Ranks that
 * cannot have less do not count. */
static bool is_uneven(const msdu__shares *s, const uint64_t *had)
{
    double sum = 0;
    int32_t count = 0;
    bool is = false;
    for (int32_t i = 0; i < s->ranks; i++) {
        sum += had[i] > 1 ? (double)had[i] / s->of[i].speed : 0;
        count += had[i] > 1 ? 1 : 0;
    }
    for (int32_t i = 0; i < s->ranks; i++) {
        double late = (double)had[i] / s->of[i].speed - sum / fmax(count, 1);
        is = is || (had[i] > 1 && late > DEAD_BAND * sum / count && late > 1 / s->of[i].speed);
    }
    return is;
}

static void look(msdu__shares *s, const uint64_t *had)
{
    if (is_uneven(s, had)) {
        s->is_moving = true;
        s->calm = 0;
    } else if (s->is_moving) {
        s->is_moving = ++s->calm < CALM;
    }
}

/* Shares in samples as they are; those of a larger batch may be below 1. */
static void bound_parts(msdu__shares *s, uint64_t batch)
{
    double total = (double)batch * s->ranks;
    for (int32_t i = 0; i < s->ranks; i++) {
        s->parts[i] = (msdu__share_bounds){.weight = s->of[i].size, .least = 1, .most = total};
    }
    level(s, total);
    for (int32_t i = 0; i < s->ranks; i++) {
        msdu__share_bounds *p = &s->parts[i];
        double step = fmax(1, MOVE * p->value);
        *p = (msdu__share_bounds){
            .weight = s->of[i].speed, .least = fmax(1, p->value - step), .most = p->value + step};
    }
}

bool msdu__shares_decide(msdu__shares *s, uint64_t batch, const uint64_t *had,
                         const double *step_ns)
{
    assert(batch > 0);
    for (int32_t i = 0; i < s->ranks; i++) {
        hear(&s->of[i], had[i], step_ns[i]);
    }
    if (!are_known(s)) {
        return false;
    }
    look(s, had);
    if (!s->is_moving) {
        return false;
    }
    bound_parts(s, batch);
    level(s, (double)batch * s->ranks);
    for (int32_t i = 0; i < s->ranks; i++) {
        s->of[i].size = s->parts[i].value / (double)batch;
    }
    return true;
}
