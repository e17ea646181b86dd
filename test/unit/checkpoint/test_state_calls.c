/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of resuming: at any step, with any tensors, styles of calls, policies.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state_kit.h"
#include "suite.h"

#define AT 17

/* Before the first step, in warm-up, where the domain changes, where a mean waits. */
START_TEST(any_step_will_do)
{
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.config.wire = "int4";
    job.config.correct = "outer,delayed";
    job.steps = 24;
    int pending = kit_check_resume(&job, _i % 3, 21, 4);
    ck_assert_msg(_i < 2 ? pending == 0 : pending >= 1, "a mean waited %d times", pending);
}
END_TEST

START_TEST(several_means_may_wait)
{
    ranks_job job = kit_job("parameter", "streamed");
    job.config.fragments = 7;
    job.config.delay_steps = 5;
    job.config.interval_steps = 7;
    job.config.slice_bytes = 512;
    job.config.fuse_bytes = 64;
    ck_assert_int_eq(kit_check_resume(&job, AT, AT + 4, 2), 3);
}
END_TEST

/* --- tensors --- */

START_TEST(types_may_be_mixed)
{
    static const ranks_tensor mixed[] = {
        {.count = 300, .dtype = MSDU_FLOAT16}, {.count = 7, .dtype = MSDU_FLOAT64},
        {.count = 900, .dtype = MSDU_FLOAT64}, {.count = 700, .dtype = MSDU_BFLOAT16},
        {.count = 5, .dtype = MSDU_FLOAT16},   {.count = 33, .dtype = MSDU_FLOAT32},
    };
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.tensors = mixed;
    job.tensor_count = sizeof(mixed) / sizeof(mixed[0]);
    job.config.wire = "int8";
    job.config.correct = "outer";
    kit_check_resume(&job, AT, AT, 1);
}
END_TEST

START_TEST(optimizer_state_goes_on)
{
    static const ranks_tensor with_state[] = {
        {.count = 300},
        {.count = 300, .role = MSDU_ROLE_STATE},
        {.count = 700},
        {.count = 9, .role = MSDU_ROLE_STATE, .dtype = MSDU_FLOAT64},
        {.count = 40, .role = MSDU_ROLE_BUFFER},
    };
    static const char *const states[] = {"local", "average", "reset"};
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.tensors = with_state;
    job.tensor_count = sizeof(with_state) / sizeof(with_state[0]);
    job.config.state = states[(_i + 1) % 3];
    kit_check_resume(&job, AT, AT, 1);
}
END_TEST

START_TEST(every_style_of_calls_gives_the_same)
{
    for (int k = 0; k < 4; k++) {
        ranks_job job = kit_job("auto", ranks_overlaps[k]);
        job.style = (ranks_style)_i;
        kit_check_resume(&job, k == 1 ? 4 : AT, AT, AT);
    }
}
END_TEST

/* Told once: it is part of the state. */
static void weigh(ranks_self *self, int step)
{
    if (step == 2) {
        self->status = msdu_set_weight(self->ctx, 0.5 + self->rank);
    }
}

START_TEST(weights_go_on)
{
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.stepped = weigh;
    job.config.wire = "int4";
    kit_check_resume(&job, AT, AT, 1);
}
END_TEST

static double falling_lr(const ranks_job *job, int step)
{
    return job->config.lr / (1.0 + 0.1 * step);
}

START_TEST(a_schedule_goes_on)
{
    ranks_job job = kit_job("accumulated", "backward");
    job.lr_at = falling_lr;
    job.needs_lr = true;
    job.config.weight_decay = 1e-3;
    kit_check_resume(&job, AT, AT, 1);
}
END_TEST

/* Better until step 10, then stable: plateau remembers both. */
static void tell_loss(ranks_self *self, int step)
{
    self->status = msdu_set_loss(self->ctx, 1.0 + self->rank + (step < 10 ? 10 - step : 0));
}

START_TEST(policies_go_on)
{
    static const char *const policies[] = {"qsr", "plateau", "post_local"};
    for (int k = 0; k < 3; k++) {
        ranks_job job = kit_job("auto", ranks_overlaps[(_i + k) % 5]);
        job.config.interval = policies[k];
        job.config.interval_steps = 4;
        job.config.switch_step = 9;
        job.config.plateau_patience = 3;
        job.stepped = tell_loss;
        job.lr_at = falling_lr;
        job.needs_lr = true;
        kit_check_resume(&job, AT, AT, 1);
    }
}
END_TEST

START_TEST(one_rank_alone)
{
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.ranks = 1;
    job.config.correct = "outer";
    kit_check_resume(&job, AT, AT, 1);
}
END_TEST

/* The default policy measures time, so bits may differ; the state must be taken all the same. */
START_TEST(the_default_policy_resumes)
{
    ranks_run run;
    kit_save save;
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    job.config.interval = "divergence";
    job.config.wire = "auto";
    kit_interrupt(&job, AT, &save);
    ck_assert(kit_resume(&job, AT, &save, &run));
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_msg(run.selves[rank].status == MSDU_OK, "%s", run.selves[rank].text);
        ck_assert_uint_eq(run.selves[rank].summary.steps, KIT_STEPS);
        ck_assert_mem_eq(ranks_row(&run.selves[rank], KIT_STEPS),
                         ranks_row(&run.selves[0], KIT_STEPS),
                         run.selves[0].elements * sizeof(double));
    }
    ranks_free(&run);
    kit_free(&save);
}
END_TEST

/* Twice in a run: a state of a resumed run is a state. */
START_TEST(a_resumed_run_may_be_interrupted)
{
    ranks_run whole;
    ranks_run run;
    kit_save save;
    ranks_job job = kit_job("parameter", ranks_overlaps[_i]);
    job.config.wire = "int4";
    ck_assert(ranks_go(&job, &whole));
    kit_interrupt(&job, 11, &save);
    kit_interrupt_again(&job, 11, 23, &save);
    ck_assert(kit_resume(&job, 23, &save, &run));
    kit_check_equal(&job, 23, &whole, &run);
    kit_free(&save);
    ranks_free(&run);
    ranks_free(&whole);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_calls");
    TCase *tcase = suite_case(suite, "state_calls", 100, NULL, NULL);
    tcase_add_loop_test(tcase, any_step_will_do, 0, 5);
    tcase_add_test(tcase, several_means_may_wait);
    tcase_add_loop_test(tcase, a_resumed_run_may_be_interrupted, 0, 4);
    tcase_add_loop_test(tcase, types_may_be_mixed, 0, 4);
    tcase_add_loop_test(tcase, optimizer_state_goes_on, 0, 4);
    tcase_add_loop_test(tcase, one_rank_alone, 0, 4);
    tcase_add_loop_test(tcase, every_style_of_calls_gives_the_same, 0, RANKS_DEFERRED + 1);
    tcase_add_test(tcase, a_schedule_goes_on);
    tcase_add_loop_test(tcase, weights_go_on, 0, 5);
    tcase_add_loop_test(tcase, policies_go_on, 0, 2);
    tcase_add_loop_test(tcase, the_default_policy_resumes, 0, 5);
    return suite_run(suite);
}
