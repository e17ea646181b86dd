/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Begin and end of a round: the control message with its statistics, and the decision about the
 * next interval and wire. Runs on the communication thread.
 */
#include "pipeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static msdu_what what_of(const msdu__pipeline *p, const msdu__fragment *f)
{
    return f->round.is_gradient || p->is_accumulated ? MSDU_GRADIENT : MSDU_PARAMETER;
}

void msdu__round_orders(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].slice_count = 0;
    }
    uint32_t bound = p->slices_are_whole ? p->slice_bound : p->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        msdu__fragment *f = &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)];
        f->members[f->slice_count++] = slice;
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        msdu__plan_initial(f->slice_count, f->plan);
        f->plan_hash = msdu__plan_hash(f->plan, f->slice_count);
    }
}

void msdu__round_enter_local(msdu__pipeline *p)
{
    msdu__domain_anchor(p);
    p->slices_are_whole = false;
    msdu__round_orders(p);
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        msdu__pipeline_release(p, slice, MSDU_PARAMETER);
    }
}

void msdu__round_open(msdu__pipeline *p, uint32_t fragment)
{
    msdu__fragment *f = &p->fragments[fragment];
    f->round = f->rounds[f->opened & 1];
    f->opened++;
    f->state = MSDU__FRAGMENT_OPEN;
    f->may_apply = f->round.delay_steps == 0;
    f->captured = f->issued = f->reduced = 0;
    f->sums = (msdu__sums){0};
    f->bad_tensor = 0;
    f->is_skipped = f->is_passed = f->is_void = false;
    f->scale = 1;
    f->residual_sq = f->mean_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    f->bytes = 0;
    f->is_control_issued = f->is_control_done = false;
    f->is_marked = f->is_applied = false;
    f->opened_ns = msdu__pipeline_now(p);
    f->queue_begin = p->queue_tail;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        uint32_t slice = f->members[f->plan[i]];
        p->runs[slice].state = MSDU__RUN_OPEN;
        msdu__domain_forget_sums(p, slice);
        p->queue[p->queue_tail++ & p->queue_mask] = slice;
    }
    p->active[p->active_count++] = fragment;
}

/* True once all passes launched before the first of these calls are done. */
static bool are_passes_done(msdu__pipeline *p, msdu__fragment *f)
{
    if (!f->is_marked) {
        f->mark = msdu__pass_mark(p);
        f->is_marked = true;
    }
    f->is_marked = !msdu__pass_reached(p, f->mark);
    return !f->is_marked;
}

/* --- control message --- */

static uint64_t round_hash(const msdu__fragment *f)
{
    uint32_t facts[6] = {(uint32_t)f->opened,     f->round.interval,    f->round.delay_steps,
                         (uint32_t)f->round.wire, f->round.is_gradient, (uint32_t)f->round.step};
    return msdu__plan_hash(facts, 6) ^ f->plan_hash;
}

/* What the passes of all slices found, in slice order. */
static void collect(msdu__pipeline *p, msdu__fragment *f)
{
    msdu__domain_sums(p, f);
    f->residual_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const msdu__found *found = p->runs[f->members[i]].found;
        f->residual_sq += found->residual.update_sq;
        for (uint32_t k = 0; k < MSDU__SKETCH; k++) {
            f->sketch[k] += found->sketch[k];
        }
    }
}

static void fill_control(msdu__pipeline *p, msdu__fragment *f, msdu__control *out)
{
    uint64_t hash = round_hash(f);
    double weight = msdu__voice_of(f)->weight;
    uint64_t blocked = atomic_load(&p->blocked_ns);
    *out = (msdu__control){
        .bad_tensor = p->settings.check_finite ? (double)f->bad_tensor : 0.0,
        .local_sq = f->sums.update_sq,
        .weight_sq = f->sums.weight_sq,
        .residual_sq = f->residual_sq,
        .step_ns = atomic_load(&p->step_ns),
        .link_ns = p->last_link_ns,
        .latency_ns = p->latency_ns,
        /* a rank without input waits for the others only */
        .wait_ns =
            msdu__voice_of(f)->is_absent ? (double)INFINITY : (double)(blocked - f->blocked_ns),
        .loss = atomic_load(&p->loss),
        .lr = atomic_load(&p->lr),
        .wants_plan = f->wants_plan ? 1.0 : 0.0,
        .weight = weight,
        .is_absent = msdu__voice_of(f)->is_absent ? 1.0 : 0.0,
        .check = {(double)(uint32_t)hash, (double)(uint32_t)(hash >> 32)},
    };
    memcpy(out->sketch, f->sketch, sizeof(out->sketch));
    for (uint32_t k = 0; k < MSDU__SKETCH && weight != 1 && weight > 0; k++) {
        out->sketch[k] =
            (float)((double)out->sketch[k] / weight); /* what was captured, unweighted */
    }
    f->blocked_ns = blocked;
}

