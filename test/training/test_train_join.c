/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of msdu_join(): ranks with different numbers of batches, over several epochs. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "expect.h"
#include "fake.h"
#include "pause.h"
#include "ranks.h"
#include "ranks_place.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor model[] = {
    {.count = 3000},
    {.count = 7},
    {.count = 300},
    {.count = 40, .dtype = MSDU_BFLOAT16},
    {.count = 90, .dtype = MSDU_FLOAT64},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
    {.count = 21, .role = MSDU_ROLE_STATE},
};
#define MODEL_COUNT  (sizeof(model) / sizeof(model[0]))
#define MODEL_FLOATS (3000 + 7 + 300 + 40 + 90)
#define FLOATS_EQUAL (MODEL_FLOATS * sizeof(double))
#define RANKS        3

/* --- who has how many batches --- */

static int one_short(int rank, int epoch)
{
    return rank == epoch % RANKS ? 8 : 9;
}

static int spread(int rank, int epoch)
{
    return 2 + (5 * rank + 7 * epoch) % 12;
}

/* One rank has none in the first epoch, another none in the second; then all have as many. */
static int none_at_all(int rank, int epoch)
{
    return epoch == 2 ? 6 : rank == epoch ? 0 : 7;
}

static int (*const patterns[])(int rank, int epoch) = {one_short, spread, none_at_all};
#define PATTERNS 3

static ranks_job uneven_job(const char *domain, const char *overlap, int pattern)
{
    ranks_job job = {
        .ranks = RANKS,
        .steps = 70,
        .epochs = 3,
        .batches = patterns[pattern],
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = ranks_config(domain, overlap),
    };
    job.config.warmup_steps = 3;
    return job;
}

