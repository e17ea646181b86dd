/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parameter domain: overlap modes and corrections, against a reference. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

static ranks_job local_job(int ranks, int interval, const char *overlap)
{
    ranks_job job = kit_job("parameter", overlap);
    job.ranks = ranks;
    job.steps = 25;
    job.config.interval_steps = interval;
    job.config.delay_steps = 1;
    job.config.warmup_steps = 1;
    return job;
}

START_TEST(averages_whenever_the_ranks_meet)
{
    static const int intervals[] = {3, 1, 5, 64};
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_job job = local_job(ranks, intervals[ranks - 1], ranks_overlaps[_i]);
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(warm_up_keeps_single_steps)
{
    ranks_job job = local_job(3, 6, ranks_overlaps[_i]);
    job.config.warmup_steps = 9;
    reference_check(&job, 0);
}
END_TEST

START_TEST(the_last_step_is_a_meeting_where_the_end_is_known)
{
    static const int ends[] = {18, 21, 24, 25};
    for (int k = 0; k < 4; k++) {
        ranks_job job = local_job(2, 6, ranks_overlaps[_i]);
        job.config.total_steps = ends[k];
        job.steps = ends[k];
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(a_known_end_leaves_room_for_a_delay)
{
    for (int end = 12; end <= 20; end++) {
        ranks_job job = local_job(2, 5, ranks_overlaps[_i]);
        job.config.delay_steps = 4;
        job.config.total_steps = end;
        job.steps = end;
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(every_correction_is_applied)
{
    static const char *const chains[] = {"average", "elastic",       "blend",      "delayed",
                                         "outer",   "outer,elastic", "outer,blend"};
    for (int k = 0; k < 7; k++) {
        ranks_job job = local_job(3, 4, ranks_overlaps[_i]);
        job.config.correct = chains[k];
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(outer_momentum_of_both_kinds)
{
    static const char *const kinds[] = {"nesterov", "momentum"};
    ranks_job job = local_job(4, 3, ranks_overlaps[_i / 2]);
    job.config.correct = "outer";
    job.config.outer_kind = kinds[_i % 2];
    job.config.outer_lr = 0.4;
    job.config.outer_momentum = 0.9;
    reference_check(&job, 0);
}
END_TEST

static double rising_lr(const ranks_job *job, int step)
{
    return job->config.lr * (1.0 + 0.2 * step);
}

/* The norm is a sum over slices in an order of its own: rounding, not bits. */
START_TEST(large_updates_are_clipped)
{
    ranks_job job = local_job(3, 3, ranks_overlaps[_i]);
    job.config.momentum = 0;
    job.lr_at = rising_lr;
    job.config.correct = "clip,outer";
    job.config.clip_ratio = 1.0;
    reference_check(&job, 1e-5);
}
END_TEST

START_TEST(parts_of_other_settings_are_used)
{
    ranks_job job = local_job(3, 4, ranks_overlaps[_i]);
    job.config.correct = "elastic";
    job.config.elastic_alpha = 0.125;
    reference_check(&job, 0);
    job.config.correct = "delayed";
    job.config.delayed_keep = 0.3;
    reference_check(&job, 0);
}
END_TEST

START_TEST(results_are_applied_tau_steps_later)
{
    for (int delay = 1; delay <= 3; delay++) {
        ranks_job job = local_job(3, 4, "delayed");
        job.config.delay_steps = delay;
        reference_check(&job, 0);
        job.config.correct = "average"; /* overwrites what was overlapped */
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(an_interval_is_never_shorter_than_the_delay)
{
    ranks_job job = local_job(2, 2, ranks_overlaps[2 + _i]);
    job.config.delay_steps = 5;
    reference_check(&job, 0);
}
END_TEST

/* What auto means, beside the reference: late where there is room, at once where there is not. */
START_TEST(auto_is_late_only_where_the_round_has_room)
{
    static const struct {
        int interval;
        int delay_steps;
        const char *correct;
        const char *same_as;
    } cases[] = {{1, 1, NULL, "backward"},      {2, 1, NULL, "delayed"},
                 {3, 3, NULL, "backward"},      {4, 3, "outer", "delayed"},
                 {2, 1, "average", "backward"}, {4, 1, "elastic", "backward"},
                 {1, 1, "delayed", "backward"}, {3, 2, "clip,outer", "delayed"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ranks_run is;
        ranks_run wanted;
        bool is_late = strcmp(cases[i].same_as, "delayed") == 0;
        ranks_job job = local_job(3, cases[i].interval, NULL); /* the default is auto */
        /* single steps before the first decision: with parameters "delayed" would stretch them */
        job.config.domain = is_late ? "auto" : "parameter";
        job.config.delay_steps = cases[i].delay_steps;
        job.config.correct = cases[i].correct;
        ck_assert(ranks_go(&job, &is));
        job.config.overlap = cases[i].same_as;
        ck_assert(ranks_go(&job, &wanted));
        kit_check_equal(&job, 0, &wanted, &is);
        ranks_free(&is);
        ranks_free(&wanted);
    }
}
END_TEST

START_TEST(fragments_are_spread_over_a_round)
{
    static const int counts[] = {1, 2, 4, 7};
    for (int k = 0; k < 4; k++) {
        for (int delay = 1; delay <= 3; delay += 2) {
            ranks_job job = local_job(3, 6, "streamed");
            job.config.fragments = counts[k];
            job.config.delay_steps = delay;
            reference_check(&job, 0);
        }
    }
}
END_TEST

START_TEST(more_fragments_than_slices_are_fine)
{
    ranks_job job = local_job(2, 8, "streamed");
    job.config.fragments = 32;
    job.config.slice_bytes = 1U << 20;
    reference_check(&job, 0);
}
END_TEST

START_TEST(types_may_be_mixed)
{
    static const ranks_tensor mixed[] = {
        {.count = 300, .dtype = MSDU_FLOAT16}, {.count = 7, .dtype = MSDU_FLOAT64},
        {.count = 900, .dtype = MSDU_FLOAT64}, {.count = 700, .dtype = MSDU_BFLOAT16},
        {.count = 5, .dtype = MSDU_FLOAT16},   {.count = 11, .dtype = MSDU_BFLOAT16},
        {.count = 33, .dtype = MSDU_FLOAT32},
    };
    static const char *const chains[] = {NULL, "outer", "elastic"};
    for (int k = 0; k < 3; k++) {
        ranks_job job = local_job(3, 4, ranks_overlaps[_i]);
        job.tensors = mixed;
        job.tensor_count = sizeof(mixed) / sizeof(mixed[0]);
        job.config.correct = chains[k];
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(sixteen_bit_wires_round_twice)
{
    static const char *const wires[] = {"float16", "bfloat16"};
    ranks_job job = local_job(3, 4, "backward");
    job.config.wire = wires[_i];
    reference_check(&job, 0);
}
END_TEST

START_TEST(every_style_of_calls_gives_the_same)
{
    for (int k = 0; k < 5; k++) {
        ranks_job job = local_job(2, 4, ranks_overlaps[k]);
        job.style = (ranks_style)_i;
        reference_check(&job, 0);
    }
}
END_TEST

/* --- optimizer state --- */

static const ranks_tensor with_state[] = {
    {.count = 300},
    {.count = 300, .role = MSDU_ROLE_STATE},
    {.count = 700},
    {.count = 700, .role = MSDU_ROLE_STATE},
    {.count = 9, .role = MSDU_ROLE_STATE, .dtype = MSDU_FLOAT64},
    {.count = 40, .role = MSDU_ROLE_STATE, .dtype = MSDU_BFLOAT16},
};

START_TEST(state_stays_local_or_is_averaged_or_reset)
{
    static const char *const states[] = {"local", "average", "reset"};
    ranks_job job = local_job(3, 4, ranks_overlaps[_i / 3]);
    job.tensors = with_state;
    job.tensor_count = sizeof(with_state) / sizeof(with_state[0]);
    job.config.state = states[_i % 3];
    reference_check(&job, 0);
}
END_TEST

/* --- algorithms.md 6.8 --- */

START_TEST(neutral_outer_step_is_parameter_averaging)
{
    ranks_run outer;
    ranks_run plain;
    ranks_job job = local_job(3, 4, "blocking");
    ck_assert(ranks_go(&job, &plain));
    job.config.correct = "outer,delayed";
    setenv("MSDU_OUTER_MOMENTUM", "0", 1);
    setenv("MSDU_OUTER_LR", "1", 1);
    setenv("MSDU_DELAYED_KEEP", "1", 1);
    ck_assert(ranks_go(&job, &outer));
    unsetenv("MSDU_OUTER_MOMENTUM");
    unsetenv("MSDU_OUTER_LR");
    unsetenv("MSDU_DELAYED_KEEP");
    kit_check_equal(&job, 0, &plain, &outer);
    ranks_free(&outer);
    ranks_free(&plain);
}
END_TEST

/* Squared distance of the end from the common optimum, by the toy model with constant slopes. */
static double error_at_end(int delay, const char *keep)
{
    ranks_run run;
    ranks_job job = local_job(4, 12, "delayed");
    ranks_job best = local_job(4, 1, "backward");
    job.steps = best.steps = 120;
    job.config.delay_steps = delay;
    best.config.domain = "gradient";
    double error = 0;
    ck_assert(ranks_go(&best, &run));
    double *wanted = malloc(run.selves[0].elements * sizeof(double));
    ck_assert_ptr_nonnull(wanted);
    memcpy(wanted, ranks_row(&run.selves[0], 120), run.selves[0].elements * sizeof(double));
    ranks_free(&run);
    setenv("MSDU_DELAYED_KEEP", keep, 1);
    ranks_run_well(&job, &run);
    unsetenv("MSDU_DELAYED_KEEP");
    for (uint64_t i = 0; i < run.selves[0].elements; i++) {
        double far = ranks_row(&run.selves[0], 120)[i] - wanted[i];
        error += far * far;
    }
    free(wanted);
    ranks_free(&run);
    return error;
}

/* With tau = h - 1 overwriting throws all but one step of a round away. */
START_TEST(keeping_overlapped_progress_beats_overwriting_when_late)
{
    double late = error_at_end(11, "0.8");
    double overwritten = error_at_end(11, "0");
    ck_assert_msg(late < 0.1 * overwritten, "kept %g, overwritten %g", late, overwritten);
    late = error_at_end(3, "0.8");
    overwritten = error_at_end(3, "0");
    ck_assert_msg(late < overwritten, "kept %g, overwritten %g", late, overwritten);
}
END_TEST

/* --- rollback --- */

static void roll_back(ranks_self *self)
{
    msdu_status status = msdu_rollback(self->ctx);
    if (status != MSDU_OK) {
        self->status = status;
    }
}

/* 22 steps at h = 5: meetings in steps 0, 1, 6, 11, 16, 21; then 3 steps apart. */
START_TEST(rollback_returns_to_the_last_meeting)
{
    ranks_run run;
    ranks_job job = local_job(3, 5, ranks_overlaps[_i]);
    job.ended = roll_back;
    job.is_unfinished = true;
    ranks_run_well(&job, &run);
    const double *back = ranks_row(&run.selves[0], 25);
    ranks_check_alike(&run, 25, 25);
    for (int rank = 0; rank < 3; rank++) {
        const ranks_self *self = &run.selves[rank];
        ck_assert_mem_eq(ranks_row(self, 22), back, self->elements * sizeof(double));
        ck_assert_mem_ne(ranks_row(self, 24), back, self->elements * sizeof(double));
    }
    ranks_free(&run);
}
END_TEST

/* qsr wants 8, 1, 8, 1: rounds that are late and rounds that are not follow each other. */
static double swinging_lr(const ranks_job *job, int step)
{
    return step / 100 % 2 == 0 ? job->config.lr : 4 * job->config.lr;
}

START_TEST(rounds_of_all_lengths_may_follow_each_other)
{
    ranks_run run;
    ranks_job job = local_job(3, 1, ranks_overlaps[_i]);
    job.steps = 400;
    job.lr_at = swinging_lr;
    job.needs_lr = true;
    job.config.lr = 0.01;
    job.config.momentum = 0.5;
    job.config.interval = "qsr";
    job.config.qsr_alpha = 0.029;
    job.config.delay_steps = 3;
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, job.steps, job.steps);
    for (int rank = 0; rank < 3; rank++) {
        const ranks_self *self = &run.selves[rank];
        ck_assert_uint_gt(self->summary.rounds, 60); /* 8 all the time would be 50 */
        ck_assert_uint_lt(self->summary.rounds, _i == 3 ? 3 * 250 : 250);
    }
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_local");
    TCase *tcase = suite_case(suite, "overlap", 60, NULL, NULL);
    tcase_add_loop_test(tcase, averages_whenever_the_ranks_meet, 0, 5);
    tcase_add_loop_test(tcase, warm_up_keeps_single_steps, 0, 5);
    tcase_add_loop_test(tcase, the_last_step_is_a_meeting_where_the_end_is_known, 0, 5);
    tcase_add_test(tcase, auto_is_late_only_where_the_round_has_room);
    tcase_add_loop_test(tcase, a_known_end_leaves_room_for_a_delay, 2, 5);
    tcase_add_test(tcase, results_are_applied_tau_steps_later);
    tcase_add_loop_test(tcase, an_interval_is_never_shorter_than_the_delay, 0, 3);
    tcase_add_test(tcase, fragments_are_spread_over_a_round);
    tcase_add_test(tcase, more_fragments_than_slices_are_fine);
    tcase_add_loop_test(tcase, types_may_be_mixed, 0, 5);
    tcase_add_loop_test(tcase, sixteen_bit_wires_round_twice, 0, 2);
    tcase_add_loop_test(tcase, every_style_of_calls_gives_the_same, 0, RANKS_THREADS + 1);
    tcase = suite_case(suite, "correction", 60, NULL, NULL);
    tcase_add_loop_test(tcase, every_correction_is_applied, 0, 5);
    tcase_add_loop_test(tcase, outer_momentum_of_both_kinds, 0, 10);
    tcase_add_loop_test(tcase, large_updates_are_clipped, 0, 5);
    tcase_add_loop_test(tcase, parts_of_other_settings_are_used, 0, 5);
    tcase_add_test(tcase, neutral_outer_step_is_parameter_averaging);
    tcase_add_test(tcase, keeping_overlapped_progress_beats_overwriting_when_late);
    tcase = suite_case(suite, "state", 60, NULL, NULL);
    tcase_add_loop_test(tcase, state_stays_local_or_is_averaged_or_reset, 0, 15);
    tcase_add_loop_test(tcase, rounds_of_all_lengths_may_follow_each_other, 0, 5);
    tcase_add_loop_test(tcase, rollback_returns_to_the_last_meeting, 0, 2);
    return suite_run(suite);
}
