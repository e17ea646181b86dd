/* SPDX-License-Identifier: Apache-2.0 */
/* The default policy, divergence, in a closed loop with a synthetic training process. */
#include "interval_fixture.h"

/* Training as the policy sees it: V(h) = drift_one * h^power * (lr / lr_first)^2, in units of the
 * weights' square, and a link that carries float32 in link_ms. */
typedef struct world {
    msdu__interval_args args;
    msdu__interval_state state;
    double link_ms;
    double latency_ms;
    double drift_one;
    double power;
    double lr;
    double lr_first;
    double jitter; /* relative noise of every measurement */
    uint64_t step;
    uint32_t lag; /* decisions reach the round after the next */
    msdu__decision now;
    msdu__decision coming;
    uint32_t changes;
    uint32_t most; /* largest h seen */
} world;

static world default_world(double link_ms, double drift_one)
{
    world w = {
        .args = default_args(),
        .link_ms = link_ms,
        .drift_one = drift_one,
        .power = 1.5,
        .lr = 0.1,
        .lr_first = 0.1,
        .now = {.interval = 1, .wire = FLOAT32},
        .coming = {.interval = 1, .wire = FLOAT32},
    };

    return w;
}

static double jittered(const world *w, double value)
{
    return value * (1 + w->jitter * noise());
}

static msdu__round_stats world_round(const world *w)
{
    msdu__round_stats stats = default_stats(0);
    uint32_t h = w->now.interval;
    double bits = w->args.wires[w->now.wire].bits;
    double rate = w->lr / w->lr_first;
    double drift = stats.weight_sq * w->drift_one * pow(h, w->power) * rate * rate;

    stats.step = w->step;
    stats.interval = h;
    stats.wire = w->now.wire;
    stats.is_gradient = h == 1;
    stats.lr = w->lr;
    stats.link_ns = (uint64_t)jittered(w, 1e6 * (w->latency_ms + w->link_ms * bits / 32));
    stats.latency_ns = (uint64_t)(1e6 * w->latency_ms / stats.messages);
    stats.local_sq = jittered(w, drift * 4 / 3 / (stats.is_gradient ? w->lr * w->lr : 1));
    stats.mean_sq = stats.local_sq / 4;
    stats.residual_sq = stats.local_sq * w->args.wires[w->now.wire].residual_ratio;
    return stats;
}

static void world_run(world *w, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        msdu__round_stats stats;
        msdu__decision decision;
        uint32_t last = w->coming.interval;

        w->step += w->now.interval;
        stats = world_round(w);
        decision = decide("divergence", &w->args, &stats, &w->state);
        ck_assert_uint_le(decision.interval, 2 * last);
        ck_assert_uint_ge(2 * decision.interval, last);
        w->changes += decision.interval != last || decision.wire != w->coming.wire;
        w->now = w->lag ? w->coming : decision;
        w->coming = decision;
        w->most = decision.interval > w->most ? decision.interval : w->most;
    }
}

/* True share of time waited, and true drift, at the present pair. */
static double world_overhead(const world *w)
{
    double sync = w->latency_ms + w->link_ms * w->args.wires[w->now.wire].bits / 32;
    double waited = fmax(sync - 10 * w->args.hide_share, 0);

    return waited / (10 * w->now.interval + waited);
}

static double world_drift(const world *w)
{
    double rate = w->lr / w->lr_first;

    return w->drift_one * pow(w->now.interval, w->power) * rate * rate;
}

START_TEST(fast_link_stays_at_plain_float32)
{
    world w = default_world(4, 1e-5);

    world_run(&w, 300);
    ck_assert_uint_eq(w.most, 1);
    ck_assert_int_eq(w.now.wire, FLOAT32);
    ck_assert_uint_eq(w.changes, 0);
}
END_TEST

START_TEST(slow_link_narrows_the_wire_before_it_takes_local_steps)
{
    static const struct {
        double link_ms;
        int wire;
        uint32_t low;
        uint32_t high;
    } cases[] = {{9, BFLOAT16, 1, 1},
                 {18, INT8, 1, 1},
                 {36, INT4, 1, 1},
                 {43, INT4, 2, 4},
                 {60, TERNARY, 2, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w = default_world(cases[i].link_ms, 1e-6);

        world_run(&w, 100);
        ck_assert_int_eq(w.now.wire, cases[i].wire);
        ck_assert_uint_ge(w.now.interval, cases[i].low);
        ck_assert_uint_le(w.now.interval, cases[i].high);
        ck_assert_double_le(world_overhead(&w), w.args.target_overhead);
    }
}
END_TEST

/* "Least harm" against all pairs, found by trying them on the true process. */
START_TEST(chosen_pair_is_close_to_the_least_harm_that_meets_the_target)
{
    static const double links[] = {43, 55, 70, 100, 200, 300};

    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        world w = default_world(links[i], 1e-6);
        double least = (double)INFINITY;
        double harm = 0;

        world_run(&w, 200);
        harm = world_drift(&w) * (1 + 0.5 * 4 / 3 * w.args.wires[w.now.wire].residual_ratio);
        ck_assert_double_le(world_overhead(&w), w.args.target_overhead);
        for (uint32_t h = 2; h <= 64; h++) {
            for (int wire = 0; wire < WIRES; wire++) {
                world other = w;

                other.now = (msdu__decision){.interval = h, .wire = wire};
                if (world_overhead(&other) <= w.args.target_overhead) {
                    least = fmin(least, world_drift(&other) *
                                            (1 + 0.5 * 4 / 3 * w.args.wires[wire].residual_ratio));
                }
            }
        }
        ck_assert_msg(harm <= 2 * least, "link %g ms: harm %g at h %u wire %d, least %g", links[i],
                      harm, w.now.interval, w.now.wire, least);
    }
}
END_TEST

