/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of weights of ranks: weighted means in every domain, overlap and format. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "api/context.h"
#include "expect.h"
#include "fake.h"
#include "pause.h"
#include "ranks.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor model[] = {
    {.count = 5000},
    {.count = 7},
    {.count = 300},
    {.count = 40, .dtype = MSDU_FLOAT16},
    {.count = 90, .dtype = MSDU_FLOAT64},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))

/* --- who weighs what --- */

static double even(const ranks_job *job, int rank, int step)
{
    (void)job;
    (void)rank;
    (void)step;
    return 1;
}

static double constant(const ranks_job *job, int rank, int step)
{
    static const double weights[] = {3, 0.5, 1.25};
    (void)job;
    (void)step;
    return weights[rank];
}

static double changing(const ranks_job *job, int rank, int step)
{
    (void)job;
    return 1 + (rank + step) % 3;
}

/* One rank has none in every step, and now and then no rank has any. */
static double sparse(const ranks_job *job, int rank, int step)
{
    (void)job;
    return step % 5 == 3 || (rank + step) % 3 == 0 ? 0 : 1 + rank;
}

static double (*const patterns[])(const ranks_job *job, int rank, int step) = {even, constant,
                                                                               changing, sparse};
#define PATTERNS 4

static ranks_job weighted_job(const char *domain, const char *overlap)
{
    ranks_job job = {
        .ranks = 3,
        .steps = 18,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = ranks_config(domain, overlap),
    };
    job.config.interval_steps = 3;
    job.config.delay_steps = 1;
    return job;
}

