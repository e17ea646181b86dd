/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The API thread's side of a step: what is due, and when the ranks synchronize next. Everything is
 * decided from step counts and from decisions that are equal on all ranks; never from what has
 * arrived here so far.
 */
#include "caller.h"

#include "core/progress.h"
#include "core/tick.h"

static msdu__mailbox *box_of(msdu__caller *c, uint32_t fragment)
{
    return &c->hand->fragments[fragment];
}

/* Steps after which the mean of a local round is applied. `auto` is late only where the round is
 * long enough for it: a mean of single steps goes under the backward pass. */
static uint32_t delay_of(const msdu__caller *c, const msdu__schedule *f)
{
    bool is_short = c->job->settings.overlap == MSDU__OVERLAP_AUTO && f->interval <= f->delay_steps;
    return c->is_gradient || c->job->is_accumulated || is_short ? 0 : f->delay_steps;
}

/* Open the rounds that end with the present step. */
static void open_due(msdu__caller *c)
{
    uint32_t count = c->is_gradient ? 1 : c->model->fragment_count;
    c->sync_mask = 0;
    for (uint32_t i = 0; i < count; i++) {
        msdu__schedule *f = &c->schedules[i];
        if (f->sync_step == c->step) {
            c->sync_mask |= 1U << i;
        }
    }
    msdu__caller_arm(c);
    for (uint32_t i = 0; i < count; i++) {
        msdu__schedule *f = &c->schedules[i];
        if ((c->sync_mask >> i & 1U) != 0) {
            box_of(c, i)->rounds[f->armed & 1] = (msdu__round){
                .step = c->step,
                .interval = (uint32_t)(c->step + 1 - f->from_step),
                .delay_steps = delay_of(c, f),
                .wire = f->wire,
                .is_gradient = c->is_gradient,
                .began_ns = msdu__cell_get(&c->hand->reports.step_start_ns),
            };
            box_of(c, i)->contributions[f->armed & 1] = msdu__caller_contribution(c, i);
            f->armed++;
            msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_open, .number = i});
        }
    }
}

void msdu__step_synchronize(msdu__caller *c)
{
    if (c->schedules[0].sync_step != c->step) {
        c->schedules[0].sync_step = c->step;
        open_due(c);
        msdu__worker_kick(&c->hand->worker);
    }
}

void msdu__step_weigh(msdu__caller *c)
{
    bool has_begun = msdu__cell_get(&c->hand->announced) != 0 || c->is_backward_closed;
    for (uint32_t i = 0; !has_begun && i < c->model->fragment_count; i++) {
        const msdu__schedule *f = &c->schedules[i];
        if ((c->sync_mask >> i & 1U) != 0) {
            box_of(c, i)->contributions[(f->armed - 1) & 1] = msdu__caller_contribution(c, i);
        }
    }
}

/* Its next round begins with the next step. */
static void begin_next(const msdu__caller *c, msdu__schedule *f)
{
    f->from_step = c->step + 1;
    f->samples = c->draw.samples;
    f->nominal = c->draw.nominal;
}

/* The decision of the round before the last armed one: known on every rank, or soon. */
static void take_decision(msdu__caller *c, uint32_t fragment)
{
    msdu__schedule *f = &c->schedules[fragment];
    const msdu__mailbox *box = box_of(c, fragment);
    if (f->armed < 2) {
        return;
    }
    const msdu__ticket done = {
        .counter = &box->done, .value = f->armed - 1, .what = "the end of a round"};
    if (!msdu__ticket_is_there(&done)) {
        msdu__caller_block(c, &done);
    }
    const msdu__answer *answer = &box->answers[(done.value - 1) & 1];
    const msdu__decision *decision = &answer->decision;
    if (fragment == 0) {
        msdu__draw_hear(&c->draw, c->job, c->step, box->rounds[(done.value - 1) & 1].step,
                        answer->step_ns);
    }
    f->interval = decision->interval;
    f->wire = decision->wire;
    f->delay_steps = decision->delay_steps;
    f->wants_clock = decision->is_clock;
    f->is_left = decision->is_left;
    c->is_over = c->is_over || decision->is_last;
}