START_TEST(ternary_is_reached_before_the_interval_doubles)
{
    world w = default_world(300, 1e-7);

    w.power = 2;
    world_run(&w, 200);
    ck_assert_int_eq(w.now.wire, TERNARY);
    ck_assert_double_le(world_overhead(&w), w.args.target_overhead);
}
END_TEST

START_TEST(hopeless_link_stays_at_the_cap_for_accuracy_and_passes_it_for_speed)
{
    world w = default_world(20000, 1e-4);
    world fast = w;

    world_run(&w, 200);
    ck_assert_double_le(world_drift(&w), 1.3 * w.args.drift_limit);
    ck_assert_double_ge(world_drift(&w), 0.1 * w.args.drift_limit);
    ck_assert_double_ge(world_overhead(&w), w.args.target_overhead);
    fast.args.prefer_speed = true;
    world_run(&fast, 200);
    ck_assert_double_ge(world_drift(&fast), 2 * w.args.drift_limit);
    ck_assert_uint_eq(fast.now.interval, 64);
}
END_TEST

START_TEST(reachable_target_over_the_cap_is_met_for_speed_only)
{
    world w = default_world(100, 1e-3);
    world fast = w;

    world_run(&w, 200);
    ck_assert_uint_le(w.now.interval, 2);
    fast.args.prefer_speed = true;
    world_run(&fast, 200);
    ck_assert_double_le(world_overhead(&fast), w.args.target_overhead);
    ck_assert_uint_ge(fast.now.interval, 4);
}
END_TEST

/* Where local steps exceed the cap, they are probed now and then, never lived in. */
START_TEST(failed_probes_are_rare)
{
    world w = default_world(100, 0.01);
    uint32_t local = 0;

    w.lag = 1;
    world_run(&w, 20);
    for (uint32_t i = 0; i < 400; i++) {
        world_run(&w, 1);
        local += w.now.interval > 1;
    }
    ck_assert_uint_le(local, 20);
    ck_assert_uint_ge(local, 1);
}
END_TEST

/* algorithms: with the cap moving as lr^q and V ~ lr^2 h, h ~ lr^(q - 2). */
static uint32_t steady_interval(double exponent, double lr)
{
    world w = default_world(50000, 3e-4);

    w.power = 1;
    w.args.drift_exponent = exponent;
    w.args.interval_max = 512;
    w.args.fixed_wire = INT4;
    world_run(&w, 100);
    w.lr = lr;
    world_run(&w, 200);
    return w.now.interval;
}

START_TEST(half_the_learning_rate_moves_the_interval_as_the_exponent_says)
{
    for (int exponent = 0; exponent <= 2; exponent++) {
        double ratio = (double)steady_interval(exponent, 0.025) / steady_interval(exponent, 0.1);
        double expected = pow(4, 2 - exponent);

        ck_assert_double_ge(ratio, expected / 1.4);
        ck_assert_double_le(ratio, expected * 1.4);
    }
}
END_TEST

START_TEST(closed_loop_is_stable_under_noise)
{
    static const double links[] = {3, 9, 30, 100, 400, 1500, 20000};

    for (uint32_t lag = 0; lag <= 1; lag++) {
        for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
            world w = default_world(links[i], 2e-5);

            w.lag = lag;
            w.jitter = 0.1;
            world_run(&w, 100);
            w.changes = 0;
            world_run(&w, 300);
            ck_assert_msg(w.changes <= 8, "link %g ms, lag %u: %u changes, h %u, wire %d", links[i],
                          lag, w.changes, w.now.interval, w.now.wire);
        }
    }
}
END_TEST

START_TEST(a_small_gain_does_not_move_the_interval)
{
    world w = default_world(100, 1e-6);
    uint32_t before = 0;

    w.power = 1;
    world_run(&w, 100);
    before = w.now.interval;
    w.changes = 0;
    w.link_ms = 95; /* one step less would meet the target */
    world_run(&w, 100);
    ck_assert_uint_eq(w.changes, 0);
    w.link_ms = 88; /* half the interval would */
    world_run(&w, 100);
    ck_assert_uint_lt(w.now.interval, before);
}
END_TEST

