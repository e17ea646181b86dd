/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When ranks of different speeds leave exact rounds for the clock, and the rounds they have there.
 * Waits are made from ranks' times in one place, as messages of all ranks tell them.
 */
#include "interval/drift.h"
#include "interval/ladder.h"
#include "interval/waiting.h"
#include "interval_fixture.h"
#include "suite.h"

#include <stdio.h>

#define RANKS   4
#define STEP_MS 10.0

/* --- rounds by steps --- */

typedef struct group {
    msdu__interval_args args;
    msdu__interval_state state;
    msdu__ladder ladder;
    double network_ms;
    int round;
    double times[RANKS]; /* ascending */
    double late[RANKS];
    double known[RANKS];
    int climbed; /* first round after which the clock was wanted; 0: none */
    int left;    /* first that decided for anything but float32 at h = 1 */
} group;

static double jitter(double most)
{
    return 1 + most * noise();
}

/* Near enough to a normal distribution, of this standard deviation. */
static double normal(double deviation)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += noise() / 2;
    }
    return fmax(1 + deviation * sum, 0.1);
}

/* How long a rank computes in a round. */
static double even(int rank, int round)
{
    (void)rank;
    (void)round;
    return STEP_MS * jitter(0.01);
}

static double even_noise_5(int rank, int round)
{
    (void)rank;
    (void)round;
    return STEP_MS * normal(0.05);
}

static double even_noise_10(int rank, int round)
{
    (void)rank;
    (void)round;
    return STEP_MS * normal(0.10);
}

/* Others on the machine: a rank is slower or faster for ten rounds. */
static double even_in_phases(int rank, int round)
{
    static double phase[RANKS];
    phase[rank] = round % 10 == 0 ? normal(0.10) : phase[rank];
    return STEP_MS * phase[rank] * normal(0.03);
}

static double one_slow(int rank, int round)
{
    return even(rank, round) * (rank == 3 ? 4 : 1);
}

static double one_very_slow(int rank, int round)
{
    return even(rank, round) * (rank == 3 ? 100 : 1);
}

static double one_slow_and_noise(int rank, int round)
{
    return even_noise_10(rank, round) * (rank == 3 ? 4 : 1);
}

/* Another rank in each step. */
static double in_turn(int rank, int round)
{
    return even(rank, round) * (rank == round % RANKS ? 4 : 1);
}

static double bursts(int rank, int round)
{
    return even(rank, round) * (rank == 1 && round % 100 >= 60 ? 5 : 1);
}

/* Of five rounds, in one of all ranks' turns. */
static double bursts_in_turn(int rank, int round)
{
    return even_noise_5(rank, round) * (round % 25 >= 20 && rank == round / 25 % RANKS ? 5 : 1);
}

static double bursts_of_a_round(int rank, int round)
{
    return even_noise_5(rank, round) * (round % 5 == 0 && rank == round / 5 % RANKS ? 5 : 1);
}

static double a_hiccup(int rank, int round)
{
    return even(rank, round) + (rank == 2 && round % 100 == 99 ? 2000 : 0);
}

/* A pause of the machine under one rank, and it is gone. */
static double a_short_phase(int rank, int round)
{
    return even_noise_5(rank, round) *
           (rank == 2 && round % 400 >= 200 && round % 400 < 205 ? 5 : 1);
}

/* Of four ranks, 17 % of the time is lost. */
static double a_little(int rank, int round)
{
    return even(rank, round) * (rank == 0 ? 1.3 : 1);
}

static double a_little_and_noise(int rank, int round)
{
    return even_noise_5(rank, round) * (rank == 0 ? 1.15 : 1);
}

