/* SPDX-License-Identifier: Apache-2.0 */
/* What a choice costs the processor, and what the controller makes of it. */
#include "interval/cost.h"
#include "interval_fixture.h"
#include "suite.h"

#define MS 1e6

static const msdu__choice plain = {.interval = 1, .wire = FLOAT32};
static const msdu__choice narrow = {.interval = 1, .wire = INT4};

START_TEST(idle_cores_take_nothing_and_busy_ones_all)
{
    ck_assert_double_eq(msdu__cost_share(2, 8, 2), 0); /* six are left for two coders */
    ck_assert_double_eq(msdu__cost_share(2, 4, 2), 0);
    ck_assert_double_eq(msdu__cost_share(2, 2, 2), 1);
    ck_assert_double_eq(msdu__cost_share(1, 4, 4), 0.25); /* a trainer of four threads */
    ck_assert_double_eq(msdu__cost_share(4, 2, 2), 2);    /* two ranks a core: both are coded for */
    ck_assert_double_eq(msdu__cost_share(4, 2, 9), 2);    /* no more than there are */
    ck_assert_double_eq(msdu__cost_share(2, 2, 0), 0);
    ck_assert_double_eq(msdu__cost_share(0, 2, 1), 0); /* not known */
    ck_assert_double_eq(msdu__cost_share(2, 0, 1), 0);
    ck_assert_double_eq(msdu__cost_share(2, 2, (double)NAN), 0);
}
END_TEST

START_TEST(the_share_is_continuous)
{
    double before = 0;

    for (int busy = 0; busy <= 300; busy++) {
        double share = msdu__cost_share(2, 3, busy / 100.0);

        ck_assert_double_ge(share, before);
        ck_assert_double_le(share - before, 0.011);
        before = share;
    }
    ck_assert_double_eq_tol(before, 2.0 / 3, 1e-9);
}
END_TEST

START_TEST(coding_and_copies_add_up)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);

    args.copy_ns = 0.1;
    args.wires[INT4].code_ns = 2;
    ck_assert_double_eq_tol(msdu__cost_round_ns(&args, &stats, &plain), (6 + 12) * 0.1 * MS, 1);
    double coded = msdu__cost_round_ns(&args, &stats, &narrow);
    ck_assert_double_eq_tol(coded, (2 + 0.1 * (6 + 2 * 1.5 * 4.0625 / 8)) * MS, 1);
    stats.code_scale = 1.5; /* what rounds really took */
    ck_assert_double_eq_tol(msdu__cost_round_ns(&args, &stats, &narrow), coded + 1 * MS, 1);
    stats.taken_share = 0.5;
    double taken = msdu__cost_taken_ns(&args, &stats, &narrow);
    ck_assert_double_eq_tol(taken, 0.5 * (coded + 1 * MS - 1.8 * MS), 1);
    ck_assert_double_eq(msdu__cost_taken_ns(&args, &stats, &plain), 0);
    /* a round in so many steps costs no more than plain ones do */
    ck_assert_double_eq(
        msdu__cost_taken_ns(&args, &stats, &(msdu__choice){.interval = 8, .wire = INT4}), 0);
}
END_TEST

/* A step that was measured in a format is longer for its coding: that is not counted twice. */
START_TEST(the_present_round_is_taken_out_of_the_step)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(1);

    args.wires[INT4].code_ns = 2;
    stats.taken_share = 1;
    ck_assert_double_eq(msdu__cost_step_ns(&args, &stats), 10 * MS);
    stats.wire = INT4;
    ck_assert_double_eq_tol(msdu__cost_step_ns(&args, &stats), 8 * MS, 1);
    args.wires[INT4].code_ns = 200; /* never to nothing */
    ck_assert_double_eq_tol(msdu__cost_step_ns(&args, &stats), 5 * MS, 1);
}
END_TEST

/* --- choices --- */

static uint32_t narrowed; /* rounds of the latest loop */

/* Format after so many rounds in a loop with the policy: a step computes for 10 ms, of which half
 * hides a gradient round; coding takes code_ns and is taken from the trainer by `taken`. */
