/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that compute the same train as one rank alone does, bit for bit: equal values averaged are
 * equal, however far they are from the last meeting and whenever the mean arrives.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

#define MODEL_COUNT 5 /* of kit_job() */
#define STEPS       25

typedef enum optimizer { SGD, ADAM } optimizer;

/* Moments of Adam, by rank and tensor. */
typedef struct moments {
    optimizer kind;
    double first[RANKS_MOST][MODEL_COUNT][900];
    double second[RANKS_MOST][MODEL_COUNT][900];
} moments;

/* Large at first and then far too large for what is left: parameters change their sign within a
 * round, which is where a difference to the anchor loses bits. */
static double slope_at(int step, uint64_t i, double parameter)
{
    return (1.5 + sin((double)(i + 1))) * parameter + cos((double)(3 * i + 7) * (step + 1));
}

static double adam(moments *m, int rank, uint32_t tensor, uint64_t i, int step, double g)
{
    double *first = &m->first[rank][tensor][i];
    double *second = &m->second[rank][tensor][i];
    *first = 0.9 * *first + 0.1 * g;
    *second = 0.99 * *second + 0.01 * g * g;
    return *first / (1 - pow(0.9, step + 1)) / (sqrt(*second / (1 - pow(0.99, step + 1))) + 1e-8);
}

/* In place of the model's own gradient, which differs by rank. Adam is what SGD without momentum
 * makes of Adam's direction. */
static void compute_same(ranks_self *self, int step, uint32_t t)
{
    moments *m = self->job->user;
    const ranks_tensor *tensor = &self->job->tensors[t];
    for (uint64_t i = 0; i < tensor->count; i++) {
        double g = slope_at(step, i, ranks_get(tensor->dtype, self->parameter[t], i));
        g = m->kind == ADAM ? adam(m, self->rank, t, i, step, g) : g;
        ranks_put(tensor->dtype, self->gradient[t], i, g);
    }
}

static ranks_job job_of(int ranks, const char *domain, optimizer kind)
{
    ranks_job job = kit_job(domain, NULL);
    moments *m = calloc(1, sizeof(*m));
    ck_assert_ptr_nonnull(m);
    m->kind = kind;
    job.ranks = ranks;
    job.steps = STEPS;
    job.computed = compute_same;
    job.user = m;
    job.config.delay_steps = 1;
    job.config.warmup_steps = 1;
    job.config.momentum = kind == SGD ? 0.9 : 0;
    return job;
}

/* One rank with plain gradients: what the trainer does without the library. */
static void plain_go(optimizer kind, const ranks_tensor *tensors, ranks_run *run)
{
    ranks_job job = job_of(1, "gradient", kind);
    job.tensors = tensors != NULL ? tensors : job.tensors;
    ranks_run_well(&job, run);
    free(job.user);
}

static void compare(const ranks_job *job, const ranks_run *run, const ranks_run *plain)
{
    uint64_t elements = run->selves[0].elements;
    for (int rank = 0; rank < job->ranks; rank++) {
        for (uint64_t i = 0; i < (STEPS + 1) * elements; i++) {
            double is = run->selves[rank].history[i];
            double wanted = plain->selves[0].history[i];
            if (is != wanted) {
                ck_abort_msg("%s h %d %s, %d ranks: step %d element %d is %.17g, not %.17g",
                             job->config.domain, (int)job->config.interval_steps,
                             job->config.overlap, job->ranks, (int)(i / elements),
                             (int)(i % elements), is, wanted);
            }
        }
    }
}

static void check_job(ranks_job *job, const ranks_run *plain)
{
    ranks_run run;
    moments *m = job->user;
    *m = (moments){.kind = m->kind};
    ranks_run_well(job, &run);
    compare(job, &run, plain);
    ranks_free(&run);
}

static const int intervals[] = {1, 2, 4, 7};

static void check_intervals(ranks_job *job, const ranks_run *plain)
{
    for (size_t k = 0; k < sizeof(intervals) / sizeof(intervals[0]); k++) {
        job->config.interval_steps = intervals[k];
        check_job(job, plain);
    }
}

START_TEST(parameters_keep_their_bits)
{
    ranks_run plain;
    optimizer kind = _i % 2 == 0 ? SGD : ADAM;
    plain_go(kind, NULL, &plain);
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_job job = job_of(ranks, "parameter", kind);
        job.config.overlap = ranks_overlaps[_i / 2];
        check_intervals(&job, &plain);
        free(job.user);
    }
    ranks_free(&plain);
}
END_TEST

START_TEST(the_change_from_gradients_keeps_their_bits)
{
    ranks_run plain;
    optimizer kind = _i % 2 == 0 ? SGD : ADAM;
    plain_go(kind, NULL, &plain);
    ranks_job job = job_of(2, "auto", kind);
    job.config.warmup_steps = 5;
    job.config.overlap = ranks_overlaps[_i / 2];
    check_intervals(&job, &plain);
    free(job.user);
    ranks_free(&plain);
}
END_TEST

/* Its mean drifts are sums of equal values, exact for numbers of ranks that are powers of two. */
START_TEST(accumulated_gradients_keep_their_bits)
{
    ranks_run plain;
    plain_go(SGD, NULL, &plain);
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        ranks_job job = job_of(ranks, "accumulated", SGD);
        job.config.optimizer = "sgd";
        job.config.overlap = _i == 0 ? "blocking" : "backward";
        check_intervals(&job, &plain);
        free(job.user);
    }
    ranks_free(&plain);
}
END_TEST

