/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the order rule: ranks that dawdle at random start the same operations in one order. */
#include <check.h>

#include "api/context.h"
#include "fake.h"
#include "pause.h"
#include "reference.h"
#include "suite.h"

#define RANKS 3

static const ranks_tensor model[] = {
    {.count = 40}, {.count = 300}, {.count = 5}, {.count = 128}, {.count = 64}, {.count = 200},
};

static const ranks_tensor doubles[] = {
    {.count = 40, .dtype = MSDU_FLOAT64}, {.count = 300, .dtype = MSDU_FLOAT64},
    {.count = 5, .dtype = MSDU_FLOAT64},  {.count = 128, .dtype = MSDU_FLOAT64},
    {.count = 64, .dtype = MSDU_FLOAT64}, {.count = 200, .dtype = MSDU_FLOAT64},
};

typedef struct op_log {
    uint64_t hash[RANKS];
    uint64_t count[RANKS];
} op_log;

static void record_operations(ranks_self *self)
{
    self->ctx->job.backend = &fake_recorder;
}

static void dawdle(ranks_self *self, int step)
{
    uint64_t random = ((uint64_t)self->rank + 3) * 0x9e3779b97f4a7c15U + (uint64_t)step;
    random = (random ^ random >> 29) * 0xbf58476d1ce4e5b9U;
    if ((random >> 20) % 4 == 0) {
        pause_us((long)(random >> 33) % 300);
    }
}

/* The pipeline must be at rest: what was started last may differ in time, not in kind. */
static void note_operations(ranks_self *self)
{
    msdu_ctx *p = self->ctx;
    op_log *all = self->job->user;
    msdu_status status = msdu__caller_drain(&p->caller);
    self->status = self->status == MSDU_OK ? status : self->status;
    all->hash[self->rank] = fake_recorder_hash(p->job.comm);
    all->count[self->rank] = fake_recorder_count(p->job.comm);
}

static void record_one_order(ranks_self *self)
{
    self->ctx->job.backend = &fake_recorder_single;
}

static void note_one_order(ranks_self *self)
{
    op_log *all = self->job->user;
    note_operations(self);
    all->hash[self->rank] = fake_recorder_order(self->ctx->job.comm);
}

static ranks_job order_job(op_log *all)
{
    return (ranks_job){
        .ranks = RANKS,
        .steps = 300,
        .tensors = model,
        .tensor_count = sizeof(model) / sizeof(model[0]),
        .config = {.interval = "fixed",
                   .interval_steps = 3,
                   .wire = "float32",
                   .slice_bytes = 256,
                   .fuse_bytes = 128,
                   .wire_block = 16,
                   .window = 3,
                   .lanes = 3,
                   .warmup_steps = 20,
                   .delay_steps = 2,
                   .fragments = 4,
                   .lr = 0.01},
        .created = record_operations,
        .stepped = dawdle,
        .ended = note_operations,
        .user = all,
    };
}

static void check_order(const ranks_job *job, uint64_t least)
{
    ranks_run run;
    const op_log *all = job->user;
    ranks_run_well(job, &run);
    ck_assert_uint_ge(all->count[0], least);
    for (int rank = 1; rank < RANKS; rank++) {
        ck_assert_uint_eq(all->count[rank], all->count[0]);
        ck_assert_uint_eq(all->hash[rank], all->hash[0]);
    }
    ranks_free(&run);
}

START_TEST(gradients_in_random_order)
{
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.config.domain = "gradient";
    job.style = RANKS_THREADS;
    check_order(&job, 300U * 10U);
}
END_TEST

START_TEST(narrow_gradients)
{
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.config.domain = "gradient";
    job.config.wire = "int8";
    check_order(&job, 280U * 20U);
}
END_TEST

START_TEST(local_rounds)
{
    static const char *const overlaps[] = {"backward", "delayed", "streamed"};
    static const char *const wires[] = {"float32", "int4"};
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.config.domain = "auto";
    job.config.overlap = overlaps[_i / 2];
    job.config.wire = wires[_i % 2];
    check_order(&job, 90U * 10U);
}
END_TEST

/* Where the backend needs it, channels do not run beside each other either. */
START_TEST(one_order_over_all_lanes)
{
    static const char *const overlaps[] = {"backward", "blocking", "delayed", "streamed"};
    static const char *const wires[] = {"float32", "int4"};
    for (int window = 1; window <= 5; window += 2) {
        op_log all = {{0}, {0}};
        ranks_job job = order_job(&all);
        job.steps = 120;
        job.created = record_one_order;
        job.ended = note_one_order;
        job.config.domain = _i < 2 ? "gradient" : "auto";
        job.config.overlap = overlaps[_i / 2 % 4];
        job.config.wire = wires[_i % 2];
        job.config.window = window;
        job.style = RANKS_THREADS;
        check_order(&job, 200);
    }
}
END_TEST

/* Sanitizers make a step some ten times slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MANY_ROUNDS 1000
#else
#define MANY_ROUNDS 10000
#endif

START_TEST(many_rounds_with_random_delays)
{
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.tensor_count = 2;
    job.steps = MANY_ROUNDS;
    job.config.domain = "gradient";
    job.config.wire = "int2";
    job.style = RANKS_THREADS;
    check_order(&job, MANY_ROUNDS * 4U);
}
END_TEST

/* The default policy decides from measured times: on all ranks alike. */
START_TEST(measured_decisions)
{
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.config.interval = "divergence";
    job.config.wire = "auto";
    job.config.correct = "clip,outer";
    job.config.optimizer = "sgd";
    check_order(&job, 100);
}
END_TEST

static double rising_lr(const ranks_job *job, int step)
{
    return job->config.lr * (1.0 + 0.02 * step);
}

/* Sums over slices must not depend on the order in which slices happen to end. */
START_TEST(clipping_gives_all_ranks_the_same_bits)
{
    ranks_run run;
    op_log all = {{0}, {0}};
    ranks_job job = order_job(&all);
    job.config.domain = "parameter";
    job.config.interval_steps = 1;
    job.config.correct = "clip,outer";
    job.config.clip_ratio = 1.0;
    job.lr_at = rising_lr;
    job.config.outer_momentum = 0.3;
    job.config.window = 64;
    job.tensors = doubles; /* in float32 the scale would hide a difference in the last bits */
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, 0, job.steps - 1);
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_order");
    TCase *tcase = suite_case(suite, "order", 100, NULL, NULL);
    tcase_add_test(tcase, gradients_in_random_order);
    tcase_add_test(tcase, narrow_gradients);
    tcase_add_loop_test(tcase, local_rounds, 0, 6);
    tcase_add_loop_test(tcase, one_order_over_all_lanes, 0, 10);
    tcase_add_test(tcase, many_rounds_with_random_delays);
    tcase_add_test(tcase, measured_decisions);
    tcase_add_test(tcase, clipping_gives_all_ranks_the_same_bits);
    return suite_run(suite);
}
