/* SPDX-License-Identifier: Apache-2.0 */
/* msdu/stages.h as a caller sees it: plans, times of given orders, and what is refused. */
#include "stages_fixture.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "suite.h"

#define CASES     300
#define TOLERANCE 1e-6

/* --- plans --- */

START_TEST(plans_hold_what_they_promise)
{
    uint64_t random = 31;
    uint32_t found = 0;
    for (int i = 0; i < CASES; i++) {
        stages_case c;
        msdu_stages *plan = NULL;
        double step_ns = 0;
        stages_random(&c, &random, 1 + stages_below(&random, 10), 1 + stages_below(&random, 5),
                      1 + stages_below(&random, 12));
        c.q.may = (uint32_t)i % 4;
        msdu_status status = msdu_stages_plan(&c.q, &plan);
        if (status == MSDU_ERR_NOT_FOUND) {
            ck_assert_ptr_nonnull(strstr(msdu_last_error(), "memory_bytes"));
            ck_assert_ptr_null(plan);
            continue;
        }
        ck_assert_int_eq(status, MSDU_OK);
        stages_check_plan(&c, plan);
        ck_assert_int_eq(msdu_stages_time(&c.q, plan, &step_ns), MSDU_OK);
        ck_assert_double_eq_tol(step_ns, plan->step_ns, TOLERANCE * plan->step_ns);
        msdu_stages_free(plan);
        found++;
    }
    ck_assert_uint_gt(found, CASES / 2);
}
END_TEST

START_TEST(is_no_slower_than_torch_with_its_cuts)
{
    uint64_t random = 32;
    for (int i = 0; i < 60; i++) {
        stages_case c;
        msdu_stages *plan = NULL;
        stages_random(&c, &random, 8, 4, 8);
        memset(c.memory, 0, sizeof(c.memory));
        ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
        /* its order is one of those that were tried, and there sends wait for nothing; a list
         * schedule may lose a little by doing what can start first */
        double torch = fmin(plan->torch.cuts_1f1b_ns, plan->torch.cuts_gpipe_ns);
        ck_assert(torch == 0 || plan->step_ns <= 1.05 * torch);
        msdu_stages_free(plan);
    }
}
END_TEST

START_TEST(slow_machines_stay_out)
{
    stages_case c;
    msdu_stages *plan = NULL;
    stages_equal(&c, 8, 4, 16);
    for (uint32_t l = 0; l < 8; l++) {
        c.forward[8 + l] = 1000; /* device 1 */
        c.backward[8 + l] = 2000;
    }
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
    ck_assert_uint_eq(plan->rank_count, 3);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        ck_assert_uint_ne(plan->stages[s].device, 1);
    }
    ck_assert_double_gt(plan->torch.equal_1f1b_ns, 20 * plan->step_ns);
    msdu_stages_free(plan);
}
END_TEST

START_TEST(a_vee_helps_where_all_is_equal)
{
    stages_case c;
    msdu_stages *plain = NULL;
    msdu_stages *vee = NULL;
    stages_equal(&c, 8, 4, 4);
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plain), MSDU_OK);
    c.q.may = MSDU_STAGES_TWO | MSDU_STAGES_SPLIT;
    ck_assert_int_eq(msdu_stages_plan(&c.q, &vee), MSDU_OK);
    ck_assert_uint_eq(vee->stage_count, 8);
    ck_assert_uint_eq(vee->rank_count, 4);
    ck_assert_double_lt(vee->step_ns, 0.9 * plain->step_ns);
    ck_assert_double_eq(vee->torch.cuts_1f1b_ns, 0);
    stages_check_plan(&c, vee);
    msdu_stages_free(plain);
    msdu_stages_free(vee);
    msdu_stages_free(NULL);
}
END_TEST

