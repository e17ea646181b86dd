/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind a round: statistics of all statistics messages, and the decision about the next interval
 * and wire. Runs on the communication thread.
 */
#include "decide.h"

#include "control.h"
#include "costs.h"
#include "pace.h"
#include "tune.h"

#include <math.h>
#include <stdio.h>

static double largest(double a, double b)
{
    return a > b ? a : b;
}

static double smallest(double a, double b)
{
    return a < b ? a : b;
}

/* All ranks' messages in rank order, so that every rank computes the same bits. */
static void reduce_control(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats)
{
    double step = 0;
    double link = (double)INFINITY;
    double latency = (double)INFINITY;
    double wait = (double)INFINITY;
    double alone = (double)INFINITY;
    double alones = 0;
    double trainers = 0;
    double queued = 0;
    double coding = 0;
    double taken = 0;
    double weights = msdu__message_weights(e, f);
    for (int32_t rank = e->job->ranks; rank-- > 0;) {
        stats->lr = f->control.of[rank].weight > 0 ? f->control.of[rank].lr : stats->lr;
    }
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        stats->local_sq += c->weight * c->local_sq / weights;
        stats->residual_sq += c->residual_sq / e->job->ranks * (f->scale * f->scale);
        stats->loss += c->weight > 0 ? c->weight * c->loss / weights : 0;
        step = largest(step, c->step_ns);
        link = smallest(link, c->link_ns);
        latency = smallest(latency, c->latency_ns);
        queued = largest(queued, (double)c->queued_ns);
        coding = largest(coding, (double)c->coding_ns);
        taken = largest(taken, (double)c->taken_share);
        wait = c->weight > 0 ? smallest(wait, c->wait_ns) : wait; /* who joined does not train */
        alone = c->weight > 0 ? smallest(alone, c->alone_ns) : alone;
        alones += c->weight > 0 ? c->alone_ns : 0;
        trainers += c->weight > 0 ? 1 : 0;
    }
    stats->host_ranks = e->job->ranks / msdu__message_groups(e, f);
    stats->mean_sq = f->mean_sq;
    if (msdu__wire_at(f->round.wire)->has_feedback) {
        double drift = msdu__sketch_variance(f->control.of[0].sketch, &f->control.of[0].weight,
                                             sizeof(*f->control.of), e->job->ranks);
        stats->mean_sq = largest(stats->local_sq - drift, 0);
    }
    if (msdu__message_is_equal(e, f)) {
        stats->mean_sq = stats->local_sq; /* whatever the wire made of them */
    }
    stats->weight_sq = f->control.of[0].weight_sq;
    stats->step_ns = (uint64_t)step;
    stats->link_ns = (uint64_t)link;
    stats->latency_ns = (uint64_t)latency;
    stats->queued_ns = (uint64_t)queued;
    stats->coding_ns = coding;
    stats->taken_share = taken;
    stats->wait_ns = isfinite(wait) ? (uint64_t)wait : 0;
    stats->straggler_ns = isfinite(alone) ? (uint64_t)(alones / trainers - alone) : 0;
    stats->shared_ns = isfinite(wait) ? (uint64_t)(wait - smallest(wait, alone)) : 0;
}

static uint64_t fragment_elements(const msdu__engine *e, const msdu__fragment *f)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        if (!e->runs[f->members[i]].is_state) {
            elements += e->model->slicing.slices[f->members[i]].count;
        }
    }
    return elements;
}

static void collect_stats(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats)
{
    *stats = (msdu__round_stats){
        .step = f->round.step + 1,
        .round = e->hand->summary.rounds + 1,
        .interval = f->round.interval,
        .wire = f->round.wire,
        .link_wire = f->link_wire,
        .delay_steps = f->round.delay_steps,
        .ranks = e->job->ranks,
        .is_gradient = f->round.is_gradient,
        .is_trial = e->model->recut.is_tuned && !e->was_compressed && !e->tuner.is_settled,
        .elements = e->model->element_count,
        .messages = e->model->slice_bound,
    };
    reduce_control(e, f, stats);
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        stats->is_clipping =
            stats->is_clipping || msdu__control_has(&f->control.of[rank], MSDU__CONTROL_CLIPS);
    }
    msdu__pace_times(e, f, stats);
    msdu__pace_late(e, f, stats);
    /* one of several fragments speaks for the whole model */
    double whole = (double)e->model->element_count / (double)fragment_elements(e, f);
    stats->link_ns = (uint64_t)((double)stats->link_ns * whole);
    stats->coding_ns *= whole;
    stats->round_bytes = (uint64_t)((double)f->bytes * whole);
}

void msdu__decide_repeat(msdu__engine *e, msdu__fragment *f)
{
    msdu__engine_answer(e, f)->decision = e->decision;
    msdu__engine_answer(e, f)->tuning = e->tuner.present;
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.rounds += f->is_propagated ? 1 : 0;
    e->hand->summary.bytes_sent += f->bytes;
    e->hand->summary.bytes_inside = e->inside_bytes;
    pthread_mutex_unlock(&e->hand->lock);
}

/* A decision that changes training is one line with its cause. */
static void log_change(msdu__engine *e, const msdu__round_stats *stats, const msdu__decision *next)
{
    const msdu__decision *last = &e->decision;
    char late[32] = "";
    if (next->interval == last->interval && next->wire == last->wire &&
        next->delay_steps == last->delay_steps) {
        return;
    }
    if (next->delay_steps > 0 && next->interval > next->delay_steps) {
        snprintf(late, sizeof(late), ", late by %u", next->delay_steps);
    }
    msdu__log_line(&e->job->log, MSDU_LOG_INFO, "step %llu: interval %u, wire %s%s: %s",
                   (unsigned long long)stats->step, next->interval, msdu__wire_at(next->wire)->name,
                   late, next->reason);
}

void msdu__decide(msdu__engine *e, msdu__fragment *f)
{
    msdu__round_stats stats;
    msdu__decision *next = &msdu__engine_answer(e, f)->decision;
    collect_stats(e, f, &stats);
    msdu__costs_learn(e, &stats);
    *next = (msdu__decision){.interval = f->round.interval,
                             .wire = f->round.wire,
                             .delay_steps = (uint32_t)e->job->settings.delay_steps};
    if (!msdu__pace_decide(e, &stats, next)) {
        e->job->policy->decide(&e->job->interval_args, &stats, &e->interval_state, next);
        msdu__pace_climb(e, f, &stats, next);
    }
    next->is_last = msdu__control_has(&f->control.of[0], MSDU__CONTROL_JOINS);
    log_change(e, &stats, next);
    e->decision = *next;
    msdu__tune_hear(e, f, &stats);
    double drift = msdu__interval_drift(&stats);
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.rounds++;
    e->hand->summary.bytes_sent += f->bytes;
    e->hand->summary.bytes_inside = e->inside_bytes;
    /* as it was carried out: the decision is the next round's, or of the one after it */
    e->hand->summary.interval_steps = f->round.interval;
    e->hand->summary.wire = msdu__wire_at(f->round.wire)->name;
    e->hand->summary.network_ns += stats.wait_ns;
    e->hand->summary.straggler_ns += stats.straggler_ns;
    e->hand->summary.divergence = stats.mean_sq > 0 ? stats.local_sq / stats.mean_sq : 0;
    e->hand->summary.drift = stats.weight_sq > 0 ? drift / stats.weight_sq : 0;
    snprintf(e->hand->summary.reason, sizeof(e->hand->summary.reason), "%s", next->reason);
    pthread_mutex_unlock(&e->hand->lock);
}
