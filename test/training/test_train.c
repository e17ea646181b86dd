/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training with plain gradients and of the change to local steps, against a reference. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor model[] = {
    {.count = 1}, {.count = 7}, {.count = 256}, {.count = 1000}, {.count = 5000},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))

/* Small slices, so that tensors are cut and fused. */
static ranks_job plain_job(int ranks, int steps)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = steps,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = {.domain = "gradient",
                   .interval = "fixed",
                   .wire = "float32",
                   .slice_bytes = 4096,
                   .fuse_bytes = 2048,
                   .warmup_steps = 1,
                   .lr = 0.05,
                   .momentum = 0.9},
    };
}

START_TEST(gradients_equal_a_plain_allreduce_to_the_bit)
{
    static const char *const overlaps[] = {"backward", "blocking"};
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_job job = plain_job(ranks, 12);
        job.config.overlap = overlaps[_i];
        reference_check(&job, 0);
    }
}
END_TEST

/* Its gradient is the mean, so the statistics of both agree; divergence is 1 by definition. */
START_TEST(one_rank_does_not_diverge_from_itself)
{
    static const char *const domains[] = {"gradient", "accumulated"};
    ranks_run run;
    ranks_job job = plain_job(1, 8);
    job.config.domain = domains[_i];
    job.config.optimizer = "sgd";
    job.config.interval = "divergence";
    ranks_run_well(&job, &run);
    ck_assert_msg(fabs(run.selves[0].summary.divergence - 1) < 1e-12, "divergence %.17g",
                  run.selves[0].summary.divergence);
    ranks_free(&run);
}
END_TEST

START_TEST(sums_are_not_divided)
{
    ranks_job job = plain_job(3, 8);
    job.config.reduce = "sum";
    reference_check(&job, 0);
}
END_TEST

START_TEST(gradients_released_one_by_one_are_the_same)
{
    ranks_job job = plain_job(3, 10);
    job.config.commit = "tensor";
    reference_check(&job, 0);
}
END_TEST

START_TEST(windows_and_lanes_do_not_change_a_bit)
{
    static const int sizes[][2] = {{1, 1}, {2, 8}, {64, 3}};
    ranks_job job = plain_job(3, 8);
    job.config.window = sizes[_i][0];
    job.config.lanes = sizes[_i][1];
    reference_check(&job, 0);
}
END_TEST

START_TEST(priorities_do_not_change_a_bit)
{
    ranks_tensor shuffled[MODEL_COUNT];
    ranks_job job = plain_job(2, 8);
    memcpy(shuffled, model, sizeof(model));
    for (uint32_t t = 0; t < MODEL_COUNT; t++) {
        shuffled[t].priority = (int32_t)((3 * t + 1) % MODEL_COUNT) - 2;
    }
    job.tensors = shuffled;
    reference_check(&job, 0);
}
END_TEST