START_TEST(finds_the_number_of_micro_batches)
{
    uint64_t random = 33;
    for (int i = 0; i < 20; i++) {
        stages_case c;
        double fixed[DEVICES_MOST * LAYERS_MOST];
        msdu_stages *best = NULL;
        stages_random(&c, &random, 6, 3, 0);
        memset(c.memory, 0, sizeof(c.memory));
        for (uint32_t at = 0; at < 18; at++) {
            fixed[at] = fmin(c.forward[at], c.backward[at]) / 4;
        }
        c.q.fixed_forward_ns = fixed;
        c.q.fixed_backward_ns = fixed;
        c.q.batch = 12;
        c.q.samples = 2;
        ck_assert_int_eq(msdu_stages_plan(&c.q, &best), MSDU_OK);
        double least = (double)INFINITY;
        for (uint32_t m = 1; m <= 12; m++) {
            msdu_stages *plan = NULL;
            c.q.micro_batches = m;
            msdu_status status = msdu_stages_plan(&c.q, &plan);
            ck_assert_int_eq(status, 12 % m == 0 ? MSDU_OK : MSDU_ERR_INVALID);
            least = status == MSDU_OK ? fmin(least, plan->step_ns) : least;
            msdu_stages_free(plan);
        }
        ck_assert_double_eq(best->step_ns, least);
        msdu_stages_free(best);
    }
}
END_TEST

START_TEST(micro_batches_of_more_samples_take_longer)
{
    stages_case c;
    msdu_stages *plan = NULL;
    double fixed[] = {4};
    stages_equal(&c, 1, 1, 2);
    c.q.fixed_forward_ns = fixed;
    c.q.batch = 12;
    c.q.samples = 2;
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
    /* 6 samples each instead of 2: 4 + 3 * 6, and 3 * 20 */
    ck_assert_double_eq_tol(plan->step_ns, 2 * (22 + 60), TOLERANCE);
    msdu_stages_free(plan);
}
END_TEST

/* --- given orders --- */

START_TEST(an_order_under_other_times)
{
    stages_case c;
    msdu_stages *plan = NULL;
    double now = 0;
    stages_equal(&c, 4, 2, 6);
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
    for (int i = 0; i < 8; i++) {
        c.forward[i] *= 2;
        c.backward[i] *= 2;
    }
    c.q.micro_batches = 0; /* that of the plan */
    ck_assert_int_eq(msdu_stages_time(&c.q, plan, &now), MSDU_OK);
    ck_assert_double_eq_tol(now, 2 * plan->step_ns, TOLERANCE);
    c.q.micro_batches = 5;
    ck_assert_int_eq(msdu_stages_time(&c.q, plan, &now), MSDU_ERR_INVALID);
    ck_assert_str_eq(msdu_last_error(), "stages: the plan has 6 micro-batches, not 5");
    msdu_stages_free(plan);
}
END_TEST

/* Two stages on two ranks, one micro-batch. */
typedef struct given {
    stages_case c;
    msdu_stages_stage stages[2];
    msdu_stages_action actions[5];
    uint32_t rank_begin[3];
    msdu_stages plan;
} given;

static void make_given(given *g)
{
    stages_equal(&g->c, 2, 2, 1);
    g->c.output[0] = 1;
    memset(g->stages, 0, sizeof(g->stages));
    memset(g->actions, 0, sizeof(g->actions));
    g->stages[0].end = g->stages[1].first = 1;
    g->stages[1].end = 2;
    g->stages[1].device = g->stages[1].rank = 1;
    g->actions[1].kind = g->actions[3].kind = MSDU_STAGES_BACKWARD;
    g->actions[2].stage = g->actions[3].stage = 1;
    g->rank_begin[0] = 0;
    g->rank_begin[1] = 2;
    g->rank_begin[2] = 4;
    g->plan = (msdu_stages){.size = sizeof(g->plan),
                            .stage_count = 2,
                            .rank_count = 2,
                            .micro_batches = 1,
                            .stages = g->stages,
                            .actions = g->actions,
                            .rank_begin = g->rank_begin};
}

