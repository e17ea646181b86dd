/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two levels: in local steps the ranks of a host average gradients in every step, exactly, so that
 * they stay one rank to the other hosts. A context of their own does it, in the gradient domain
 * over the memory that they share; its steps are those of the whole job's context.
 */
#include "caller.h"

/* By samples; exactly 1 where shares are even. */
static double drawn_now(const msdu__caller *c)
{
    const msdu__piece *piece = msdu__draw_piece(&c->draw, c->step);
    bool is_even = piece == NULL || piece->samples == piece->batch;
    return is_even ? 1 : (double)piece->samples / (double)piece->batch;
}

void msdu__inner_weigh(msdu__caller *c)
{
    if (c->inner != NULL) {
        c->inner->weight = c->weight * drawn_now(c);
        msdu__step_weigh(c->inner);
    }
}

static void begin(msdu__caller *c)
{
    msdu__caller *inner = c->inner;
    inner->step = c->step;
    inner->is_deferred = c->is_deferred;
    inner->weight = c->weight * drawn_now(c);
    msdu__cell_set(&inner->hand->reports.step_count, c->step);
    msdu__step_start(inner);
    c->averages_host = true;
    msdu__cell_set(&c->hand->reports.host_ranks, (uint64_t)inner->job->ranks);
    msdu__log_line(&c->job->log, MSDU_LOG_INFO,
                   "step %llu: gradients are averaged over the %d ranks of this host in every step",
                   (unsigned long long)c->step, inner->job->ranks);
}

static void leave(msdu__caller *c, const char *why)
{
    c->averages_host = false;
    c->has_left_host = true;
    msdu__cell_set(&c->hand->reports.host_ranks, 0);
    msdu__log_line(&c->job->log, MSDU_LOG_INFO,
                   "step %llu: gradients are no longer averaged over this host: %s",
                   (unsigned long long)c->step, why);
}

/* What the step that ended has decided; the same on all ranks of a host. */
static void follow(msdu__caller *c)
{
    bool may = c->is_local_entered && !c->is_clocked;
    if (c->averages_host && c->is_clocked) {
        leave(c, "rounds are by the clock");
    } else if (c->averages_host && c->inner->schedules[0].is_left) {
        leave(c, "that takes more than target_overhead of a step");
    } else if (may && !c->averages_host && !c->has_left_host) {
        begin(c);
    }
}

msdu_status msdu__inner_step(msdu__caller *c)
{
    msdu_status status = MSDU_OK;
    if (c->averages_host) {
        c->step_blocked_ns += c->inner->step_blocked_ns; /* it did not compute then */
        status = msdu__step_end(c->inner);
    }
    status = status == MSDU_OK ? msdu__step_end(c) : status;
    if (status == MSDU_OK && c->inner != NULL) {
        follow(c);
        msdu__inner_weigh(c);
    }
    return status;
}

void msdu__inner_resume(msdu__caller *c)
{
    if (c->averages_host) {
        begin(c);
    }
}

/* Means that are late are applied before: they are relative to what each rank had. */
msdu_status msdu__inner_catch_up(msdu__caller *c)
{
    msdu_status status = msdu__caller_drain(c);
    if (status == MSDU_OK && c->averages_host) {
        c->inner->is_deferred = false;
        status = msdu__average_catch_up(c->inner);
    }
    return status;
}
