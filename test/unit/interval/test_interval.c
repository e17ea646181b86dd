/* SPDX-License-Identifier: Apache-2.0 */
/* Interval: what policies share, the simple policies by tables of inputs, bad statistics. */
#include "interval/waiting.h"
#include "interval_fixture.h"
#include "suite.h"

/* --- what policies share --- */

START_TEST(every_policy_is_listed_once_and_found_by_name)
{
    uint32_t count = 0;

    while (msdu__policy_at(count) != NULL) {
        const msdu__policy *policy = msdu__policy_at(count);

        ck_assert_ptr_eq(msdu__policy_find(policy->name), policy);
        ck_assert_uint_ge(strlen(policy->help), 10);
        count++;
    }
    ck_assert_uint_eq(count, 5);
    ck_assert_str_eq(msdu__policy_at(0)->name, "divergence");
    ck_assert_ptr_null(msdu__policy_at(UINT32_MAX));
    ck_assert_ptr_null(msdu__policy_find("nonsense"));
}
END_TEST

START_TEST(limit_clamps_to_range_and_to_a_factor_two)
{
    msdu__interval_args args = default_args();
    static const struct {
        double wanted;
        uint32_t previous;
        uint32_t expected;
    } cases[] = {{8, 8, 8},    {100, 8, 16}, {1, 8, 4},   {1, 7, 4},     {1000, 1, 2},
                 {0, 1, 1},    {-5, 1, 1},   {9, 0, 2},   {1e9, 40, 64}, {1, 300, 64},
                 {9.99, 8, 9}, {2.5, 3, 2},  {1.99, 2, 1}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_uint_eq(msdu__interval_limit(&args, cases[i].previous, cases[i].wanted),
                          cases[i].expected);
    }
    ck_assert_uint_eq(msdu__interval_limit(&args, 8, (double)NAN), 8);
    ck_assert_uint_eq(msdu__interval_limit(&args, 8, (double)INFINITY), 16);
    ck_assert_uint_eq(msdu__interval_limit(&args, 8, -(double)INFINITY), 4);
    ck_assert_uint_eq(msdu__interval_limit(&args, UINT32_MAX, 1e30), 64);
    args.can_go_local = false;
    ck_assert_uint_eq(msdu__interval_limit(&args, 8, 8), 1);
    args = default_args();
    args.interval_max = 0;
    ck_assert_uint_eq(msdu__interval_limit(&args, 8, 8), 1);
}
END_TEST

START_TEST(time_of_a_synchronization_is_latency_plus_bits)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(32);

    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, FLOAT32), 32e6, 1);
    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, BFLOAT16), 16e6, 1);
    stats.latency_ns = 1000000;
    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, BFLOAT16), 18e6, 1);
    stats.latency_ns = 100000000;
    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, BFLOAT16), 28e6, 1);
    stats.link_wire = INT4;
    stats.latency_ns = 0;
    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, FLOAT32), 32e6 * 32 / 4.0625, 1);
    stats.link_wire = 99;
    ck_assert_double_eq_tol(msdu__interval_sync_ns(&args, &stats, FLOAT32), 32e6, 1);
}
END_TEST

/* Late by as much as the arguments allow and the round has room for, before any measurement. */
static double overhead(const msdu__interval_args *args, const msdu__round_stats *stats,
                       uint32_t interval, int wire)
{
    msdu__hiding hiding = msdu__waiting_hiding(args, NULL);
    msdu__choice choice = {.interval = interval, .wire = wire};

    choice.delay_steps = interval > args->delay_max ? args->delay_max : 0;
    return msdu__interval_overhead(args, stats, &hiding, &choice);
}

START_TEST(overhead_is_what_does_not_hide)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(30);

    args.delay_max = 0;
    args.hide_local = 0.5;
    ck_assert_double_eq_tol(overhead(&args, &stats, 1, FLOAT32), 25.0 / 35, 1e-9);
    ck_assert_double_eq_tol(overhead(&args, &stats, 5, FLOAT32), 25.0 / 75, 1e-9);
    args.delay_max = 1;
    ck_assert_double_eq_tol(overhead(&args, &stats, 5, FLOAT32), 20.0 / 70, 1e-9);
    /* A round that has no room for the delay hides under its own backward pass. */
    args.delay_max = 3;
    ck_assert_double_eq_tol(overhead(&args, &stats, 3, FLOAT32), 25.0 / 55, 1e-9);
    ck_assert_double_eq_tol(overhead(&args, &stats, 4, FLOAT32), 0, 1e-9);
    stats.step_ns = 0;
    ck_assert_double_eq_tol(overhead(&args, &stats, 3, FLOAT32), 1, 1e-9);
    stats.link_ns = 0;
    ck_assert_double_eq_tol(overhead(&args, &stats, 3, FLOAT32), 0, 1e-9);
}
END_TEST

