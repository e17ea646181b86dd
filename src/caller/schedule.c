/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a step: announcements, waiting, and when the ranks meet next. Everything is
 * decided from step counts and from decisions that are equal on all ranks; never from what has
 * arrived here so far.
 */
#include "core/pipeline.h"

msdu_status msdu__pipeline_status(msdu__pipeline *p)
{
    int status = atomic_load(&p->status);
    if (status == MSDU_OK) {
        return MSDU_OK;
    }
    pthread_mutex_lock(&p->lock);
    msdu__fail_text((msdu_status)status, p->failure);
    pthread_mutex_unlock(&p->lock);
    return (msdu_status)status;
}

static void push(msdu__pipeline *p, uint32_t value)
{
    if (!msdu__ready_push(&p->ready, value)) {
        msdu__pipeline_fail(p, MSDU_ERR_STATE, "the ready queue is full: a call out of order");
    }
}

/* --- announcing --- */

/* Does this step want this kind of this tensor at all? */
static bool is_wanted(const msdu__pipeline *p, const msdu__tensor *t, msdu_what what)
{
    bool wants_gradient = p->is_gradient || p->is_accumulated;
    if (t->slice_count == 0 || (what == MSDU_GRADIENT) != wants_gradient) {
        return false;
    }
    return t->role == MSDU_ROLE_MODEL || !wants_gradient;
}

static bool is_due(const msdu__pipeline *p, uint32_t slice)
{
    return p->is_accumulated ||
           (p->sync_mask >> msdu__fragment_of(p, slice, p->is_gradient) & 1U) != 0;
}

static void announce(msdu__pipeline *p, msdu__tensor *t, int kind)
{
    const uint32_t *slices = p->tensor_slices + t->first_slice;
    uint32_t due = 0;
    bool is_complete = false;
    for (uint32_t i = 0; i < t->slice_count; i++) {
        due += is_due(p, slices[i]) ? 1 : 0;
    }
    if (due == 0) {
        return;
    }
    /* before the slices leave, or they could come back to a tensor that is not busy yet */
    atomic_fetch_add(&t->busy[kind], due);
    for (uint32_t i = 0; i < t->slice_count; i++) {
        if (is_due(p, slices[i]) && atomic_fetch_sub(&p->runs[slices[i]].missing, 1) == 1) {
            push(p, slices[i]);
            is_complete = true;
        }
    }
    if (is_complete) {
        msdu__worker_kick(&p->worker);
    }
}

msdu_status msdu__schedule_ready(msdu__pipeline *p, uint32_t id, msdu_what what)
{
    msdu__tensor *t = &p->tensors[id];
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    if (atomic_exchange(&t->announced[kind], p->step + 1) == p->step + 1) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: tensor '%s' was announced twice in step %llu, or after the "
                          "backward pass was over",
                          p->rank, t->name, (unsigned long long)p->step);
    }
    if ((atomic_load(&p->announced) & (uint32_t)what) == 0) {
        atomic_fetch_or(&p->announced, (uint32_t)what);
    }
    if (is_wanted(p, t, what)) {
        announce(p, t, kind);
    }
    return MSDU_OK;
}

msdu_status msdu__schedule_rest(msdu__pipeline *p, msdu_what what)
{
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    for (uint32_t id = 0; id < p->tensor_count; id++) {
        if (atomic_exchange(&p->tensors[id].announced[kind], p->step + 1) != p->step + 1 &&
            is_wanted(p, &p->tensors[id], what)) {
            announce(p, &p->tensors[id], kind);
        }
    }
    return msdu__pipeline_status(p);
}

/* --- waiting --- */

static bool is_busy(const msdu__tensor *t, uint32_t what)
{
    return ((what & MSDU_GRADIENT) != 0 && atomic_load(&t->busy[0]) > 0) ||
           ((what & MSDU_PARAMETER) != 0 && atomic_load(&t->busy[1]) > 0);
}

/* A wait for the network. */
static void block(msdu__pipeline *p, const msdu__awaited *a)
{
    uint64_t blocked = msdu__await(p, a);
    p->step_blocked_ns += blocked;
    atomic_fetch_add(&p->blocked_ns, blocked); /* at once: the next control message tells it */
}

static bool is_free(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)p;
    return !is_busy(a->of, (uint32_t)a->count);
}

static void wait_for(msdu__pipeline *p, const msdu__tensor *t, uint32_t what)
{
    if (is_busy(t, what)) {
        block(p, &(msdu__awaited){.is_there = is_free,
                                  .what =
                                      what == MSDU_GRADIENT ? "the gradient of tensor " : "tensor ",
                                  .name = t->name,
                                  .of = t,
                                  .count = what});
    }
}