START_TEST(gradients_of_those_with_input_count)
{
    static const ranks_style styles[] = {RANKS_IN_ORDER, RANKS_SILENT, RANKS_THREADS};
    for (int k = 0; k < 3; k++) {
        ranks_job job = uneven_job("gradient", ranks_overlaps[k % 2], _i);
        job.style = styles[k];
        reference_check(&job, 0);
        job.config.wire = "bfloat16";
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(local_rounds_follow_those_with_input)
{
    for (int k = 0; k < 5; k++) {
        ranks_job job = uneven_job("parameter", ranks_overlaps[k], _i);
        reference_check(&job, 0);
        job.config.correct = "outer";
        reference_check(&job, 0);
    }
}
END_TEST

/* The change of domain waits until no rank stands still: anchors are equal on all. */
START_TEST(the_change_to_local_rounds_waits)
{
    static const int warmups[] = {3, 7, 8, 9, 10};
    for (int k = 0; k < 5; k++) {
        ranks_job job = uneven_job("auto", ranks_overlaps[k], _i);
        job.config.warmup_steps = warmups[k];
        job.config.momentum = 0;
        reference_check(&job, 0);
    }
}
END_TEST

static float anchors[RANKS][1000];

static void note_anchor(ranks_self *self)
{
    self->status = msdu__caller_drain(&self->ctx->caller); /* what is late is applied */
    memcpy(anchors[self->rank], self->ctx->engine.runs[0].anchor, sizeof(anchors[0]));
}

/* Momentum that stood still leads parameters apart; anchors must be equal all the same. */
START_TEST(anchors_are_equal_after_uneven_epochs)
{
    static const int warmups[] = {9, 12, 14, 16, 18};
    for (int k = 0; k < 5; k++) {
        ranks_job job = uneven_job("auto", ranks_overlaps[k], _i);
        job.config.warmup_steps = warmups[k];
        job.config.momentum = 0.9;
        job.ended = note_anchor;
        reference_check(&job, 0);
        for (int rank = 1; rank < RANKS; rank++) {
            ck_assert_mem_eq(anchors[rank], anchors[0], sizeof(anchors[0]));
        }
    }
}
END_TEST

static double weight_at(const ranks_job *job, int rank, int step)
{
    (void)job;
    return 1 + (rank + step) % 3;
}

static void dawdle(ranks_self *self, int step)
{
    pause_us(50L * ((step * 7 + self->rank * 5) % 9));
}

START_TEST(weights_and_delays_do_not_disturb)
{
    for (int k = 0; k < 5; k++) {
        ranks_job job = uneven_job(k == 1 ? "gradient" : "parameter", ranks_overlaps[k], _i);
        job.weight_at = weight_at;
        job.stepped = dawdle;
        job.created = fake_delay;
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(shadowed_optimizers_catch_up)
{
    static const ranks_tensor doubles[] = {{.count = 3000, .dtype = MSDU_FLOAT64},
                                           {.count = 7, .dtype = MSDU_FLOAT64}};
    for (int k = 0; k < 4; k++) {
        ranks_job job = uneven_job("accumulated", ranks_overlaps[k % 2], _i);
        job.tensors = doubles;
        job.tensor_count = 2;
        job.config.optimizer = "sgd";
        job.config.momentum = 0.9;
        job.config.dampening = k >= 2 ? 0.3 : 0;
        job.weight_at = k == 3 ? weight_at : NULL;
        reference_check(&job, 1e-10);
    }
}
END_TEST

/* --- what stays as it is --- */

/* Gradients as they are at the end. */
static float left[RANKS][3000];

static void note_gradient(ranks_self *self)
{
    memcpy(left[self->rank], self->gradient[0], sizeof(left[0]));
}

static int short_ranks(int rank, int epoch)
{
    (void)epoch;
    return rank == 2 ? 7 : 0;
}

/* Of ranks that never had a batch. */
START_TEST(gradients_without_input_are_not_touched)
{
    static const char *const wires[] = {"float32", "int4"};
    ranks_run run;
    ranks_job job = uneven_job("gradient", "backward", 0);
    job.epochs = 1;
    job.batches = short_ranks;
    job.config.wire = wires[_i];
    job.ended = note_gradient;
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < 2; rank++) {
        for (uint64_t i = 0; i < 3000; i++) {
            ck_assert(left[rank][i] == 0);
        }
    }
    ck_assert(left[2][5] != 0);
    for (int rank = 1; rank < RANKS; rank++) { /* not of the state, which is each rank's own */
        ck_assert_mem_eq(ranks_row(&run.selves[rank], job.steps),
                         ranks_row(&run.selves[0], job.steps), FLOATS_EQUAL);
    }
    ck_assert_uint_eq(run.selves[0].summary.steps, 8);
    ck_assert_uint_eq(run.selves[2].summary.steps, 8);
    ranks_free(&run);
}
END_TEST

START_TEST(narrow_formats_keep_ranks_equal)
{
    static const char *const wires[] = {"int8", "int4", "int2", "sparse"};
    static const double bounds[] = {0.01, 0.05, 0.2, 0.3};
    for (int k = 0; k < 4; k++) {
        ranks_job job = uneven_job(k % 2 == 0 ? "gradient" : "parameter", "backward", 1 + k / 2);
        job.tensor_count = 3;
        job.config.momentum = 0;
        job.config.lr *= _i == 3 ? 0.1 : 1.0; /* sparse comes late */
        job.config.wire = wires[_i];
        double far = ranks_far_from_float32(&job, job.steps);
        ck_assert_msg(far < bounds[_i], "%d: %g", k, far);
    }
}
END_TEST

/* With as many batches on all ranks an epoch's end is only an empty round. */
static int even(int rank, int epoch)
{
    (void)rank;
    (void)epoch;
    return 6;
}

START_TEST(even_batches_cost_one_round_an_epoch)
{
    ranks_run run;
    ranks_job job = uneven_job("gradient", "backward", 0);
    job.batches = even;
    reference_check(&job, 0);
    ranks_run_well(&job, &run);
    ck_assert_uint_eq(run.selves[1].summary.steps, 21);
    ck_assert_uint_eq(run.selves[1].summary.rounds, 19); /* buffers at the end are the last */
    ranks_free(&run);
}
END_TEST

/* --- calls --- */

START_TEST(calls_out_of_order_are_refused)
{
    expect_status(msdu_join(NULL), MSDU_ERR_INVALID, "NULL");
    msdu_config config = {.domain = "gradient", .commit = "round"};
    msdu_ctx *ctx = expect_context(&config, true);
    expect_status(msdu_join(ctx), MSDU_ERR_STATE, "start");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_join(ctx), MSDU_OK); /* alone: at once */
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    expect_status(msdu_join(ctx), MSDU_ERR_STATE, "announced");
    msdu_destroy(ctx);
    config.commit = "tensor";
    ctx = expect_context(&config, true);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect_status(msdu_join(ctx), MSDU_ERR_UNSUPPORTED, "commit");
    msdu_destroy(ctx);
    config.commit = "round";
    ctx = expect_context(&config, false);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect_status(msdu_join(ctx), MSDU_ERR_UNSUPPORTED, "parameter");
    msdu_destroy(ctx);
}
END_TEST

/* Without msdu_join() different numbers of steps are named, not averaged over. */
static void meet_too_early(ranks_self *self, int step)
{
    if (step == (self->rank == 1 ? 5 : 6)) {
        self->status = msdu_synchronize(self->ctx);
        snprintf(self->text, sizeof(self->text), "%s", msdu_last_error());
    }
}

START_TEST(different_steps_are_named)
{
    ranks_job job = uneven_job("parameter", "backward", 0);
    job.epochs = 0;
    job.steps = 9;
    job.config.interval_steps = 50;
    job.stepped = meet_too_early;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "ranks 0 and 1|6 and 5");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_join");
    TCase *tcase = suite_case(suite, "ranks", 100, NULL, NULL);
    tcase_add_loop_test(tcase, gradients_of_those_with_input_count, 0, PATTERNS);
    tcase_add_loop_test(tcase, local_rounds_follow_those_with_input, 0, PATTERNS);
    tcase_add_loop_test(tcase, the_change_to_local_rounds_waits, 0, PATTERNS);
    tcase_add_loop_test(tcase, anchors_are_equal_after_uneven_epochs, 0, PATTERNS);
    tcase_add_loop_test(tcase, weights_and_delays_do_not_disturb, 0, PATTERNS);
    tcase_add_loop_test(tcase, shadowed_optimizers_catch_up, 0, PATTERNS);
    tcase_add_loop_test(tcase, gradients_without_input_are_not_touched, 0, 2);
    tcase_add_loop_test(tcase, narrow_formats_keep_ranks_equal, 0, 4);
    tcase_add_test(tcase, even_batches_cost_one_round_an_epoch);
    tcase_add_test(tcase, calls_out_of_order_are_refused);
    tcase_add_test(tcase, different_steps_are_named);
    return suite_run(suite);
}