static void expect_bad(given *g, const char *said)
{
    double step_ns = -1;
    ck_assert_int_eq(msdu_stages_time(&g->c.q, &g->plan, &step_ns), MSDU_ERR_INVALID);
    ck_assert_msg(strstr(msdu_last_error(), said) != NULL, "'%s' is not in '%s'", said,
                  msdu_last_error());
    ck_assert_double_eq(step_ns, -1);
    make_given(g);
}

START_TEST(bad_orders_are_refused)
{
    given g;
    double step_ns = 0;
    make_given(&g);
    ck_assert_int_eq(msdu_stages_time(&g.c.q, &g.plan, &step_ns), MSDU_OK);
    ck_assert_double_eq_tol(step_ns, 60, TOLERANCE);
    g.rank_begin[2] = 3;
    expect_bad(&g, "action 3 "); /* a missing one */
    g.actions[3].kind = MSDU_STAGES_FORWARD;
    expect_bad(&g, "action 3 "); /* a second forward pass */
    g.actions[0].kind = MSDU_STAGES_BACKWARD;
    expect_bad(&g, "action 0 "); /* backward before forward */
    g.actions[1].kind = MSDU_STAGES_SEND_BACKWARD;
    expect_bad(&g, "action 1 ");
    g.actions[2].stage = 0;
    expect_bad(&g, "action 2 "); /* another's rank */
    g.actions[2].micro_batch = 1;
    expect_bad(&g, "action 2 ");
    g.stages[0].end = 2;
    expect_bad(&g, "do not cover the layers");
    g.stages[1].device = 2;
    expect_bad(&g, "do not cover the layers");
    g.c.rate[1] = 0;
    expect_bad(&g, "no link");
    g.plan.size = 0;
    expect_bad(&g, "MSDU_STAGES_INIT");
    g.plan.actions = NULL;
    expect_bad(&g, "lacks stages, actions or rank_begin");
    g.plan.micro_batches = 0;
    g.c.q.micro_batches = 0;
    expect_bad(&g, "0 is not in 1");
    ck_assert_int_eq(msdu_stages_time(&g.c.q, &g.plan, NULL), MSDU_ERR_INVALID);
}
END_TEST

START_TEST(a_rank_hands_over_to_itself)
{
    given g;
    double step_ns = 0;
    make_given(&g);
    /* both stages on one rank: F0 F1 B1 B0 */
    g.stages[1].device = g.stages[1].rank = 0;
    g.plan.rank_count = 1;
    g.rank_begin[1] = 4;
    g.actions[1] = g.actions[3]; /* B1 */
    g.actions[3] = (msdu_stages_action){.kind = MSDU_STAGES_BACKWARD};
    msdu_stages_action last = g.actions[1];
    g.actions[1] = g.actions[2];
    g.actions[2] = last;
    ck_assert_int_eq(msdu_stages_time(&g.c.q, &g.plan, &step_ns), MSDU_OK);
    ck_assert_double_eq_tol(step_ns, 60, TOLERANCE);
    g.actions[1] = g.actions[0]; /* F1 F0 */
    g.actions[0].stage = 1;
    double none = 0;
    ck_assert_int_eq(msdu_stages_time(&g.c.q, &g.plan, &none), MSDU_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "action 0 "));
}
END_TEST

/* Each waits for what the other would do later. */
START_TEST(an_order_that_waits_for_itself)
{
    stages_case c;
    msdu_stages_stage stages[] = {{.end = 1}, {.device = 1, .rank = 1, .first = 1, .end = 2}};
    msdu_stages_action actions[] = {
        {.stage = 0, .micro_batch = 0, .kind = MSDU_STAGES_FORWARD},
        {.stage = 0, .micro_batch = 0, .kind = MSDU_STAGES_BACKWARD},
        {.stage = 0, .micro_batch = 1, .kind = MSDU_STAGES_FORWARD},
        {.stage = 0, .micro_batch = 1, .kind = MSDU_STAGES_BACKWARD},
        {.stage = 1, .micro_batch = 1, .kind = MSDU_STAGES_FORWARD},
        {.stage = 1, .micro_batch = 1, .kind = MSDU_STAGES_BACKWARD},
        {.stage = 1, .micro_batch = 0, .kind = MSDU_STAGES_FORWARD},
        {.stage = 1, .micro_batch = 0, .kind = MSDU_STAGES_BACKWARD},
    };
    const uint32_t rank_begin[] = {0, 4, 8};
    msdu_stages plan = {.size = sizeof(plan),
                        .stage_count = 2,
                        .rank_count = 2,
                        .micro_batches = 2,
                        .stages = stages,
                        .actions = actions,
                        .rank_begin = rank_begin};
    double step_ns = 0;
    stages_equal(&c, 2, 2, 2);
    ck_assert_int_eq(msdu_stages_time(&c.q, &plan, &step_ns), MSDU_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "wait for each other"));
}
END_TEST

