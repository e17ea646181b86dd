/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients averaged over a host in every local step, against a reference that knows neither slices
 * nor levels. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host_jobs.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

static int host_size(const char *hosts, int rank)
{
    int size = 0;
    for (const char *at = hosts; *at != '\0'; at++) {
        size += *at == hosts[rank] ? 1 : 0;
    }
    return size;
}

/* --- what it computes --- */

START_TEST(means_of_both_levels_are_those_of_the_reference)
{
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_job job = host_job(host_layouts[_i], 3, ranks_overlaps[overlap]);
        reference_check(&job, 1e-6);
        job.style = overlap % 2 == 0 ? RANKS_SILENT : RANKS_THREADS;
        reference_check(&job, 1e-6);
    }
}
END_TEST

static ranks_job dyadic_job(const char *hosts, int interval, const char *overlap)
{
    ranks_job job = host_job(hosts, interval, overlap);
    job.is_dyadic = true;
    job.config.momentum = 0;
    job.config.lr = 0.125;
    return job;
}

static const char *const exact[] = {"aabb", "abcb", "aaaabbcc", "abababab"};
#define EXACT ((int)(sizeof(exact) / sizeof(exact[0])))

/* Sums of so few bits are the same in any order. */
START_TEST(they_have_its_bits_where_sums_are_exact)
{
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_job job = dyadic_job(exact[_i], 2 + overlap, ranks_overlaps[overlap]);
        reference_check(&job, 0);
    }
}
END_TEST

/* The policy qsr has h = (alpha / lr)^2: two, and from step 8 on one. */
static double rate(const ranks_job *job, int step)
{
    (void)job;
    return step < 8 ? 0.125 : 0.25;
}

/* With h = 1 both levels together are one exact mean: the bits of plain training. */
START_TEST(single_steps_over_both_levels_have_the_bits_of_a_flat_allreduce)
{
    ranks_run two;
    ranks_run flat;
    ranks_job job = dyadic_job(exact[_i], 1, "backward");
    job.config.interval = "qsr";
    job.config.qsr_alpha = 0.18;
    job.config.interval_max = 2;
    job.needs_lr = true;
    job.lr_at = rate;
    ranks_run_well(&job, &two);
    job.configured = NULL;
    job.config.domain = "gradient";
    ranks_run_well(&job, &flat);
    ck_assert_str_eq(two.selves[0].summary.domain, "parameter");
    ck_assert_uint_eq(two.selves[0].summary.interval_steps, 1);
    for (int step = 12; step <= job.steps; step++) {
        for (int rank = 0; rank < job.ranks; rank++) {
            ck_assert_mem_eq(ranks_row(&two.selves[rank], step), ranks_row(&flat.selves[0], step),
                             ranks_elements(&job) * sizeof(double));
        }
    }
    ranks_free(&two);
    ranks_free(&flat);
}
END_TEST

/* The other host counts no more, and is never heard again. */
static double first_host(const ranks_job *job, int rank, int step)
{
    (void)step;
    return job->hosts != NULL && job->hosts[rank] == 'b' ? 0 : 1;
}

START_TEST(one_host_alone_has_the_bits_of_plain_training)
{
    ranks_run host;
    ranks_run plain;
    ranks_job job = host_job("aaaabbbb", 1000, "backward");
    job.config.interval_max = 1000;
    job.weight_at = first_host;
    ranks_run_well(&job, &host);
    job.configured = NULL;
    job.weight_at = NULL;
    job.ranks = 4;
    job.config.domain = "gradient";
    ranks_run_well(&job, &plain);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_mem_eq(ranks_row(&host.selves[rank], 0), ranks_row(&plain.selves[rank], 0),
                         (size_t)job.steps * ranks_elements(&job) * sizeof(double));
    }
    ranks_free(&host);
    ranks_free(&plain);
}
END_TEST

START_TEST(a_rank_for_each_host_has_the_bits_of_the_flat_run)
{
    ranks_run hosts;
    ranks_run flat;
    ranks_job job = host_job("abc", 3, ranks_overlaps[_i]);
    ranks_run_well(&job, &hosts);
    job.configured = NULL;
    job.config.hosts = "flat";
    ranks_run_well(&job, &flat);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_int_eq((int)hosts.selves[rank].summary.gradient_ranks, 1);
        ck_assert_mem_eq(hosts.selves[rank].history, flat.selves[rank].history,
                         (size_t)(job.steps + 1) * ranks_elements(&job) * sizeof(double));
    }
    ranks_free(&hosts);
    ranks_free(&flat);
}
END_TEST

