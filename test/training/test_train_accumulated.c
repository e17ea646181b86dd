/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the accumulated-gradient domain: parameter averaging with local momentum, exactly. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "ranks.h"
#include "ranks_place.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor doubles[] = {
    {.count = 1, .dtype = MSDU_FLOAT64},   {.count = 7, .dtype = MSDU_FLOAT64},
    {.count = 256, .dtype = MSDU_FLOAT64}, {.count = 1000, .dtype = MSDU_FLOAT64},
    {.count = 900, .dtype = MSDU_FLOAT64},
};
static const ranks_tensor floats[] = {
    {.count = 1}, {.count = 7}, {.count = 256}, {.count = 1000}, {.count = 900},
};

static ranks_job accumulated_job(int ranks, int interval)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = 22,
        .tensors = doubles,
        .tensor_count = 5,
        .config = {.domain = "accumulated",
                   .overlap = "backward",
                   .interval = "fixed",
                   .interval_steps = interval,
                   .optimizer = "sgd",
                   .wire = "float32",
                   .slice_bytes = 4096,
                   .fuse_bytes = 1200,
                   .warmup_steps = 1,
                   .lr = 0.05},
    };
}

static void set_optimizer(ranks_job *job, int index)
{
    static const struct {
        double momentum;
        double dampening;
        double weight_decay;
        const char *nesterov;
    } optimizers[] = {
        {0, 0, 0, "no"},    {0.9, 0, 0, "no"},     {0.9, 0, 0, "yes"},     {0.9, 0.3, 0, "no"},
        {0, 0, 0.05, "no"}, {0.8, 0, 0.05, "yes"}, {0.95, 0.5, 0.1, "no"},
    };
    job->config.momentum = optimizers[index].momentum;
    job->config.dampening = optimizers[index].dampening;
    job->config.weight_decay = optimizers[index].weight_decay;
    job->config.nesterov = optimizers[index].nesterov;
}

START_TEST(equals_averaging_with_local_momentum)
{
    static const int intervals[] = {4, 3, 1, 5};
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_job job = accumulated_job(ranks, intervals[ranks - 1]);
        set_optimizer(&job, _i);
        reference_check(&job, 1e-11);
    }
}
END_TEST

START_TEST(equals_it_in_float32_to_rounding)
{
    ranks_job job = accumulated_job(3, 4);
    job.tensors = floats;
    set_optimizer(&job, _i);
    reference_check(&job, 2e-5);
}
END_TEST

START_TEST(equals_it_when_the_step_blocks)
{
    ranks_job job = accumulated_job(3, 4);
    job.config.overlap = "blocking";
    set_optimizer(&job, 5);
    reference_check(&job, 1e-11);
}
END_TEST

START_TEST(equals_it_in_every_style_of_calls)
{
    ranks_job job = accumulated_job(3, 4);
    job.style = (ranks_style)_i;
    set_optimizer(&job, 2);
    reference_check(&job, 1e-11);
}
END_TEST

/* Meetings at the last step: the ranks end equal without a pointer to the parameters. */
START_TEST(needs_no_pointer_to_the_parameters)
{
    ranks_job job = accumulated_job(3, 4);
    job.hides_parameters = true;
    job.config.total_steps = job.steps;
    set_optimizer(&job, 1);
    reference_check(&job, 1e-11);
}
END_TEST

START_TEST(warm_up_keeps_single_steps)
{
    ranks_job job = accumulated_job(3, 4);
    job.config.warmup_steps = 9;
    set_optimizer(&job, 3);
    reference_check(&job, 1e-11);
}
END_TEST

/* As a trainer does that reduces one gradient after another. */
START_TEST(equals_it_when_gradients_are_waited_for_one_by_one)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        ranks_job job = accumulated_job(ranks, 4);
        job.style = RANKS_ALONE;
        job.config.commit = "tensor";
        job.config.settings = "fuse_bytes = 0\n";
        job.config.domain = _i < 7 ? "accumulated" : "gradient";
        set_optimizer(&job, _i % 7);
        reference_check(&job, 1e-11);
    }
}
END_TEST

static void meet_in_step_10(ranks_self *self, int step)
{
    if (step == 10 && self->status == MSDU_OK) {
        self->status = msdu_sync_after_step(self->ctx);
    }
}

static double difference(const ranks_run *run, const ranks_job *job, int step)
{
    double worst = 0;
    for (uint64_t i = 0; i < ranks_elements(job); i++) {
        worst = fmax(
            worst, fabs(ranks_row(&run->selves[0], step)[i] - ranks_row(&run->selves[1], step)[i]));
    }
    return worst;
}

START_TEST(ranks_meet_when_it_is_asked_for)
{
    ranks_job job = accumulated_job(2, 60);
    ranks_run run;
    job.stepped = meet_in_step_10;
    set_optimizer(&job, 1);
    ranks_run_well(&job, &run);
    ck_assert_double_gt(difference(&run, &job, 10), 1e-6);
    ck_assert_double_lt(difference(&run, &job, 11), 1e-12);
    ck_assert_double_gt(difference(&run, &job, 12), 1e-6);
    ranks_free(&run);
}
END_TEST

