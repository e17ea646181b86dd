/* SPDX-License-Identifier: Apache-2.0 */
/* What is predicted of waiting, what rounds teach about it, and what the policy makes of it. */
#include "interval/waiting.h"
#include "interval_world.h"
#include "suite.h"

/* A round of `wire` over a link of `link_ms` for float32, steps of 10 ms; the round before it was
 * waited for `wait_ms`. */
static void learn(msdu__interval_state *state, bool is_gradient, int wire, double link_ms,
                  double wait_ms)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(0);

    stats.interval = is_gradient ? 1 : 4;
    stats.delay_steps = is_gradient ? 0 : 1;
    stats.is_gradient = is_gradient;
    stats.wire = wire;
    stats.link_wire = wire;
    stats.link_ns = (uint64_t)(1e6 * link_ms * args.wires[wire].bits / 32);
    stats.wait_ns = (uint64_t)(1e6 * wait_ms);
    msdu__waiting_learn(&args, &stats, state);
}

static msdu__hiding known(const msdu__interval_state *state)
{
    msdu__interval_args args = default_args();

    return msdu__waiting_hiding(&args, state);
}

START_TEST(a_share_of_a_step_is_learned_from_what_was_waited)
{
    msdu__interval_state state = {{0}, {0}};

    ck_assert_double_eq_tol(known(NULL).gradient_share, 0.5, 1e-9);
    for (int i = 0; i < 180; i++) {
        learn(&state, true, FLOAT32, 9, 7);
    }
    ck_assert_double_eq_tol(known(&state).gradient_share, 0.2, 0.01);
    ck_assert_double_eq_tol(known(&state).local_share, 0, 1e-9);
    ck_assert_double_eq_tol(known(&state).late_ns, 0, 1e-9);
    for (int i = 0; i < 240; i++) {
        learn(&state, true, INT4, 9, 3); /* waits longer than the link takes */
    }
    ck_assert_double_eq_tol(known(&state).gradient_share, (9 * 4.0625 / 32 - 3) / 10, 0.01);
}
END_TEST

START_TEST(a_round_without_waiting_is_a_lower_bound)
{
    msdu__interval_state state = {{0}, {0}};

    for (int i = 0; i < 180; i++) {
        learn(&state, true, FLOAT32, 2, 0); /* 0.2 of a step hid: no news */
    }
    ck_assert_double_eq_tol(known(&state).gradient_share, 0.5, 1e-9);
    for (int i = 0; i < 180; i++) {
        learn(&state, true, FLOAT32, 8, 0);
    }
    ck_assert_double_eq_tol(known(&state).gradient_share, 0.8, 0.01);
}
END_TEST

/* A slow link's time is known to a few steps only; no more than a step hides, whatever the
 * difference says, or a wire that is still far too wide would seem to fit. */
START_TEST(no_more_than_a_step_hides)
{
    msdu__interval_state state = {{0}, {0}};

    for (int i = 0; i < 180; i++) {
        learn(&state, true, FLOAT32, 170, 130);
    }
    ck_assert_double_le(known(&state).gradient_share, 1);
    for (int i = 0; i < 20; i++) {
        learn(&state, true, FLOAT32, 170, 165);
    }
    ck_assert_double_le(known(&state).gradient_share, 0.9);
}
END_TEST

/* From float32 to int4: the message of the first int4 round tells the wait of the last float32 one.
 */
START_TEST(a_wait_belongs_to_the_round_before)
{
    msdu__interval_state state = {{0}, {0}};

    for (int i = 0; i < 40; i++) {
        learn(&state, true, FLOAT32, 12, 7);
    }
    for (int i = 0; i < 40; i++) {
        learn(&state, true, INT4, 12, i == 0 ? 7 : 0);
    }
    ck_assert_double_eq_tol(known(&state).gradient_share, 0.5, 0.01);
}
END_TEST

START_TEST(late_rounds_learn_what_they_cost_beyond_the_model)
{
    msdu__interval_state state = {{0}, {0}};

    for (int i = 0; i < 180; i++) {
        learn(&state, false, FLOAT32, 14, 5.5); /* 4 ms stick out, 1.5 ms are copies */
    }
    ck_assert_double_eq_tol(known(&state).late_ns, 1.5e6, 2e4);
    ck_assert_double_eq_tol(known(&state).gradient_share, 0.5, 1e-9);
    for (int i = 0; i < 240; i++) {
        learn(&state, false, FLOAT32, 14, 1); /* less than the model says */
    }
    ck_assert_double_eq_tol(known(&state).late_ns, -3e6, 2e4);
}
END_TEST

START_TEST(fragments_hide_under_their_whole_round)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(100);
    msdu__hiding hiding = {.exact_ns = 0};
    msdu__choice choice = {.interval = 8, .delay_steps = 1, .wire = FLOAT32};

    ck_assert_double_eq_tol(msdu__interval_overhead(&args, &stats, &hiding, &choice), 90.0 / 170,
                            1e-9);
    args.fragments = 4;
    ck_assert_double_eq_tol(msdu__interval_overhead(&args, &stats, &hiding, &choice), 60.0 / 140,
                            1e-9);
    args.fragments = 32; /* but no longer than the round */
    ck_assert_double_eq_tol(msdu__interval_overhead(&args, &stats, &hiding, &choice), 20.0 / 100,
                            1e-9);
}
END_TEST

/* 8 ms of 10 waited where 3 were predicted, and all but `alone_ms` of them for others' computing.
 */