START_TEST(every_policy_warms_up_and_stays_in_range)
{
    for (uint32_t i = 0; msdu__policy_at(i) != NULL; i++) {
        msdu__interval_args args = default_args();
        msdu__round_stats stats = default_stats(300);
        msdu__interval_state state = {{0}, {0}};
        msdu__decision decision;

        stats.step = 7;
        decision = decide(msdu__policy_at(i)->name, &args, &stats, &state);
        ck_assert_uint_eq(decision.interval, 1);
        /* divergence may narrow the wire where a step's wait is many steps long */
        ck_assert(decision.wire == FLOAT32 || i == 0);
        args.can_go_local = false;
        stats.step = 1000;
        decision = decide(msdu__policy_at(i)->name, &args, &stats, &state);
        ck_assert_uint_eq(decision.interval, 1);
        args.can_go_local = true;
        args.interval_max = 1;
        decision = decide(msdu__policy_at(i)->name, &args, &stats, &state);
        ck_assert_uint_eq(decision.interval, 1);
    }
}
END_TEST

/* Statistics out of any bounds, for many rounds. */
static msdu__round_stats draw_bad_stats(uint32_t interval, int wire)
{
    static const double values[] = {0, 1, -1, 1e300, 1e-300, 5e-324, 0.01};
    msdu__round_stats stats = default_stats(50);
    double *fields[] = {&stats.local_sq,    &stats.mean_sq, &stats.weight_sq,
                        &stats.residual_sq, &stats.lr,      &stats.loss};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint32_t kind = (uint32_t)((noise() + 1) * 6);

        *fields[i] = kind < 7   ? values[kind]
                     : kind < 8 ? (double)NAN
                     : kind < 9 ? (double)INFINITY
                                : fabs(noise());
    }
    stats.is_gradient = noise() > 0;
    stats.interval = interval;
    stats.wire = wire;
    stats.step_ns = noise() > 0.8 ? 0 : noise() > 0.9 ? UINT64_MAX : stats.step_ns;
    stats.link_ns = noise() > 0.8 ? 0 : noise() > 0.9 ? UINT64_MAX : stats.link_ns;
    stats.messages = noise() > 0.9 ? UINT32_MAX : 4;
    stats.latency_ns = noise() > 0.9 ? UINT64_MAX : 1000;
    return stats;
}

START_TEST(bad_statistics_never_lead_out_of_range)
{
    for (uint32_t i = 0; msdu__policy_at(i) != NULL; i++) {
        msdu__interval_args args = default_args();
        msdu__interval_state state = {{0}, {0}};
        uint32_t interval = 1;
        int wire = FLOAT32;

        for (uint32_t round = 0; round < 3000; round++) {
            msdu__round_stats stats = draw_bad_stats(interval, wire);
            msdu__decision decision;

            args.prefer_speed = noise() > 0;
            args.drift_exponent = noise() > 0 ? 1 : 0;
            args.total_steps = noise() > 0.9 ? 101 : 0;
            if (round % 100 == 0) {
                memset(&state, 0, sizeof state);
            }
            decision = decide(msdu__policy_at(i)->name, &args, &stats, &state);
            if (decision.interval < 1 || decision.interval > 64 || decision.wire < 0 ||
                decision.wire >= WIRES) {
                ck_abort_msg("%s: h %u wire %d", msdu__policy_at(i)->name, decision.interval,
                             decision.wire);
            }
            interval = decision.interval;
            wire = decision.wire;
        }
    }
}
END_TEST

START_TEST(same_input_gives_the_same_decision)
{
    for (uint32_t i = 0; msdu__policy_at(i) != NULL; i++) {
        msdu__interval_args args = default_args();
        msdu__interval_state first = {{0}, {0}};
        msdu__interval_state again = {{0}, {0}};

        for (uint32_t round = 0; round < 200; round++) {
            msdu__round_stats stats = draw_bad_stats(4, INT4);
            msdu__decision x = decide(msdu__policy_at(i)->name, &args, &stats, &first);
            msdu__decision y = decide(msdu__policy_at(i)->name, &args, &stats, &again);

            ck_assert_uint_eq(x.interval, y.interval);
            ck_assert_int_eq(x.wire, y.wire);
            ck_assert_str_eq(x.reason, y.reason);
            ck_assert_mem_eq(&first, &again, sizeof first);
        }
    }
}
END_TEST

/* --- the simple policies --- */

