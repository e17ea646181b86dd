/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of check_finite = skip: a step with a bad gradient is as if it had not been, to the bit. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "core/progress.h"
#include "expect.h"
#include "fake.h"
#include "poison.h"
#include "reference.h"
#include "suite.h"

static ranks_job skipping_job(poison *p, const char *wire)
{
    ranks_job job = poison_job(p, "skip", wire);
    job.steps = 10;
    job.goes_on = true;
    return job;
}

/* The same training, once with a step that is refused and once without that step. */
static void check_as_if_it_had_not_been(ranks_job *job)
{
    const poison *p = job->user;
    char words[64];
    ranks_run with;
    ranks_run without;
    ranks_run_well(job, &with);
    job->missing = p->step + 1;
    ranks_run_well(job, &without);
    snprintf(words, sizeof(words), "rank %d|'tensor%u'|step %d", p->rank, p->tensor, p->step);
    for (int i = 0; i < job->ranks; i++) {
        const ranks_self *a = &with.selves[i];
        const ranks_self *b = &without.selves[i];
        ck_assert_int_eq(a->refused, 1);
        ck_assert_int_eq(b->refused, 0);
        expect_words(a->text, words);
        ck_assert_mem_eq(a->history, b->history,
                         (size_t)(job->steps + 1) * a->elements * sizeof(double));
        ck_assert_uint_eq(a->summary.steps, (uint64_t)job->steps);
        ck_assert_uint_eq(a->summary.rounds, b->summary.rounds);
    }
    ranks_free(&with);
    ranks_free(&without);
}

static const char *const wires[] = {"float32", "bfloat16", "int8", "int4", "int2", "sparse"};

START_TEST(a_step_with_a_bad_gradient_leaves_no_trace)
{
    static const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (uint32_t k = 0; k < POISON_TENSORS; k++) {
        poison p = {.rank = (int)k % 3, .step = 4, .tensor = k, .value = values[k % 3]};
        ranks_job job = skipping_job(&p, wires[_i]);
        check_as_if_it_had_not_been(&job);
    }
}
END_TEST

/* Nothing is held back yet when the very first round is skipped. */
START_TEST(the_first_step_may_be_skipped)
{
    poison p = {.rank = 1, .step = 0, .tensor = 0, .value = (double)NAN};
    ranks_job job = skipping_job(&p, wires[_i]);
    check_as_if_it_had_not_been(&job);
}
END_TEST

START_TEST(every_style_of_trainer_sees_it)
{
    static const ranks_style styles[] = {RANKS_IN_ORDER, RANKS_SILENT, RANKS_THREADS,
                                         RANKS_DEFERRED};
    static const char *const overlaps[] = {"backward", "blocking"};
    for (int k = 0; k < 2; k++) {
        poison p = {.rank = 2, .step = 5, .tensor = 3, .value = (double)NAN};
        ranks_job job = skipping_job(&p, "int4");
        job.style = styles[_i];
        job.config.overlap = overlaps[k];
        check_as_if_it_had_not_been(&job);
    }
}
END_TEST

/* --- a wider round after one in int4 sends along what was held back --- */

#define ELEMENTS 300

static void pump(msdu_ctx *ctx)
{
    for (int i = 0; i < 1000 && msdu__engine_advance(&ctx->engine) != UINT64_MAX; i++) {
    }
}