/*
 * A trainer may run its optimizer layer by layer in the next forward: then it waits, in a step in
 * which nothing was announced yet, for gradients of the step before. Any other wait for a gradient
 * says that the backward pass is over.
 */
static bool is_of_last_step(const msdu__pipeline *p)
{
    bool has_announced = (atomic_load(&p->announced) & MSDU_GRADIENT) != 0;
    return p->is_deferred && !p->is_backward_closed && !has_announced;
}

/* Were the gradients that were waited for dropped (setting check_finite: skip)? */
static msdu_status check_skipped(msdu__pipeline *p, uint32_t id, uint64_t step)
{
    bool has_gradient = id == MSDU_ALL_TENSORS || p->tensors[id].role == MSDU_ROLE_MODEL;
    if (atomic_load(&p->skipped) != step + 1 || !has_gradient) {
        return MSDU_OK;
    }
    pthread_mutex_lock(&p->lock);
    msdu__fail_text(MSDU_ERR_NOT_FINITE, p->skip_text);
    pthread_mutex_unlock(&p->lock);
    return MSDU_ERR_NOT_FINITE;
}

static msdu_status wait_until_free(msdu__pipeline *p, uint32_t id, uint32_t what)
{
    uint32_t first = id == MSDU_ALL_TENSORS ? 0 : id;
    uint32_t end = id == MSDU_ALL_TENSORS ? p->tensor_count : id + 1;
    bool are_free = true;
    for (uint32_t i = first; i < end; i++) {
        wait_for(p, &p->tensors[i], what);
        are_free = are_free && !is_busy(&p->tensors[i], what);
    }
    /* Gradients of a complete round are good whatever failed since: an optimizer that began with
     * them may end its loop over tensors; the failure is the answer of msdu_step(). */
    return what == MSDU_GRADIENT && are_free ? MSDU_OK : msdu__pipeline_status(p);
}

msdu_status msdu__schedule_wait(msdu__pipeline *p, uint32_t id, uint32_t what)
{
    bool wants_gradient = (what & MSDU_GRADIENT) != 0;
    uint64_t gradient_step = is_of_last_step(p) ? p->step - 1 : p->step;
    msdu_status status = MSDU_OK;
    if (wants_gradient && !p->is_backward_closed && gradient_step == p->step) {
        p->is_backward_closed = true;
        status = msdu__schedule_rest(p, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = wait_until_free(p, id, what);
    }
    return status == MSDU_OK && wants_gradient ? check_skipped(p, id, gradient_step) : status;
}

msdu_status msdu__schedule_wait_alone(msdu__pipeline *p, uint32_t id, bool is_now)
{
    atomic_store(&p->is_sequential, true);
    if (is_now && is_busy(&p->tensors[id], MSDU_GRADIENT) && atomic_load(&p->status) == MSDU_OK) {
        return MSDU_IN_PROGRESS;
    }
    return wait_until_free(p, id, MSDU_GRADIENT);
}

/* --- what is due --- */

/* Slices of a tensor that belong to a fragment, as busy counts. */
static void mark_busy(msdu__pipeline *p, uint32_t fragment)
{
    for (uint32_t id = 0; id < p->tensor_count; id++) {
        msdu__tensor *t = &p->tensors[id];
        const uint32_t *slices = p->tensor_slices + t->first_slice;
        for (uint32_t i = 0; i < t->slice_count; i++) {
            if (msdu__fragment_of(p, slices[i], false) == fragment) {
                atomic_fetch_add(&t->busy[1], 1);
            }
        }
    }
}

static void arm_slices(msdu__pipeline *p)
{
    uint32_t bound = p->is_gradient || p->is_accumulated ? p->slice_bound : p->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        if (is_due(p, slice)) {
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
            push(p, MSDU__COMMAND_OPEN | i);
        }
    }
}

void msdu__schedule_meet(msdu__pipeline *p)
{
    if (p->fragments[0].sync_step != p->step) {
        p->fragments[0].sync_step = p->step;
        open_due(p);
        msdu__worker_kick(&p->worker);
    }
}

void msdu__schedule_weigh(msdu__pipeline *p)
{
    bool has_begun = atomic_load(&p->announced) != 0 || p->is_backward_closed;
    for (uint32_t i = 0; !has_begun && i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if ((p->sync_mask >> i & 1U) != 0) {
            f->voices[(f->armed - 1) & 1] = voice(p);
        }
    }
}

/* Here and not where the mean is applied: only the owner knows that the optimizer is done with its
 * state in this step. */