START_TEST(fixed_jumps_to_its_interval_after_warm_up)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);
    msdu__interval_state state = {{0}, {0}};
    msdu__decision decision = decide("fixed", &args, &stats, &state);

    ck_assert_uint_eq(decision.interval, 8);
    ck_assert_int_eq(decision.wire, INT4);
    args.interval_steps = 1;
    decision = decide("fixed", &args, &stats, &state);
    ck_assert_uint_eq(decision.interval, 1);
    ck_assert_int_eq(decision.wire, FLOAT32);
    args.fixed_wire = INT2;
    args.interval_steps = 1000;
    decision = decide("fixed", &args, &stats, &state);
    ck_assert_uint_eq(decision.interval, 64);
    ck_assert_int_eq(decision.wire, INT2);
    stats.step = 1;
    args.warmup_steps = 8;
    decision = decide("fixed", &args, &stats, &state);
    ck_assert_uint_eq(decision.interval, 1);
    ck_assert_int_eq(decision.wire, INT2); /* what the user fixed, from the first round on */
}
END_TEST

START_TEST(qsr_grows_with_the_inverse_square_of_lr)
{
    static const struct {
        double lr;
        uint64_t total;
        uint32_t previous;
        uint32_t expected;
    } cases[] = {{0.1, 0, 8, 8},     {0.05, 0, 8, 16}, {0.04, 0, 16, 25},   {0.02, 0, 50, 64},
                 {0.025, 0, 16, 32}, {0, 0, 8, 8},     {0.04, 112, 16, 12}, {-1, 0, 8, 8}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        msdu__interval_args args = default_args();
        msdu__round_stats stats = default_stats(1);
        msdu__interval_state state = {{0}, {0}};

        stats.lr = cases[i].lr;
        stats.interval = cases[i].previous;
        args.total_steps = cases[i].total;
        ck_assert_uint_eq(decide("qsr", &args, &stats, &state).interval, cases[i].expected);
    }
}
END_TEST

START_TEST(post_local_starts_at_its_step_by_doubling)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);
    msdu__interval_state state = {{0}, {0}};

    args.switch_step = 101;
    ck_assert_uint_eq(decide("post_local", &args, &stats, &state).interval, 1);
    stats.step = 101;
    for (uint32_t expected = 2; expected <= 8; expected *= 2) {
        stats.interval = decide("post_local", &args, &stats, &state).interval;
        ck_assert_uint_eq(stats.interval, expected);
    }
    ck_assert_uint_eq(decide("post_local", &args, &stats, &state).interval, 8);
}
END_TEST

START_TEST(plateau_halves_on_a_stable_loss_and_starts_again)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);
    msdu__interval_state state = {{0}, {0}};
    uint32_t seen[64];

    stats.interval = 8;
    stats.loss = 2;
    for (uint32_t i = 0; i < 64; i++) {
        stats.interval = decide("plateau", &args, &stats, &state).interval;
        seen[i] = stats.interval;
    }
    ck_assert_uint_eq(seen[0], 8);
    ck_assert_uint_eq(seen[2], 4);
    ck_assert_uint_eq(seen[4], 2);
    ck_assert_uint_eq(seen[6], 1);
    ck_assert_uint_eq(seen[8], 2); /* the way up doubles */
    ck_assert_uint_eq(seen[9], 4);
    ck_assert_uint_eq(seen[10], 4);
}
END_TEST

START_TEST(plateau_keeps_its_interval_while_the_loss_falls_or_is_not_told)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);
    msdu__interval_state state = {{0}, {0}};

    args.plateau_patience = 8;
    stats.interval = 8;
    stats.loss = 100;
    for (uint32_t i = 0; i < 60; i++) {
        stats.loss *= 0.9;
        ck_assert_uint_eq(decide("plateau", &args, &stats, &state).interval, 8);
    }
    stats.loss = (double)NAN;
    for (uint32_t i = 0; i < 60; i++) {
        ck_assert_uint_eq(decide("plateau", &args, &stats, &state).interval, 8);
    }
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_test(tcase, every_policy_is_listed_once_and_found_by_name);
    tcase_add_test(tcase, limit_clamps_to_range_and_to_a_factor_two);
    tcase_add_test(tcase, time_of_a_synchronization_is_latency_plus_bits);
    tcase_add_test(tcase, overhead_is_what_does_not_hide);
    tcase_add_test(tcase, every_policy_warms_up_and_stays_in_range);
    tcase_add_test(tcase, bad_statistics_never_lead_out_of_range);
    tcase_add_test(tcase, same_input_gives_the_same_decision);
    tcase_add_test(tcase, fixed_jumps_to_its_interval_after_warm_up);
    tcase_add_test(tcase, qsr_grows_with_the_inverse_square_of_lr);
    tcase_add_test(tcase, post_local_starts_at_its_step_by_doubling);
    tcase_add_test(tcase, plateau_halves_on_a_stable_loss_and_starts_again);
    tcase_add_test(tcase, plateau_keeps_its_interval_while_the_loss_falls_or_is_not_told);
}

int main(void)
{
    Suite *suite = suite_create("interval");
    TCase *tcase = suite_case(suite, "interval", 120, NULL, NULL);

    add_all(tcase);
    return suite_run(suite);
}
