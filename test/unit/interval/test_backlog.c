/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse for the gradients of SGD: it comes before local steps, and goes where what it holds back
 * keeps growing.
 */
#include "interval/backlog.h"
#include "interval/drift.h"
#include "interval_world.h"
#include "suite.h"

enum { SPARSE = WIRES };

static world sgd_world(double link_ms)
{
    world w = default_world(link_ms, 1e-5);

    add_sparse(&w.args, true);
    w.lag = 1;
    return w;
}

/* --- the choice --- */

START_TEST(sgd_sends_sparse_gradients_before_it_takes_local_steps)
{
    static const struct {
        double link_ms;
        int wire;
        bool is_local;
    } cases[] = {{4, FLOAT32, false}, {9, BFLOAT16, false}, {36, INT4, false},
                 {60, SPARSE, false}, {190, SPARSE, false}, {240, -1, true}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w = sgd_world(cases[i].link_ms);

        world_run(&w, 400);
        ck_assert_msg((w.most > 1) == cases[i].is_local, "link %g ms: h %u", cases[i].link_ms,
                      w.most);
        ck_assert(cases[i].wire < 0 || w.now.wire == cases[i].wire);
        ck_assert_double_le(world_overhead(&w), w.args.target_overhead);
    }
}
END_TEST

/* Four bits in the first steps, and as long as a warm-up lasts; a second one is none. */
START_TEST(it_does_not_begin_while_the_learning_rate_rises)
{
    world w = sgd_world(60);

    w.args.can_go_local = true;
    for (int step = 0; step < 300; step++) {
        w.lr = 0.1 * (1 + step) / 300;
        world_run(&w, 1);
        ck_assert_int_ne(w.now.wire, SPARSE);
    }
    ck_assert_int_eq(w.now.wire, INT4);
    world_run(&w, 190);
    ck_assert_int_eq(w.now.wire, INT4);
    world_run(&w, 20);
    ck_assert_int_eq(w.now.wire, SPARSE);
    ck_assert_uint_eq(w.most, 1);
    w.lr = 0.05;
    world_run(&w, 100);
    w.lr = 0.1;
    world_run(&w, 10);
    ck_assert_int_eq(w.now.wire, SPARSE);
}
END_TEST

START_TEST(others_take_local_steps_instead)
{
    world w = sgd_world(60);

    add_sparse(&w.args, false);
    world_run(&w, 200);
    ck_assert_uint_gt(w.most, 1);
}
END_TEST

/* Parameters of h = 1 are no gradients: each rank's own momentum has made them. */
START_TEST(parameters_of_every_step_are_not_sent_in_sparse)
{
    world w = sgd_world(60);

    w.is_local = true;
    for (int round = 0; round < 200; round++) {
        world_run(&w, 1);
        ck_assert(w.now.interval > 1 || w.now.wire != SPARSE);
    }
}
END_TEST

/* In units of the drift of one step: int4 at h = 1 < sparse at h = 1 < h = 2 a step late. */
START_TEST(its_error_is_between_four_bits_and_late_local_steps)
{
    world w = sgd_world(60);
    msdu__round_stats stats = default_stats(60);
    msdu__drift m = {.args = &w.args, .state = &w.state, .stats = stats, .energy = 1};
    double sparse = msdu__drift_error(&m, &(msdu__choice){1, 0, SPARSE});

    ck_assert_double_gt(sparse, 10 * msdu__drift_error(&m, &(msdu__choice){1, 0, INT4}));
    ck_assert_double_gt(sparse, msdu__drift_error_late(&m, &(msdu__choice){2, 0, FLOAT32}));
    ck_assert_double_lt(sparse, msdu__drift_error_late(&m, &(msdu__choice){2, 1, FLOAT32}));
}
END_TEST

/* --- the guard --- */

/* What is held back over `rounds` rounds of sparse, relative to the energy of a first gradient. */
typedef double curve(uint32_t round);

/* Filled after some 16 rounds, and noisy. */
static double filled(uint32_t round)
{
    return 3.5 * (1 - exp(-(double)round / 6)) * (1 + 0.2 * noise());
}

/* A deep network begins to learn: twenty times the energy within forty rounds, and it stays. */
static double taken_off(uint32_t round)
{
    return filled(round) * (1 + 20 / (1 + exp((100 - (double)round) / 8)));
}

/* A bad batch: a gradient of a thousand times the norm, which is sent within some rounds. */
static double struck(uint32_t round)
{
    return filled(round) + (round < 60 ? 0 : 1e6 * exp(-(double)(round - 60) / 8));
}