/* What the messages of all ranks say of a round in which each waits for the last one. */
static msdu__round_stats round_of(group *g, double (*time_ms)(int rank, int round))
{
    msdu__round_stats stats = default_stats(g->network_ms);
    double last = 0;
    double sum = 0;
    double ms[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        ms[rank] = time_ms(rank, g->round);
        last = fmax(last, ms[rank]);
        sum += ms[rank];
        int at = rank;
        for (; at > 0 && g->times[at - 1] > 1e6 * ms[rank]; at--) {
            g->times[at] = g->times[at - 1];
        }
        g->times[at] = 1e6 * ms[rank];
    }
    stats.times = g->times;
    stats.time_count = RANKS;
    stats.step = (uint64_t)g->round + 10;
    stats.step_ns = (uint64_t)(1e6 * last);
    stats.wait_ns = (uint64_t)(1e6 * g->network_ms); /* of who came last */
    stats.straggler_ns = (uint64_t)(1e6 * (last - sum / RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        g->late[rank] = 1e6 * (ms[rank] - sum / RANKS);
    }
    stats.late = g->late;
    return stats;
}

static void group_init(group *g, double network_ms)
{
    *g = (group){.args = default_args(), .network_ms = network_ms};
    msdu__ladder_init(&g->ladder, g->known);
}

static void group_run(group *g, int rounds, double (*time_ms)(int rank, int round))
{
    for (int end = g->round + rounds; g->round < end; g->round++) {
        msdu__round_stats stats = round_of(g, time_ms);
        msdu__decision d = decide("divergence", &g->args, &stats, &g->state);
        msdu__ladder_learn(&stats, false, &g->ladder);
        bool wants = msdu__ladder_wants_clock(&g->args, &stats, &g->ladder);
        g->climbed = wants && g->climbed == 0 ? g->round : g->climbed;
        bool is_left = d.interval > 1 || d.wire != FLOAT32;
        g->left = is_left && g->left == 0 ? g->round : g->left;
    }
}

/* Over a free network exact gradients stay, whoever is slow; and the clock comes for slow ranks. */
static const struct {
    const char *what;
    double (*time_ms)(int rank, int round);
    int most; /* 0: never */
} speeds[] = {
    {"even ranks", even, 0},
    {"even ranks, noise of 5 %", even_noise_5, 0},
    {"even ranks, noise of 10 %", even_noise_10, 0},
    {"even ranks, phases of 10 %", even_in_phases, 0},
    {"one slow rank", one_slow, 40},
    {"one very slow rank", one_very_slow, 40},
    {"one slow rank and noise", one_slow_and_noise, 40},
    {"another in each step", in_turn, 70},
    {"bursts", bursts, 120},
    {"bursts in turn", bursts_in_turn, 120},
    {"bursts of a round", bursts_of_a_round, 120},
    {"a hiccup", a_hiccup, 0},
    {"a short phase", a_short_phase, 0},
    {"a quarter slower", a_little, 40},
    {"a little slower, and noise", a_little_and_noise, 250},
};

START_TEST(slow_ranks_are_told_from_a_slow_network)
{
    group g;
    group_init(&g, 0.1);
    group_run(&g, speeds[_i].most > 0 ? 400 : 4000, speeds[_i].time_ms);
    ck_assert_msg(g.left == 0, "%s: left exact rounds in %d", speeds[_i].what, g.left);
    ck_assert_msg((g.climbed > 0) == (speeds[_i].most > 0) && g.climbed <= speeds[_i].most,
                  "%s: clock in %d", speeds[_i].what, g.climbed);
}
END_TEST

START_TEST(a_slow_network_is_no_slow_rank)
{
    group g;
    group_init(&g, 60);
    group_run(&g, 400, even);
    ck_assert_int_eq(g.climbed, 0);
    ck_assert_int_gt(g.left, 0);
    ck_assert_int_le(g.left, 20);
}
END_TEST

/* One rank is four times slower, and shares even that out in `moving` rounds. */
static int climbed_with_shares(int moving)
{
    group g;
    group_init(&g, 0.1);
    for (g.round = 0; g.round < 600; g.round++) {
        bool is_moving = g.round >= 16 && g.round < 16 + moving;
        msdu__round_stats stats = round_of(&g, g.round < 16 + moving ? one_slow : even_noise_5);
        msdu__ladder_learn(&stats, false, &g.ladder);
        msdu__ladder_try_shares(&stats, is_moving, &g.ladder);
        if (msdu__ladder_wants_clock(&g.args, &stats, &g.ladder)) {
            return g.round;
        }
    }
    return 0;
}

START_TEST(shares_come_before_the_clock)
{
    ck_assert_int_eq(climbed_with_shares(100), 0);
    int climbed = climbed_with_shares(600); /* never evened out: the clock after all */
    ck_assert_int_gt(climbed, 200);
    ck_assert_int_le(climbed, 250);
}
END_TEST

/* --- rounds by the clock --- */

typedef struct clocked {
    msdu__interval_args args;
    msdu__interval_state state;
    msdu__ladder ladder;
    double times[RANKS]; /* ns, ascending */
    double link_ms;      /* of float32 */
    double drift_one;
    msdu__decision now;
} clocked;

static clocked clocked_new(double link_ms, double slowest)
{
    clocked c = {.args = default_args(),
                 .times = {1e7, 1e7, 1e7, 1e7 * slowest},
                 .link_ms = link_ms,
                 .drift_one = 1e-6,
                 .now = {.interval = 1, .wire = FLOAT32, .period_ns = 1e7}};
    c.args.clock_period = c.args.clock_grace = 1;
    c.args.wires[INT2].is_allowed = true;
    return c;
}

static void clocked_run(clocked *c, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        msdu__round_stats stats = default_stats(0);
        stats.interval = c->now.interval;
        stats.is_gradient = false;
        stats.wire = stats.link_wire = c->now.wire;
        stats.link_ns = (uint64_t)(1e6 * c->link_ms * c->args.wires[c->now.wire].bits / 32);
        stats.local_sq = stats.weight_sq * c->drift_one * pow(c->now.interval, 1.5) * 4 / 3;
        stats.mean_sq = stats.local_sq / 4;
        stats.residual_sq = stats.local_sq * c->args.wires[c->now.wire].residual_ratio;
        stats.times = c->times;
        stats.time_count = RANKS;
        msdu__ladder_clock(&c->args, &stats, &c->ladder, &c->state, &c->now);
    }
}

