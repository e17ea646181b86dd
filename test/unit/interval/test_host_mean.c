/* SPDX-License-Identifier: Apache-2.0 */
/* Means of gradients over a host in every local step: when they are given up, and what they leave
 * room for. */
#include "interval_world.h"
#include "suite.h"

/* --- given up where they take too long --- */

static msdu__decision after_step(double waited, double shared, msdu__interval_state *state)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(0);
    msdu__decision decision = {.interval = 0};

    args.can_go_local = false;
    stats.step_ns = (uint64_t)((1 - waited) * 1e7);
    stats.wait_ns = (uint64_t)(waited * 1e7);
    stats.shared_ns = (uint64_t)(shared * 1e7);
    msdu__policy_host_mean.decide(&args, &stats, state, &decision);
    ck_assert_uint_eq(decision.interval, 1);
    ck_assert_int_eq(decision.wire, FLOAT32);
    ck_assert_ptr_nonnull(strstr(decision.reason, "waits"));
    return decision;
}

/* Steps of this share waited until they are; 0: never. */
static int steps_until(double waited, double shared, msdu__interval_state *state)
{
    for (int step = 1; step <= 1000; step++) {
        if (after_step(waited, shared, state).is_left) {
            return step;
        }
    }
    return 0;
}

START_TEST(they_are_given_up_after_twelve_steps_over_the_target)
{
    msdu__interval_state state = {0};

    ck_assert_int_eq(steps_until(0.029, 0, &state), 0);
    ck_assert_int_eq(steps_until(0.031, 0, &state), 12);
    ck_assert_int_eq(steps_until(0.029, 0, &state), 0); /* who asks again hears why not */
}
END_TEST

START_TEST(what_others_compute_on_the_same_core_is_no_wait_for_them)
{
    msdu__interval_state state = {0};

    ck_assert_int_eq(steps_until(0.5, 0.48, &state), 0);
    ck_assert_int_eq(steps_until(0.5, 0.46, &state), 12);
}
END_TEST

START_TEST(a_burst_is_forgiven)
{
    msdu__interval_state state = {0};

    for (int i = 0; i < 100; i++) {
        bool is_left = false;
        for (int burst = 0; burst < 8; burst++) {
            is_left = is_left || after_step(0.9, 0, &state).is_left;
        }
        for (int quiet = 0; quiet < 4; quiet++) {
            is_left = is_left || after_step(0, 0, &state).is_left;
        }
        ck_assert(!is_left);
    }
}
END_TEST

/* --- the interval between hosts --- */

/* A link so slow that the error budget decides. */
static world slow_world(double host_ranks)
{
    world w = backward_world(3000, 1e-6);

    w.args.interval_steps = 4;
    w.args.fixed_wire = FLOAT32;
    w.host_ranks = host_ranks;
    world_run(&w, 400);
    return w;
}

/* At the same drift a host of n ranks has rounds that are longer by a factor that follows from how
 * drift grows, n^(1 / 1.5) here. */
START_TEST(hosts_of_more_ranks_have_longer_rounds_of_the_same_drift)
{
    world flat = slow_world(1);
    double budget = plain_error(&flat);

    for (int ranks = 2; ranks <= 16; ranks *= 2) {
        world hosts = slow_world(ranks);
        double longer = (double)hosts.now.interval / flat.now.interval;

        ck_assert_double_le(world_error(&hosts), 1.2 * budget);
        ck_assert_double_ge(world_error(&hosts), 0.5 * budget);
        ck_assert_double_ge(longer, 0.7 * pow(ranks, 1 / 1.5));
    }
}
END_TEST

/* Drift is n times what it was: the budget is not. */
START_TEST(the_budget_stays_where_means_over_a_host_are_given_up)
{
    world flat = slow_world(1);
    world hosts = slow_world(8);

    hosts.host_ranks = 1;
    world_run(&hosts, 400);
    ck_assert_double_le(world_error(&hosts), 1.2 * plain_error(&flat));
    ck_assert_uint_le(hosts.now.interval, flat.now.interval + 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_mean");
    TCase *tcase = suite_case(suite, "host_mean", 60, NULL, NULL);

    tcase_add_test(tcase, they_are_given_up_after_twelve_steps_over_the_target);
    tcase_add_test(tcase, what_others_compute_on_the_same_core_is_no_wait_for_them);
    tcase_add_test(tcase, a_burst_is_forgiven);
    tcase_add_test(tcase, hosts_of_more_ranks_have_longer_rounds_of_the_same_drift);
    tcase_add_test(tcase, the_budget_stays_where_means_over_a_host_are_given_up);
    return suite_run(suite);
}