/* Gradients become larger as training goes on, by far more than 64 times; slowly. */
static double grown_slowly(uint32_t round)
{
    return filled(round) * exp((double)round / 2000);
}

/* A scale of losses that is doubled now and then. */
static double scaled(uint32_t round)
{
    return filled(round) * pow(4, floor((double)round / 2000));
}

static double unstable(uint32_t round)
{
    return filled(round) * exp(0.03 * round);
}

static double diverging(uint32_t round)
{
    return filled(round) * exp(0.5 * round);
}

/* Oscillates as it grows. */
static double swinging(uint32_t round)
{
    return filled(round) * exp(0.05 * round) * (1.2 + sin(0.4 * round));
}

/* First round after which sparse is given up; 0: never. */
static uint32_t given_up_at(curve *of, uint32_t rounds)
{
    world w = sgd_world(60);
    msdu__round_stats stats = default_stats(60);

    seed_now = 5;
    stats.wire = SPARSE;
    for (uint32_t round = 1; round <= rounds; round++) {
        stats.residual_sq = stats.local_sq * of(round);
        if (msdu__backlog_learn(&w.args, &stats, &w.state) != NULL) {
            ck_assert(msdu__backlog_is_given_up(&w.state));
            return round;
        }
        ck_assert(!msdu__backlog_is_given_up(&w.state));
    }
    return 0;
}

START_TEST(what_healthy_training_does_is_no_growth)
{
    static curve *const healthy[] = {filled, taken_off, struck, grown_slowly, scaled};

    ck_assert_uint_eq(given_up_at(healthy[_i], 20000), 0);
}
END_TEST

START_TEST(growth_without_end_is_given_up)
{
    uint32_t at = given_up_at(unstable, 400);

    ck_assert_msg(at > 100 && at < 250, "at %u", at);
    at = given_up_at(swinging, 400);
    ck_assert_msg(at > 50 && at < 250, "at %u", at);
    at = given_up_at(diverging, 400);
    ck_assert_msg(at > 20 && at < 30, "at %u", at);
}
END_TEST

/* In the loop: four bits come back at once, with a line, and stay until local steps are due. */
START_TEST(four_bits_come_back_and_sparse_does_not)
{
    world w = sgd_world(60);
    bool is_said = false;

    w.args.can_go_local = false;
    world_run(&w, 260);
    ck_assert_int_eq(w.now.wire, SPARSE);
    for (int round = 0; round < 200 && w.coming.wire == SPARSE; round++) {
        w.drift_one *= 1.1; /* gradients, and what is held back of them */
        world_run(&w, 1);
        is_said = strstr(w.coming.reason, "held back more and more") != NULL;
    }
    ck_assert(is_said);
    ck_assert_int_eq(w.coming.wire, INT4);
    world_run(&w, 1000);
    ck_assert_int_eq(w.now.wire, INT4);
    w.args.can_go_local = true;
    world_run(&w, 60);
    ck_assert_uint_gt(w.most, 1);
}
END_TEST

/* A format that the user names is kept. */
START_TEST(a_fixed_format_is_not_given_up)
{
    world w = sgd_world(60);

    w.args.fixed_wire = SPARSE;
    w.args.can_go_local = false;
    w.now.wire = w.coming.wire = SPARSE;
    for (int round = 0; round < 200; round++) {
        w.drift_one *= 1.2;
        world_run(&w, 1);
        ck_assert_ptr_null(strstr(w.coming.reason, "held back"));
    }
    ck_assert_int_eq(w.now.wire, SPARSE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backlog");
    TCase *tcase = suite_case(suite, "backlog", 60, NULL, NULL);

    tcase_add_test(tcase, sgd_sends_sparse_gradients_before_it_takes_local_steps);
    tcase_add_test(tcase, it_does_not_begin_while_the_learning_rate_rises);
    tcase_add_test(tcase, others_take_local_steps_instead);
    tcase_add_test(tcase, parameters_of_every_step_are_not_sent_in_sparse);
    tcase_add_test(tcase, its_error_is_between_four_bits_and_late_local_steps);
    tcase_add_loop_test(tcase, what_healthy_training_does_is_no_growth, 0, 5);
    tcase_add_test(tcase, growth_without_end_is_given_up);
    tcase_add_test(tcase, four_bits_come_back_and_sparse_does_not);
    tcase_add_test(tcase, a_fixed_format_is_not_given_up);
    return suite_run(suite);
}