/* --- questions --- */

static void expect_error(const stages_case *c, msdu_status status, const char *said)
{
    msdu_stages *plan = NULL;
    ck_assert_int_eq(msdu_stages_plan(&c->q, &plan), status);
    ck_assert_msg(strstr(msdu_last_error(), said) != NULL, "'%s' is not in '%s'", said,
                  msdu_last_error());
    ck_assert_ptr_null(plan);
}

START_TEST(bad_questions_are_refused)
{
    static const char *const layer_names[] = {"embed", "block"};
    static const char *const device_names[] = {"old", "new"};
    stages_case good;
    stages_case c;
    stages_equal(&good, 2, 2, 2);
    good.q.layer_names = layer_names;
    good.q.device_names = device_names;
#define BAD(change, said)                                                                          \
    memcpy(&c, &good, sizeof(c));                                                                  \
    change;                                                                                        \
    expect_error(&c, MSDU_ERR_INVALID, said)
    BAD(c.q.size = 0, "MSDU_STAGES_QUESTION_INIT");
    BAD(c.q.layers = 0, "layers: 0 is not in 1 .. 1024");
    BAD(c.q.devices = 129, "devices: 129 is not in 1 .. 128");
    BAD(c.q.micro_batches = 5000, "micro_batches: 5000 is not in 0 .. 4096");
    BAD(c.q.micro_batches = 0, "batch and samples must be given");
    BAD(c.q.batch = 7, "2 micro-batches do not divide a batch of 7");
    BAD(c.q.samples = 7, "samples without batch");
    BAD(c.q.forward_ns = NULL, "forward_ns is NULL");
    BAD(c.q.link_rate = NULL, "link_rate is NULL");
    double values[] = {0, 0, 0, 0};
    BAD(c.q.backward_ns = values; values[3] = -1, "backward_ns: device 'new', layer 'block': -1");
    values[3] = 0;
    BAD(c.q.output_bytes = values; values[1] = (double)NAN, "output_bytes: layer 'block': ");
    values[1] = 0;
    BAD(c.q.memory_bytes = values; values[1] = (double)INFINITY, "memory_bytes: device 'new': inf");
    values[1] = 0;
    BAD(c.q.link_rate = values; values[2] = -1, "link_rate: device 'new' to device 'old': -1");
    values[2] = 99;
    BAD(c.q.weight_ns = values, "weight_ns: device 'new', layer 'embed': 99 is more than");
    BAD(c.q.fixed_forward_ns = values, "fixed_forward_ns: device 'new', layer 'embed': 99");
    values[2] = 0;
    BAD(c.q.forward_ns = values;
        c.q.backward_ns = values, "device 'old': all layers together take 0");
#undef BAD
    ck_assert_int_eq(msdu_stages_plan(&good.q, NULL), MSDU_ERR_INVALID);
    ck_assert_int_eq(msdu_stages_plan(NULL, NULL), MSDU_ERR_INVALID);
    memcpy(&c, &good, sizeof(c));
    c.q.may = 4;
    expect_error(&c, MSDU_ERR_UNSUPPORTED, "unknown bits");
}
END_TEST

