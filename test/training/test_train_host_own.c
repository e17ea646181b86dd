/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps in which gradients are not averaged over a host, or a bad one is. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "backend/registry.h"
#include "core/progress.h"
#include "host_jobs.h"
#include "poison.h"
#include "reference.h"
#include "suite.h"

/* --- where it is not done --- */

static void check_own(ranks_self *self)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    bool is_right = msdu_summary_get(self->ctx, &summary) == MSDU_OK &&
                    summary.gradient_ranks == 1 && summary.carriers > 0;
    self->status = is_right ? self->status : MSDU_ERR_INVALID;
}

static uint64_t own_clock(void *user)
{
    return msdu__clock_monotonic(user);
}

/* With a clock of its own, waits are not excused by cores that ranks share. */
static void set_clock(ranks_self *self)
{
    self->ctx->job.clock = own_clock;
}

/* Any wait is too long for it: after 12 of them the ranks of a host train by themselves. */
START_TEST(it_is_given_up_where_it_takes_too_long)
{
    ranks_run run;
    ranks_job job = host_job(host_layouts[_i], 4, "backward");
    job.steps = 60;
    job.config.target_overhead = 0.0001;
    job.created = set_clock;
    job.ended = check_own;
    ranks_run_well(&job, &run);
    host_check_alike(&run, HOST_WARM + 12);
    ranks_check_alike(&run, job.steps, job.steps);
    ranks_free(&run);
}
END_TEST

static void decide_four(const msdu__interval_args *args, const msdu__round_stats *stats,
                        msdu__interval_state *state, msdu__decision *decision)
{
    (void)state;
    decision->interval = stats->step > 1 ? 4 : 1;
    decision->wire = args->widest_wire;
    (void)snprintf(decision->reason, sizeof(decision->reason), "four");
}

static const msdu__policy four = {.name = "four", .help = "h 4", .decide = decide_four};

static void set_policy(ranks_self *self)
{
    self->ctx->job.policy = &four;
}

static msdu__outcome want_clock(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    e->decision.is_clock = true;
    return MSDU__DONE;
}

static bool at_fourteen(int step)
{
    return step == 14;
}

/* Nothing is under way then. */
static void ask_for_clock(ranks_self *self, int step)
{
    if (at_fourteen(step)) {
        msdu__handover_push(&self->ctx->hand, &(msdu__event){.run = want_clock});
    }
}

static void check_clock(ranks_self *self)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    bool is_right = msdu_summary_get(self->ctx, &summary) == MSDU_OK &&
                    strcmp(summary.state, "clock") == 0 && summary.gradient_ranks == 1;
    self->status = is_right ? self->status : MSDU_ERR_INVALID;
}

/* Ranks of a host are in different steps then, and wait for nobody. */
START_TEST(rounds_by_the_clock_average_no_gradients)
{
    ranks_run run;
    ranks_job job = host_job(host_layouts[_i], 4, "auto");
    job.steps = 60;
    job.config.interval = NULL;
    job.config.uneven = "auto";
    job.started = set_policy;
    job.syncs_at = at_fourteen;
    job.stepped = ask_for_clock;
    job.ended = check_clock;
    ranks_run_well(&job, &run);
    host_check_alike(&run, 14);
    ranks_check_alike(&run, job.steps, job.steps);
    ranks_free(&run);
}
END_TEST

static msdu_backend lame; /* shared memory, of which a rank gets one piece only */

static msdu_status open_once(const msdu_host *host, msdu_comm **comm_out)
{
    return host->rank == 1 && strstr(host->job, "-mean") != NULL
               ? msdu__fail(MSDU_ERR_BACKEND, "no more of it")
               : msdu__backend_host.open(host, comm_out);
}

static void set_backend(ranks_self *self)
{
    self->ctx->job.levels.inner = &lame;
}

/* A rank of each host fails: all of the job go on without, as told by a line of the log. */
START_TEST(gradients_stay_own_where_a_rank_has_no_memory_for_their_mean)
{
    ranks_run run;
    ranks_job job = host_job("aabbc", 4, "backward");
    lame = msdu__backend_host;
    lame.open = open_once;
    job.config.deadline_ms = 8000;
    job.created = set_backend;
    job.ended = check_own;
    ranks_run_well(&job, &run);
    ranks_check_alike(&run, job.steps, job.steps);
    ranks_free(&run);
}
END_TEST

/* Who announces no gradients, or wants sums of them, has them as they are. */
START_TEST(gradients_stay_own_where_a_mean_would_be_of_no_use)
{
    ranks_run run;
    ranks_job job = host_job_wide(host_layouts[_i], "backward");
    job.ended = check_own;
    job.config.domain = "parameter";
    ranks_run_well(&job, &run);
    ranks_free(&run);
    job.config.domain = "auto";
    job.config.reduce = "sum";
    ranks_run_well(&job, &run);
    ranks_free(&run);
}
END_TEST

/* --- what goes wrong --- */

static ranks_job spoiled_job(poison *p, const char *check_finite)
{
    ranks_job job = host_job("aabb", 4, "backward");
    job.computed = poison_job(p, check_finite, "float32").computed;
    job.user = p;
    job.config.check_finite = check_finite;
    return job;
}

/* The rank is named by its number in the job, on its host and on the others. */
START_TEST(a_bad_gradient_of_a_local_step_ends_the_job)
{
    poison p = {.rank = 3, .step = 9, .tensor = 1, .value = (double)NAN};
    ranks_job job = spoiled_job(&p, "yes");
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE, "rank 3|'tensor1'|step 9");
}
END_TEST

/* That host leaves the step out, all its ranks alike. */
START_TEST(a_host_may_skip_a_step)
{
    poison p = {.rank = 1, .step = 9, .tensor = 1, .value = (double)INFINITY};
    ranks_job job = spoiled_job(&p, "skip");
    job.goes_on = true;
    ranks_run run;
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < job.ranks; rank++) {
        ck_assert_int_eq(run.selves[rank].refused, rank < 2 ? 1 : 0);
    }
    host_check_alike(&run, job.steps);
    ranks_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_host_own");
    TCase *tcase = suite_case(suite, "host_own", 300, NULL, NULL);
    tcase_add_loop_test(tcase, it_is_given_up_where_it_takes_too_long, 0, HOST_LAYOUTS);
    tcase_add_loop_test(tcase, rounds_by_the_clock_average_no_gradients, 0, HOST_LAYOUTS);
    tcase_add_test(tcase, gradients_stay_own_where_a_rank_has_no_memory_for_their_mean);
    tcase_add_loop_test(tcase, gradients_stay_own_where_a_mean_would_be_of_no_use, 0, HOST_LAYOUTS);
    tcase_add_test(tcase, a_bad_gradient_of_a_local_step_ends_the_job);
    tcase_add_test(tcase, a_host_may_skip_a_step);
    return suite_run(suite);
}