bool msdu__round_control(msdu__pipeline *p, msdu__fragment *f)
{
    if (f->issued < f->slice_count || !msdu__order_may_control(p, f) || !are_passes_done(p, f)) {
        return false;
    }
    collect(p, f);
    fill_control(p, f, &f->control[p->rank]);
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .send = &f->control[p->rank],
        .recv = f->control,
        .shares = p->control_shares,
    };
    msdu_status status = msdu__pipeline_start(p, &op, msdu__control_lane(p), &f->control_req);
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
        return false;
    }
    f->bytes += sizeof(msdu__control) * (uint64_t)(p->ranks - 1);
    f->control_issued_ns = msdu__pipeline_now(p);
    f->is_control_issued = true;
    return true;
}

/* What becomes of gradients with a bad value. */
static const char *outcome(const msdu__pipeline *p, const msdu__fragment *f)
{
    if (f->is_passed) {
        return "it is given to all ranks";
    }
    /* local steps with it cannot be undone */
    return p->is_accumulated ? "the round was not applied (setting check_finite; with domain "
                               "gradient, pass gives it to all ranks)"
                             : "the round was not applied (setting check_finite)";
}

/* The whole context fails; or, for gradients and if asked for, only this round. */
static bool take_bad_value(msdu__pipeline *p, msdu__fragment *f, int32_t rank)
{
    uint32_t tensor = (uint32_t)f->control[rank].bad_tensor - 1;
    const char *name = tensor < p->tensor_count ? p->tensors[tensor].name : "?";
    f->is_skipped = f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_SKIP;
    f->is_passed = f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_PASS;
    msdu__fail(MSDU_ERR_NOT_FINITE, "rank %d: tensor '%s' holds NaN or infinity in step %llu; %s",
               rank, name, (unsigned long long)f->round.step, outcome(p, f));
    if (!f->is_skipped && !f->is_passed) {
        msdu__pipeline_fail(p, MSDU_ERR_NOT_FINITE, msdu_last_error());
        return false;
    }
    pthread_mutex_lock(&p->lock);
    snprintf(p->skip_text, sizeof(p->skip_text), "%s", msdu_last_error());
    pthread_mutex_unlock(&p->lock);
    msdu__log_line(&p->log, MSDU_LOG_INFO, "%s", msdu_last_error());
    return true;
}

/* Sum over ranks in rank order: the same bits everywhere, and exactly their number if all are 1. */
static double sum_weights(const msdu__pipeline *p, const msdu__fragment *f)
{
    double sum = 0;
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        sum += f->control[rank].weight;
    }
    return sum;
}

static void take_weights(const msdu__pipeline *p, msdu__fragment *f)
{
    double sum = sum_weights(p, f);
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    f->is_void = sum == 0;
    f->scale = is_sum || f->is_void ? 1 : p->ranks / sum;
}

/* For the owner, which may stand still until it knows. */
static void tell_absence(const msdu__pipeline *p, msdu__fragment *f)
{
    bool *is_any = &f->is_any_absent[(f->opened - 1) & 1];
    bool *are_all = &f->are_all_absent[(f->opened - 1) & 1];
    *is_any = false;
    *are_all = true;
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        *is_any = *is_any || f->control[rank].is_absent > 0;
        *are_all = *are_all && f->control[rank].is_absent > 0;
    }
    atomic_store(&f->heard, f->opened);
}

/* The ranks' messages must describe the same round, and no rank may have met a bad value. */
static bool check_control(msdu__pipeline *p, msdu__fragment *f)
{
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        const msdu__control *c = &f->control[rank];
        if (memcmp(c->check, f->control[0].check, sizeof(c->check)) != 0) {
            msdu__fail(
                MSDU_ERR_MISMATCH,
                "ranks 0 and %d disagree about the round that ends with step %llu (number of "
                "steps, interval, wire or plan)",
                rank, (unsigned long long)f->round.step);
            msdu__pipeline_fail(p, MSDU_ERR_MISMATCH, msdu_last_error());
            return false;
        }
    }
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        if (f->control[rank].bad_tensor > 0 && !f->is_passed && !take_bad_value(p, f, rank)) {
            return false;
        }
        if (f->is_skipped) {
            return true;
        }
    }
    take_weights(p, f);
    return true;
}

