/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every prediction of `msdu plan`, and its controller. */
#include "predict/control.h"

#include "random.h"
#include "suite.h"
#include "wire/wire.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- predictions --- */

static unsigned below(uint64_t *random, unsigned limit)
{
    return (unsigned)(random_next(random) % limit);
}

static msdu__profile make_profile(uint64_t seed)
{
    char text[8192];
    char why[256];
    msdu__profile profile;
    uint64_t random = seed * 0x9e3779b97f4a7c15U;
    uint32_t layers = 1 + below(&random, 12);
    int used =
        snprintf(text, sizeof(text), "{\"format\":\"msdu-profile-1\",\"name\":\"m\",\"layers\":[");
    for (uint32_t l = 0; l < layers; l++) {
        unsigned forward = 1 + below(&random, 3000);
        unsigned backward = below(&random, 6000);
        unsigned count = 1 + below(&random, 2000000);
        used += snprintf(text + used, sizeof(text) - (size_t)used,
                         "%s{\"name\":\"l%u\",\"forward_us\":%u,\"backward_us\":%u,\"tensors\":[{"
                         "\"name\":\"w%u\",\"count\":%u},{\"name\":\"b%u\",\"count\":%u}]}",
                         l > 0 ? "," : "", l, forward, backward, l, count, l, 1 + count / 1000);
    }
    used += snprintf(text + used, sizeof(text) - (size_t)used, "]}");
    ck_assert_msg(msdu__profile_parse(text, (size_t)used, &profile, why, sizeof(why)), "%s", why);
    return profile;
}

static msdu__whatif_question question_of(const msdu__profile *profile, uint32_t ranks, double mbit)
{
    double rate = mbit / 8e3;
    return (msdu__whatif_question){
        .profile = profile,
        .network = {.ranks = ranks, .nodes = ranks, .links = {{rate, 20e3}, {rate, 20e3}}},
        .scale = 1,
        .interval = 4,
        .pass_factor = 1,
    };
}

static msdu__whatif_answer predict(const msdu__whatif_question *q, const char *name)
{
    char why[256] = "";
    const msdu__overlap_method *method = NULL;
    msdu__whatif_answer answer;
    for (uint32_t i = 0; (method = msdu__overlap_method_at(i)) != NULL; i++) {
        if (strcmp(method->name, name) == 0) {
            break;
        }
    }
    ck_assert_ptr_nonnull(method);
    msdu__whatif_way way = msdu__whatif_way_of(q, method);
    ck_assert_msg(msdu__whatif_predict(q, &way, &answer, why, sizeof(why)), "%s: %s", name, why);
    return answer;
}

static const char *const all_methods[] = {
    "compute", "blocking", "buckets", "slices", "priority",      "free-fifo",      "free",
    "int8",    "int4",     "int2",    "local",  "local-delayed", "local-streamed",
};
#define METHODS (sizeof(all_methods) / sizeof(all_methods[0]))

START_TEST(no_step_is_below_its_bound)
{
    msdu__profile profile = make_profile((uint64_t)_i + 1);
    for (int topology = 0; topology < MSDU__WHATIF_TOPOLOGIES; topology++) {
        for (size_t i = 0; i < METHODS; i++) {
            msdu__whatif_question q = question_of(&profile, 8, 500 << (_i % 5));
            q.network.topology = (msdu__whatif_topology)topology;
            q.network.nodes = _i % 2 == 0 ? 8 : 4;
            msdu__whatif_answer a = predict(&q, all_methods[i]);
            /* streamed rounds never end together, so what is counted begins and ends with other
             * work left over: a part of a round among dozens */
            double error = strcmp(all_methods[i], "local-streamed") == 0 ? 0.005 : 1e-9;
            ck_assert_msg(a.step_ns >= a.bound_ns * (1 - error), "%s: %f below %f", all_methods[i],
                          a.step_ns, a.bound_ns);
            ck_assert_double_ge(a.step_ns, a.compute_ns * (1 - 1e-9));
        }
    }
    msdu__profile_free(&profile);
}
END_TEST

/* But for anomalies of a serial thread (Graham 1969): what comes earlier may delay what is needed
 * first. */
START_TEST(a_faster_link_is_no_slower)
{
    msdu__profile profile = make_profile((uint64_t)_i + 1);
    for (size_t i = 0; i < METHODS; i++) {
        double before = (double)INFINITY;
        for (int power = 0; power < 9; power++) {
            double mbit = 100 * pow(3, power);
            msdu__whatif_question q = question_of(&profile, 4, mbit);
            double step = predict(&q, all_methods[i]).step_ns;
            ck_assert_msg(step <= before * 1.05, "%s at %g: %f after %f", all_methods[i], mbit,
                          step, before);
            before = step;
        }
    }
    msdu__profile_free(&profile);
}
END_TEST