static void reset_states(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        if (t->role == MSDU_ROLE_STATE && p->settings.state == MSDU__STATE_RESET) {
            msdu__pass pass = {.data = {.kind = MSDU_PASS_FILL,
                                        .announcement = msdu__announcement(i, MSDU_PARAMETER),
                                        .count = t->count * msdu__dtype_bytes(t->dtype),
                                        .out = t->parameter}};
            msdu__pass_run(p, &pass);
        }
    }
}

/* Results that are due now: from here the parameters are the library's until they are applied. */
static void apply_due(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if (f->is_pending && f->apply_step <= p->step) {
            f->is_pending = false;
            reset_states(p);
            mark_busy(p, i);
            push(p, MSDU__COMMAND_APPLY | i);
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
        block(p, &(msdu__awaited){
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
    msdu__retune_last(p, wire);
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
    push(p, MSDU__COMMAND_ANCHOR);
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

static bool is_heard(const msdu__pipeline *p, const msdu__awaited *a)
{
    const msdu__fragment *f = a->of;
    (void)p;
    return atomic_load(&f->heard) >= a->count;
}

bool msdu__schedule_hear(msdu__pipeline *p, const msdu__fragment *f, uint64_t round)
{
    if (atomic_load(&f->heard) < round) {
        block(p, &(msdu__awaited){.is_there = is_heard,
                                  .what = "the control messages of a round",
                                  .of = f,
                                  .count = round});
    }
    return atomic_load(&p->status) == MSDU_OK;
}

/*
 * Anchors are taken from parameters that are equal on all ranks. Those of a rank without input
 * stand still, so the change waits until it is back. The one place where the present round's
 * message is waited for: once, as a rule.
 */
static bool may_enter_local(msdu__pipeline *p, msdu__fragment *f)
{
    bool may = msdu__schedule_hear(p, f, f->armed) && !f->is_any_absent[(f->armed - 1) & 1];
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
            reset_states(p);
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

msdu_status msdu__schedule_step(msdu__pipeline *p)
{
    msdu_status status = msdu__schedule_rest(p, MSDU_GRADIENT);
    if (status == MSDU_OK) {
        status = msdu__schedule_rest(p, MSDU_PARAMETER);
    }
    if (status != MSDU_OK) {
        return status;
    }
    plan_next_meetings(p);
    apply_due(p);
    msdu__worker_kick(&p->worker);
    if (p->settings.overlap == MSDU__OVERLAP_BLOCKING || p->is_accumulated) {
        status = wait_until_free(p, MSDU_ALL_TENSORS, MSDU_GRADIENT | MSDU_PARAMETER);
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
    msdu__retune_due(p);
    open_due(p);
    msdu__worker_kick(&p->worker);
    return status == MSDU_OK ? msdu__pipeline_status(p) : status;
}

void msdu__schedule_start(msdu__pipeline *p)
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

static bool is_carried(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)a;
    return atomic_load(&p->is_carried);
}

/* Returns, whatever happens, when the communication thread has let go of what it was given. */
msdu_status msdu__schedule_carry(msdu__pipeline *p, uint32_t command)
{
    bool is_state = command == MSDU__COMMAND_STATE;
    atomic_store(&p->is_carried, false);
    push(p, command);
    msdu__worker_kick(&p->worker);
    uint64_t spent =
        msdu__await(p, &(msdu__awaited){.is_there = is_carried,
                                        .what = is_state ? "its state" : "a change of its slices",
                                        .is_lent = true});
    /* neither computing nor waiting for the network: the step begins that much later */
    p->step_began_ns += spent;
    atomic_fetch_add(&p->step_start_ns, spent);
    return msdu__pipeline_status(p);
}

void msdu__schedule_resume(msdu__pipeline *p)
{
    p->step_began_ns = msdu__pipeline_now(p);
    p->step_blocked_ns = 0;
    atomic_store(&p->step_start_ns, p->step_began_ns);
    open_due(p);
    msdu__worker_kick(&p->worker);
}

static bool is_drained(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)a;
    return atomic_load(&p->is_drained);
}

msdu_status msdu__schedule_drain(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].apply_step = 0; /* whatever is pending is due */
    }
    apply_due(p);
    atomic_store(&p->is_drained, false);
    push(p, MSDU__COMMAND_DRAIN);
    msdu__worker_kick(&p->worker);
    for (uint32_t id = 0; id < p->tensor_count; id++) {
        wait_for(p, &p->tensors[id], MSDU_GRADIENT | MSDU_PARAMETER);
    }
    block(p, &(msdu__awaited){.is_there = is_drained, .what = "the end of what is under way"});
    return msdu__pipeline_status(p);
}
