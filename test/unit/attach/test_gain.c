/* SPDX-License-Identifier: Apache-2.0 */
/* Is a trainer faster with the library? Times go in, phases come out. */
#include "attach/gain.h"
#include "suite.h"

#include <check.h>

#define MS 1000000U

typedef struct world {
    uint64_t plain_ns; /* a step */
    uint64_t wait_ns;  /* of it, in reductions */
    uint64_t taken_ns; /* a step with an engine */
    uint64_t now_ns;
} world;

/* Steps until a phase ends; returns how many, or `most`. */
static uint32_t run(msdu__gain *gain, world *w, uint32_t most)
{
    for (uint32_t i = 0; i < most; i++) {
        bool is_taken = msdu__gain_wants_engine(gain);
        w->now_ns += is_taken ? w->taken_ns : w->plain_ns;
        if (msdu__gain_step(gain, w->now_ns, is_taken ? 0 : w->wait_ns)) {
            double own[MSDU__GAIN_NUMBERS];
            msdu__gain_report(gain, own);
            msdu__gain_decide(gain, own);
            return i + 1;
        }
    }
    return most;
}

START_TEST(a_step_that_hardly_waits_is_never_tried)
{
    world w = {.plain_ns = 10 * MS, .wait_ns = MS, .taken_ns = MS, .now_ns = 1};
    msdu__gain gain = {.elements = 1000};
    for (int i = 0; i < 8; i++) {
        (void)run(&gain, &w, 100000);
        ck_assert(!msdu__gain_wants_engine(&gain));
    }
    ck_assert_uint_eq(gain.trials, 0);
}
END_TEST

/* Over shared memory all of a step is a reduction, and coding takes longer than that. */
START_TEST(what_coding_takes_counts)
{
    world w = {.plain_ns = 37 * MS, .wait_ns = 37 * MS, .taken_ns = 118 * MS, .now_ns = 1};
    msdu__gain gain = {.elements = 25000000};
    (void)run(&gain, &w, 100);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_REFUSED);
    ck_assert(!msdu__gain_wants_engine(&gain));
}
END_TEST

START_TEST(a_trial_that_gains_is_kept_and_looked_at_again)
{
    world w = {.plain_ns = 100 * MS, .wait_ns = 80 * MS, .taken_ns = 40 * MS, .now_ns = 1};
    msdu__gain gain = {.elements = 1000};
    (void)run(&gain, &w, 100);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_TRIAL);
    (void)run(&gain, &w, 100);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_KEPT);
    ck_assert_double_eq_tol(gain.plain_ns, 100.0 * MS, MS);
    ck_assert_double_eq_tol(gain.taken_ns, 40.0 * MS, MS);
    uint32_t first = run(&gain, &w, 100000);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_KEPT);
    uint32_t second = run(&gain, &w, 100000);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_KEPT);
    ck_assert_uint_ge(second, 2 * first - 2);
    w.taken_ns = 120 * MS; /* the network is fast now, or the machine busy */
    (void)run(&gain, &w, 100000);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_PLAIN);
    ck_assert(!msdu__gain_wants_engine(&gain));
}
END_TEST

/* The network became fast: steps with the engine are shorter than plain ones were, and longer than
 * they are. */
START_TEST(plain_steps_are_timed_again_in_the_end)
{
    world w = {.plain_ns = 100 * MS, .wait_ns = 80 * MS, .taken_ns = 40 * MS, .now_ns = 1};
    msdu__gain gain = {.elements = 1000};
    uint64_t slow = 0;
    (void)run(&gain, &w, 100);
    (void)run(&gain, &w, 100);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_KEPT);
    w.plain_ns = 21 * MS;
    w.wait_ns = MS;
    for (int i = 0; i < 20; i++) {
        bool is_taken = msdu__gain_wants_engine(&gain);
        slow += is_taken ? run(&gain, &w, 1000000) : 0;
        (void)(is_taken ? 0 : run(&gain, &w, 1000000));
    }
    ck_assert(!msdu__gain_wants_engine(&gain));
    ck_assert_uint_lt(slow, 40000);
    ck_assert_double_eq_tol(gain.plain_ns, 21.0 * MS, MS);
}
END_TEST