/* Whatever it decides, on a machine however busy. */
START_TEST(the_policy_keeps_their_bits)
{
    ranks_run plain;
    optimizer kind = _i == 0 ? SGD : ADAM;
    plain_go(kind, NULL, &plain);
    ranks_job job = job_of(4, "auto", kind);
    job.config.interval = "divergence";
    job.config.target_overhead = 1e-4;
    check_job(&job, &plain);
    free(job.user);
    ranks_free(&plain);
}
END_TEST

/* What all ranks hold already needs no mean, so a compressed wire takes nothing from it. */
START_TEST(narrow_wires_have_nothing_to_lose)
{
    static const char *const wires[] = {"bfloat16", "int8", "int4", "int2", "sparse"};
    ranks_run plain;
    plain_go(SGD, NULL, &plain);
    ranks_job job = job_of(3, "parameter", SGD);
    job.config.wire = wires[_i];
    job.config.overlap = "delayed";
    check_intervals(&job, &plain);
    job.config.overlap = "backward";
    check_intervals(&job, &plain);
    free(job.user);
    ranks_free(&plain);
}
END_TEST

START_TEST(types_of_all_widths_keep_their_bits)
{
    static const ranks_tensor mixed[MODEL_COUNT] = {{.count = 1, .dtype = MSDU_FLOAT64},
                                                    {.count = 7, .dtype = MSDU_BFLOAT16},
                                                    {.count = 256, .dtype = MSDU_FLOAT16},
                                                    {.count = 600, .dtype = MSDU_FLOAT64},
                                                    {.count = 900, .dtype = MSDU_FLOAT32}};
    ranks_run plain;
    plain_go(SGD, mixed, &plain);
    ranks_job job = job_of(2, "parameter", SGD);
    job.tensors = mixed;
    job.config.overlap = ranks_overlaps[_i];
    check_intervals(&job, &plain);
    free(job.user);
    ranks_free(&plain);
}
END_TEST

/* One element of one rank moves by its last bit: that is no equality, and ranks meet. */
static void move_one(ranks_self *self, int step, uint32_t t)
{
    compute_same(self, step, t);
    if (self->rank == 1 && t == 3 && step == 9) {
        double g = ranks_get(MSDU_FLOAT32, self->gradient[t], 17);
        ranks_put(MSDU_FLOAT32, self->gradient[t], 17, (double)nextafterf((float)g, 10));
    }
}

START_TEST(the_last_bit_of_one_rank_is_a_difference)
{
    ranks_run run;
    ranks_job job = job_of(2, "parameter", SGD);
    job.computed = move_one;
    job.config.interval_steps = 5;
    job.config.overlap = "blocking";
    ranks_run_well(&job, &run);
    size_t bytes = run.selves[0].elements * sizeof(double);
    const double *apart = ranks_row(&run.selves[0], 10);
    ck_assert_mem_ne(apart, ranks_row(&run.selves[1], 10), bytes);
    ranks_check_alike(&run, STEPS, STEPS);
    ranks_free(&run);
    free(job.user);
}
END_TEST

/* A rank that does not count alike is no part of "all captured the same". */
static double uneven_weight(const ranks_job *job, int rank, int step)
{
    (void)job;
    (void)step;
    return rank == 0 ? 3 : 1;
}

START_TEST(weights_are_averaged_as_they_are)
{
    ranks_run run;
    ranks_job job = job_of(2, "parameter", SGD);
    job.weight_at = uneven_weight;
    job.config.interval_steps = 4;
    job.config.overlap = "blocking";
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, STEPS, STEPS);
    ranks_free(&run);
    free(job.user);
}
END_TEST

START_TEST(equal_ranks_do_not_diverge)
{
    ranks_run run;
    ranks_job job = job_of(3, "parameter", SGD);
    job.config.interval_steps = 3;
    job.config.wire = _i == 0 ? "float32" : "int4";
    ranks_run_well(&job, &run);
    ck_assert_msg(run.selves[0].summary.drift == 0, "drift %g", run.selves[0].summary.drift);
    ck_assert(run.selves[0].summary.divergence == 1);
    ranks_free(&run);
    free(job.user);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_equal");
    TCase *tcase = suite_case(suite, "bits", 60, NULL, NULL);
    tcase_add_loop_test(tcase, parameters_keep_their_bits, 0, 2 * RANKS_OVERLAPS);
    tcase_add_loop_test(tcase, the_change_from_gradients_keeps_their_bits, 0, 2 * RANKS_OVERLAPS);
    tcase_add_loop_test(tcase, accumulated_gradients_keep_their_bits, 0, 2);
    tcase_add_loop_test(tcase, the_policy_keeps_their_bits, 0, 2);
    tcase_add_loop_test(tcase, narrow_wires_have_nothing_to_lose, 0, 5);
    tcase_add_loop_test(tcase, types_of_all_widths_keep_their_bits, 0, RANKS_OVERLAPS);
    tcase_add_test(tcase, the_last_bit_of_one_rank_is_a_difference);
    tcase_add_test(tcase, weights_are_averaged_as_they_are);
    tcase_add_loop_test(tcase, equal_ranks_do_not_diverge, 0, 2);
    return suite_run(suite);
}