/* OK: ended now. */
static msdu_status poll_request(msdu__pipeline *p, msdu_req **req, uint64_t since_ns)
{
    if (*req == NULL) {
        return MSDU_IN_PROGRESS;
    }
    msdu_status status = p->backend->test(p->comm, *req);
    if (status == MSDU_IN_PROGRESS) {
        status = msdu__pipeline_overdue(p, since_ns, "a round's control message or plan");
    }
    if (status == MSDU_IN_PROGRESS) {
        return status;
    }
    *req = NULL;
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    return status;
}

bool msdu__round_poll(msdu__pipeline *p, msdu__fragment *f)
{
    bool did = false;
    if (poll_request(p, &f->control_req, f->control_issued_ns) == MSDU_OK) {
        p->latency_ns = (double)(msdu__pipeline_now(p) - f->control_issued_ns);
        f->is_control_done = check_control(p, f);
        tell_absence(p, f);
        msdu__pipeline_wake(p);
        did = true;
    }
    if (poll_request(p, &f->plan_req, f->plan_issued_ns) == MSDU_OK) {
        msdu__replan_take(p, f);
        did = true;
    }
    return did;
}

/* --- decision --- */

static double largest(double a, double b)
{
    return a > b ? a : b;
}

static double smallest(double a, double b)
{
    return a < b ? a : b;
}

/* All ranks' messages in rank order, so that every rank computes the same bits. */
static void reduce_control(const msdu__pipeline *p, const msdu__fragment *f,
                           msdu__round_stats *stats)
{
    double step = 0;
    double link = (double)INFINITY;
    double latency = (double)INFINITY;
    double wait = (double)INFINITY;
    double weights = sum_weights(p, f);
    for (int32_t rank = p->ranks; rank-- > 0;) {
        stats->lr = f->control[rank].weight > 0 ? f->control[rank].lr : stats->lr;
    }
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        const msdu__control *c = &f->control[rank];
        stats->local_sq += c->weight * c->local_sq / weights;
        stats->residual_sq += c->residual_sq / p->ranks * (f->scale * f->scale);
        stats->loss += c->weight > 0 ? c->weight * c->loss / weights : 0;
        step = largest(step, c->step_ns);
        link = smallest(link, c->link_ns);
        latency = smallest(latency, c->latency_ns);
        wait = c->weight > 0 ? smallest(wait, c->wait_ns) : wait; /* who joined does not train */
    }
    stats->mean_sq = f->mean_sq;
    if (msdu__wire_at(f->round.wire)->has_feedback) {
        double drift = msdu__sketch_variance(f->control[0].sketch, &f->control[0].weight,
                                             sizeof(*f->control), p->ranks);
        stats->mean_sq = largest(stats->local_sq - drift, 0);
    }
    stats->weight_sq = f->control[0].weight_sq;
    stats->step_ns = (uint64_t)step;
    stats->link_ns = (uint64_t)link;
    stats->latency_ns = (uint64_t)latency;
    stats->wait_ns = isfinite(wait) ? (uint64_t)wait : 0;
}

static uint64_t fragment_elements(const msdu__pipeline *p, const msdu__fragment *f)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        if (!p->runs[f->members[i]].is_state) {
            elements += p->slicing.slices[f->members[i]].count;
        }
    }
    return elements;
}

static void collect_stats(const msdu__pipeline *p, const msdu__fragment *f,
                          msdu__round_stats *stats)
{
    *stats = (msdu__round_stats){
        .step = f->round.step + 1,
        .round = p->summary.rounds + 1,
        .interval = f->round.interval,
        .wire = f->round.wire,
        .link_wire = f->link_wire,
        .delay_steps = f->round.delay_steps,
        .ranks = p->ranks,
        .is_gradient = f->round.is_gradient,
        .elements = p->element_count,
        .messages = p->slice_bound,
    };
    reduce_control(p, f, stats);
    /* one of several fragments speaks for the whole model */
    double whole = (double)p->element_count / (double)fragment_elements(p, f);
    stats->link_ns = (uint64_t)((double)stats->link_ns * whole);
    stats->round_bytes = (uint64_t)((double)f->bytes * whole);
}