/* Sums of 16-bit types accumulate in float32: the reference rounds only before and after. */
START_TEST(types_may_be_mixed)
{
    static const ranks_tensor mixed[] = {
        {.count = 300, .dtype = MSDU_FLOAT16},  {.count = 7, .dtype = MSDU_FLOAT64},
        {.count = 33, .dtype = MSDU_FLOAT64},   {.count = 1000, .dtype = MSDU_BFLOAT16},
        {.count = 5000, .dtype = MSDU_FLOAT64}, {.count = 256, .dtype = MSDU_FLOAT32},
        {.count = 3000, .dtype = MSDU_FLOAT16}, {.count = 5, .dtype = MSDU_FLOAT16},
        {.count = 5, .dtype = MSDU_BFLOAT16},   {.count = 11, .dtype = MSDU_BFLOAT16},
    };
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_job job = plain_job(ranks, 8);
        job.tensors = mixed;
        job.tensor_count = sizeof(mixed) / sizeof(mixed[0]);
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(sixteen_bit_wires_round_twice)
{
    static const char *const wires[] = {"float16", "bfloat16"};
    ranks_job job = plain_job(4, 8);
    job.config.wire = wires[_i];
    reference_check(&job, 0);
}
END_TEST

START_TEST(every_style_of_calls_gives_the_same)
{
    ranks_job job = plain_job(3, 10);
    job.style = (ranks_style)_i;
    reference_check(&job, 0);
}
END_TEST

/* --- domain auto --- */

static ranks_job auto_job(int ranks, const char *overlap)
{
    ranks_job job = plain_job(ranks, 26);
    job.config.domain = "auto";
    job.config.overlap = overlap;
    job.config.warmup_steps = 7;
    job.config.interval_steps = 4;
    job.config.delay_steps = 2;
    job.config.fragments = 3;
    return job;
}

START_TEST(auto_leaves_gradients_after_the_warm_up)
{
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        ranks_job job = auto_job(ranks, ranks_overlaps[_i]);
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(auto_works_in_every_style_of_calls)
{
    ranks_job job = auto_job(2, "backward");
    job.style = (ranks_style)_i;
    reference_check(&job, 0);
}
END_TEST

START_TEST(auto_without_parameters_stays_with_gradients)
{
    ranks_job job = auto_job(2, "backward");
    job.hides_parameters = true;
    reference_check(&job, 0);
}
END_TEST

START_TEST(auto_without_gradients_begins_with_parameters)
{
    ranks_job job = auto_job(3, "backward");
    job.hides_gradients = true;
    reference_check(&job, 0);
}
END_TEST

START_TEST(deferred_optimizers_end_equal_after_the_switch)
{
    ranks_run run;
    ranks_job job = auto_job(3, "backward");
    job.style = RANKS_DEFERRED;
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, job.steps, job.steps);
    ranks_free(&run);
}
END_TEST

/* Of the shorter one: the last step's decision is of a round that never came. */
START_TEST(the_summary_tells_what_was_sent)
{
    static const int steps[] = {7, 26};
    static const unsigned intervals[] = {1, 4};
    ranks_run run;
    ranks_job job = auto_job(2, "backward");
    job.steps = steps[_i];
    job.config.wire = "int4";
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(run.selves[rank].summary.interval_steps, intervals[_i]);
        ck_assert_str_eq(run.selves[rank].summary.wire, "int4");
    }
    ranks_free(&run);
}
END_TEST

/* --- start --- */

START_TEST(broadcast_gives_all_ranks_the_values_of_rank_0)
{
    ranks_run run;
    ranks_job job = plain_job(3, 1);
    job.starts_apart = true;
    job.config.broadcast = "yes";
    ranks_run_well(&job, &run);
    for (uint64_t i = 0; i < run.selves[0].elements; i++) {
        double first = ranks_initial(&job, 0, MSDU_FLOAT32, i);
        for (int rank = 0; rank < 3; rank++) {
            ck_assert(ranks_row(&run.selves[rank], 0)[i] == first);
        }
    }
    ranks_free(&run);
}
END_TEST

START_TEST(nothing_but_start_and_finish_is_fine)
{
    ranks_job job = plain_job(3, 0);
    reference_check(&job, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train");
    TCase *tcase = suite_case(suite, "gradient", 60, NULL, NULL);
    tcase_add_loop_test(tcase, gradients_equal_a_plain_allreduce_to_the_bit, 0, 2);
    tcase_add_loop_test(tcase, one_rank_does_not_diverge_from_itself, 0, 2);
    tcase_add_test(tcase, sums_are_not_divided);
    tcase_add_test(tcase, gradients_released_one_by_one_are_the_same);
    tcase_add_loop_test(tcase, windows_and_lanes_do_not_change_a_bit, 0, 3);
    tcase_add_test(tcase, priorities_do_not_change_a_bit);
    tcase_add_test(tcase, types_may_be_mixed);
    tcase_add_loop_test(tcase, sixteen_bit_wires_round_twice, 0, 2);
    tcase_add_loop_test(tcase, every_style_of_calls_gives_the_same, 0, RANKS_DEFERRED + 1);
    tcase_add_test(tcase, broadcast_gives_all_ranks_the_values_of_rank_0);
    tcase_add_test(tcase, nothing_but_start_and_finish_is_fine);
    tcase = suite_case(suite, "auto", 60, NULL, NULL);
    tcase_add_loop_test(tcase, auto_leaves_gradients_after_the_warm_up, 0, 5);
    tcase_add_loop_test(tcase, auto_works_in_every_style_of_calls, 0, RANKS_THREADS + 1);
    tcase_add_test(tcase, auto_without_parameters_stays_with_gradients);
    tcase_add_test(tcase, auto_without_gradients_begins_with_parameters);
    tcase_add_loop_test(tcase, the_summary_tells_what_was_sent, 0, 2);
    tcase_add_test(tcase, deferred_optimizers_end_equal_after_the_switch);
    return suite_run(suite);
}
