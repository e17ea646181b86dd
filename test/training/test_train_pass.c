/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of check_finite = pass: a NaN or infinity in a gradient of one rank comes back on all of
 * them, whatever the wire, and what follows is as if that step had not been.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "poison.h"
#include "reference.h"
#include "suite.h"

static ranks_job passing_job(poison *p, const char *wire, const char *commit)
{
    ranks_job job = poison_job(p, "propagate", wire);
    job.config.commit = commit;
    job.looks = true;
    return job;
}

/* Largest difference of two runs' parameters at their end. */
static double distance(const ranks_job *job, const ranks_run *a, const ranks_run *b)
{
    double most = 0;
    const double *x = ranks_row(&a->selves[0], job->steps);
    const double *y = ranks_row(&b->selves[0], job->steps);
    for (uint64_t i = 0; i < ranks_elements(job); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
    }
    return most;
}

static void expect_equal_ranks(const ranks_job *job, const ranks_run *run)
{
    for (int rank = 0; rank < job->ranks; rank++) {
        const ranks_self *self = &run->selves[rank];
        ck_assert_int_eq(self->refused, 1);
        ck_assert_int_eq(self->refused_at, ((const poison *)job->user)->step);
        ck_assert_uint_eq(self->summary.rounds, (uint64_t)job->steps);
    }
    ranks_check_alike(run, job->steps, job->steps);
}

/* The same training, with the step and without it: how far apart do they end? error_out: NULL, or
 * how far the latter is from the exact one. */
static double effect(ranks_job *job, double *error_out)
{
    ranks_run with;
    ranks_run without;
    ranks_run exact;
    ranks_run_well(job, &with);
    expect_equal_ranks(job, &with);
    job->missing = ((const poison *)job->user)->step + 1;
    ranks_run_well(job, &without);
    double far = distance(job, &with, &without);
    if (error_out != NULL) {
        job->config.wire = "float32";
        ranks_run_well(job, &exact);
        *error_out = distance(job, &without, &exact);
        ranks_free(&exact);
    }
    ranks_free(&with);
    ranks_free(&without);
    return far;
}

static const char *const wires[] = {"float32", "bfloat16", "float16", "int8",
                                    "int4",    "int2",     "sparse"};
static const char *const commits[] = {"round", "tensor"};
#define WIRES 7

/* What error feedback held back by then is dropped: both runs are within the wire's error. */
START_TEST(all_ranks_see_it_and_go_on_as_without_the_step)
{
    static const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (uint32_t k = (uint32_t)_i % 3; k < POISON_TENSORS; k += 3) {
        poison p = {.rank = (int)k % 3, .step = 5, .tensor = k, .value = values[k % 3]};
        p.is_spike = k == 0 || k == 4; /* which error feedback would hold for ever */
        ranks_job job = passing_job(&p, wires[_i % WIRES], commits[_i / WIRES]);
        double error = 0;
        double far = effect(&job, &error);
        ck_assert_msg(far <= (_i % WIRES < 3 ? 0 : 2 * error), "%s, tensor %u: %g, wire %g",
                      wires[_i % WIRES], k, far, error);
    }
}
END_TEST

/* Nothing is held back before the first step, and nothing of it after. */
START_TEST(first_step_leaves_no_trace)
{
    poison p = {.rank = 1, .step = 0, .tensor = 0, .value = (double)INFINITY, .is_spike = true};
    ranks_job job = passing_job(&p, wires[_i % WIRES], commits[_i / WIRES]);
    ck_assert(effect(&job, NULL) == 0);
}
END_TEST

/* No rank has a bad value of its own, but their sum overflows. */
static void overflow(ranks_self *self, int step, uint32_t tensor)
{
    if (step == 0 && tensor == 3) {
        ranks_put(MSDU_FLOAT32, self->gradient[tensor], 5, 3e38);
    }
}

START_TEST(overflow_of_the_sum_is_seen_too)
{
    static const char *const wide[] = {"float32", "bfloat16", "int8", "int4", "int2"};
    poison p = {.step = 0};
    ranks_job job = passing_job(&p, wide[_i % 5], commits[_i / 5]);
    job.config.reduce = "sum";
    job.config.lr = 0.01;
    job.computed = overflow;
    ck_assert(effect(&job, NULL) == 0);
}
END_TEST

START_TEST(every_style_of_trainer_sees_it)
{
    static const ranks_style styles[] = {RANKS_IN_ORDER, RANKS_SILENT, RANKS_THREADS, RANKS_ALONE};
    poison p = {.rank = 2, .step = 0, .tensor = 3, .value = (double)NAN};
    ranks_job job = passing_job(&p, "int4", "tensor");
    job.style = styles[_i];
    job.config.settings = "fuse_bytes = 0\n";
    ck_assert(effect(&job, NULL) == 0);
}
END_TEST

START_TEST(parameters_still_fail)
{
    poison p = {.rank = 1, .step = 3, .tensor = 1, .value = (double)NAN};
    ranks_job job = passing_job(&p, "float32", "round");
    job.looks = false;
    job.config.domain = "parameter";
    job.config.interval_steps = 2;
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE,
                    "rank 1: tensor 'tensor1' holds NaN|the round was not applied");
}
END_TEST

/* Local steps with it cannot be taken back. */
START_TEST(shadowed_gradients_still_fail)
{
    poison p = {.rank = 1, .step = 5, .tensor = 1, .value = (double)NAN};
    ranks_job job = passing_job(&p, "float32", "round");
    job.looks = false;
    job.config.domain = "accumulated";
    job.config.optimizer = "sgd";
    job.config.warmup_steps = 1;
    job.config.interval_steps = 4;
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE,
                    "rank 1: tensor 'tensor1' holds NaN|with domain gradient, propagate gives");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_pass");
    TCase *tcase = suite_case(suite, "ranks", 60, NULL, NULL);
    tcase_add_loop_test(tcase, all_ranks_see_it_and_go_on_as_without_the_step, 0, 2 * WIRES);
    tcase_add_loop_test(tcase, first_step_leaves_no_trace, 0, 2 * WIRES);
    tcase_add_loop_test(tcase, overflow_of_the_sum_is_seen_too, 0, 10);
    tcase_add_loop_test(tcase, every_style_of_trainer_sees_it, 0, 4);
    tcase_add_test(tcase, parameters_still_fail);
    tcase_add_test(tcase, shadowed_gradients_still_fail);
    return suite_run(suite);
}
