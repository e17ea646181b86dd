/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of msdu_state_get and msdu_state_set: a run that is interrupted and resumed has the same
 * bits at every step as one that is not, in every domain, overlap, wire and correction.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/state.h"
#include "state_kit.h"
#include "suite.h"

static const char *const wires[] = {"float32", "bfloat16", "int4", "int2", "sparse"};
#define WIRES 5
#define AT    18

/* --- every domain, overlap, wire, correction --- */

START_TEST(gradients_go_on)
{
    for (int k = 0; k < WIRES; k++) {
        ranks_job job = kit_job("gradient", ranks_overlaps[_i]);
        job.config.wire = wires[k];
        kit_check_resume(&job, AT, AT, 1);
        job.config.commit = "tensor";
        kit_check_resume(&job, AT, AT, 1);
    }
}
END_TEST

START_TEST(accumulated_gradients_go_on)
{
    for (int k = 0; k < WIRES; k++) {
        ranks_job job = kit_job("accumulated", ranks_overlaps[_i]);
        job.config.wire = wires[k];
        job.config.dampening = k == 1 ? 0.25 : 0;
        job.config.weight_decay = k == 2 ? 1e-3 : 0;
        kit_check_resume(&job, AT, AT + 1, 1);
    }
}
END_TEST

static void check_chain(const char *domain, int overlap, int wire, int chain)
{
    static const char *const chains[] = {"average", "outer", "outer,delayed", "clip,outer,blend"};
    ranks_job job = kit_job(domain, ranks_overlaps[overlap]);
    job.config.wire = wires[wire];
    job.config.correct = chains[chain];
    job.config.outer_lr = 0.5;
    job.config.clip_ratio = 1.0;
    int pending = kit_check_resume(&job, AT, AT, 1);
    ck_assert_msg(pending == (overlap < 2 ? 0 : 1), "no mean waited: choose another step");
}

START_TEST(parameters_go_on)
{
    check_chain("parameter", _i / WIRES, _i % WIRES, (_i + _i / WIRES) % 4);
    check_chain("parameter", _i / WIRES, _i % WIRES, (_i + _i / WIRES + 2) % 4);
}
END_TEST

START_TEST(both_domains_go_on)
{
    check_chain("auto", _i / WIRES, _i % WIRES, (_i + _i / WIRES + 1) % 4);
}
END_TEST

/* Under overlap auto a policy may take more steps of delay than the setting. */
START_TEST(a_mean_may_wait_as_long_as_the_policy_may_delay_it)
{
    static msdu__job its_job;
    static msdu__model its_model;
    static msdu__image image;
    const msdu__caller caller = {.job = &its_job, .model = &its_model};
    its_model.fragment_count = 1;
    its_job.settings.delay_steps = 1;
    its_job.interval_args.delay_max = 4;
    its_job.interval_args.can_go_local = true;
    image = (msdu__image){.step = 12, .is_local_entered = true, .pending_count = 1};
    image.decision.interval = 6;
    image.fragments[0] = (msdu__image_fragment){
        .schedule = {.is_pending = true, .armed = 3, .from_step = 11, .sync_step = 16},
        .round.step = 10};
    for (uint64_t delay = 2; delay <= 5; delay++) {
        image.fragments[0].round.delay_steps = (uint32_t)delay;
        image.fragments[0].schedule.apply_step = 10 + delay;
        ck_assert_msg((msdu__image_check(&caller, &image) == NULL) == (delay <= 4), "delay %llu",
                      (unsigned long long)delay);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state");
    TCase *tcase = suite_case(suite, "state", 100, NULL, NULL);
    tcase_add_test(tcase, a_mean_may_wait_as_long_as_the_policy_may_delay_it);
    tcase_add_loop_test(tcase, gradients_go_on, 0, 2);
    tcase_add_loop_test(tcase, accumulated_gradients_go_on, 0, 2);
    tcase_add_loop_test(tcase, parameters_go_on, 0, 4 * WIRES);
    tcase_add_loop_test(tcase, both_domains_go_on, 0, 4 * WIRES);
    return suite_run(suite);
}