/* A link without limits and latency, and passes that take no time: computing is all. */
START_TEST(a_free_link_costs_nothing)
{
    msdu__profile profile = make_profile((uint64_t)_i + 1);
    for (size_t i = 0; i < METHODS; i++) {
        msdu__whatif_question q = question_of(&profile, 4, (double)INFINITY);
        q.network.links[MSDU__WHATIF_BETWEEN].latency_ns = 0;
        q.pass_factor = 0;
        msdu__whatif_answer a = predict(&q, all_methods[i]);
        ck_assert_double_eq_tol(a.step_ns, a.compute_ns, 1e-3);
    }
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(bytes_are_those_of_the_wire)
{
    msdu__profile profile = make_profile(3);
    msdu__whatif_question q = question_of(&profile, 4, 1000);
    double elements = (double)msdu__profile_elements(&profile);
    ck_assert_double_eq_tol(predict(&q, "free").bytes, 1.5 * 4 * elements, 1);
    ck_assert_double_eq_tol(predict(&q, "local").bytes, 1.5 * elements, 1);
    ck_assert_double_eq(predict(&q, "compute").bytes, 0);
    double bits = msdu__wire_at(MSDU__WIRE_INT4)->bits;
    double narrow = predict(&q, "int4").bytes;
    ck_assert_double_ge(narrow, 1.5 * bits / 8 * elements * 0.99);
    ck_assert_double_le(narrow, 1.5 * bits / 8 * elements * 1.05);
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(the_same_question_has_the_same_answer)
{
    msdu__profile profile = make_profile(5);
    msdu__whatif_question q = question_of(&profile, 4, 1000);
    for (size_t i = 0; i < METHODS; i++) {
        msdu__whatif_answer a = predict(&q, all_methods[i]);
        msdu__whatif_answer b = predict(&q, all_methods[i]);
        ck_assert_double_eq(a.step_ns, b.step_ns);
    }
    msdu__profile_free(&profile);
}
END_TEST

/* A device that computes for a second hides all coding but that of the last slices. */
START_TEST(busy_cores_are_missed_by_computing)
{
    msdu__profile profile = make_profile(11);
    msdu__whatif_question q = question_of(&profile, 4, 1e4);
    double elements = (double)msdu__profile_elements(&profile);
    q.slowness = 1e9 / msdu__profile_compute_ns(&profile);
    double float32 = predict(&q, "free").step_ns;
    double int4 = predict(&q, "int4").step_ns;
    double late = predict(&q, "local-delayed").step_ns;
    ck_assert_double_eq(predict(&q, "int4").taken_ns, 0);
    q.taken_share = 2;
    ck_assert_double_eq(predict(&q, "free").step_ns, float32);
    ck_assert_double_eq(predict(&q, "compute").taken_ns, 0);
    double code = msdu__wire_code_ns(&msdu__wire_costs_server, MSDU__WIRE_INT4, 4);
    double copies = msdu__wire_costs_server.copy_ns * 2 * 1.5 * (32 - 4.0625) / 8;
    double most = 2 * elements * (code - copies);
    ck_assert_double_lt(predict(&q, "int4").taken_ns, most);
    ck_assert_double_gt(predict(&q, "int4").taken_ns, 0.4 * most);
    ck_assert_double_eq_tol(predict(&q, "int4").step_ns, int4 + predict(&q, "int4").taken_ns, 1);
    ck_assert_double_eq(predict(&q, "local-delayed").step_ns, late); /* a round in four steps */
    q.pass_factor = 0.5; /* a fast processor: coding and copies alike */
    ck_assert_double_lt(predict(&q, "int4").taken_ns, 0.5 * most);
    ck_assert_double_gt(predict(&q, "int4").taken_ns, 0);
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(too_many_slices_are_refused)
{
    msdu__profile profile = make_profile(5);
    char why[256] = "";
    msdu__whatif_answer answer;
    msdu__whatif_question q = question_of(&profile, 4, 1000);
    msdu__profile_scale(&profile, 1, 1e5);
    q.slice_bytes = 1024;
    msdu__whatif_way way = msdu__whatif_way_of(&q, msdu__overlap_method_at(1));
    ck_assert(!msdu__whatif_predict(&q, &way, &answer, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "--slice-bytes"));
    msdu__profile_free(&profile);
}
END_TEST

/* --- the controller --- */

static msdu__whatif_choice choose(const msdu__whatif_question *q, const char *settings)
{
    char why[256] = "";
    msdu__whatif_choice choice;
    msdu__whatif_wish wish = {.settings = settings};
    ck_assert_msg(msdu__whatif_control(q, &wish, &choice, why, sizeof(why)), "%s", why);
    return choice;
}

START_TEST(the_controller_takes_the_least_that_hides)
{
    msdu__profile profile = make_profile(7);
    double bits = 64;
    for (int power = 6; power >= 0; power--) {
        double mbit = pow(10, power);
        msdu__whatif_question q = question_of(&profile, 4, mbit);
        msdu__whatif_choice c = choose(&q, NULL);
        double now = msdu__wire_at(c.way.wire)->bits / c.way.interval;
        ck_assert_msg(now <= bits, "%g Mbit/s: %g bits a step after %g", mbit, now, bits);
        ck_assert(c.reason[0] != '\0');
        bits = now;
    }
    ck_assert_double_lt(bits, 2);
    msdu__whatif_question fast = question_of(&profile, 4, 1e7);
    msdu__whatif_choice c = choose(&fast, NULL);
    ck_assert_uint_eq(c.way.interval, 1);
    ck_assert_int_eq(c.way.wire, MSDU__WIRE_FLOAT32);
    ck_assert_ptr_nonnull(strstr(c.reason, "least error in both bounds"));
    msdu__profile_free(&profile);
}
END_TEST

/* The same link, the same coding: narrow where it hides on idle cores, not where it is missed. */
START_TEST(the_controller_keeps_float32_where_coding_is_missed)
{
    msdu__profile profile = make_profile(7);
    int narrowed = 0;
    for (int i = 0; i < 24; i++) {
        double mbit = 4000 * pow(1.1, i);
        msdu__whatif_question q = question_of(&profile, 4, mbit);
        q.pass_factor = 2;
        bool is_narrow = choose(&q, NULL).way.wire != MSDU__WIRE_FLOAT32;
        double plain = predict(&q, "slices").step_ns;
        q.taken_share = 4;
        msdu__whatif_choice busy = choose(&q, NULL);
        narrowed += is_narrow && busy.way.wire == MSDU__WIRE_FLOAT32 ? 1 : 0;
        ck_assert_msg(is_narrow || busy.way.wire == MSDU__WIRE_FLOAT32, "%g", mbit);
        ck_assert_msg(busy.answer.step_ns <= 1.02 * plain, "%g Mbit/s: %g, float32 %g", mbit,
                      busy.answer.step_ns, plain);
    }
    ck_assert_int_gt(narrowed, 1);
    msdu__profile_free(&profile);
}
END_TEST

START_TEST(the_controller_reads_the_library_s_settings)
{
    msdu__profile profile = make_profile(7);
    msdu__whatif_question q = question_of(&profile, 4, 1);
    char why[256] = "";
    msdu__whatif_choice c = choose(&q, "interval=fixed\ninterval_steps=16\nwire=int8\n");
    ck_assert_uint_eq(c.way.interval, 16);
    ck_assert_int_eq(c.way.wire, MSDU__WIRE_INT8);
    msdu__whatif_wish wish = {.settings = "no_such_setting=1\n"};
    ck_assert(!msdu__whatif_control(&q, &wish, &c, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "no_such_setting"));
    msdu__profile_free(&profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("predict");
    TCase *c = suite_case(suite, "predict", 60, NULL, NULL);
    tcase_add_loop_test(c, no_step_is_below_its_bound, 0, 20);
    tcase_add_loop_test(c, a_faster_link_is_no_slower, 0, 20);
    tcase_add_loop_test(c, a_free_link_costs_nothing, 0, 5);
    tcase_add_test(c, bytes_are_those_of_the_wire);
    tcase_add_test(c, the_same_question_has_the_same_answer);
    tcase_add_test(c, busy_cores_are_missed_by_computing);
    tcase_add_test(c, too_many_slices_are_refused);
    c = suite_case(suite, "controller", 60, NULL, NULL);
    tcase_add_test(c, the_controller_takes_the_least_that_hides);
    tcase_add_test(c, the_controller_keeps_float32_where_coding_is_missed);
    tcase_add_test(c, the_controller_reads_the_library_s_settings);
    return suite_run(suite);
}