START_TEST(rounds_are_at_their_floor)
{
    clocked c = clocked_new(1, 4);
    clocked_run(&c, 50);
    ck_assert_double_eq(c.now.period_ns, 1e7); /* a step of the median rank */
    ck_assert_int_eq(c.now.wire, FLOAT32);
    ck_assert_uint_eq(c.now.interval, 1);
    c.args.clock_period = 3;
    clocked_run(&c, 1);
    ck_assert_double_eq(c.now.period_ns, 3e7);
    c.args.clock_period = 1;
    c.ladder.passes_ns = 0.03 * 2.5e7; /* passes over parameters: the target at 2.5 steps */
    clocked_run(&c, 1);
    ck_assert_double_eq_tol(c.now.period_ns, 2.5e7, 1);
    ck_assert_ptr_nonnull(strstr(c.now.reason, "by the clock: every 2.50 median steps"));
}
END_TEST

/* The target would be 25 steps, the error budget is that of few. */
START_TEST(passes_do_not_lead_beyond_the_error_budget)
{
    clocked c = clocked_new(1, 1);
    c.ladder.passes_ns = 0.03 * 2.5e8;
    clocked_run(&c, 50);
    ck_assert_double_lt(c.now.period_ns, 1e8); /* the budget is measured in the same rounds */
    ck_assert_double_ge(c.now.period_ns, 1e7);
    c.args.prefer_speed = true;
    clocked_run(&c, 1);
    ck_assert_double_eq_tol(c.now.period_ns, 2.5e8, 1);
}
END_TEST

/* What was waited for slow ranks before is no pass over parameters. */
START_TEST(rounds_by_steps_tell_nothing_of_passes)
{
    double late[RANKS] = {0};
    msdu__ladder ladder = {.late_ns = late, .heard = 1000};
    msdu__round_stats stats = default_stats(1);
    stats.straggler_ns = 100000000;
    msdu__ladder_learn(&stats, false, &ladder);
    ck_assert(ladder.straggler_ns > 0 && ladder.passes_ns == 0);
    msdu__ladder_learn(&stats, true, &ladder);
    ck_assert_double_gt(ladder.passes_ns, 0);
}
END_TEST

