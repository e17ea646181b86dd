/* SPDX-License-Identifier: Apache-2.0 */
/* Work drawn by speed, in whole trainings: as one process that trains with the union of the pieces.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "ranks.h"
#include "suite.h"

#define COUNT  60
#define RANKS  3
#define STEPS  120
#define TOTAL  410     /* not a multiple of what a step takes */
#define SAMPLE 1000000 /* ns that one takes on the slow rank */

static const ranks_tensor model[] = {{.count = COUNT}};

/* What a rank draws, and what all have drawn. */
typedef struct drawing {
    msdu_work work[RANKS];
    uint64_t begins[RANKS][STEPS];
    uint64_t ends[RANKS][STEPS];
    uint64_t ahead;
    uint64_t batch;
    uint64_t total;
    int slow; /* a rank of a quarter of the speed; -1: none */
    bool draws;
} drawing;

static drawing state;

static void keep_failure(ranks_self *self, msdu_status status)
{
    if (status != MSDU_OK && self->status == MSDU_OK) {
        self->status = status;
        (void)snprintf(self->text, sizeof(self->text), "%s", msdu_last_error());
    }
}

/* Before the backward pass: the piece of the step; a new epoch begins where one is over. */
static void draw(ranks_self *self, int step)
{
    msdu_work *work = &state.work[self->rank];
    if (step == 0) {
        *work = (msdu_work)MSDU_WORK_INIT;
        work->total = state.total;
        work->batch = state.batch;
        work->ahead = state.ahead;
    }
    keep_failure(self, msdu_next(self->ctx, work));
    if (work->begin == work->total) {
        work->position = 0;
        keep_failure(self, msdu_next(self->ctx, work));
    }
    state.begins[self->rank][step] = work->begin;
    state.ends[self->rank][step] = work->end;
}

/* Even pieces without msdu_next(), in a rank's own place of the union. */
static void take_even(ranks_self *self, int step)
{
    uint64_t whole = state.batch * (uint64_t)self->job->ranks;
    uint64_t at = (uint64_t)step * whole % state.total + (uint64_t)self->rank * state.batch;
    state.begins[self->rank][step] = at;
    state.ends[self->rank][step] = at + state.batch;
}

/* As where slice sizes are tuned: the engine's memory is given back and taken anew. */
static void cut_anew(ranks_self *self, int step)
{
    const msdu__tuning tunings[] = {{32 << 10, 4, 2}, {64 << 10, 8, 1}};
    if (self->ctx->model.recut.may_cut && step % 8 == 5) {
        keep_failure(self, msdu__reslice_to(&self->ctx->caller, tunings[step / 8 % 2]));
    }
}

static void stepped(ranks_self *self, int step)
{
    cut_anew(self, step);
    if (state.draws) {
        draw(self, step);
    } else {
        take_even(self, step);
    }
}

/* The gradient of one sample for one element. */
static double sample_gradient(uint64_t sample, uint64_t element, double parameter)
{
    double target = sin((double)(sample * 7 + element * 3));
    return (0.5 + 0.4 * cos((double)(sample + element))) * (parameter - target);
}

/* What this rank will tell of its step's time: as if a sample had taken that long. */
static void tell_time(ranks_self *self, uint64_t samples)
{
    uint64_t sample = self->rank == state.slow ? SAMPLE : SAMPLE / 4;
    msdu__number_set(&self->ctx->hand.reports.step_ns, (double)(samples * sample));
}

static void computed(ranks_self *self, int step, uint32_t tensor)
{
    const float *parameter = self->parameter[tensor];
    float *gradient = self->gradient[tensor];
    uint64_t begin = state.begins[self->rank][step];
    uint64_t samples = state.ends[self->rank][step] - begin;
    for (uint64_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < samples; k++) {
            sum += sample_gradient(begin + k, i, (double)parameter[i]);
        }
        gradient[i] = samples > 0 ? (float)(sum / (double)samples) : NAN; /* of nothing */
    }
    if (self->job->ranks > 1) {
        tell_time(self, samples);
    }
}

static ranks_job job_of(int ranks, int steps)
{
    ranks_job job = {
        .ranks = ranks,
        .steps = steps,
        .tensors = model,
        .tensor_count = 1,
        .config = ranks_config("gradient", "backward"),
        .stepped = stepped,
        .computed = computed,
    };
    job.config.interval_steps = 1;
    job.config.lr = 0.05;
    job.config.momentum = 0.9;
    return job;
}