/* The library and the reference do the same operations, so even the bits are the same. */
START_TEST(gradients_are_weighted)
{
    static const char *const wires[] = {"float32", "bfloat16"};
    for (int k = 0; k < 4; k++) {
        ranks_job job = weighted_job("gradient", ranks_overlaps[k / 2]);
        job.config.wire = wires[k % 2];
        job.weight_at = patterns[_i];
        job.style = (ranks_style)k;
        reference_check(&job, 0);
        job.config.reduce = "sum";
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(pseudo_gradients_are_weighted)
{
    for (int k = 0; k < 5; k++) {
        ranks_job job = weighted_job(k % 2 == 0 ? "parameter" : "auto", ranks_overlaps[k]);
        job.weight_at = patterns[_i];
        reference_check(&job, 0);
        job.config.correct = "outer";
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(drift_is_weighted)
{
    static const ranks_tensor doubles[] = {{.count = 1500, .dtype = MSDU_FLOAT64},
                                           {.count = 20, .dtype = MSDU_FLOAT64}};
    ranks_job job = weighted_job("accumulated", "backward");
    job.tensors = doubles;
    job.tensor_count = 2;
    job.config.optimizer = "sgd";
    job.config.total_steps = job.steps;
    job.weight_at = patterns[_i];
    reference_check(&job, 1e-11);
}
END_TEST

/* --- random delays --- */

START_TEST(delays_change_nothing)
{
    for (int k = 0; k < 4; k++) {
        ranks_job job = weighted_job(k == 0 ? "gradient" : "parameter", ranks_overlaps[k]);
        job.weight_at = patterns[_i];
        job.created = fake_delay;
        reference_check(&job, 0);
    }
}
END_TEST

/* --- formats with error feedback --- */

static const char *const wires[] = {"int8", "int4", "int2", "sparse"};

START_TEST(narrow_means_are_weighted)
{
    static const double bounds[] = {0.003, 0.03, 0.15, 0.3};
    for (int k = 0; k < 6; k++) {
        ranks_job job = weighted_job(k % 2 == 0 ? "gradient" : "parameter", "backward");
        job.steps = 40;
        job.tensor_count = 3;
        job.weight_at = patterns[1 + k / 2];
        job.config.lr *= strcmp(wires[_i], "sparse") == 0 ? 0.1 : 1.0; /* what comes late */
        job.config.wire = wires[_i];
        double far = ranks_far_from_float32(&job, job.steps);
        ck_assert_msg(far < bounds[_i], "%d: %g", k, far);
    }
}
END_TEST

/* With constant weights what was held back is sent in the end, weighted as its rounds were. */
START_TEST(finish_sends_what_was_held_back)
{
    ranks_job job = weighted_job("parameter", "backward");
    job.tensor_count = 3;
    job.has_constant_gradient = true;
    job.config.momentum = 0;
    job.config.lr = 0.01;
    job.config.wire = wires[_i];
    job.weight_at = constant;
    job.steps = 40;
    double lost = ranks_lost_at_end(&job);
    ck_assert_msg(lost < 1e-5, "%g", lost);
}
END_TEST

/* --- rounds in which no rank has weight --- */

static void note_residuals(ranks_self *self, int step)
{
    static float held[RANKS_MOST][5000];
    const msdu_ctx *p = self->ctx;
    if (step == 5 && p->engine.runs[0].has_residual) {
        memcpy(held[self->rank], p->engine.runs[0].residual, 1000 * sizeof(float));
    }
    if (step == 8 &&
        (!p->engine.runs[0].has_residual ||
         memcmp(held[self->rank], p->engine.runs[0].residual, 1000 * sizeof(float)) != 0)) {
        self->status = MSDU_ERR_STATE;
    }
}

static double middle_without(const ranks_job *job, int rank, int step)
{
    (void)job;
    (void)rank;
    return step >= 5 && step <= 7 ? 0 : 1;
}

/* Gradients of these steps are 0; error feedback, the round's only memory, is untouched. */
START_TEST(a_round_without_weight_changes_nothing)
{
    for (int k = 0; k < 3; k++) {
        ranks_run run;
        ranks_job job = weighted_job("gradient", "backward");
        job.tensor_count = 3;
        job.config.momentum = 0;
        job.config.wire = wires[k];
        job.weight_at = middle_without;
        job.stepped = note_residuals;
        ranks_run_well(&job, &run);
        ck_assert_mem_eq(ranks_row(&run.selves[0], 5), ranks_row(&run.selves[0], 8),
                         run.selves[0].elements * sizeof(double));
        ck_assert_mem_ne(ranks_row(&run.selves[0], 8), ranks_row(&run.selves[0], 9),
                         run.selves[0].elements * sizeof(double));
        ranks_check_alike(&run, job.steps, job.steps);
        ck_assert_uint_eq(run.selves[1].summary.rounds, (uint64_t)job.steps - 3);
        ranks_free(&run);
    }
}
END_TEST

/* --- statistics --- */

static double doubled(const ranks_job *job, int rank, int step)
{
    (void)job;
    (void)step;
    return rank == 0 ? 2 : 1;
}

/* A round's statistics come a moment after its tensors are free. */
static void until_counted(ranks_self *self)
{
    msdu_summary now = MSDU_SUMMARY_INIT;
    for (int ms = 0; ms < 20000 && self->status == MSDU_OK && now.rounds < 3; ms++) {
        self->status = msdu_summary_get(self->ctx, &now);
        pause_us(1000);
    }
}

/* Drift of ranks 0, 0 and 1 is that of ranks 0 and 1 with weights 2 and 1. */
START_TEST(drift_statistics_are_weighted)
{
    double a[2];
    ranks_job job = weighted_job("parameter", "backward");
    job.tensor_count = 3;
    job.steps = 5; /* the rounds end with steps 0, 1, 4 */
    job.ranks = 2;
    job.has_constant_gradient = true;
    job.config.momentum = 0;
    job.config.wire = _i == 0 ? "float32" : "int8";
    job.is_unfinished = true;
    job.ended = until_counted;
    for (int k = 0; k < 2; k++) {
        ranks_run run;
        job.weight_at = k == 0 ? even : doubled;
        ranks_run_well(&job, &run);
        a[k] = run.selves[1].summary.drift;
        ranks_free(&run);
    }
    /* variance p (1 - p) d^2 with p = 1/2 and 2/3; |w|^2 differs a little */
    ck_assert_double_le(fabs(a[1] / a[0] / (8.0 / 9.0) - 1), _i == 0 ? 0.02 : 0.1);
}
END_TEST

/* --- calls --- */

START_TEST(bad_weights_are_refused)
{
    msdu_config config = {.domain = "gradient", .commit = "tensor"};
    msdu_ctx *ctx = expect_context(&config, true);
    static const double bad[] = {-1, (double)NAN, (double)INFINITY, 1e-10, 1e10};
    for (int i = 0; i < 5; i++) {
        expect_status(msdu_set_weight(ctx, bad[i]), MSDU_ERR_INVALID, "weight");
    }
    ck_assert_int_eq(msdu_set_weight(NULL, 1), MSDU_ERR_INVALID);
    ck_assert_int_eq(msdu_set_weight(ctx, 1), MSDU_OK);
    expect_status(msdu_set_weight(ctx, 0.5), MSDU_ERR_UNSUPPORTED, "commit");
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_weight");
    TCase *tcase = suite_case(suite, "ranks", 100, NULL, NULL);
    tcase_add_loop_test(tcase, gradients_are_weighted, 0, PATTERNS);
    tcase_add_loop_test(tcase, pseudo_gradients_are_weighted, 0, PATTERNS);
    tcase_add_loop_test(tcase, drift_is_weighted, 0, PATTERNS);
    tcase_add_loop_test(tcase, delays_change_nothing, 1, PATTERNS);
    tcase_add_loop_test(tcase, narrow_means_are_weighted, 0, 4);
    tcase_add_loop_test(tcase, finish_sends_what_was_held_back, 0, 4);
    tcase_add_test(tcase, a_round_without_weight_changes_nothing);
    tcase_add_loop_test(tcase, drift_statistics_are_weighted, 0, 2);
    tcase_add_test(tcase, bad_weights_are_refused);
    return suite_run(suite);
}