START_TEST(a_faster_link_brings_the_interval_back)
{
    world w = default_world(400, 1e-6);

    world_run(&w, 100);
    ck_assert_uint_gt(w.now.interval, 4);
    w.link_ms = 2;
    world_run(&w, 100);
    ck_assert_uint_eq(w.now.interval, 1);
    ck_assert_int_eq(w.now.wire, FLOAT32);
}
END_TEST

START_TEST(the_last_part_of_the_run_shortens_the_interval)
{
    world w = default_world(20000, 1e-6);
    uint32_t before = 0;

    w.args.prefer_speed = true;
    w.args.total_steps = 10000;
    while (w.step < 9500) {
        world_run(&w, 1);
    }
    before = w.now.interval;
    ck_assert_uint_eq(before, 64);
    while (w.step < 9960) {
        world_run(&w, 1);
    }
    ck_assert_uint_le(w.now.interval, before / 4);
}
END_TEST

START_TEST(without_parameters_only_the_wire_narrows)
{
    world w = default_world(200, 1e-6);

    w.args.can_go_local = false;
    world_run(&w, 100);
    ck_assert_uint_eq(w.most, 1);
    ck_assert_int_eq(w.now.wire, INT4);
}
END_TEST

/* Weights are not known to a trainer that shows gradients only. */
START_TEST(without_weights_the_cap_is_the_drift_of_the_user_s_interval)
{
    msdu__interval_args args = default_args();
    msdu__interval_state state = {{0}, {0}};
    msdu__round_stats stats = default_stats(20000);

    stats.weight_sq = 0;
    args.interval_steps = 8;
    for (uint32_t i = 0; i < 100; i++) {
        msdu__decision decision = decide("divergence", &args, &stats, &state);

        stats.is_gradient = decision.interval == 1;
        stats.interval = decision.interval;
        stats.local_sq = 1e-3 * pow(decision.interval, 1.5);
        stats.mean_sq = stats.local_sq / 4;
        stats.link_ns = (uint64_t)(2e10 * args.wires[decision.wire].bits / 32);
        stats.wire = decision.wire;
    }
    ck_assert_uint_ge(stats.interval, 3);
    ck_assert_uint_le(stats.interval, 9);
}
END_TEST

START_TEST(not_finite_statistics_halve_the_interval)
{
    msdu__interval_args args = default_args();
    msdu__interval_state state = {{0}, {0}};
    msdu__round_stats stats = default_stats(100);
    msdu__decision decision;

    stats.interval = 16;
    stats.local_sq = (double)NAN;
    decision = decide("divergence", &args, &stats, &state);
    ck_assert_uint_eq(decision.interval, 8);
    ck_assert_int_eq(decision.wire, FLOAT32);
    ck_assert_ptr_nonnull(strstr(decision.reason, "not finite"));
}
END_TEST

START_TEST(reason_names_harm_and_waiting)
{
    world w = default_world(20000, 1e-4);

    world_run(&w, 50);
    ck_assert_ptr_nonnull(strstr(w.coming.reason, "harm "));
    ck_assert_ptr_nonnull(strstr(w.coming.reason, "3.0%"));
    ck_assert_ptr_nonnull(strstr(w.coming.reason, "prefer accuracy"));
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_test(tcase, fast_link_stays_at_plain_float32);
    tcase_add_test(tcase, slow_link_narrows_the_wire_before_it_takes_local_steps);
    tcase_add_test(tcase, chosen_pair_is_close_to_the_least_harm_that_meets_the_target);
    tcase_add_test(tcase, ternary_is_reached_before_the_interval_doubles);
    tcase_add_test(tcase, hopeless_link_stays_at_the_cap_for_accuracy_and_passes_it_for_speed);
    tcase_add_test(tcase, reachable_target_over_the_cap_is_met_for_speed_only);
    tcase_add_test(tcase, failed_probes_are_rare);
    tcase_add_test(tcase, half_the_learning_rate_moves_the_interval_as_the_exponent_says);
    tcase_add_test(tcase, closed_loop_is_stable_under_noise);
    tcase_add_test(tcase, a_small_gain_does_not_move_the_interval);
    tcase_add_test(tcase, a_faster_link_brings_the_interval_back);
    tcase_add_test(tcase, the_last_part_of_the_run_shortens_the_interval);
    tcase_add_test(tcase, without_parameters_only_the_wire_narrows);
    tcase_add_test(tcase, without_weights_the_cap_is_the_drift_of_the_user_s_interval);
    tcase_add_test(tcase, not_finite_statistics_halve_the_interval);
    tcase_add_test(tcase, reason_names_harm_and_waiting);
}

int main(void)
{
    Suite *suite = suite_create("divergence");
    TCase *tcase = tcase_create("divergence");
    SRunner *runner = srunner_create(suite);
    int failed = 0;

    tcase_set_timeout(tcase, 120);
    add_all(tcase);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
