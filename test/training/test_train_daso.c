/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DASO (arXiv 2104.05588) by rule blend and policy plateau: hosts average gradients in every step,
 * and meet late. Its formula in plain C, over hosts: of W steps waited and H hosts,
 * w <- (2 W w + sum of what they sent) / (2 W + H).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

#define STEPS      120
#define HOSTS_MOST 3

/* When hosts met, as the library decided; the same on all ranks. */
typedef struct schedule {
    int sent[STEPS]; /* steps at whose end parameters were sent */
    int count;
    int local; /* first local step */
} schedule;

static schedule seen;

static void name_host(const ranks_self *self, msdu_config *config)
{
    static const char *const names[] = {"a", "b", "c"};
    config->hosts = names[self->job->hosts[self->rank] - 'a'];
}

static void note_schedule(ranks_self *self, int step)
{
    const msdu__caller *c = &self->ctx->caller;
    if (msdu_set_loss(self->ctx, 1.0) != MSDU_OK) { /* it is stable */
        self->status = MSDU_ERR_INVALID;
    }
    if (self->rank != 0 || !c->is_local_entered) {
        return;
    }
    seen.local = seen.count == 0 && seen.local < 0 ? step : seen.local;
    if (c->schedules[0].sync_step == (uint64_t)step) {
        seen.sent[seen.count++] = step;
    }
}

/* Two hosts of two ranks, or three of one and two; W steps are waited. */
static ranks_job daso_job(const char *hosts, int waited, const char *policy)
{
    ranks_job job = kit_job("auto", "delayed");
    seen = (schedule){.local = -1};
    job.configured = name_host;
    job.hosts = hosts;
    job.ranks = (int)strlen(hosts);
    job.steps = STEPS;
    job.stepped = note_schedule;
    job.config.interval = policy;
    job.config.interval_steps = 8;
    job.config.interval_max = 8;
    job.config.delay_steps = waited;
    job.config.warmup_steps = 1;
    job.config.correct = "blend";
    job.config.target_overhead = 1;
    return job;
}

/* --- DASO --- */

typedef struct host {
    double w;
    double velocity;
    double sent; /* sum over hosts, on its way */
    int due;     /* step at whose end it is merged; -1: none is under way */
} host;

/* Of the gradients of this host's ranks, or of all (whose: 0), each at its own parameter. */
static double mean_gradient(const ranks_job *job, char whose, int step, uint64_t at, double w)
{
    double sum = 0;
    int count = 0;
    for (int rank = 0; rank < job->ranks; rank++) {
        if (whose == 0 || job->hosts[rank] == whose) {
            sum += ranks_gradient(job, rank, step, MSDU_FLOAT32, at, w);
            count++;
        }
    }
    return sum / count;
}

static void merge(const ranks_job *job, host *hosts, int count, int step)
{
    double waited = (double)job->config.delay_steps;
    for (int k = 0; k < count; k++) {
        if (hosts[k].due == step) {
            hosts[k].w = (2 * waited * hosts[k].w + hosts[k].sent) / (2 * waited + count);
            hosts[k].due = -1;
        }
    }
}

static void send(const ranks_job *job, host *hosts, int count, int step)
{
    double sum = 0;
    for (int k = 0; k < count; k++) {
        sum += hosts[k].w;
    }
    for (int k = 0; k < count; k++) {
        hosts[k].sent = sum;
        hosts[k].due = step + (int)job->config.delay_steps;
    }
}

/* One element of the first rank of each host, as the library trained it, against DASO. */
static double farthest(const ranks_job *job, const ranks_run *run, int count, uint64_t at)
{
    host hosts[HOSTS_MOST];
    double far = 0;
    int next = 0;
    for (int k = 0; k < count; k++) {
        hosts[k] = (host){ranks_initial(job, 0, MSDU_FLOAT32, at), 0, 0, -1};
    }
    for (int step = 0; step < job->steps; step++) {
        for (int k = 0; k < count; k++) {
            char name = (char)('a' + k);
            const ranks_self *first = &run->selves[strchr(job->hosts, name) - job->hosts];
            far = fmax(far, fabs(hosts[k].w - ranks_row(first, step)[at]));
            double g = mean_gradient(job, step < seen.local ? 0 : name, step, at, hosts[k].w);
            hosts[k].velocity = job->config.momentum * hosts[k].velocity + g;
            hosts[k].w -= job->config.lr * hosts[k].velocity;
        }
        if (next < seen.count && seen.sent[next] == step) {
            send(job, hosts, count, step);
            next++;
        }
        merge(job, hosts, count, step);
    }
    return far;
}

static void check_daso(const ranks_job *job, int count)
{
    ranks_run run;
    ranks_run_well(job, &run);
    ck_assert_int_gt(seen.count, 3);
    for (uint64_t at = 0; at < ranks_elements(job); at += 7) {
        double far = farthest(job, &run, count, at);
        ck_assert_msg(far < 1e-5, "element %llu: %g", (unsigned long long)at, far);
    }
    ranks_free(&run);
}

START_TEST(late_means_are_merged_by_its_formula)
{
    for (int waited = 1; waited <= 4; waited++) {
        ranks_job job = daso_job("aabb", waited, "fixed");
        check_daso(&job, 2);
        job = daso_job("abcabc", waited, "fixed");
        check_daso(&job, 3);
    }
}
END_TEST

/* One rank a host, which is what it does with one GPU a node. */
START_TEST(hosts_of_one_rank_are_merged_likewise)
{
    ranks_job job = daso_job("abc", 2, "fixed");
    check_daso(&job, 3);
}
END_TEST

/* Eight steps, and half as many whenever the loss was stable; from one step it begins again. */
START_TEST(the_interval_is_halved_while_the_loss_is_stable)
{
    int lengths[5] = {0};
    ranks_job job = daso_job("aabb", 1, "plateau");
    job.config.plateau_patience = 4;
    check_daso(&job, 2);
    for (int i = 1; i < seen.count; i++) {
        int length = seen.sent[i] - seen.sent[i - 1];
        ck_assert_int_le(length, 8);
        lengths[length == 8 ? 4 : length == 4 ? 3 : length] += 1;
        ck_assert_msg(length == 8 || length == 4 || length == 2, "%d steps", length);
    }
    ck_assert_int_gt(lengths[4] * lengths[3] * lengths[2], 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_daso");
    TCase *tcase = suite_case(suite, "daso", 120, NULL, NULL);
    tcase_add_test(tcase, late_means_are_merged_by_its_formula);
    tcase_add_test(tcase, hosts_of_one_rank_are_merged_likewise);
    tcase_add_test(tcase, the_interval_is_halved_while_the_loss_is_stable);
    return suite_run(suite);
}
