/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a step: what is due, and when the ranks meet next. Everything is
 * decided from step counts and from decisions that are equal on all ranks; never from what has
 * arrived here so far.
 */
#include "caller.h"

static void arm_slices(msdu__pipeline *p)
{
    uint32_t bound = p->is_gradient || p->is_accumulated ? p->slice_bound : p->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        if (msdu__handoff_is_due(p, slice)) {
            atomic_store(&p->runs[slice].missing, p->slicing.slices[slice].segments);
        }
    }
}

/* Steps after which the mean of a local round is applied. `auto` is late only where the round is
 * long enough for it: a mean of single steps goes under the backward pass. */
static uint32_t delay_of(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool is_short = p->settings.overlap == MSDU__OVERLAP_AUTO && f->interval <= f->delay_steps;
    return p->is_gradient || p->is_accumulated || is_short ? 0 : f->delay_steps;
}

static msdu__voice voice(const msdu__pipeline *p)
{
    return (msdu__voice){.weight = p->is_absent ? 0 : p->weight, .is_absent = p->is_absent};
}

/* Open the rounds that end with the present step. */
static void open_due(msdu__pipeline *p)
{
    uint32_t count = p->is_gradient ? 1 : p->fragment_count;
    p->sync_mask = 0;
    for (uint32_t i = 0; i < count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if (f->sync_step == p->step) {
            p->sync_mask |= 1U << i;
        }
    }
    arm_slices(p);
    for (uint32_t i = 0; i < count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if ((p->sync_mask >> i & 1U) != 0) {
            f->rounds[f->armed & 1] = (msdu__round){
                .step = p->step,
                .interval = (uint32_t)(p->step + 1 - f->from_step),
                .delay_steps = delay_of(p, f),
                .wire = f->wire,
                .is_gradient = p->is_gradient,
                .began_ns = atomic_load(&p->step_start_ns),
            };
            f->voices[f->armed & 1] = voice(p);
            f->armed++;
            msdu__handoff_push(p, MSDU__COMMAND_OPEN | i);
        }
    }
}

void msdu__step_meet(msdu__pipeline *p)
{
    if (p->fragments[0].sync_step != p->step) {
        p->fragments[0].sync_step = p->step;
        open_due(p);
        msdu__worker_kick(&p->worker);
    }
}

void msdu__step_weigh(msdu__pipeline *p)
{
    bool has_begun = atomic_load(&p->announced) != 0 || p->is_backward_closed;
    for (uint32_t i = 0; !has_begun && i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if ((p->sync_mask >> i & 1U) != 0) {
            f->voices[(f->armed - 1) & 1] = voice(p);
        }
    }
}

static bool is_done(const msdu__pipeline *p, const msdu__awaited *a)
{
    const msdu__fragment *f = a->of;
    (void)p;
    return atomic_load(&f->done) >= a->count;
}

/* The decision of the round before the last armed one: known on every rank, or soon. */
static void take_decision(msdu__pipeline *p, msdu__fragment *f)
{
    if (f->armed < 2) {
        return;
    }
    uint64_t wanted = f->armed - 1;
    if (atomic_load(&f->done) < wanted) {
        msdu__handoff_block(
            p, &(msdu__awaited){
                   .is_there = is_done, .what = "the end of a round", .of = f, .count = wanted});
    }
    f->interval = f->decisions[(wanted - 1) & 1].interval;
    f->wire = f->decisions[(wanted - 1) & 1].wire;
    f->delay_steps = f->decisions[(wanted - 1) & 1].delay_steps;
}

/* A local round needs room for results that are late, and training may end before the next one. */
static uint64_t next_sync(const msdu__pipeline *p, uint32_t interval, uint32_t delay_steps)
{
    uint64_t least = (uint64_t)delay_steps + 1;
    uint64_t next = p->step + (interval > least ? interval : least);
    uint64_t last = (uint64_t)p->settings.total_steps;
    return last > 0 && next >= last && p->step + least < last ? last - 1 : next;
}

/* From gradients to parameters; fragments are spread over the first local round. */
static void enter_local(msdu__pipeline *p)
{
    uint32_t interval = p->fragments[0].interval;
    int wire = p->fragments[0].wire;
    if (p->was_uneven) {
        /* momentum that stood still on a rank has led parameters apart, and anchors must be equal;
         * a failure is the answer of this step */
        p->was_uneven = msdu__final_meet(p) != MSDU_OK;
    }
    uint32_t delay = p->fragments[0].delay_steps;
    msdu__reslice_last(p, wire);
    p->is_gradient = false;
    p->is_local_entered = true;
    pthread_mutex_lock(&p->lock);
    p->summary.domain = "parameter";
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].role == MSDU_ROLE_MODEL) {
            atomic_fetch_add(&p->tensors[i].busy[1], p->tensors[i].slice_count);
        }
    }
    msdu__handoff_push(p, MSDU__COMMAND_ANCHOR);
    uint64_t first = next_sync(p, interval, delay_of(p, &p->fragments[0])) - p->step;
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        uint64_t offset = first * (i + 1) / p->fragment_count;
        f->interval = interval;
        f->wire = wire;
        f->delay_steps = delay;
        f->sync_step = p->step + (offset > 0 ? offset : 1);
        f->from_step = p->step + 1;
    }
}