static void run_to_end(const ranks_job *job, ranks_run *run)
{
    ck_assert(ranks_go(job, run));
    int failed = ranks_failed(run, job->ranks);
    ck_assert_msg(failed < 0, "rank %d: %s", failed, failed < 0 ? "" : run->selves[failed].text);
}

/* Pieces of all steps: each sample once an epoch, in one step on all ranks. */
static void check_pieces(int ranks, int steps)
{
    uint64_t at = 0;
    for (int step = 0; step < steps; step++) {
        for (int rank = 0; rank < ranks; rank++) {
            uint64_t begin = state.begins[rank][step];
            uint64_t end = state.ends[rank][step];
            ck_assert(begin == end || begin == at);
            at += end - begin;
        }
        at = at == state.total ? 0 : at;
    }
}

/* The same steps with the union of the pieces, by one process. */
static void check_against_one(const ranks_run *run, const ranks_job *job, double tolerance)
{
    ranks_run one;
    ranks_job alone = *job;
    alone.ranks = 1;
    state.batch *= (uint64_t)job->ranks;
    run_to_end(&alone, &one);
    state.batch /= (uint64_t)job->ranks;
    for (int rank = 0; rank < job->ranks; rank++) {
        for (int step = 0; step <= job->steps; step++) {
            const double *is = ranks_row(&run->selves[rank], step);
            const double *want = ranks_row(&one.selves[0], step);
            for (int i = 0; i < COUNT; i++) {
                ck_assert_msg(fabs(is[i] - want[i]) <= tolerance,
                              "rank %d, step %d, element %d: %.9g, want %.9g", rank, step, i, is[i],
                              want[i]);
            }
        }
    }
    ranks_free(&one);
}

START_TEST(even_shares_have_the_bits_of_training_without)
{
    ranks_job job = job_of(RANKS, 60);
    ranks_run with;
    ranks_run without;
    state = (drawing){.batch = 4, .total = 48, .ahead = 64, .slow = -1, .draws = true};
    run_to_end(&job, &with); /* nothing is decided so early that it would count yet */
    check_pieces(RANKS, 60);
    state.draws = false;
    run_to_end(&job, &without);
    for (int step = 0; step <= job.steps; step++) {
        for (int rank = 0; rank < RANKS; rank++) {
            ck_assert_mem_eq(ranks_row(&with.selves[rank], step),
                             ranks_row(&without.selves[rank], step), COUNT * sizeof(double));
        }
    }
    ranks_free(&with);
    ranks_free(&without);
}
END_TEST

START_TEST(any_shares_are_one_process_with_the_union)
{
    static const char *const overlaps[] = {"blocking", "backward", "auto"};
    ranks_job job = job_of(RANKS, STEPS);
    ranks_run run;
    job.config.overlap = overlaps[_i % 3];
    if (_i >= 3) {
        job.config.slice_bytes = 0; /* tuned */
        job.config.window = 0;
    }
    state = (drawing){.batch = 8, .total = TOTAL, .slow = 1, .ahead = (uint64_t)(_i % 2) * 8};
    state.draws = true;
    run_to_end(&job, &run);
    check_pieces(RANKS, STEPS);
    uint64_t last = state.ends[1][STEPS - 8] - state.begins[1][STEPS - 8];
    ck_assert_msg(last == 2 || last == 3, "of 24 the slow rank has %d", (int)last); /* 24 / 9 */
    check_against_one(&run, &job, 1e-5);
    ranks_free(&run);
}
END_TEST

/* Gradients of nothing, which are NaN here, count nothing. */
START_TEST(fewer_samples_than_ranks_leave_ranks_out)
{
    ranks_job job = job_of(RANKS, 40);
    ranks_run run;
    state = (drawing){.batch = 2, .total = 8, .slow = -1, .draws = true}; /* 6 and 2 a step */
    run_to_end(&job, &run);
    check_pieces(RANKS, 40);
    check_against_one(&run, &job, 1e-5);
    ranks_free(&run);
    state.total = 2;
    run_to_end(&job, &run);
    check_pieces(RANKS, 40);
    check_against_one(&run, &job, 1e-5);
    ranks_free(&run);
}
END_TEST