/* A round that changed nothing: no statistics, so the latest decision stays. */
static void repeat_decision(msdu__pipeline *p, msdu__fragment *f)
{
    f->decisions[(f->opened - 1) & 1] = p->decision;
    f->tunings[(f->opened - 1) & 1] = p->tuner.present;
    pthread_mutex_lock(&p->lock);
    p->summary.rounds += f->is_passed ? 1 : 0;
    p->summary.bytes_sent += f->bytes;
    pthread_mutex_unlock(&p->lock);
}

/* A decision that changes training is one line with its cause. */
static void log_change(msdu__pipeline *p, const msdu__round_stats *stats,
                       const msdu__decision *next)
{
    const msdu__decision *last = &p->decision;
    char late[32] = "";
    if (next->interval == last->interval && next->wire == last->wire &&
        next->delay_steps == last->delay_steps) {
        return;
    }
    if (next->delay_steps > 0 && next->interval > next->delay_steps) {
        snprintf(late, sizeof(late), ", late by %u", next->delay_steps);
    }
    msdu__log_line(&p->log, MSDU_LOG_INFO, "step %llu: interval %u, wire %s%s: %s",
                   (unsigned long long)stats->step, next->interval, msdu__wire_at(next->wire)->name,
                   late, next->reason);
}

static void decide(msdu__pipeline *p, msdu__fragment *f)
{
    msdu__round_stats stats;
    msdu__decision *next = &f->decisions[(f->opened - 1) & 1];
    collect_stats(p, f, &stats);
    *next = (msdu__decision){.interval = f->round.interval,
                             .wire = f->round.wire,
                             .delay_steps = (uint32_t)p->settings.delay_steps};
    p->policy->decide(&p->interval_args, &stats, &p->interval_state, next);
    log_change(p, &stats, next);
    p->decision = *next;
    msdu__retune_hear(p, f, &stats);
    double drift = stats.local_sq - stats.mean_sq;
    pthread_mutex_lock(&p->lock);
    p->summary.rounds++;
    p->summary.bytes_sent += f->bytes;
    p->summary.interval_steps = next->interval;
    p->summary.wire = msdu__wire_at(next->wire)->name;
    p->summary.divergence = stats.mean_sq > 0 ? stats.local_sq / stats.mean_sq : 0;
    p->summary.drift = stats.weight_sq > 0 ? drift / stats.weight_sq : 0;
    snprintf(p->summary.reason, sizeof(p->summary.reason), "%s", next->reason);
    pthread_mutex_unlock(&p->lock);
}

/* --- end of a round --- */

/* EDiT (2412.07210) clips the mean pseudo-gradient; here at a multiple of its running norm. */
static void prepare_correction(msdu__pipeline *p, const msdu__fragment *f)
{
    p->correct_args.clip_scale = 1.0;
    if ((p->chain.needs & MSDU__NEEDS_NORM) == 0) {
        return;
    }
    double norm = sqrt(f->mean_sq);
    double limit = p->settings.clip_ratio * p->norm_average;
    if (p->norm_average > 0 && norm > limit) {
        p->correct_args.clip_scale = limit / norm;
        msdu__log_line(&p->log, MSDU_LOG_INFO, "step %llu: update norm %g clipped to %g",
                       (unsigned long long)f->round.step, norm, limit);
        norm = limit;
    }
    p->norm_average += (p->norm_average > 0 ? MSDU__SMOOTH : 1.0) * (norm - p->norm_average);
}

static bool is_reduced(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    return p->runs[slice].state == MSDU__RUN_REDUCED &&
           &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)] == f;
}

/* In slice order and not as slices ended: the sum must have the same bits on all ranks. */
static void sum_norms(msdu__pipeline *p, msdu__fragment *f)
{
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        double mean_sq = p->runs[slice].found->mean.update_sq * (f->scale * f->scale);
        f->mean_sq += is_reduced(p, f, slice) ? mean_sq : 0;
    }
}

/* Where the norm was not needed before, the correction found it on its way. */
static void sum_applied(msdu__pipeline *p, msdu__fragment *f)
{
    for (uint32_t k = p->slicing.slice_count; k-- > 0;) {
        const msdu__slice *cut = &p->slicing.slices[k];
        bool is_own = &p->fragments[msdu__fragment_of(p, k, p->slices_are_whole)] == f;
        for (uint32_t i = 0; is_own && i < cut->segments; i++) {
            f->mean_sq += p->applied[cut->first_segment + i].update_sq;
        }
    }
}

/* Finite gradients whose sum is not: seen in the mean, which is the same on all ranks. */
static bool has_overflowed(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool has_bad = false;
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        has_bad = has_bad || (is_reduced(p, f, slice) && p->runs[slice].found->mean.bad != 0);
    }
    return has_bad && f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_PASS;
}

