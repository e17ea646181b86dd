/* SPDX-License-Identifier: Apache-2.0 */
/* Ways of training uneven ranks, and hosts of several: closed forms of uneven.h. */
#include "predict/uneven.h"

#include "suite.h"
#include "wire/wire.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define COMPUTE_NS 3e6
#define ELEMENTS   1000000
#define EPSILON    1e-6 /* of a time */

static msdu__profile make_profile(void)
{
    static const char text[] = "{\"format\":\"msdu-profile-1\",\"name\":\"m\",\"layers\":["
                               "{\"name\":\"a\",\"forward_us\":400,\"backward_us\":600,"
                               "\"tensors\":[{\"name\":\"a\",\"count\":600000}]},"
                               "{\"name\":\"b\",\"forward_us\":500,\"backward_us\":1500,"
                               "\"tensors\":[{\"name\":\"b\",\"count\":400000}]}]}";
    char why[256];
    msdu__profile profile;
    ck_assert(msdu__profile_parse(text, strlen(text), &profile, why, sizeof(why)));
    return profile;
}

/* Passes take no time; rates in bytes a ns. */
static msdu__whatif_question question_of(const msdu__profile *profile, uint32_t ranks,
                                         uint32_t nodes, double inside, double between)
{
    return (msdu__whatif_question){
        .profile = profile,
        .network = {.ranks = ranks, .nodes = nodes, .links = {{inside, 0}, {between, 0}}},
        .scale = 1,
        .interval = 4,
    };
}

static msdu__uneven_answer predict(const msdu__whatif_question *q,
                                   const msdu__uneven_speeds *speeds, msdu__uneven_way way)
{
    char why[256] = "";
    msdu__uneven_answer answer;
    ck_assert_msg(
        msdu__uneven_predict(q, speeds, way, MSDU__WIRE_FLOAT32, &answer, why, sizeof(why)), "%s",
        why);
    return answer;
}

static msdu__whatif_answer free_step(const msdu__whatif_question *q)
{
    char why[256] = "";
    msdu__whatif_answer answer;
    msdu__whatif_way way = msdu__whatif_way_of(q, msdu__overlap_method_find("free"));
    ck_assert(msdu__whatif_predict(q, &way, &answer, why, sizeof(why)));
    return answer;
}

static void near(double got, double wanted)
{
    ck_assert_msg(fabs(got - wanted) <= EPSILON * fabs(wanted), "%f is not %f", got, wanted);
}

static const double links[] = {(double)INFINITY, 8, 0.5, 0.05};

/* What the part of `msdu plan` for even ranks says. */
START_TEST(even_speeds_give_todays_numbers)
{
    msdu__profile profile = make_profile();
    msdu__uneven_speeds speeds = {{1, 1}, 2};
    msdu__whatif_question q = question_of(&profile, 4, 4, links[_i], links[_i]);
    msdu__whatif_answer today = free_step(&q);
    for (int way = MSDU__UNEVEN_EXACT; way <= MSDU__UNEVEN_SHARES; way++) {
        msdu__uneven_answer a = predict(&q, &speeds, (msdu__uneven_way)way);
        ck_assert_double_eq(a.step_ns, today.step_ns);
        ck_assert_double_eq(a.batches_ns, today.step_ns);
        ck_assert_double_eq(a.bytes, today.bytes);
        ck_assert_double_eq(a.outer_bytes, today.bytes); /* a rank a host: all of it leaves */
    }
    near(predict(&q, &speeds, MSDU__UNEVEN_CLOCK).batches_ns, COMPUTE_NS);
    msdu__profile_free(&profile);
}
END_TEST

static const struct speeds_case {
    msdu__uneven_speeds speeds;
    double exact; /* of a batch's computing, where the link is free */
    double shared;
    double step;
    double median;
} cases[] = {
    {{{1, 1, 1, 0.25}, 4}, 4, 4 / 3.25, 1, 1},
    {{{0.25, 1, 1, 1}, 4}, 4, 4 / 3.25, 1, 1},
    {{{1, 0.8, 0.5, 0.25}, 4}, 4, 4 / 2.55, 1, 1 / 0.8},
    {{{2, 1}, 2}, 1, 2 / 3.0, 0.5, 0.5},
    {{{0.5}, 1}, 2, 2, 2, 2},
};

START_TEST(a_free_link_leaves_the_formulas)
{
    const struct speeds_case *c = &cases[_i];
    msdu__profile profile = make_profile();
    msdu__whatif_question q = question_of(&profile, 4, 4, links[0], links[0]);
    near(predict(&q, &c->speeds, MSDU__UNEVEN_EXACT).step_ns, c->exact * COMPUTE_NS);
    near(predict(&q, &c->speeds, MSDU__UNEVEN_SHARES).step_ns, c->shared * COMPUTE_NS);
    msdu__uneven_answer clock = predict(&q, &c->speeds, MSDU__UNEVEN_CLOCK);
    near(clock.step_ns, c->step * COMPUTE_NS);
    near(clock.batches_ns, c->shared * COMPUTE_NS);
    near(clock.round_ns, c->median * COMPUTE_NS);
    ck_assert_uint_eq(clock.interval, 1);
    msdu__profile_free(&profile);
}
END_TEST

