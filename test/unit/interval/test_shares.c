/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of ranks of different speeds, over simulated ranks: t_i(b) = a_i + c_i b. */
#include <check.h>
#include <math.h>

#include "interval/shares.h"
#include "random.h"
#include "suite.h"

#define RANKS_MOST 12
#define LATE       3 /* decisions until one is carried out: prefetching loaders draw ahead */

/* A job: what its ranks cost, and the shares that they have. */
typedef struct world {
    msdu__shares shares;
    msdu__share of[RANKS_MOST];
    msdu__share_bounds parts[RANKS_MOST];
    int ranks;
    uint64_t batch;
    double fixed[RANKS_MOST]; /* ns of a step */
    double cost[RANKS_MOST];  /* and of a sample */
    double noise;
    double pause[RANKS_MOST]; /* added to the next measurement; NaN: it is none */
    double sizes[LATE + 1][RANKS_MOST];
    uint64_t had[RANKS_MOST];
    double step_ns[RANKS_MOST];
    int changes;
} world;

static uint64_t seed = 88172645463325252ULL;

static double between(double low, double high)
{
    return low + (high - low) * (random_signed(&seed) + 1) / 2;
}

static int integer(int low, int high)
{
    return low + (int)(random_next(&seed) % (uint64_t)(high - low + 1));
}

static void begin(world *w, int ranks, uint64_t batch)
{
    *w = (world){.ranks = ranks, .batch = batch};
    msdu__shares_init(&w->shares, ranks, w->of, w->parts);
    for (int i = 0; i < ranks; i++) {
        w->cost[i] = 1e6;
        for (int k = 0; k <= LATE; k++) {
            w->sizes[k][i] = 1;
        }
    }
}

static double time_of(const world *w, int rank)
{
    return w->fixed[rank] + w->cost[rank] * (double)w->had[rank];
}

/* Eight steps, and the decision behind them. */
static void pass(world *w)
{
    msdu__shares_divide(&w->shares, w->sizes[0], w->batch * (uint64_t)w->ranks, w->had);
    for (int i = 0; i < w->ranks; i++) {
        double noise = 1 + w->noise * random_signed(&seed);
        w->step_ns[i] = time_of(w, i) * noise + w->pause[i];
        w->pause[i] = 0;
    }
    w->changes += msdu__shares_decide(&w->shares, w->batch, w->had, w->step_ns) ? 1 : 0;
    for (int i = 0; i < w->ranks; i++) {
        for (int k = 0; k < LATE; k++) {
            w->sizes[k][i] = w->sizes[k + 1][i];
        }
        w->sizes[LATE][i] = w->of[i].size;
    }
}

static void passes(world *w, int count)
{
    for (int i = 0; i < count; i++) {
        pass(w);
    }
}

static uint64_t sum_of(const world *w)
{
    uint64_t sum = 0;
    for (int i = 0; i < w->ranks; i++) {
        sum += w->had[i];
    }
    return sum;
}

/* Is the slowest step as long as the others, within one sample of it or the dead band? */
static void check_even_times(const world *w)
{
    double mean = 0;
    int count = 0;
    for (int i = 0; i < w->ranks; i++) {
        mean += w->had[i] > 1 ? time_of(w, i) : 0;
        count += w->had[i] > 1 ? 1 : 0;
    }
    for (int i = 0; i < w->ranks; i++) {
        double sample = time_of(w, i) / (double)w->had[i];
        double slack = fmax(sample, 0.05 * mean / count) + sample / 2;
        ck_assert_msg(w->had[i] == 1 || time_of(w, i) < mean / count + slack,
                      "rank %d: %g, mean %g, had %d of %d", i, time_of(w, i), mean / count,
                      (int)w->had[i], (int)w->batch);
    }
}

START_TEST(sums_are_exact_and_no_rank_has_nothing)
{
    for (int trial = 0; trial < 3000; trial++) {
        world w;
        double sizes[RANKS_MOST] = {0};
        begin(&w, integer(1, RANKS_MOST), 1);
        for (int i = 0; i < w.ranks; i++) {
            sizes[i] = integer(0, 9) == 0 ? 0 : exp(between(-8, 8));
        }
        uint64_t samples = (uint64_t)integer(0, trial % 2 ? 20 : 1000000);
        msdu__shares_divide(&w.shares, sizes, samples, w.had);
        ck_assert_uint_eq(sum_of(&w), samples);
        for (int i = 0; i < w.ranks; i++) {
            ck_assert(w.had[i] >= 1 || samples < (uint64_t)w.ranks);
            for (int k = 0; k < w.ranks; k++) {
                ck_assert(sizes[i] <= sizes[k] || w.had[i] + 1 > w.had[k]); /* monotone */
            }
        }
    }
}
END_TEST

START_TEST(even_shares_are_the_batch_itself)
{
    for (int ranks = 1; ranks <= RANKS_MOST; ranks++) {
        for (uint64_t batch = 1; batch < 300; batch += 7) {
            world w;
            begin(&w, ranks, batch);
            pass(&w);
            for (int i = 0; i < ranks; i++) {
                ck_assert_uint_eq(w.had[i], batch);
            }
        }
    }
}
END_TEST