static void prepare_round(msdu__pipeline *p, msdu__fragment *f)
{
    if (f->is_skipped) {
        atomic_store(&p->skipped, f->round.step + 1); /* before the first gradient is released */
        return;
    }
    f->is_passed = f->is_passed || has_overflowed(p, f);
    if (!f->is_void && !f->is_passed) {
        sum_norms(p, f);
        prepare_correction(p, f);
    }
}

/* Forward order: what the next forward needs first is given back first. */
static void apply_round(msdu__pipeline *p, msdu__fragment *f)
{
    bool is_released = msdu__domain_commits_slice(p, f);
    prepare_round(p, f);
    for (uint32_t slice = p->slicing.slice_count; slice-- > 0;) {
        msdu__run *run = &p->runs[slice];
        if (!is_reduced(p, f, slice)) {
            continue;
        }
        if (f->is_skipped) {
            msdu__domain_skip(p, f, slice);
        } else if (!is_released || f->round.is_gradient) {
            msdu__domain_apply(p, f, slice);
        }
        if (f->is_passed) {
            /* of a step that the trainer takes back; where it lowers a loss scale, in units of the
             * old one */
            msdu__domain_clear(p, slice, true);
        }
        run->times.applied_ns = msdu__pipeline_now(p);
        run->state = MSDU__RUN_IDLE;
        msdu__replan_note(p, f, slice);
        msdu__trace_slice_done(p->trace, &run->times);
        if (!is_released) {
            msdu__pipeline_release(p, slice, what_of(p, f));
        }
    }
}

/* Not the context's clock: what this thread itself has spent. */
static uint64_t thread_cpu_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * 1000000000ULL + (uint64_t)spent.tv_nsec;
}

static void observe(msdu__pipeline *p, const msdu__fragment *f)
{
    uint64_t now = msdu__pipeline_now(p);
    atomic_store(&p->cpu_ns, thread_cpu_ns());
    msdu__trace_span(p->trace, "round", f->round.is_gradient ? "gradients" : "parameters",
                     f->opened_ns, now);
    msdu__trace_counter(p->trace, "interval", now, (double)f->round.interval);
    msdu__trace_counter(p->trace, "wire bits", now, msdu__wire_at(f->round.wire)->bits);
    msdu_status status = msdu__trace_flush(p->trace);
    if (p->settings.metrics_file[0] != '\0' && now >= p->metrics_due_ns) {
        p->metrics_due_ns = now + (uint64_t)p->settings.metrics_period_ms * 1000000ULL;
        msdu_summary summary;
        msdu__pipeline_summary(p, &summary);
        msdu_status written = msdu__metrics_write(p->metrics_path, &summary);
        if (written != MSDU_OK) {
            p->metrics_due_ns = UINT64_MAX; /* given up */
            status = written;
        }
    }
    msdu__pipeline_io(p, status);
}

bool msdu__round_finish(msdu__pipeline *p, msdu__fragment *f)
{
    if (atomic_load(&p->status) != MSDU_OK || !f->is_control_done || !f->may_apply ||
        f->reduced < f->slice_count || f->captured < f->slice_count || !are_passes_done(p, f)) {
        return false;
    }
    if (!f->is_applied) {
        p->last_link_ns = p->link_ns;
        p->link_ns = 0;
        apply_round(p, f);
        f->is_applied = true;
        if (!are_passes_done(p, f)) {
            return false;
        }
    }
    bool is_idle = f->is_skipped || f->is_passed || f->is_void; /* nothing to be learned from */
    if ((p->chain.needs & MSDU__NEEDS_NORM) == 0 && !is_idle) {
        sum_applied(p, f);
    }
    if (is_idle) {
        repeat_decision(p, f);
    } else {
        decide(p, f);
    }
    msdu__replan_review(p, f);
    observe(p, f);
    f->link_wire = f->round.wire;
    f->state = MSDU__FRAGMENT_IDLE;
    p->active_count--;
    memmove(p->active, p->active + 1, p->active_count * sizeof(*p->active));
    atomic_fetch_add(&f->done, 1);
    msdu__pipeline_wake(p);
    return true;
}

bool msdu__round_drain(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->active_count; i++) {
        if (p->fragments[p->active[i]].captured > 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        if (p->fragments[i].plan_req != NULL) {
            return false;
        }
    }
    atomic_store(&p->is_drained, true);
    msdu__pipeline_wake(p);
    return true;
}