static int settled(msdu__interval_args *args, double link_ms, double taken, double *step_ms)
{
    msdu__interval_state state = {.real = {0}};
    msdu__decision now = {.interval = 1, .wire = FLOAT32};
    int before = FLOAT32;
    double waited = 0;

    narrowed = 0;
    args->can_go_local = false;
    for (uint64_t step = 2; step < 80; step++) {
        msdu__round_stats stats = default_stats(0);
        double code = args->wires[now.wire].code_ns;
        double sync = link_ms * args->wires[now.wire].bits / 32 + code;
        double of_before = link_ms * args->wires[before].bits / 32 + args->wires[before].code_ns;
        double hidden = fmin(5, sync) / sync;

        stats.step = step;
        stats.wire = now.wire;
        stats.link_wire = before;
        stats.link_ns = (uint64_t)(of_before * MS);
        stats.step_ns = (uint64_t)((10 + taken * code * hidden) * MS);
        stats.wait_ns = (uint64_t)(waited * MS);
        stats.taken_share = taken;
        before = now.wire;
        narrowed += now.wire != FLOAT32 ? 1 : 0;
        waited = fmax(sync - 5, 0);
        *step_ms = 10 + taken * code * hidden + waited;
        now = decide("divergence", args, &stats, &state);
    }
    return before;
}

START_TEST(a_slow_link_is_narrowed)
{
    msdu__interval_args args = default_args();
    double step_ms = 0;

    args.wires[INT4].code_ns = args.wires[INT8].code_ns = args.wires[BFLOAT16].code_ns = 2;
    ck_assert_int_ne(settled(&args, 60, 0, &step_ms), FLOAT32);
    ck_assert_double_lt(step_ms, 20);
    ck_assert_int_ne(settled(&args, 60, 1, &step_ms), FLOAT32); /* and on busy cores as well */
    ck_assert_double_lt(step_ms, 20);
}
END_TEST

START_TEST(a_fast_link_and_slow_coding_stay_in_float32)
{
    msdu__interval_args args = default_args();
    double step_ms = 0;

    args.wires[INT4].code_ns = args.wires[INT8].code_ns = args.wires[BFLOAT16].code_ns = 8;
    ck_assert_int_eq(settled(&args, 8, 0, &step_ms), FLOAT32);
    ck_assert_uint_eq(narrowed, 0);
    ck_assert_double_eq_tol(step_ms, 13, 0.01);
}
END_TEST

/* Coding that hides is free on idle cores only. */
START_TEST(busy_cores_keep_what_idle_ones_would_narrow)
{
    msdu__interval_args args = default_args();
    double idle_ms = 0;
    double busy_ms = 0;

    args.wires[INT4].code_ns = args.wires[INT8].code_ns = args.wires[BFLOAT16].code_ns = 2;
    ck_assert_int_ne(settled(&args, 6, 0, &idle_ms), FLOAT32);
    ck_assert_double_eq_tol(idle_ms, 10, 0.2);
    ck_assert_int_eq(settled(&args, 6, 1, &busy_ms), FLOAT32);
    ck_assert_uint_eq(narrowed, 0);
    ck_assert_double_eq_tol(busy_ms, 11, 0.01);
}
END_TEST

/* Rounds at once hide nothing: where latency is all, those of the h that the budget allows wait
 * longer than gradients that hide. */
START_TEST(local_steps_that_would_be_slower_are_not_taken)
{
    for (uint32_t interval = 4; interval <= 16; interval += 12) {
        msdu__interval_args args = default_args();
        msdu__interval_state state = {.real = {0}};
        uint32_t most = 1;

        args.interval_steps = interval;
        args.fixed_wire = FLOAT32;
        args.delay_max = 0;
        for (uint64_t step = 2; step < 60; step++) {
            msdu__round_stats stats = default_stats(6);

            stats.step = step;
            stats.latency_ns = 6000000;
            stats.messages = 1;
            stats.wait_ns = 1000000;
            uint32_t h = decide("divergence", &args, &stats, &state).interval;
            most = h > most ? h : most;
        }
        /* 6 ms in 4 steps are more than 1 ms in each; in 16 they are less */
        ck_assert_uint_eq(most, interval == 4 ? 1 : 2);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost");
    TCase *tcase = suite_case(suite, "cost", 0, NULL, NULL);

    tcase_add_test(tcase, idle_cores_take_nothing_and_busy_ones_all);
    tcase_add_test(tcase, the_share_is_continuous);
    tcase_add_test(tcase, coding_and_copies_add_up);
    tcase_add_test(tcase, the_present_round_is_taken_out_of_the_step);
    tcase_add_test(tcase, a_slow_link_is_narrowed);
    tcase_add_test(tcase, a_fast_link_and_slow_coding_stay_in_float32);
    tcase_add_test(tcase, busy_cores_keep_what_idle_ones_would_narrow);
    tcase_add_test(tcase, local_steps_that_would_be_slower_are_not_taken);
    return suite_run(suite);
}