/* A local round needs room for results that are late, and training may end before the next one. */
static uint64_t next_sync(const msdu__caller *c, uint32_t interval, uint32_t delay_steps)
{
    uint64_t least = (uint64_t)delay_steps + 1;
    uint64_t next = c->step + (interval > least ? interval : least);
    uint64_t last = (uint64_t)c->job->settings.total_steps;
    return last > 0 && next >= last && c->step + least < last ? last - 1 : next;
}

/* From gradients to parameters; fragments are spread over the first local round. */
static void enter_local(msdu__caller *c)
{
    uint32_t interval = c->schedules[0].interval;
    int wire = c->schedules[0].wire;
    if (c->was_uneven) {
        /* momentum that stood still on a rank has led parameters apart, and anchors must be equal;
         * a failure is the answer of this step */
        c->was_uneven = msdu__average_exact(c) != MSDU_OK;
    }
    uint32_t delay = c->schedules[0].delay_steps;
    msdu__reslice_last(c, wire);
    c->is_gradient = false;
    c->is_local_entered = true;
    pthread_mutex_lock(&c->hand->lock);
    c->hand->summary.domain = "parameter";
    c->hand->summary.state = "local";
    pthread_mutex_unlock(&c->hand->lock);
    for (uint32_t i = 0; i < c->model->tensor_count; i++) {
        if (c->model->tensors[i].role == MSDU_ROLE_MODEL) {
            (void)msdu__cell_add(&c->hand->leases[i].free[1],
                                 -(uint64_t)c->model->tensors[i].slice_count);
        }
    }
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_enter_local});
    uint64_t first = next_sync(c, interval, delay_of(c, &c->schedules[0])) - c->step;
    for (uint32_t i = 0; i < c->model->fragment_count; i++) {
        msdu__schedule *f = &c->schedules[i];
        uint64_t offset = first * (i + 1) / c->model->fragment_count;
        f->interval = interval;
        f->wire = wire;
        f->delay_steps = delay;
        f->sync_step = c->step + (offset > 0 ? offset : 1);
        begin_next(c, f);
    }
}

/*
 * Anchors are taken from parameters that are equal on all ranks. Those of a rank without input
 * stand still, so the change waits until it is back. The one place where the present round's
 * message is waited for: once, as a rule.
 */
static bool have_all_input(msdu__caller *c)
{
    uint64_t armed = c->schedules[0].armed;
    const msdu__answer *answer = &box_of(c, 0)->answers[(armed - 1) & 1];
    return msdu__caller_hear(c, 0, armed) && !answer->is_any_idle;
}

static bool may_enter_local(msdu__caller *c)
{
    bool may = have_all_input(c);
    c->schedules[0].interval = may ? c->schedules[0].interval : 1;
    return may;
}

/* To rounds by the clock. */
static void enter_clock(msdu__caller *c)
{
    /* optimizer state and buffers have anchors too, and may differ; a failure is the step's answer
     */
    c->was_uneven = msdu__average_exact(c) != MSDU_OK;
    if (c->is_gradient) {
        msdu__reslice_last(c, c->schedules[0].wire);
    }
    c->is_gradient = false;
    c->is_local_entered = true;
    c->is_clocked = c->is_ticking = true;
    c->draw.clock_step = c->step + 1;
    c->sync_mask = 0;
    c->shifted = msdu__cell_get(&box_of(c, 0)->done);
    pthread_mutex_lock(&c->hand->lock);
    c->hand->summary.domain = "parameter";
    c->hand->summary.state = "clock";
    pthread_mutex_unlock(&c->hand->lock);
    msdu__caller_lend(c, 0);
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_enter_clock});
    msdu__worker_kick(&c->hand->worker);
}

static void plan_next_rounds(msdu__caller *c)
{
    uint32_t count = c->is_gradient ? 1 : c->model->fragment_count;
    for (uint32_t i = 0; i < count; i++) {
        msdu__schedule *f = &c->schedules[i];
        if ((c->sync_mask >> i & 1U) == 0) {
            continue;
        }
        uint32_t delay = box_of(c, i)->rounds[(f->armed - 1) & 1].delay_steps;
        if (delay > 0) {
            f->is_pending = true;
            f->apply_step = c->step + delay;
        } else if (!c->is_gradient && !c->job->is_accumulated) {
            msdu__caller_reset(c);
        }
        take_decision(c, i);
        if (f->wants_clock && have_all_input(c)) {
            enter_clock(c);
            return;
        }
        if (c->is_gradient && f->interval > 1 && may_enter_local(c)) {
            enter_local(c);
            return;
        }
        f->sync_step = c->is_gradient ? c->step + 1 : next_sync(c, f->interval, delay);
        begin_next(c, f);
    }
}

