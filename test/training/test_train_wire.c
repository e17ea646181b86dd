/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training over compressed wires: equal ranks, small errors, nothing lost, bytes as
 * counted.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "api/context.h"
#include "ranks.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor model[] = {{.count = 7}, {.count = 500}, {.count = 1}, {.count = 1500}};

static const char *const wires[] = {"int8", "int4", "int2", "sparse", "bfloat16", "float16"};
#define WIRES     6
#define FEEDBACKS 4 /* the first ones keep what they lost */

static ranks_job wire_job(int ranks, const char *domain, const char *wire)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = 40,
        .tensors = model,
        .tensor_count = 4,
        .config = {.domain = domain,
                   .overlap = "backward",
                   .interval = "fixed",
                   .interval_steps = 4,
                   .delay_steps = 1,
                   .fragments = 3,
                   .wire = wire,
                   .slice_bytes = 4096,
                   .fuse_bytes = 1024,
                   .wire_block = 64,
                   .warmup_steps = 1,
                   .lr = 0.05},
    };
}

/* How far from the run in float32 a wire may end; parameters are of order 1. */
static const double bounds[WIRES] = {0.002, 0.02, 0.1, 0.25, 0.01, 0.002};

/* Sparse sends an element every eighth step, and again an eighth of the means: gradients that are
 * about 16 steps late bear only such a step size. Curvatures here are up to 2.5. */
static double lr_of(int wire)
{
    return strcmp(wires[wire], "sparse") == 0 ? 0.01 : 0.05;
}

START_TEST(gradients_keep_ranks_equal_and_near_float32)
{
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        ranks_job job = wire_job(ranks, "gradient", wires[_i]);
        job.config.lr = lr_of(_i);
        double far = ranks_far_from_float32(&job, 0);
        ck_assert_msg(far < bounds[_i], "%d ranks: %g", ranks, far);
    }
}
END_TEST

START_TEST(local_rounds_end_equal_and_near_float32)
{
    for (int k = _i % 2; k < 5; k += 2) {
        ranks_job job = wire_job(3, "parameter", wires[_i]);
        job.config.lr = lr_of(_i);
        job.config.overlap = ranks_overlaps[k];
        double far = ranks_far_from_float32(&job, job.steps);
        ck_assert_msg(far < bounds[_i], "%s: %g", ranks_overlaps[k], far);
    }
}
END_TEST

START_TEST(meetings_leave_ranks_equal)
{
    ranks_run run;
    ranks_job job = wire_job(4, "parameter", wires[_i]);
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, 2, 2); /* rounds end with steps 0, 1, 5, 9, ... */
    ranks_check_alike(&run, 6, 6);
    ranks_check_alike(&run, 10, 10);
    ck_assert(memcmp(ranks_row(&run.selves[0], 8), ranks_row(&run.selves[1], 8),
                     run.selves[0].elements * sizeof(double)) != 0);
    ranks_free(&run);
}
END_TEST

/* --- error feedback --- */

/* Gradients are below 1, so lr is what one step moves: what is held back stays a few steps' worth,
 * however long training lasts. */
static const double held_back[] = {0.05, 1.0, 6.0, 40.0};

START_TEST(gradients_are_unbiased_in_the_long_run)
{
    static const int steps[] = {20, 200};
    for (int k = 0; k < 2; k++) {
        ranks_job job = wire_job(3, "gradient", wires[_i]);
        job.has_constant_gradient = true;
        job.config.lr = 0.01;
        job.steps = steps[k];
        double drift = ranks_lost_at_end(&job) / job.config.lr;
        ck_assert_msg(drift < held_back[_i], "%d steps: %g", steps[k], drift);
    }
}
END_TEST

/* The final average sends what was held back: nothing of the local work is lost. */
START_TEST(finish_sends_what_was_held_back)
{
    ranks_job job = wire_job(3, "parameter", wires[_i]);
    job.has_constant_gradient = true;
    job.config.lr = 0.01;
    double drift = ranks_lost_at_end(&job);
    ck_assert_msg(drift < 1e-5, "%g", drift);
}
END_TEST

/* Only what gradients held back at the switch is dropped: it is not in units of parameters. */
START_TEST(the_switch_loses_no_more_than_gradients_held_back)
{
    ranks_job job = wire_job(3, "auto", wires[_i]);
    job.has_constant_gradient = true;
    job.config.lr = 0.01;
    double drift = ranks_lost_at_end(&job) / job.config.lr;
    ck_assert_msg(drift < held_back[_i], "%g", drift);
}
END_TEST

/* --- bytes --- */

static const ranks_tensor large[] = {{.count = 4096}, {.count = 12288}};

/* Two phases, N - 1 of N parts each: 2 b / 8 d (N - 1) / N, and the statistics message. */
START_TEST(bytes_sent_follow_the_formula)
{
    for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
        ranks_run run;
        ranks_job job = wire_job(4, _i == 0 ? "gradient" : "parameter", msdu__wire_at(wire)->name);
        job.tensors = large;
        job.tensor_count = 2;
        job.steps = 9;
        job.config.wire_block = 256;
        job.config.slice_bytes = 16384;
        job.config.interval_steps = 1;
        ranks_run_well(&job, &run);
        for (int rank = 0; rank < 4; rank++) {
            const msdu_summary *sum = &run.selves[rank].summary;
            double round = 2.0 * msdu__wire_at(wire)->bits / 8.0 * 16384.0 * 3.0 / 4.0;
            double wanted = 9.0 * (round + 3.0 * (double)sizeof(msdu__control));
            double final = sum->rounds > 9 ? 2.0 * 4.0 * 16384.0 * 3.0 / 4.0 : 0.0;
            double far = fabs((double)sum->bytes_sent - final - wanted);
            ck_assert_msg(far < 0.02 * wanted, "%s: %llu instead of %g", msdu__wire_at(wire)->name,
                          (unsigned long long)sum->bytes_sent, wanted + final);
            ck_assert_uint_eq(sum->bytes_plain, 9U * 2U * 4U * 16384U * 3U / 4U);
        }
        ranks_free(&run);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_wire");
    TCase *tcase = suite_case(suite, "wire", 60, NULL, NULL);
    tcase_add_loop_test(tcase, gradients_keep_ranks_equal_and_near_float32, 0, WIRES);
    tcase_add_loop_test(tcase, local_rounds_end_equal_and_near_float32, 0, WIRES);
    tcase_add_loop_test(tcase, meetings_leave_ranks_equal, 0, WIRES);
    tcase_add_loop_test(tcase, gradients_are_unbiased_in_the_long_run, 0, FEEDBACKS);
    tcase_add_loop_test(tcase, finish_sends_what_was_held_back, 0, FEEDBACKS);
    tcase_add_loop_test(tcase, the_switch_loses_no_more_than_gradients_held_back, 0, FEEDBACKS);
    tcase_add_loop_test(tcase, bytes_sent_follow_the_formula, 0, 2);
    return suite_run(suite);
}