/* One tensor over the fake backend, without a thread of its own. */
static msdu_ctx *begin(msdu_config *config, msdu_tensor_desc *desc)
{
    msdu_ctx *ctx = NULL;
    config->ranks = 2;
    config->backend = "local";
    config->domain = "gradient";
    config->wire = "int4";
    desc->name = "t";
    desc->count = ELEMENTS;
    fake_reset();
    ck_assert_int_eq(msdu_create(config, &ctx), MSDU_OK);
    ctx->job.backend = &fake_backend;
    ctx->job.clock = fake_clock;
    ck_assert_int_eq(msdu_tensor_add(ctx, desc, NULL), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    msdu__worker_stop(&ctx->hand.worker);
    return ctx;
}

/* One step over the fake backend, driven by hand, in this format. */
static msdu_status step_in(msdu_ctx *ctx, int wire)
{
    ctx->hand.fragments[0].rounds[(ctx->caller.schedules[0].armed - 1) & 1].wire = wire;
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    pump(ctx);
    msdu_status status = msdu_tensor_wait(ctx, 0, MSDU_GRADIENT);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    return status;
}

START_TEST(what_was_sent_along_is_held_back_again)
{
    float gradient[ELEMENTS];
    float held[ELEMENTS];
    float owned[ELEMENTS];
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    config.check_finite = "skip";
    config.reduce = _i == 0 ? "mean" : "sum";
    desc.gradient = gradient;
    for (int i = 0; i < ELEMENTS; i++) {
        gradient[i] = sinf((float)i);
    }
    msdu_ctx *ctx = begin(&config, &desc);
    const msdu__run *run = &ctx->engine.runs[0];
    size_t own_bytes = run->share_count[0] * sizeof(float);
    ck_assert_int_eq(step_in(ctx, MSDU__WIRE_INT4), MSDU_OK);
    run->owner_residual[1] = 0.125F; /* the fake peers' equal contributions leave nothing here */
    memcpy(held, run->residual, sizeof(held));
    memcpy(owned, run->owner_residual, own_bytes);
    ck_assert(run->has_residual && held[1] != 0);
    gradient[7] = (double)NAN;
    ck_assert_int_eq(step_in(ctx, MSDU__WIRE_FLOAT32), MSDU_ERR_NOT_FINITE);
    ck_assert(run->has_residual && isnan(gradient[0]));
    ck_assert_mem_eq(run->residual, held, sizeof(held));
    ck_assert_mem_eq(run->owner_residual, owned, own_bytes);
    memset(gradient, 0, sizeof(gradient));
    ck_assert_int_eq(step_in(ctx, MSDU__WIRE_FLOAT32), MSDU_OK);
    ck_assert(!run->has_residual);
    /* the fake peer sends the same, and 1 more; the owner's part is in units of the result */
    float mean = held[1] + 2 * owned[1] + 0.5F;
    float sum = 2 * (held[1] + owned[1]) + 1;
    ck_assert(fabsf(gradient[1] - (_i == 0 ? mean : sum)) < 1e-6F);
    msdu_destroy(ctx);
}
END_TEST

/* In every type, whatever the format: what is in no round's feedback would be lost. */
START_TEST(wider_formats_send_it_along)
{
    static const int wide[] = {MSDU__WIRE_FLOAT32, MSDU__WIRE_BFLOAT16, MSDU__WIRE_FLOAT16};
    static const int32_t dtypes[] = {MSDU_FLOAT32, MSDU_FLOAT16, MSDU_BFLOAT16};
    float gradient[ELEMENTS];
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.gradient = gradient;
    desc.dtype = dtypes[_i / 3];
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        ranks_put(desc.dtype, gradient, i, sin((double)i));
    }
    msdu_ctx *ctx = begin(&config, &desc);
    const msdu__run *run = &ctx->engine.runs[0];
    ck_assert_int_eq(step_in(ctx, MSDU__WIRE_INT4), MSDU_OK);
    float held = run->residual[1];
    ck_assert(run->has_residual && fabsf(held) > 0.01F);
    memset(gradient, 0, sizeof(gradient));
    ck_assert_int_eq(step_in(ctx, wide[_i % 3]), MSDU_OK);
    ck_assert(!run->has_residual && run->residual[1] == 0);
    /* the fake peer sends the same; in float32, 1 more */
    double more = desc.dtype == MSDU_FLOAT32 && _i % 3 == 0 ? 0.5 : 0;
    ck_assert(fabs(ranks_get(desc.dtype, gradient, 1) - ((double)held + more)) < 1e-3);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(parameters_still_fail)
{
    poison p = {.rank = 1, .step = 3, .tensor = 1, .value = (double)NAN};
    ranks_job job = skipping_job(&p, "float32");
    job.config.domain = "parameter";
    job.config.interval_steps = 2;
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE, "rank 1|'tensor1'|NaN");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_skip");
    TCase *tcase = suite_case(suite, "ranks", 60, NULL, NULL);
    tcase_add_loop_test(tcase, a_step_with_a_bad_gradient_leaves_no_trace, 0, 6);
    tcase_add_loop_test(tcase, the_first_step_may_be_skipped, 0, 6);
    tcase_add_loop_test(tcase, every_style_of_trainer_sees_it, 0, 4);
    tcase_add_loop_test(tcase, what_was_sent_along_is_held_back_again, 0, 2);
    tcase_add_loop_test(tcase, wider_formats_send_it_along, 0, 9);
    tcase_add_test(tcase, parameters_still_fail);
    return suite_run(suite);
}
