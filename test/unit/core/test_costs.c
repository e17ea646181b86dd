/* SPDX-License-Identifier: Apache-2.0 */
/* What coding takes: as measured on ranks that differ, and in the rounds that follow. */
#include "core/costs.h"

#include <check.h>
#include <math.h>

#include "api/context.h"
#include "fake.h"
#include "ranks.h"
#include "suite.h"

#define RANKS 3

static const ranks_tensor tensors[] = {{30000, MSDU_FLOAT32, MSDU_ROLE_MODEL, 0},
                                       {20000, MSDU_FLOAT32, MSDU_ROLE_MODEL, 0}};

/* Machines on which something else is slow: rank 0 encodes slowly, rank 1 decodes, rank 2 copies.
 */
static msdu__wire_costs machines[RANKS];

static const msdu__wire_costs *machine_0(void)
{
    return &machines[0];
}

static const msdu__wire_costs *machine_1(void)
{
    return &machines[1];
}

static const msdu__wire_costs *machine_2(void)
{
    return &machines[2];
}

static void make_machines(double factor)
{
    for (int i = 0; i < RANKS; i++) {
        machines[i] = msdu__wire_costs_server;
        for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
            msdu__wire_cost *cost = &machines[i].of[wire];

            cost->encode *= i == 0 ? 3 * factor : factor;
            cost->sum *= factor;
            cost->decode *= i == 1 ? 5 * factor : factor;
        }
        machines[i].copy_ns *= i == 2 ? 7 : 1;
    }
}

static void place(ranks_self *self)
{
    const msdu__wire_costs *(*const measure[RANKS])(void) = {machine_0, machine_1, machine_2};

    self->ctx->job.measure_costs = measure[self->rank];
}

static void place_virtual(ranks_self *self)
{
    place(self);
    self->ctx->job.clock = fake_clock;
}

static msdu__wire_costs agreed[RANKS];
static msdu__interval_args args_of[RANKS];
static msdu__costs_told told[RANKS];
static double last_coding_ns[RANKS];

static void note(ranks_self *self)
{
    agreed[self->rank] = self->ctx->job.costs;
    args_of[self->rank] = self->ctx->job.interval_args;
}

static void note_rounds(ranks_self *self)
{
    /* the latest round may end a moment later on one rank than on another */
    ck_assert_int_eq(msdu_synchronize(self->ctx), MSDU_OK);
    told[self->rank] = self->ctx->engine.costs;
    last_coding_ns[self->rank] = self->ctx->engine.link.last_coding_ns;
}

static void train(const char *settings, void (*created)(ranks_self *self))
{
    static ranks_run run;
    ranks_job job = {.ranks = RANKS,
                     .steps = 40,
                     .tensors = tensors,
                     .tensor_count = 2,
                     .config = MSDU_CONFIG_INIT,
                     .created = created,
                     .started = note,
                     .ended = note_rounds};

    job.config.settings = settings;
    ck_assert(ranks_go(&job, &run));
    int failed = ranks_failed(&run, RANKS);
    ck_assert_msg(failed < 0, "rank %d: %s", failed, failed < 0 ? "" : run.selves[failed].text);
    ranks_free(&run);
}

/* Decisions are functions of these numbers, and each rank computes them for itself. */
START_TEST(ranks_that_differ_go_by_the_slowest)
{
    make_machines(1);
    train("wire=auto\n", place);
    for (int i = 0; i < RANKS; i++) {
        const msdu__wire_cost *cost = &agreed[i].of[MSDU__WIRE_INT4];
        const msdu__wire_cost *server = &msdu__wire_costs_server.of[MSDU__WIRE_INT4];

        ck_assert_double_eq(cost->encode, 3 * server->encode);
        ck_assert_double_eq(cost->sum, server->sum);
        ck_assert_double_eq(cost->decode, 5 * server->decode);
        ck_assert_double_eq(agreed[i].copy_ns, 7 * msdu__wire_costs_server.copy_ns);
        ck_assert_double_eq(args_of[i].copy_ns, agreed[i].copy_ns);
        ck_assert_double_eq(args_of[i].wires[MSDU__WIRE_INT4].code_ns,
                            msdu__wire_code_ns(&agreed[i], MSDU__WIRE_INT4, RANKS));
        ck_assert_double_eq(told[i].taken_share, told[0].taken_share);
        ck_assert_double_eq(told[i].code_scale, told[0].code_scale);
    }
}
END_TEST