START_TEST(too_little_memory_is_explained)
{
    static const char *const names[] = {"embed", "block", "head"};
    stages_case c;
    stages_equal(&c, 3, 2, 2);
    c.q.layer_names = names;
    for (int l = 0; l < 3; l++) {
        c.state[l] = 100;
        c.kept[l] = 10;
    }
    c.state[1] = 500;
    c.memory[0] = 300;
    c.memory[1] = 509;
    expect_error(&c, MSDU_ERR_NOT_FOUND,
                 "layer 'block' needs 510 bytes by itself with 2 micro-batches; the largest device "
                 "has 509");
    c.memory[0] = 109;
    c.memory[1] = 510;
    expect_error(&c, MSDU_ERR_NOT_FOUND,
                 "the model needs 730 bytes beside what is received, devices with links between "
                 "them have at most 619 together");
    c.memory[0] = 110; /* "embed", but not the head as well */
    expect_error(&c, MSDU_ERR_NOT_FOUND, "no cut fits");
    msdu_stages *plan = NULL;
    c.memory[1] = 620;
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
    ck_assert_uint_eq(plan->stage_count, 2);
    ck_assert_uint_eq(plan->stages[0].device, 1); /* the larger stage first: the way to it counts */
    msdu_stages_free(plan);
}
END_TEST

START_TEST(too_many_kinds_of_devices)
{
    enum { DEVICES = 30 };
    static double times[DEVICES * 2];
    static double links[DEVICES * DEVICES];
    static double output[2];
    for (int i = 0; i < DEVICES * 2; i++) {
        times[i] = i + 1;
    }
    msdu_stages_question q = {.size = sizeof(q),
                              .layers = 2,
                              .devices = DEVICES,
                              .micro_batches = 1,
                              .forward_ns = times,
                              .backward_ns = times,
                              .output_bytes = output,
                              .link_rate = links};
    msdu_stages *plan = NULL;
    ck_assert_int_eq(msdu_stages_plan(&q, &plan), MSDU_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "too many different devices for 2 layers"));
}
END_TEST

START_TEST(structs_may_be_older_or_newer)
{
    struct {
        msdu_stages_question q;
        uint64_t more;
    } newer;
    stages_case c;
    msdu_stages *plan = NULL;
    stages_equal(&c, 2, 2, 2);
    newer.q = c.q;
    newer.q.size = sizeof(newer);
    newer.more = 0;
    ck_assert_int_eq(msdu_stages_plan(&newer.q, &plan), MSDU_OK);
    msdu_stages_free(plan);
    newer.more = 1;
    plan = NULL;
    ck_assert_int_eq(msdu_stages_plan(&newer.q, &plan), MSDU_ERR_UNSUPPORTED);
    c.q.size = offsetof(msdu_stages_question, latency_ns);
    ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
    msdu_stages_free(plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages_calls");
    TCase *plans = suite_case(suite, "plans", 0, NULL, NULL);
    tcase_add_test(plans, plans_hold_what_they_promise);
    tcase_add_test(plans, is_no_slower_than_torch_with_its_cuts);
    tcase_add_test(plans, slow_machines_stay_out);
    tcase_add_test(plans, a_vee_helps_where_all_is_equal);
    tcase_add_test(plans, finds_the_number_of_micro_batches);
    tcase_add_test(plans, micro_batches_of_more_samples_take_longer);
    TCase *given_case = suite_case(suite, "given", 0, NULL, NULL);
    tcase_add_test(given_case, an_order_under_other_times);
    tcase_add_test(given_case, bad_orders_are_refused);
    tcase_add_test(given_case, a_rank_hands_over_to_itself);
    tcase_add_test(given_case, an_order_that_waits_for_itself);
    TCase *bad = suite_case(suite, "bad", 0, NULL, NULL);
    tcase_add_test(bad, bad_questions_are_refused);
    tcase_add_test(bad, too_little_memory_is_explained);
    tcase_add_test(bad, too_many_kinds_of_devices);
    tcase_add_test(bad, structs_may_be_older_or_newer);
    return suite_run(suite);
}