/* That costs little, and takes no trial away. */
START_TEST(what_stays_faster_stays)
{
    world w = {.plain_ns = 100 * MS, .wait_ns = 80 * MS, .taken_ns = 40 * MS, .now_ns = 1};
    msdu__gain gain = {.elements = 1000};
    uint64_t plain = 0;
    uint64_t taken = 0;
    for (int i = 0; i < 200; i++) {
        bool is_taken = msdu__gain_wants_engine(&gain);
        uint32_t steps = run(&gain, &w, 1000000);
        plain += is_taken ? 0 : steps;
        taken += is_taken ? steps : 0;
        ck_assert_uint_le(gain.trials, 1);
    }
    ck_assert_uint_gt(taken, 400 * plain);
}
END_TEST

/* Hope comes back, ever more seldom, and ends. */
START_TEST(trials_that_gain_nothing_become_fewer_and_end)
{
    world w = {.plain_ns = 100 * MS, .wait_ns = 80 * MS, .taken_ns = 97 * MS, .now_ns = 1};
    msdu__gain gain = {.elements = 1000};
    uint64_t plain = 0;
    uint64_t taken = 0;
    for (int i = 0; i < 40; i++) {
        bool is_taken = msdu__gain_wants_engine(&gain);
        uint32_t steps = run(&gain, &w, 1000000);
        plain += is_taken ? 0 : steps;
        taken += is_taken ? steps : 0;
    }
    ck_assert_uint_eq(gain.trials, 4);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_REFUSED);
    ck_assert_uint_gt(plain, 100 * taken);
}
END_TEST

/* A neighbor that takes the cores now and then is no slow network. */
START_TEST(what_a_busy_machine_adds_does_not_count)
{
    msdu__gain gain = {.elements = 1000};
    uint64_t now_ns = 1;
    bool is_over = false;
    for (uint32_t i = 0; !is_over; i++) {
        const bool is_busy = i < 18;
        now_ns += is_busy ? 100 * MS : 10 * MS;
        is_over = msdu__gain_step(&gain, now_ns, is_busy ? 90 * MS : MS / 2);
    }
    double own[MSDU__GAIN_NUMBERS];
    msdu__gain_report(&gain, own);
    ck_assert_double_eq_tol(own[0], 10.0 * MS, 1);
    msdu__gain_decide(&gain, own);
    ck_assert_int_eq(gain.phase, MSDU__GAIN_REFUSED);
}
END_TEST

START_TEST(who_asked_for_it_is_not_asked_again)
{
    world w = {.plain_ns = 10 * MS, .taken_ns = 100 * MS, .now_ns = 1};
    msdu__gain gain = {.phase = MSDU__GAIN_ASKED};
    ck_assert_uint_eq(run(&gain, &w, 10000), 10000);
    msdu__gain_reset(&gain);
    ck_assert(msdu__gain_wants_engine(&gain));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gain");
    TCase *tcase = suite_case(suite, "gain", 60, NULL, NULL);
    tcase_add_test(tcase, a_step_that_hardly_waits_is_never_tried);
    tcase_add_test(tcase, what_coding_takes_counts);
    tcase_add_test(tcase, a_trial_that_gains_is_kept_and_looked_at_again);
    tcase_add_test(tcase, plain_steps_are_timed_again_in_the_end);
    tcase_add_test(tcase, what_stays_faster_stays);
    tcase_add_test(tcase, trials_that_gain_nothing_become_fewer_and_end);
    tcase_add_test(tcase, what_a_busy_machine_adds_does_not_count);
    tcase_add_test(tcase, who_asked_for_it_is_not_asked_again);
    return suite_run(suite);
}