/* Processor time, of the largest rank: the same on all. */
START_TEST(rounds_tell_what_coding_really_takes)
{
    make_machines(1);
    train("wire=auto\ninterval=fixed\ninterval_steps=1\n", place);
    ck_assert_double_eq(told[0].code_scale, 0); /* nothing was coded */
    ck_assert_double_eq(last_coding_ns[0], 0);
    train("wire=int4\ninterval=fixed\ninterval_steps=1\n", place);
    ck_assert_double_gt(told[0].code_scale, 0);
    ck_assert_double_le(told[0].code_scale, 8);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_double_gt(last_coding_ns[i], 0);
        ck_assert_double_eq(told[i].code_scale, told[0].code_scale);
        ck_assert_double_eq(told[i].taken_share, told[0].taken_share);
    }
}
END_TEST

/* With a test's clock nothing of the machine may come in. */
START_TEST(a_clock_of_a_test_measures_nothing)
{
    fake_reset();
    make_machines(9);
    train("wire=auto\n", place_virtual);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_double_eq(agreed[i].copy_ns, msdu__wire_costs_server.copy_ns);
        ck_assert_double_eq(told[i].code_scale, 0);
        ck_assert_double_eq(told[i].taken_share, 0);
        ck_assert_double_eq(last_coding_ns[i], 0);
    }
}
END_TEST

/* --- learning --- */

static msdu__job job;
static msdu__engine engine = {.job = &job};

static double learned(double coding_ns, int wire)
{
    msdu__round_stats stats = {
        .coding_ns = coding_ns, .link_wire = wire, .elements = 1000, .taken_share = 1};

    msdu__costs_learn(&engine, &stats);
    return stats.code_scale;
}

START_TEST(one_format_stands_for_all_and_no_round_counts_much)
{
    job.interval_args.wires[MSDU__WIRE_INT4].code_ns = 2;
    engine.costs = (msdu__costs_told){.code_scale = 0};
    ck_assert_double_eq(learned(0, MSDU__WIRE_INT4), 0);
    ck_assert_double_eq(learned(3000, MSDU__WIRE_FLOAT32), 0); /* tensors of 16 bits */
    ck_assert_double_eq_tol(learned(3000, MSDU__WIRE_INT4), 1.5, 1e-9);
    ck_assert_double_eq_tol(learned(0, MSDU__WIRE_FLOAT32), 1.5, 1e-9);
    ck_assert_double_eq_tol(learned(1e9, MSDU__WIRE_INT4), 1.5 + 0.2 * 6.5, 1e-9);
    ck_assert_double_gt(engine.costs.taken_share, 0.5);
    ck_assert_double_lt(engine.costs.taken_share, 1);
    engine.is_two_level = true;
    double before = engine.costs.code_scale;
    ck_assert_double_eq(learned(1e9, MSDU__WIRE_INT4), before);
    engine.is_two_level = false;
}
END_TEST

/* --- this machine --- */

START_TEST(every_format_takes_some_time_here)
{
    const msdu__wire_costs *here = msdu__costs_here();

    ck_assert_ptr_eq(here, msdu__costs_here());
    ck_assert_double_gt(here->copy_ns, 0);
    ck_assert_double_lt(here->copy_ns, 50);
    for (int wire = MSDU__WIRE_FLOAT32 + 1; wire < MSDU__WIRE_COUNT; wire++) {
        ck_assert_double_gt(here->of[wire].encode, 0.01);
        ck_assert_double_gt(here->of[wire].sum, 0.01);
        ck_assert_double_gt(here->of[wire].decode, 0.01);
        ck_assert_double_lt(msdu__wire_code_ns(here, wire, 2), 5000);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("costs");
    TCase *tcase = suite_case(suite, "costs", 60, NULL, NULL);

    tcase_add_test(tcase, ranks_that_differ_go_by_the_slowest);
    tcase_add_test(tcase, rounds_tell_what_coding_really_takes);
    tcase_add_test(tcase, a_clock_of_a_test_measures_nothing);
    tcase_add_test(tcase, one_format_stands_for_all_and_no_round_counts_much);
    tcase_add_test(tcase, every_format_takes_some_time_here);
    return suite_run(suite);
}