START_TEST(a_slow_link_is_met_by_fewer_bits_and_a_longer_round)
{
    clocked c = clocked_new(60, 4);
    clocked_run(&c, 200);
    ck_assert_int_ne(c.now.wire, FLOAT32); /* 66 ms between rounds of it */
    double link = 60e6 * c.args.wires[c.now.wire].bits / 32;
    ck_assert_double_ge(c.now.period_ns, 1.0999 * link);
    ck_assert_double_le(c.now.period_ns, fmax(1e7, 1.2 * link));
    c = clocked_new(60, 4);
    c.args.fixed_wire = FLOAT32; /* as the user says */
    clocked_run(&c, 200);
    ck_assert_int_eq(c.now.wire, FLOAT32);
    ck_assert_double_ge(c.now.period_ns, 1.0999 * 60e6);
    ck_assert_uint_eq(c.now.interval, 7);
}
END_TEST

/* mean over ranks of drift at h = D / step, late by (T + what it comes late) / step, by hand. */
START_TEST(the_error_is_the_mean_over_ranks)
{
    clocked c = clocked_new(30, 4);
    c.args.fixed_wire = FLOAT32;
    clocked_run(&c, 100);
    double drift = c.state.real[MSDU__REAL_DRIFT] / pow(c.state.real[MSDU__REAL_AT], 1.5);
    double power = c.state.real[MSDU__REAL_POWER];
    ck_assert_double_eq(power, 1.5);
    /* D = 33 ms: ranks of 10 ms take 3 steps, 3 late; that of 40 ms one, late by 30 / 40 = 1 */
    double fast = (pow(5.5, 2.5) - pow(2.5, 2.5)) / 2.5 / 3;
    double slow = (pow(1.5, 2.5) - pow(0.5, 2.5)) / 2.5;
    char wanted[32];
    (void)snprintf(wanted, sizeof(wanted), "error %.2e of", drift * (3 * fast + slow) / 4);
    ck_assert_msg(strstr(c.now.reason, wanted) != NULL, "%s: %s", wanted, c.now.reason);
    c.times[RANKS - 1] = 8e7; /* misses rounds, so its progress comes a step of its own late */
    clocked_run(&c, 1);
    (void)snprintf(wanted, sizeof(wanted), "error %.2e of", drift * (3 * fast + slow) / 4);
    ck_assert_msg(strstr(c.now.reason, wanted) != NULL, "%s: %s", wanted, c.now.reason);
}
END_TEST

START_TEST(nothing_is_decided_from_nothing)
{
    clocked c = clocked_new(1, 4);
    msdu__round_stats stats = default_stats(1);
    clocked_run(&c, 20);
    msdu__decision before = c.now;
    msdu__ladder_clock(&c.args, &stats, &c.ladder, &c.state, &c.now); /* no times */
    ck_assert_double_eq(c.now.period_ns, before.period_ns);
    ck_assert_int_eq(c.now.wire, before.wire);
    stats.times = c.times;
    stats.time_count = RANKS;
    stats.local_sq = (double)NAN;
    msdu__ladder_clock(&c.args, &stats, &c.ladder, &c.state, &c.now);
    ck_assert_double_eq(c.now.period_ns, before.period_ns);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ladder");
    TCase *tcase = suite_case(suite, "ladder", 0, NULL, NULL);
    suite_table(tcase, slow_ranks_are_told_from_a_slow_network, speeds);
    tcase_add_test(tcase, a_slow_network_is_no_slow_rank);
    tcase_add_test(tcase, shares_come_before_the_clock);
    tcase_add_test(tcase, rounds_are_at_their_floor);
    tcase_add_test(tcase, passes_do_not_lead_beyond_the_error_budget);
    tcase_add_test(tcase, rounds_by_steps_tell_nothing_of_passes);
    tcase_add_test(tcase, a_slow_link_is_met_by_fewer_bits_and_a_longer_round);
    tcase_add_test(tcase, the_error_is_the_mean_over_ranks);
    tcase_add_test(tcase, nothing_is_decided_from_nothing);
    return suite_run(suite);
}