static void note_step_time(msdu__caller *c)
{
    uint64_t now = msdu__job_now(c->job);
    double spent = (double)(now - c->step_began_ns) - (double)c->step_blocked_ns;
    double smoothed = msdu__number_get(&c->hand->reports.step_ns);
    double weight = c->step < 2 ? 1.0 : MSDU__SMOOTH; /* the first step warms caches up */
    if (c->is_idle || (c->is_resumed && c->step == c->resumed_step)) {
        weight = 0.0; /* a step without input takes no time; the first after a resume warms up */
    }
    msdu__number_set(&c->hand->reports.step_ns, smoothed + weight * (spent - smoothed));
    c->step_blocked_ns = 0;
    c->step_began_ns = now;
    msdu__cell_set(&c->hand->reports.step_start_ns, now);
}

/* Rounds by steps: what the trainer did not announce, what is due now, and what will be. */
static msdu_status end_round(msdu__caller *c)
{
    msdu_status status = msdu__caller_rest(c, MSDU_GRADIENT);
    if (status == MSDU_OK) {
        status = msdu__caller_rest(c, MSDU_PARAMETER);
    }
    if (status != MSDU_OK) {
        return status;
    }
    plan_next_rounds(c);
    msdu__caller_apply_due(c);
    msdu__worker_kick(&c->hand->worker);
    if (c->job->settings.overlap == MSDU__OVERLAP_BLOCKING || c->job->is_accumulated) {
        status = msdu__caller_wait_free(c, MSDU_ALL_TENSORS, MSDU_GRADIENT | MSDU_PARAMETER);
    }
    return status;
}

static void begin_round(msdu__caller *c)
{
    if (!c->is_clocked) {
        msdu__reslice_due(c);
        open_due(c);
        msdu__worker_kick(&c->hand->worker);
    }
}

msdu_status msdu__step_end(msdu__caller *c)
{
    msdu__draw_count(&c->draw, c->step);
    msdu_status status = c->is_clocked ? msdu__boundary(c) : end_round(c);
    if (status != MSDU_OK) {
        return status;
    }
    note_step_time(c);
    if (c->job->is_accumulated && !c->is_idle) {
        msdu__flag_set(&c->hand->reports.is_first_call, false);
    }
    c->step++;
    msdu__cell_set(&c->hand->reports.step_count, c->step);
    c->is_deferred = !c->is_backward_closed;
    c->is_backward_closed = false;
    msdu__cell_set(&c->hand->announced, 0);
    begin_round(c);
    return msdu__handover_status(c->hand);
}

void msdu__step_start(msdu__caller *c)
{
    for (uint32_t i = 0; i < c->model->fragment_count; i++) {
        c->schedules[i].interval = 1;
        c->schedules[i].delay_steps = (uint32_t)c->job->settings.delay_steps;
        c->schedules[i].wire = msdu__interval_first_wire(&c->job->interval_args);
        c->schedules[i].sync_step = c->step + (uint64_t)i * (c->is_gradient ? 0 : 1);
        c->schedules[i].from_step = c->step;
    }
    c->step_began_ns = msdu__job_now(c->job);
    msdu__cell_set(&c->hand->reports.step_start_ns, c->step_began_ns);
    begin_round(c);
}

void msdu__step_start_local(msdu__caller *c, const msdu__decision *decision)
{
    c->step_began_ns = msdu__job_now(c->job);
    msdu__cell_set(&c->hand->reports.step_start_ns, c->step_began_ns);
    c->schedules[0].interval = decision->interval;
    c->schedules[0].wire = decision->wire;
    c->schedules[0].delay_steps = decision->delay_steps;
    c->step--; /* as at the end of the step before */
    enter_local(c);
    c->step++;
    begin_round(c);
}

void msdu__step_resume(msdu__caller *c)
{
    c->step_began_ns = msdu__job_now(c->job);
    c->step_blocked_ns = 0;
    msdu__cell_set(&c->hand->reports.step_start_ns, c->step_began_ns);
    if (!c->is_clocked) {
        open_due(c);
        msdu__worker_kick(&c->hand->worker);
    }
}
