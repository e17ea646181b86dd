/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of msdu_synchronize(): equal bits between steps, and training that goes on as it would. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"
#include "fake.h"
#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
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
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))
#define FLOAT_COUNT 3 /* the first ones, of the same type */
#define EQUAL_BYTES ((3000 + 7 + 300) * sizeof(float))

/* Rows of what every rank holds right after it synchronized. */
typedef struct notes {
    unsigned char held[RANKS_MOST][EQUAL_BYTES];
    int taken;
} notes;

/* Before the first step, in a round, right before and right after the ranks meet, twice in a row.
 */
static bool often(int step)
{
    return step == 0 || step == 3 || (step >= 7 && step <= 9) || step == 14;
}

static bool once(int step)
{
    return step == 9;
}

static void note(ranks_self *self, int step)
{
    notes *n = self->job->user;
    unsigned char *at = n->held[self->rank];
    if (step == 9) {
        memcpy(at, self->parameter[0], 3000 * sizeof(float));
        memcpy(at + 3000 * sizeof(float), self->parameter[1], 7 * sizeof(float));
        memcpy(at + 3007 * sizeof(float), self->parameter[2], 300 * sizeof(float));
    }
}

static ranks_job sync_job(const char *domain, const char *overlap, notes *n)
{
    return (ranks_job){
        .ranks = 3,
        .steps = 18,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = ranks_config(domain, overlap),
        .syncs_at = often,
        .stepped = note,
        .user = n,
    };
}

static void check_notes(const notes *n, int ranks)
{
    for (int rank = 1; rank < ranks; rank++) {
        ck_assert_mem_eq(n->held[rank], n->held[0], EQUAL_BYTES);
    }
}

static double uneven(const ranks_job *job, int rank, int step)
{
    (void)job;
    return step == 7 ? 0 : 1 + (rank + step) % 3;
}

/* To the bit: what is applied, what is averaged, and when the ranks meet afterwards. */
START_TEST(training_goes_on_from_the_mean)
{
    static const char *const domains[] = {"parameter", "auto", "gradient"};
    notes *n = calloc(1, sizeof(*n));
    for (int k = 0; k < (_i < 2 ? 3 : 2); k++) {
        ranks_job job = sync_job(domains[k], ranks_overlaps[_i], n);
        reference_check(&job, 0);
        check_notes(n, job.ranks);
        job.weight_at = uneven;
        reference_check(&job, 0);
        check_notes(n, job.ranks);
    }
    free(n);
}
END_TEST

START_TEST(delays_and_styles_change_nothing)
{
    static const ranks_style styles[] = {RANKS_SILENT, RANKS_THREADS};
    notes *n = calloc(1, sizeof(*n));
    for (int k = 0; k < 2; k++) {
        ranks_job job = sync_job("parameter", ranks_overlaps[_i], n);
        job.created = fake_delay;
        job.style = styles[k];
        job.config.correct = k == 0 ? "clip,outer" : NULL;
        reference_check(&job, k == 0 ? 1e-6 : 0);
        check_notes(n, job.ranks);
        job.config.domain = "auto";
        reference_check(&job, k == 0 ? 1e-6 : 0);
    }
    free(n);
}
END_TEST

/* Parameters are averaged under the trainer's hands; its own momentum stays. */
START_TEST(shadowed_optimizers_start_from_the_mean)
{
    static const ranks_tensor doubles[] = {{.count = 3000, .dtype = MSDU_FLOAT64},
                                           {.count = 7, .dtype = MSDU_FLOAT64},
                                           {.count = 300, .dtype = MSDU_FLOAT64}};
    notes *n = calloc(1, sizeof(*n));
    for (int k = 0; k < 4; k++) {
        ranks_job job = sync_job("accumulated", k % 2 == 0 ? "backward" : "blocking", n);
        job.tensors = doubles;
        job.tensor_count = 3;
        job.config.optimizer = "sgd";
        job.config.momentum = 0.9;
        job.config.weight_decay = k >= 2 ? 0.05 : 0;
        reference_check(&job, 1e-11);
        check_notes(n, job.ranks);
        job.weight_at = uneven;
        reference_check(&job, 1e-11);
    }
    free(n);
}
END_TEST