/* To the other hosts, a host is one rank; momentum goes along. */
START_TEST(ranks_of_a_host_are_equal_after_every_step)
{
    static const char *const wires[] = {"float32", "int4", "int8", "sparse", "int2"};
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_run run;
        ranks_job job = host_job(host_layouts[_i], 4, ranks_overlaps[overlap]);
        job.config.wire = wires[(_i + overlap) % 5];
        job.style = (ranks_style)(overlap % RANKS_ALONE);
        ranks_run_well(&job, &run);
        for (int rank = 0; rank < job.ranks; rank++) {
            ck_assert_int_eq((int)run.selves[rank].summary.gradient_ranks,
                             host_size(job.hosts, rank));
        }
        host_check_alike(&run, job.steps);
        ranks_free(&run);
    }
}
END_TEST

/* --- what else a step may be --- */

static double weights(const ranks_job *job, int rank, int step)
{
    (void)job;
    return 0.25 * (double)((rank + step / 4) % 4) + (rank == 0 ? 1 : 0);
}

START_TEST(weights_count_inside_a_host_and_between_hosts)
{
    ranks_job job = host_job_wide(host_layouts[_i], "backward");
    job.weight_at = weights;
    reference_check(&job, 1e-6);
}
END_TEST

static int batches(int rank, int epoch)
{
    return 2 + (5 * rank + 7 * epoch) % 12;
}

/* Whole hosts and parts of them: who ran out has at the end what its host has. */
START_TEST(ranks_and_hosts_run_out_of_input)
{
    for (int overlap = 0; overlap < RANKS_OVERLAPS; overlap++) {
        ranks_job job = host_job_wide(host_layouts[_i], ranks_overlaps[overlap]);
        job.epochs = 6;
        job.steps = 140;
        job.batches = batches;
        job.config.delay_steps = 3; /* fragments of two rounds may be under way at an epoch's end */
        reference_check(&job, 1e-6);
    }
}
END_TEST

/* In local steps over two levels, also in the middle of a round. */
START_TEST(a_state_goes_on_with_means_over_a_host)
{
    ranks_job job = host_job_wide(host_layouts[_i], "delayed");
    job.config.wire = "int4";
    job.steps = 30;
    (void)kit_check_resume(&job, 1, 25, 4);
}
END_TEST

static void move_gradients(ranks_self *self, int step)
{
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        void *fresh = malloc(self->job->tensors[t].count * 8);
        bool is_moved = (step + self->rank) % 3 != 0 &&
                        self->job->tensors[t].role == MSDU_ROLE_MODEL && fresh != NULL &&
                        msdu_tensor_set(self->ctx, t, MSDU_GRADIENT, fresh) == MSDU_OK;
        if (is_moved) {
            free(self->gradient[t]);
            self->gradient[t] = fresh;
        } else {
            free(fresh);
        }
    }
}

START_TEST(gradients_may_move_between_steps)
{
    ranks_job job = host_job_wide(host_layouts[_i], "auto");
    job.stepped = move_gradients;
    reference_check(&job, 1e-6);
}
END_TEST

static bool at_seven(int step)
{
    return step == 7 || step == 20;
}

START_TEST(all_ranks_may_be_made_equal_between_steps)
{
    ranks_job job = host_job_wide(host_layouts[_i], "delayed");
    job.syncs_at = at_seven;
    reference_check(&job, 1e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_host_mean");
    TCase *tcase = suite_case(suite, "host_mean", 300, NULL, NULL);
    tcase_add_loop_test(tcase, means_of_both_levels_are_those_of_the_reference, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, they_have_its_bits_where_sums_are_exact, 0, EXACT);
    tcase_add_loop_test(tcase, single_steps_over_both_levels_have_the_bits_of_a_flat_allreduce, 0,
                        EXACT);
    tcase_add_test(tcase, one_host_alone_has_the_bits_of_plain_training);
    tcase_add_loop_test(tcase, a_rank_for_each_host_has_the_bits_of_the_flat_run, 0,
                        RANKS_OVERLAPS);
    tcase_add_loop_test(tcase, ranks_of_a_host_are_equal_after_every_step, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, weights_count_inside_a_host_and_between_hosts, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, ranks_and_hosts_run_out_of_input, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, a_state_goes_on_with_means_over_a_host, 0, 3);
    tcase_add_loop_test(tcase, gradients_may_move_between_steps, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, all_ranks_may_be_made_equal_between_steps, 0, HOST_LAYOUTS);
    return suite_run(suite);
}
