/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps exchanged over two levels, hosts given by hand, against the same reference as flat.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pause.h"
#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

/* Hosts of the ranks, a letter each: even, uneven and mixed, alone on one, more than two. */
static const struct layout {
    const char *letters;
    uint32_t hosts;
    uint32_t carriers; /* 0: flat */
} layouts[] = {
    {"aabb", 2, 2},   {"ababa", 2, 2}, {"aab", 2, 1},  {"aabbcc", 3, 2},
    {"aaaabb", 2, 2}, {"abcb", 3, 1},  {"aaaa", 1, 0}, {"abc", 3, 0},
};

static const struct layout *present; /* of the job that runs */

static void name_host(const ranks_self *self, msdu_config *config)
{
    static const char *const names[] = {"a", "b", "c"};
    config->hosts = names[present->letters[self->rank] - 'a'];
}

static void check_summary(ranks_self *self)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    bool is_right = msdu_summary_get(self->ctx, &summary) == MSDU_OK &&
                    summary.hosts == present->hosts && summary.carriers == present->carriers &&
                    (summary.bytes_inside > 0) == (present->carriers > 0);
    if (!is_right) {
        (void)snprintf(self->text, sizeof(self->text), "hosts %u, carriers %u, inside %llu",
                       summary.hosts, summary.carriers, (unsigned long long)summary.bytes_inside);
        self->status = MSDU_ERR_INVALID;
    }
}

static ranks_job level_job(int layout, int interval, const char *overlap)
{
    ranks_job job = kit_job("parameter", overlap);
    present = &layouts[layout];
    job.configured = name_host;
    job.ended = check_summary;
    job.ranks = (int)strlen(layouts[layout].letters);
    job.steps = 25;
    job.config.interval_steps = interval;
    job.config.delay_steps = 1;
    job.config.warmup_steps = 1;
    return job;
}

#define LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))

START_TEST(means_are_those_of_one_group)
{
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_job job = level_job(_i, 3, ranks_overlaps[overlap]);
        reference_check(&job, 1e-6);
    }
}
END_TEST

START_TEST(single_steps_are_exchanged_over_two_levels_too)
{
    ranks_job job = level_job(_i, 1, "auto");
    reference_check(&job, 1e-6);
}
END_TEST

/* --- what else a round may be --- */

static const ranks_tensor wide_model[] = {
    {.count = 7},
    {.count = 500},
    {.count = 1},
    {.count = 40, .dtype = MSDU_BFLOAT16},
    {.count = 1500},
    {.count = 90, .dtype = MSDU_FLOAT64},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
};

/* Sums in another order may round a bfloat16 the other way: it is left out of exact comparisons. */
static const ranks_tensor plain_model[] = {
    {.count = 7},
    {.count = 1500},
    {.count = 90, .dtype = MSDU_FLOAT64},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
};

static ranks_job wide_job(int layout, const char *wire)
{
    ranks_job job = level_job(layout, 4, "backward");
    job.tensors = wide_model;
    job.tensor_count = 7;
    job.steps = 40;
    job.config.wire = wire;
    job.config.slice_bytes = 4096;
    job.config.fuse_bytes = 1024;
    job.config.wire_block = 64;
    job.config.lr = 0.01;
    return job;
}

static const char *const wires[] = {"int8", "int4", "int2", "sparse", "bfloat16", "float16"};

START_TEST(few_bits_between_hosts_keep_ranks_equal_and_near_float32)
{
    static const double bounds[] = {0.002, 0.02, 0.1, 0.8, 0.01, 0.002};
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_job job = wide_job(_i, wires[(_i + overlap) % 6]);
        job.config.overlap = ranks_overlaps[overlap];
        double far = ranks_far_from_float32(&job, job.steps);
        ck_assert_msg(far < bounds[(_i + overlap) % 6], "%s: %g", job.config.wire, far);
    }
}
END_TEST

static double weights(const ranks_job *job, int rank, int step)
{
    (void)job;
    return 0.25 * (double)((rank + step / 4) % 4) + (rank == 0 ? 1 : 0);
}