/* --- what error feedback holds back is sent along --- */

static const char *const wires[] = {"int8", "int4", "int2", "sparse"};

static double heavier(const ranks_job *job, int rank, int step)
{
    (void)job;
    (void)step;
    return 1 + rank;
}

static void check_nothing_is_lost(const ranks_job *job, const notes *n)
{
    for (uint64_t i = 0; i < 3307; i++) {
        float got = 0;
        memcpy(&got, n->held[1] + i * sizeof(float), sizeof(got));
        double lost = (double)got - ranks_led_to(job, 9, i);
        ck_assert_msg(fabs(lost) < 3e-6, "%s, weights %d, element %d: %g", job->config.domain,
                      job->weight_at != NULL, (int)i, lost);
    }
}

START_TEST(what_was_held_back_is_sent_along)
{
    notes *n = calloc(1, sizeof(*n));
    for (int k = 0; k < 4; k++) {
        ranks_run run;
        ranks_job job = sync_job(k < 2 ? "parameter" : "accumulated", "backward", n);
        job.tensor_count = FLOAT_COUNT;
        job.has_constant_gradient = true;
        job.config.optimizer = "sgd";
        job.config.momentum = 0;
        job.config.lr = 0.01;
        job.config.wire = wires[_i];
        job.config.interval_steps = 2;
        job.syncs_at = once;
        job.weight_at = k % 2 == 0 ? NULL : heavier;
        ranks_run_well(&job, &run);
        check_notes(n, job.ranks);
        check_nothing_is_lost(&job, n);
        ranks_free(&run);
    }
    free(n);
}
END_TEST

/* In the gradient domain error feedback is in other units, and stays where it is. */
START_TEST(gradients_keep_what_they_held_back)
{
    ranks_run with;
    ranks_run without;
    notes *n = calloc(1, sizeof(*n));
    ranks_job job = sync_job("gradient", "backward", n);
    job.tensor_count = FLOAT_COUNT;
    job.config.wire = wires[_i];
    ck_assert(ranks_go(&job, &with));
    job.syncs_at = NULL;
    ck_assert(ranks_go(&job, &without));
    kit_check_equal(&job, 0, &without, &with);
    ranks_free(&with);
    ranks_free(&without);
    free(n);
}
END_TEST

/* --- calls out of order --- */

START_TEST(calls_out_of_order_are_refused)
{
    ck_assert_int_eq(msdu_synchronize(NULL), MSDU_ERR_INVALID);
    msdu_config config = {.domain = "gradient", .optimizer = "sgd"};
    msdu_ctx *ctx = expect_context(&config, true);
    ck_assert_int_eq(msdu_synchronize(ctx), MSDU_ERR_STATE);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_synchronize(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    ck_assert_int_eq(msdu_synchronize(ctx), MSDU_ERR_STATE);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_synchronize(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_synchronize(ctx), MSDU_ERR_STATE);
    msdu_destroy(ctx);
    config.domain = "accumulated";
    ctx = expect_context(&config, false);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect_status(msdu_synchronize(ctx), MSDU_ERR_UNSUPPORTED, "accumulated");
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_sync");
    TCase *tcase = suite_case(suite, "ranks", 100, NULL, NULL);
    tcase_add_loop_test(tcase, training_goes_on_from_the_mean, 0, 5);
    tcase_add_loop_test(tcase, delays_and_styles_change_nothing, 0, 5);
    tcase_add_test(tcase, shadowed_optimizers_start_from_the_mean);
    tcase_add_loop_test(tcase, what_was_held_back_is_sent_along, 0, 4);
    tcase_add_loop_test(tcase, gradients_keep_what_they_held_back, 0, 4);
    tcase_add_test(tcase, calls_out_of_order_are_refused);
    return suite_run(suite);
}