static double exact_share(double alone_ms, double seen_ms, bool is_trial)
{
    msdu__interval_args args = default_args();
    msdu__interval_state state = {{0}, {0}};
    msdu__round_stats stats = default_stats(8);
    msdu__choice exact = {.interval = 1, .wire = FLOAT32};

    for (int i = 0; i < 200; i++) {
        stats = default_stats(8);
        stats.interval = 1;
        stats.is_gradient = true;
        stats.wire = stats.link_wire = FLOAT32;
        stats.wait_ns = 8000000;
        stats.shared_ns =
            (uint64_t)(1e6 * (8 - alone_ms) * (i % 2 == 0 ? 1 - seen_ms : 1 + seen_ms));
        msdu__waiting_learn(&args, &stats, &state);
    }
    msdu__hiding hiding = known(&state);
    stats.is_trial = is_trial;
    return msdu__interval_overhead(&args, &stats, &hiding, &exact);
}

START_TEST(computing_of_others_on_the_same_cores_is_no_wait_of_exact_rounds)
{
    /* nothing is shared: the model */
    ck_assert_double_eq_tol(exact_share(8, 0, false), 8.0 / 18, 1e-2);
    /* a tenth of a step: the last computes alone */
    ck_assert_double_eq(exact_share(0.9, 0, false), 0);
    ck_assert_double_eq_tol(exact_share(1.2, 0, false), 0.2 / 10.2, 1e-3);
    /* of single rounds it scatters */
    ck_assert_double_eq_tol(exact_share(2, 0.1, false), 1.0 / 11, 1e-2);
    ck_assert_double_eq_tol(exact_share(7.999, 0, false), 7.0 / 17, 1e-3);
    /* while sizes of slices are tried, only long waits count */
    ck_assert_double_eq(exact_share(3.9, 0, true), 0);
    ck_assert_double_eq_tol(exact_share(6, 0, true), 2.0 / 12, 1e-3);
}
END_TEST

START_TEST(one_round_moves_no_measure_far)
{
    msdu__interval_state state = {{0}, {0}};
    msdu__hiding before;

    for (int i = 0; i < 40; i++) {
        learn(&state, i < 20, FLOAT32, 6, i < 20 ? 1 : 0.5);
    }
    before = known(&state);
    learn(&state, false, FLOAT32, 600, 595);
    ck_assert_double_le(known(&state).late_ns, before.late_ns + 0.5e6);
    learn(&state, true, FLOAT32, 600, 595);
    ck_assert_double_ge(known(&state).gradient_share, before.gradient_share - 0.05);
    ck_assert_double_le(state.real[MSDU__REAL_LINK], 1.4 * 6e6);
}
END_TEST

/* --- the model is corrected by what was waited --- */

START_TEST(less_hides_than_expected)
{
    world w = default_world(18, 1e-6); /* int8 would do if half a step hid it */

    w.hides = 0.25;
    world_run(&w, 200);
    ck_assert_uint_eq(w.now.interval, 1);
    ck_assert_int_eq(w.now.wire, INT4);
    ck_assert_double_le(world_overhead(&w), w.args.target_overhead);
}
END_TEST

START_TEST(more_hides_than_expected)
{
    world w = default_world(7, 1e-6); /* half a step would not hide it */

    w.hides = 0.8;
    world_run(&w, 200);
    ck_assert_uint_eq(w.most, 1);
    ck_assert_int_eq(w.now.wire, FLOAT32);
}
END_TEST

/* Copies of the model around a round cost time whatever the link does: only a longer one helps,
 * and as it is no better for the link, twice the target will do. */
START_TEST(what_every_round_costs_lengthens_it)
{
    static const double extra_ms[] = {1, 2};
    static const uint32_t least[] = {2, 4};
    world w = default_world(60, 1e-6);

    w.extra_ms = extra_ms[_i];
    world_run(&w, 200);
    ck_assert_double_le(world_overhead(&w), 2 * w.args.target_overhead);
    ck_assert_uint_ge(w.now.interval, least[_i]);
    ck_assert_uint_le(w.now.interval, least[_i] + 2);
}
END_TEST

START_TEST(nothing_is_left_for_a_hiccup)
{
    world w = default_world(4, 1e-5);

    world_run(&w, 30);
    w.link_ms = 400;
    world_run(&w, 4);
    w.link_ms = 4;
    world_run(&w, 30);
    ck_assert_uint_eq(w.most, 1);
    ck_assert_uint_eq(w.changes, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("waiting");
    TCase *tcase = suite_case(suite, "waiting", 0, NULL, NULL);

    tcase_add_test(tcase, a_share_of_a_step_is_learned_from_what_was_waited);
    tcase_add_test(tcase, a_round_without_waiting_is_a_lower_bound);
    tcase_add_test(tcase, no_more_than_a_step_hides);
    tcase_add_test(tcase, a_wait_belongs_to_the_round_before);
    tcase_add_test(tcase, late_rounds_learn_what_they_cost_beyond_the_model);
    tcase_add_test(tcase, fragments_hide_under_their_whole_round);
    tcase_add_test(tcase, computing_of_others_on_the_same_cores_is_no_wait_of_exact_rounds);
    tcase_add_test(tcase, one_round_moves_no_measure_far);
    tcase_add_test(tcase, less_hides_than_expected);
    tcase_add_test(tcase, more_hides_than_expected);
    tcase_add_loop_test(tcase, what_every_round_costs_lengthens_it, 0, 2);
    tcase_add_test(tcase, nothing_is_left_for_a_hiccup);
    return suite_run(suite);
}