static msdu_status read_apart(ranks_self *self, uint32_t id, double *parameter, double *momentum)
{
    msdu_local_drift apart = MSDU_LOCAL_DRIFT_INIT;
    apart.parameter = parameter;
    apart.momentum = momentum;
    return msdu_local_drift_get(self->ctx, id, &apart);
}

/* What was read in step 10 by each rank, and its momentum then. */
static double distances[3][2][4096];
static double velocities[3][4096];

static void read_apart_in_step_10(ranks_self *self, int step)
{
    uint64_t at = 0;
    if (step != 10) {
        return;
    }
    for (uint32_t id = 0; id < self->job->tensor_count && self->status == MSDU_OK; id++) {
        self->status =
            read_apart(self, id, &distances[self->rank][0][at], &distances[self->rank][1][at]);
        at += self->job->tensors[id].count;
    }
    memcpy(velocities[self->rank], self->velocity, at * sizeof(double));
}

/* Less what is apart, parameters and momentum are the same on all ranks. */
START_TEST(distances_are_those_of_the_trainer)
{
    ranks_job job = accumulated_job(3, 60);
    ranks_run run;
    double worst = 0;
    double furthest = 0;
    job.stepped = read_apart_in_step_10;
    set_optimizer(&job, _i);
    ranks_run_well(&job, &run);
    for (uint64_t i = 0; i < ranks_elements(&job); i++) {
        for (int r = 1; r < 3; r++) {
            double x = ranks_row(&run.selves[r], 10)[i] - ranks_row(&run.selves[0], 10)[i];
            double v = velocities[r][i] - velocities[0][i];
            furthest = fmax(furthest, fabs(x));
            worst = fmax(worst, fabs(x - distances[r][0][i] + distances[0][0][i]));
            if (job.config.momentum > 0) {
                worst = fmax(worst, fabs(v - distances[r][1][i] + distances[0][1][i]));
            }
        }
    }
    ck_assert_double_gt(furthest, 1e-3);
    ck_assert_double_lt(worst, 1e-12);
    ranks_free(&run);
}
END_TEST

static void ask_wrongly(ranks_self *self, int step)
{
    static double room[2][1000];
    msdu_local_drift apart = MSDU_LOCAL_DRIFT_INIT;
    if (step == 3 && self->rank == 0) {
        apart.parameter = room[0];
        ck_assert_int_eq(msdu_local_drift_get(self->ctx, 0, &apart), MSDU_ERR_INVALID);
        ck_assert_int_eq(read_apart(self, 5, room[0], room[1]), MSDU_ERR_INVALID);
        msdu_status status = read_apart(self, 0, room[0], room[1]);
        bool has_one = strcmp(self->job->config.domain, "accumulated") == 0;
        ck_assert_int_eq(status, has_one ? MSDU_OK : MSDU_ERR_UNSUPPORTED);
    }
}

START_TEST(only_local_steps_have_distances)
{
    for (int i = 0; i < 2; i++) {
        ranks_job job = accumulated_job(2, 4);
        ranks_run run;
        job.config.domain = i == 0 ? "accumulated" : "gradient";
        job.stepped = ask_wrongly;
        ranks_run_well(&job, &run);
        ranks_free(&run);
    }
}
END_TEST

static double falling_lr(const ranks_job *job, int step)
{
    return job->config.lr / (1.0 + 0.1 * step);
}

/* Without momentum a change of the rate is exact; a momentum buffer mixes rates of several steps.
 */
START_TEST(follows_the_learning_rate)
{
    ranks_job job = accumulated_job(3, 4);
    job.lr_at = falling_lr;
    job.needs_lr = true;
    set_optimizer(&job, _i);
    reference_check(&job, 1e-11);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_accumulated");
    TCase *tcase = suite_case(suite, "accumulated", 60, NULL, NULL);
    tcase_add_loop_test(tcase, equals_averaging_with_local_momentum, 0, 7);
    tcase_add_loop_test(tcase, equals_it_in_float32_to_rounding, 0, 7);
    tcase_add_test(tcase, equals_it_when_the_step_blocks);
    tcase_add_loop_test(tcase, equals_it_in_every_style_of_calls, 0, RANKS_THREADS + 1);
    tcase_add_test(tcase, needs_no_pointer_to_the_parameters);
    tcase_add_test(tcase, warm_up_keeps_single_steps);
    tcase_add_loop_test(tcase, equals_it_when_gradients_are_waited_for_one_by_one, 0, 8);
    tcase_add_test(tcase, ranks_meet_when_it_is_asked_for);
    tcase_add_loop_test(tcase, distances_are_those_of_the_trainer, 0, 7);
    tcase_add_test(tcase, only_local_steps_have_distances);
    tcase_add_loop_test(tcase, follows_the_learning_rate, 0, 7);
    return suite_run(suite);
}
