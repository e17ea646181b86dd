/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training in 16-bit types over compressed wires: error feedback is float32 for them, too.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "ranks.h"
#include "reference.h"
#include "suite.h"

static const ranks_tensor model[] = {
    {.count = 7, .dtype = MSDU_BFLOAT16},
    {.count = 500, .dtype = MSDU_FLOAT16},
    {.count = 300},
    {.count = 1, .dtype = MSDU_FLOAT16},
    {.count = 2500, .dtype = MSDU_BFLOAT16},
    {.count = 1900, .dtype = MSDU_FLOAT16},
};

static const char *const narrow[] = {"int8", "int4", "int2", "sparse"};
#define NARROW 4

static ranks_job half_job(int ranks, const char *domain, const char *wire)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = 40,
        .tensors = model,
        .tensor_count = sizeof(model) / sizeof(model[0]),
        .config = {.domain = domain,
                   .overlap = "backward",
                   .interval = "fixed",
                   .interval_steps = 4,
                   .wire = wire,
                   .slice_bytes = 4096,
                   .fuse_bytes = 1024,
                   .wire_block = 64,
                   .warmup_steps = 1,
                   .lr = 0.01},
    };
}

static const double *last_row(const ranks_run *run, int rank)
{
    return ranks_row(&run->selves[rank], run->selves[rank].job->steps);
}

static int32_t dtype_of(uint64_t element)
{
    uint32_t t = 0;
    while (element >= model[t].count) {
        element -= model[t++].count;
    }
    return model[t].dtype;
}

/* --- what arrives --- */

/* Adds up the means of rank 0 as they were given back, from before each backward pass. */
static void add_up(ranks_self *self, int step)
{
    double *sums = self->job->user;
    for (uint32_t t = 0; t < self->job->tensor_count && self->rank == 0 && step > 0; t++) {
        for (uint64_t i = 0; i < model[t].count; i++) {
            *sums++ += ranks_get(model[t].dtype, self->gradient[t], i);
        }
    }
}

/* Gradients are below 1. What is held back of them stays a few steps' worth however long training
 * lasts; what is lost besides is the rounding of each mean to 16 bits. */
static const double held_back[] = {0.05, 1.0, 6.0, 40.0};

START_TEST(means_are_unbiased_in_the_long_run)
{
    static const int steps[] = {21, 201};
    for (int k = 0; k < 2; k++) {
        ranks_run run;
        ranks_job job = half_job(3, "gradient", narrow[_i]);
        uint64_t elements = ranks_elements(&job);
        double *sums = calloc(elements, sizeof(*sums));
        double rounding[] = {
            [MSDU_FLOAT32] = 0, [MSDU_FLOAT16] = 0x1p-11, [MSDU_BFLOAT16] = 0x1p-8};
        ck_assert_ptr_nonnull(sums);
        job.steps = steps[k];
        job.has_constant_gradient = true;
        job.config.reduce = _i % 2 == 0 ? "mean" : "sum";
        job.stepped = add_up;
        job.user = sums;
        ranks_run_well(&job, &run);
        for (uint64_t i = 0; i < elements; i++) {
            double wanted = 0;
            double parts = _i % 2 == 0 ? 3 : 1;
            for (int rank = 0; rank < 3; rank++) {
                wanted += ranks_gradient(&job, rank, 0, dtype_of(i), i, 0) / parts;
            }
            double far = fabs(sums[i] - wanted * (steps[k] - 1)) / (3 / parts);
            double most = held_back[_i] + steps[k] * rounding[dtype_of(i)];
            ck_assert_msg(far < most, "%d steps, %d: %g", steps[k], (int)i, far);
        }
        ranks_free(&run);
        free(sums);
    }
}
END_TEST

/* How far from the run in their own formats a wire may lead. */
static const double bounds[] = {0.02, 0.04, 0.15, 0.5};

START_TEST(training_ends_equal_and_near_their_own_formats)
{
    static const char *const domains[] = {"gradient", "parameter", "auto"};
    ranks_job job = half_job(3, domains[_i / NARROW], narrow[_i % NARROW]);
    double far = ranks_far_from_float32(&job, job.steps);
    ck_assert_msg(far < bounds[_i % NARROW], "%g", far);
}
END_TEST

/* --- what does not change --- */

START_TEST(wider_wires_leave_them_their_own_format)
{
    static const ranks_tensor halves[] = {{.count = 700, .dtype = MSDU_BFLOAT16},
                                          {.count = 900, .dtype = MSDU_FLOAT16}};
    static const char *const wires[] = {"float32", "bfloat16", "float16"};
    ranks_run runs[3];
    for (int i = 0; i < 3; i++) {
        ranks_job job = half_job(3, "gradient", wires[i]);
        job.tensors = halves;
        job.tensor_count = 2;
        ranks_run_well(&job, &runs[i]);
        ck_assert_mem_eq(last_row(&runs[i], 0), last_row(&runs[0], 0), 1600 * sizeof(double));
    }
    for (int i = 0; i < 3; i++) {
        ranks_free(&runs[i]);
    }
}
END_TEST

/* --- bytes --- */

START_TEST(bytes_sent_follow_the_formula)
{
    static const ranks_tensor large[] = {{.count = 4096, .dtype = MSDU_BFLOAT16},
                                         {.count = 12288, .dtype = MSDU_FLOAT16}};
    ranks_run run;
    ranks_job job = half_job(4, "gradient", narrow[_i]);
    job.tensors = large;
    job.tensor_count = 2;
    job.steps = 9;
    job.config.wire_block = 256;
    job.config.slice_bytes = 16384;
    ranks_run_well(&job, &run);
    const msdu_summary *sum = &run.selves[0].summary;
    double bits = msdu__wire_at(msdu__wire_find(narrow[_i]))->bits;
    double wanted = 9.0 * (2.0 * bits / 8.0 * 16384.0 * 3.0 / 4.0 + 3.0 * sizeof(msdu__control));
    ck_assert(fabs((double)sum->bytes_sent - wanted) < 0.02 * wanted);
    ck_assert_uint_eq(sum->bytes_plain, 9U * 2U * 2U * 16384U * 3U / 4U);
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_half");
    TCase *tcase = suite_case(suite, "half", 60, NULL, NULL);
    tcase_add_loop_test(tcase, means_are_unbiased_in_the_long_run, 0, NARROW);
    tcase_add_loop_test(tcase, training_ends_equal_and_near_their_own_formats, 0, 3 * NARROW);
    tcase_add_test(tcase, wider_wires_leave_them_their_own_format);
    tcase_add_loop_test(tcase, bytes_sent_follow_the_formula, 0, NARROW);
    return suite_run(suite);
}