/* 6 bytes an element at 0.5 a ns: 12 ms, which is 4 steps of the median rank. */
START_TEST(a_round_by_the_clock_takes_its_exchange)
{
    msdu__profile profile = make_profile();
    msdu__uneven_speeds speeds = {{1, 1, 1, 0.25}, 4};
    msdu__whatif_question q = question_of(&profile, 4, 4, 0.5, 0.5);
    msdu__uneven_answer clock = predict(&q, &speeds, MSDU__UNEVEN_CLOCK);
    near(clock.round_ns, 12e6);
    ck_assert_uint_eq(clock.interval, 4);
    near(clock.bytes, 6.0 * ELEMENTS * (COMPUTE_NS * 4 / 3.25) / 12e6);
    near(clock.step_ns, COMPUTE_NS);
    ck_assert_double_gt(predict(&q, &speeds, MSDU__UNEVEN_EXACT).step_ns, 4 * COMPUTE_NS);
    msdu__profile_free(&profile);
}
END_TEST

/* Hosts of speeds 1 and 1/4; inside nothing costs, between them 4 bytes an element at 0.5. */
START_TEST(two_levels_are_hosts_by_the_clock)
{
    msdu__profile profile = make_profile();
    msdu__uneven_speeds speeds = {{1, 1, 1, 0.25}, 4};
    msdu__whatif_question q = question_of(&profile, 4, 2, links[0], 0.5);
    msdu__uneven_answer two = predict(&q, &speeds, MSDU__UNEVEN_TWO_LEVELS);
    near(two.step_ns, COMPUTE_NS);
    near(two.batches_ns, COMPUTE_NS * 2 / 1.25);
    near(two.round_ns, 8e6);
    ck_assert_uint_eq(two.interval, 3);
    near(two.outer_bytes, 4.0 * ELEMENTS / 2 * two.batches_ns / two.round_ns);
    /* a reduction inside a host of two sends 4 bytes an element */
    near(two.bytes - two.outer_bytes, 4.0 * ELEMENTS);
    msdu__profile_free(&profile);
}
END_TEST

/* The speeds' pattern is found again in hosts that it does not divide. */
START_TEST(hosts_are_as_fast_as_their_slowest_rank)
{
    msdu__profile profile = make_profile();
    msdu__uneven_speeds speeds = {{1, 1, 0.5}, 3}; /* hosts 1 1, .5 1, 1 .5 */
    msdu__whatif_question q = question_of(&profile, 12, 6, links[0], links[0]);
    msdu__uneven_answer two = predict(&q, &speeds, MSDU__UNEVEN_TWO_LEVELS);
    near(two.batches_ns, COMPUTE_NS * 3 / 2);
    speeds = (msdu__uneven_speeds){{1, 0.5}, 2}; /* every host has both */
    two = predict(&q, &speeds, MSDU__UNEVEN_TWO_LEVELS);
    near(two.step_ns, COMPUTE_NS * 2);
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(levels_need_hosts_of_several_ranks)
{
    msdu__profile profile = make_profile();
    msdu__whatif_question one_each = question_of(&profile, 4, 4, 1, 1);
    msdu__whatif_question one_host = question_of(&profile, 4, 1, 1, 1);
    msdu__whatif_question both = question_of(&profile, 4, 2, 1, 1);
    ck_assert(!msdu__uneven_applies(&one_each, MSDU__UNEVEN_TWO_LEVELS));
    ck_assert(!msdu__uneven_applies(&one_host, MSDU__UNEVEN_TWO_LEVELS));
    ck_assert(msdu__uneven_applies(&both, MSDU__UNEVEN_TWO_LEVELS));
    ck_assert(msdu__uneven_applies(&one_each, MSDU__UNEVEN_CLOCK));
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(nothing_can_be_in_the_way_of_one_rank)
{
    msdu__profile profile = make_profile();
    msdu__uneven_speeds speeds = {{0.5}, 1};
    msdu__whatif_question q = question_of(&profile, 1, 1, 1, 1);
    for (int way = 0; way < MSDU__UNEVEN_TWO_LEVELS; way++) {
        msdu__uneven_answer a = predict(&q, &speeds, (msdu__uneven_way)way);
        near(a.batches_ns, 2 * COMPUTE_NS);
        ck_assert_double_eq(a.bytes, 0);
    }
    msdu__profile_free(&profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("uneven");
    TCase *c = suite_case(suite, "ways", 30, NULL, NULL);
    suite_table(c, even_speeds_give_todays_numbers, links);
    suite_table(c, a_free_link_leaves_the_formulas, cases);
    tcase_add_test(c, a_round_by_the_clock_takes_its_exchange);
    tcase_add_test(c, two_levels_are_hosts_by_the_clock);
    tcase_add_test(c, hosts_are_as_fast_as_their_slowest_rank);
    tcase_add_test(c, levels_need_hosts_of_several_ranks);
    tcase_add_test(c, nothing_can_be_in_the_way_of_one_rank);
    return suite_run(suite);
}