START_TEST(steady_speeds_end_with_equal_step_times)
{
    for (int trial = 0; trial < 400; trial++) {
        world w;
        begin(&w, integer(1, RANKS_MOST), (uint64_t)integer(1, 200));
        for (int i = 0; i < w.ranks; i++) {
            w.cost[i] = 1e6 * exp(between(-1.5, 1.5));
            w.fixed[i] = w.cost[i] * (double)w.batch * between(0, 1);
        }
        passes(&w, 80);
        ck_assert_uint_eq(sum_of(&w), w.batch * (uint64_t)w.ranks);
        check_even_times(&w);
        w.changes = 0;
        passes(&w, 40);
        ck_assert_int_eq(w.changes, 0); /* and rest there */
    }
}
END_TEST

START_TEST(the_faster_rank_never_has_less)
{
    for (int trial = 0; trial < 200; trial++) {
        world w;
        begin(&w, integer(2, RANKS_MOST), (uint64_t)integer(1, 100));
        for (int i = 0; i < w.ranks; i++) {
            w.cost[i] = 1e6 * exp(between(-2, 2));
        }
        for (int k = 0; k < 60; k++) {
            pass(&w);
            for (int i = 0; i + 1 < w.ranks; i++) {
                bool is_slower = w.cost[i] > w.cost[i + 1];
                ck_assert(!is_slower || w.had[i] <= w.had[i + 1] + 1);
            }
        }
    }
}
END_TEST

START_TEST(one_decision_moves_a_share_by_a_quarter)
{
    world w;
    begin(&w, 4, 64);
    w.cost[2] = 8e6;
    double before = 64;
    for (int k = 0; k < 40; k++) {
        pass(&w);
        double now = w.of[2].size * 64;
        ck_assert(fabs(now - before) <= fmax(1, before / 4) + 1e-6);
        before = now;
    }
    ck_assert(before < 16);
}
END_TEST

START_TEST(stays_put_under_noise)
{
    for (int trial = 0; trial < 50; trial++) {
        world w;
        begin(&w, integer(2, RANKS_MOST), (uint64_t)integer(1, 200));
        w.noise = 0.02; /* of running means of steps whose times vary by 0.05 */
        passes(&w, 100);
        ck_assert_int_eq(w.changes, 0);
    }
}
END_TEST

START_TEST(bursts_pauses_and_jumps_of_a_clock_move_nothing)
{
    for (int trial = 0; trial < 50; trial++) {
        const double odd[] = {5 * 32e6, 3.6e12, -32e6, -1e30, (double)NAN, (double)INFINITY};
        world w;
        begin(&w, 4, 32);
        passes(&w, 3);
        for (int k = 0; k < 60; k++) {
            w.pause[integer(0, 3)] = k % 3 == 0 ? odd[integer(0, 5)] : 0;
            pass(&w);
        }
        ck_assert_int_eq(w.changes, 0);
    }
}
END_TEST

START_TEST(a_lasting_change_is_followed)
{
    world w;
    begin(&w, 4, 32);
    passes(&w, 20);
    w.cost[1] *= 4;
    passes(&w, 40);
    ck_assert_uint_le(w.had[1], 11);
    check_even_times(&w);
    w.cost[1] /= 4;
    passes(&w, 60);
    ck_assert_uint_ge(w.had[1], 30);
    check_even_times(&w);
}
END_TEST

START_TEST(a_rank_a_hundred_times_slower_keeps_one_sample)
{
    world w;
    begin(&w, 4, 8);
    w.cost[3] *= 100;
    passes(&w, 60);
    ck_assert_uint_eq(w.had[3], 1);
    ck_assert_uint_eq(sum_of(&w), 32);
    w.changes = 0;
    passes(&w, 20);
    ck_assert_int_eq(w.changes, 0); /* it binds the others whatever they have */
}
END_TEST

START_TEST(nothing_is_decided_before_all_speeds_are_known)
{
    world w;
    begin(&w, 3, 16);
    w.cost[0] *= 4;
    for (int k = 0; k < 10; k++) {
        w.pause[2] = (double)NAN;
        pass(&w);
        ck_assert_int_eq(w.changes, 0);
    }
    passes(&w, 2);
    ck_assert_int_gt(w.changes, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shares");
    TCase *cases = suite_case(suite, "shares", 0, NULL, NULL);
    tcase_add_test(cases, sums_are_exact_and_no_rank_has_nothing);
    tcase_add_test(cases, even_shares_are_the_batch_itself);
    tcase_add_test(cases, steady_speeds_end_with_equal_step_times);
    tcase_add_test(cases, the_faster_rank_never_has_less);
    tcase_add_test(cases, one_decision_moves_a_share_by_a_quarter);
    tcase_add_test(cases, stays_put_under_noise);
    tcase_add_test(cases, bursts_pauses_and_jumps_of_a_clock_move_nothing);
    tcase_add_test(cases, a_lasting_change_is_followed);
    tcase_add_test(cases, a_rank_a_hundred_times_slower_keeps_one_sample);
    tcase_add_test(cases, nothing_is_decided_before_all_speeds_are_known);
    return suite_run(suite);
}