/*
 * Anchors are taken from parameters that are equal on all ranks. Those of a rank without input
 * stand still, so the change waits until it is back. The one place where the present round's
 * message is waited for: once, as a rule.
 */
static bool may_enter_local(msdu__pipeline *p, msdu__fragment *f)
{
    bool may = msdu__handoff_hear(p, f, f->armed) && !f->is_any_absent[(f->armed - 1) & 1];
    f->interval = may ? f->interval : 1;
    return may;
}

static void plan_next_meetings(msdu__pipeline *p)
{
    uint32_t count = p->is_gradient ? 1 : p->fragment_count;
    for (uint32_t i = 0; i < count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if ((p->sync_mask >> i & 1U) == 0) {
            continue;
        }
        uint32_t delay = f->rounds[(f->armed - 1) & 1].delay_steps;
        if (delay > 0) {
            f->is_pending = true;
            f->apply_step = p->step + delay;
        } else if (!p->is_gradient && !p->is_accumulated) {
            msdu__handoff_reset(p);
        }
        take_decision(p, f);
        if (p->is_gradient && f->interval > 1 && may_enter_local(p, f)) {
            enter_local(p);
            return;
        }
        f->sync_step = p->is_gradient ? p->step + 1 : next_sync(p, f->interval, delay);
        f->from_step = p->step + 1;
    }
}

static void note_step_time(msdu__pipeline *p)
{
    uint64_t now = msdu__pipeline_now(p);
    double spent = (double)(now - p->step_began_ns) - (double)p->step_blocked_ns;
    double smoothed = atomic_load(&p->step_ns);
    double weight = p->step < 2 ? 1.0 : MSDU__SMOOTH; /* the first step warms caches up */
    if (p->is_absent || (p->is_resumed && p->step == p->resumed_step)) {
        weight = 0.0; /* a step without input takes no time; the first after a resume warms up */
    }
    atomic_store(&p->step_ns, smoothed + weight * (spent - smoothed));
    p->step_blocked_ns = 0;
    p->step_began_ns = now;
    atomic_store(&p->step_start_ns, now);
}

msdu_status msdu__step_end(msdu__pipeline *p)
{
    msdu_status status = msdu__handoff_rest(p, MSDU_GRADIENT);
    if (status == MSDU_OK) {
        status = msdu__handoff_rest(p, MSDU_PARAMETER);
    }
    if (status != MSDU_OK) {
        return status;
    }
    plan_next_meetings(p);
    msdu__handoff_apply_due(p);
    msdu__worker_kick(&p->worker);
    if (p->settings.overlap == MSDU__OVERLAP_BLOCKING || p->is_accumulated) {
        status = msdu__handoff_wait_free(p, MSDU_ALL_TENSORS, MSDU_GRADIENT | MSDU_PARAMETER);
    }
    note_step_time(p);
    if (p->is_accumulated && !p->is_absent) {
        atomic_store(&p->is_first_call, false);
    }
    p->step++;
    atomic_store(&p->step_count, p->step);
    p->is_deferred = !p->is_backward_closed;
    p->is_backward_closed = false;
    atomic_store(&p->announced, 0);
    msdu__reslice_due(p);
    open_due(p);
    msdu__worker_kick(&p->worker);
    return status == MSDU_OK ? msdu__pipeline_status(p) : status;
}

void msdu__step_start(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].interval = 1;
        p->fragments[i].delay_steps = (uint32_t)p->settings.delay_steps;
        p->fragments[i].wire = msdu__interval_first_wire(&p->interval_args);
        p->fragments[i].sync_step = (uint64_t)i * (p->is_gradient ? 0 : 1);
    }
    p->decision.interval = p->fragments[0].interval;
    p->decision.wire = p->fragments[0].wire;
    p->decision.delay_steps = p->fragments[0].delay_steps;
    p->step_began_ns = msdu__pipeline_now(p);
    atomic_store(&p->step_start_ns, p->step_began_ns);
    open_due(p);
    msdu__worker_kick(&p->worker);
}

void msdu__step_resume(msdu__pipeline *p)
{
    p->step_began_ns = msdu__pipeline_now(p);
    p->step_blocked_ns = 0;
    atomic_store(&p->step_start_ns, p->step_began_ns);
    open_due(p);
    msdu__worker_kick(&p->worker);
}
