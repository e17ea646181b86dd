/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Defaults over a slow link, whose times are made up: gradients of SGD go in sparse before ranks
 * take local steps, all of them stay equal, and four bits come back where gradients keep growing.
 */
#include <check.h>
#include <stdatomic.h>
#include <string.h>

#include "api/context.h"
#include "interval/policies.h"
#include "reference.h"
#include "suite.h"

#define EARLY_STEPS  200 /* in four bits */
#define SPARSE_STEPS (EARLY_STEPS + 120)

static const ranks_tensor tensors[] = {{.count = 9000, .dtype = MSDU_FLOAT32},
                                       {.count = 700, .dtype = MSDU_FLOAT32},
                                       {.count = 5000, .dtype = MSDU_FLOAT32}};

static atomic_int sparse_rounds; /* of gradients, of all ranks */

/* A step takes 100 ms, of which half hides a round; float32 takes 900 ms on the link, and coding
 * takes nothing: what it takes here says a sanitizer, and who else computes. */
static double link_ms(const msdu__interval_args *args, int wire)
{
    return 900 * args->wires[wire].bits / 32;
}

static void decide_slowly(const msdu__interval_args *args, const msdu__round_stats *stats,
                          msdu__interval_state *state, msdu__decision *decision)
{
    msdu__interval_args light = *args;
    msdu__round_stats slow = *stats;
    double waited = link_ms(args, stats->wire) - 50;

    sparse_rounds += stats->wire == MSDU__WIRE_SPARSE && stats->is_gradient;
    slow.is_trial = false;
    slow.step_ns = 100000000;
    slow.link_ns = (uint64_t)(1e6 * link_ms(args, stats->link_wire));
    slow.wait_ns = waited > 0 && stats->interval == 1 ? (uint64_t)(1e6 * waited) : 0;
    slow.latency_ns = 1000;
    slow.queued_ns = slow.shared_ns = slow.straggler_ns = 0;
    slow.late = slow.times = NULL;
    slow.time_count = 0;
    slow.coding_ns = slow.code_scale = slow.taken_share = 0;
    light.copy_ns = 0;
    for (uint32_t i = 0; i < light.wire_count; i++) {
        light.wires[i].code_ns = 0;
    }
    msdu__policy_divergence.decide(&light, &slow, state, decision);
}

static const msdu__policy slow_link = {
    .name = "divergence", .help = "over a slow link", .decide = decide_slowly};

static void set_policy(ranks_self *self)
{
    self->ctx->job.policy = &slow_link;
}

static ranks_job slow_job(const char *optimizer, double lr)
{
    return (ranks_job){.ranks = 4,
                       .steps = SPARSE_STEPS,
                       .tensors = tensors,
                       .tensor_count = sizeof(tensors) / sizeof(tensors[0]),
                       .started = set_policy,
                       .needs_lr = true,
                       .config = {.optimizer = optimizer, .lr = lr, .momentum = 0.9}};
}

/* Sum over elements of the squared distance between a rank's parameters and their first ones. */
static double moved(const ranks_run *run, int step)
{
    double sum = 0;
    for (uint64_t i = 0; i < run->selves[0].elements; i++) {
        double by = ranks_row(&run->selves[0], step)[i] - ranks_row(&run->selves[0], 0)[i];
        sum += by * by;
    }
    return sum;
}

START_TEST(ranks_of_sgd_stay_equal_in_every_step)
{
    ranks_run run;
    ranks_run exact;
    ranks_job job = slow_job("sgd", 0.004);
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_str_eq(run.selves[rank].summary.wire, "sparse");
        ck_assert_uint_eq(run.selves[rank].summary.interval_steps, 1);
        ck_assert_str_eq(run.selves[rank].summary.domain, "gradient");
    }
    ranks_check_alike(&run, 0, job.steps);
    job.config.wire = "float32";
    job.config.domain = "gradient";
    ranks_run_well(&job, &exact);
    ck_assert_double_gt(moved(&run, job.steps), 0.9 * moved(&exact, job.steps));
    ck_assert_double_lt(moved(&run, job.steps), 1.1 * moved(&exact, job.steps));
    ranks_free(&run);
    ranks_free(&exact);
}
END_TEST

START_TEST(others_take_local_steps)
{
    static const char *const others[] = {"adam", "unknown", NULL};
    ranks_run run;
    ranks_job job = slow_job(others[_i], 0.004);
    sparse_rounds = 0;
    ranks_run_well(&job, &run);
    ck_assert_uint_gt(run.selves[0].summary.interval_steps, 1);
    ck_assert_int_eq(sparse_rounds, 0);
    ranks_free(&run);
}
END_TEST

/* One rank tells it. */
static void clip(ranks_self *self)
{
    set_policy(self);
    ck_assert(self->rank != 2 || msdu_set_clipping(self->ctx) == MSDU_OK);
}

START_TEST(clipped_gradients_are_not_sent_in_sparse)
{
    ranks_run run;
    ranks_job job = slow_job("sgd", 0.004);
    job.started = clip;
    job.config.domain = "gradient";
    sparse_rounds = 0;
    ranks_run_well(&job, &run);
    ck_assert_int_eq(sparse_rounds, 0);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_str_eq(run.selves[rank].summary.wire, "int4");
    }
    ranks_free(&run);
}
END_TEST

/* At a fifth of the largest learning rate of plain training: late gradients grow. */
START_TEST(gradients_that_keep_growing_bring_four_bits_back)
{
    ranks_run run;
    ranks_job job = slow_job("sgd", 0.2);
    job.config.domain = "gradient";
    sparse_rounds = 0;
    ranks_run_well(&job, &run);
    ck_assert_int_ge(sparse_rounds, 20 * job.ranks);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_str_eq(run.selves[rank].summary.wire, "int4");
    }
    ranks_check_alike(&run, 0, job.steps);
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_sgd");
    TCase *tcase = suite_case(suite, "train_sgd", 60, NULL, NULL);

    tcase_add_test(tcase, ranks_of_sgd_stay_equal_in_every_step);
    tcase_add_loop_test(tcase, others_take_local_steps, 0, 3);
    tcase_add_test(tcase, clipped_gradients_are_not_sent_in_sparse);
    tcase_add_test(tcase, gradients_that_keep_growing_bring_four_bits_back);
    return suite_run(suite);
}