static double weights[RANKS];

/* As the latest round's messages tell them. */
static void keep_weights(ranks_self *self)
{
    for (int i = 0; self->rank == 0 && i < RANKS; i++) {
        weights[i] = self->ctx->engine.fragments[0].control.of[i].weight;
    }
}

/* Local rounds: weights are those of all steps, so that a short last one does not decide. Four
 * steps take 6, 2, 6 and 2 samples of 6. */
START_TEST(local_rounds_weigh_all_their_steps)
{
    ranks_job job = job_of(RANKS, 60);
    ranks_run run;
    job.config.domain = "parameter";
    job.config.overlap = "blocking";
    job.config.interval_steps = 4;
    state = (drawing){.batch = 2, .total = 8, .ahead = 64, .slow = -1, .draws = true}; /* even */
    job.computed = NULL;
    job.ended = keep_weights;
    run_to_end(&job, &run);
    check_pieces(RANKS, 60);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_double_ge(weights[i], 0.5); /* it had 4 samples at least */
    }
    ck_assert_double_eq_tol(weights[0] + weights[1] + weights[2], 2, 1e-12);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_double_eq(ranks_row(&run.selves[0], 60)[i], ranks_row(&run.selves[2], 60)[i]);
    }
    ranks_free(&run);
}
END_TEST

static void other_total(ranks_self *self, int step)
{
    (void)step;
    msdu_work work = MSDU_WORK_INIT;
    work.total = self->rank == 2 ? 90 : 91;
    work.batch = 4;
    keep_failure(self, msdu_next(self->ctx, &work));
}

START_TEST(ranks_with_different_work_are_told)
{
    ranks_job job = job_of(RANKS, 10);
    ranks_run run;
    job.computed = NULL;
    job.stepped = other_total;
    ck_assert(ranks_go(&job, &run));
    int failed = ranks_failed(&run, RANKS);
    ck_assert_int_ge(failed, 0);
    ck_assert_int_eq(run.selves[failed].status, MSDU_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(run.selves[failed].text, "msdu_next()"));
    ranks_free(&run);
}
END_TEST

static void call_badly(ranks_self *self, int step)
{
    msdu_work work = MSDU_WORK_INIT;
    work.batch = 4;
    if (step == 0 && self->rank == 0) {
        ck_assert_int_eq(msdu_next(NULL, &work), MSDU_ERR_INVALID);
        ck_assert_int_eq(msdu_next(self->ctx, NULL), MSDU_ERR_INVALID);
        ck_assert_int_eq(msdu_next(self->ctx, &work), MSDU_ERR_INVALID); /* total 0 */
        work.total = 100;
        work.size = 8;
        ck_assert_int_eq(msdu_next(self->ctx, &work), MSDU_ERR_INVALID);
    }
}

static void draw_late(ranks_self *self, int step, uint32_t tensor)
{
    msdu_work work = MSDU_WORK_INIT;
    work.batch = 4;
    work.total = 100;
    (void)tensor;
    if (step == 1) {
        keep_failure(self, msdu_tensor_ready(self->ctx, 0, MSDU_GRADIENT));
        keep_failure(self, msdu_next(self->ctx, &work));
    }
}

START_TEST(bad_calls_are_refused)
{
    ranks_job job = job_of(RANKS, 4);
    ranks_run run;
    job.computed = NULL;
    job.stepped = call_badly;
    run_to_end(&job, &run);
    ranks_free(&run);
    job.computed = draw_late;
    ck_assert(ranks_go(&job, &run));
    int failed = ranks_failed(&run, RANKS);
    ck_assert_int_ge(failed, 0);
    ck_assert_ptr_nonnull(strstr(run.selves[failed].text, "end the step first"));
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_draw");
    TCase *cases = suite_case(suite, "draw", 0, NULL, NULL);
    tcase_add_test(cases, even_shares_have_the_bits_of_training_without);
    tcase_add_loop_test(cases, any_shares_are_one_process_with_the_union, 0, 6);
    tcase_add_test(cases, fewer_samples_than_ranks_leave_ranks_out);
    tcase_add_test(cases, local_rounds_weigh_all_their_steps);
    tcase_add_test(cases, ranks_with_different_work_are_told);
    tcase_add_test(cases, bad_calls_are_refused);
    return suite_run(suite);
}