START_TEST(weights_count_over_both_levels)
{
    ranks_job job = wide_job(_i, "float32");
    job.tensors = plain_model;
    job.tensor_count = 4;
    job.weight_at = weights;
    reference_check(&job, 1e-6);
}
END_TEST

static int batches(int rank, int epoch)
{
    return 2 + (5 * rank + 7 * epoch) % 12;
}

START_TEST(a_host_without_input_still_carries)
{
    ranks_job job = wide_job(_i, "float32");
    job.tensors = plain_model;
    job.tensor_count = 4;
    job.epochs = 3;
    job.steps = 70;
    job.batches = batches;
    reference_check(&job, 1e-6);
}
END_TEST

/* Exact gradients are exchanged as one group: the bits of the flat run, until local steps begin. */
START_TEST(gradients_have_the_bits_of_the_flat_run)
{
    ranks_run flat;
    ranks_run two;
    ranks_job job = wide_job(_i, "float32");
    job.config.domain = "auto";
    job.config.warmup_steps = 20;
    ranks_run_well(&job, &two);
    job.configured = NULL;
    job.ended = NULL;
    job.config.hosts = "flat";
    ranks_run_well(&job, &flat);
    for (int rank = 0; rank < job.ranks; rank++) {
        for (int step = 0; step < 20; step++) {
            ck_assert_mem_eq(ranks_row(&two.selves[rank], step),
                             ranks_row(&flat.selves[rank], step),
                             ranks_elements(&job) * sizeof(double));
        }
    }
    ranks_free(&flat);
    ranks_free(&two);
}
END_TEST

/* Error feedback of the carriers, and late means, are in the state. */
START_TEST(a_state_holds_both_levels)
{
    ranks_job job = wide_job(_i, "int4");
    job.steps = 30;
    job.config.overlap = "delayed";
    job.ended = NULL;
    (void)kit_check_resume(&job, 7, 25, 6);
}
END_TEST

static void dawdle(ranks_self *self, int step)
{
    (void)step;
    pause_us(500L * (1 + self->rank));
}

/* Rounds by the clock sum up over two levels as any others do. */
START_TEST(rounds_by_the_clock_leave_ranks_equal)
{
    ranks_run run;
    ranks_job job = level_job(_i, 1, "auto");
    job.tensors = plain_model;
    job.tensor_count = 4;
    job.ended = NULL; /* the first round may not have ended there */
    job.stepped = dawdle;
    job.config.uneven = "clock";
    job.config.interval_steps = 0;
    job.config.wire = "int4";
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, job.steps, job.steps);
    ck_assert_uint_gt(run.selves[0].summary.rounds, 1);
    ck_assert_uint_gt(run.selves[0].summary.bytes_inside, 0);
    ranks_free(&run);
}
END_TEST

/* --- what goes wrong --- */

static void name_one(const ranks_self *self, msdu_config *config)
{
    config->hosts = self->rank == 2 ? "a" : "auto";
}

static void flat_on_one(const ranks_self *self, msdu_config *config)
{
    config->hosts = self->rank == 1 ? "flat" : "auto";
}

START_TEST(ranks_that_see_hosts_in_different_ways_are_named)
{
    ranks_job job = level_job(0, 3, "auto");
    job.ended = NULL;
    job.configured = name_one;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "ranks 0 and 2|hosts|a name");
    job.configured = flat_on_one;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "ranks 0 and 1|hosts|flat");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_levels");
    TCase *tcase = suite_case(suite, "levels", 300, NULL, NULL);
    tcase_add_loop_test(tcase, means_are_those_of_one_group, 0, LAYOUTS);
    tcase_add_loop_test(tcase, single_steps_are_exchanged_over_two_levels_too, 0, LAYOUTS);
    tcase_add_loop_test(tcase, few_bits_between_hosts_keep_ranks_equal_and_near_float32, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, weights_count_over_both_levels, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_host_without_input_still_carries, 0, LAYOUTS);
    tcase_add_loop_test(tcase, gradients_have_the_bits_of_the_flat_run, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_state_holds_both_levels, 0, 3);
    tcase_add_loop_test(tcase, rounds_by_the_clock_leave_ranks_equal, 0, 6);
    tcase_add_test(tcase, ranks_that_see_hosts_in_different_ways_are_named);
    return suite_run(suite);
}
