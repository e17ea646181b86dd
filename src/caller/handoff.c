/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer's thread gives to the communication thread and waits for. */
#include "caller.h"

void msdu__handoff_push(msdu__pipeline *p, uint32_t value)
{
    if (!msdu__ready_push(&p->ready, value)) {
        msdu__pipeline_fail(p, MSDU_ERR_STATE, "the ready queue is full: a call out of order");
    }
}

/* Does this step want this kind of this tensor at all? */
static bool is_wanted(const msdu__pipeline *p, const msdu__tensor *t, msdu_what what)
{
    bool wants_gradient = p->is_gradient || p->is_accumulated;
    if (t->slice_count == 0 || (what == MSDU_GRADIENT) != wants_gradient) {
        return false;
    }
    return t->role == MSDU_ROLE_MODEL || !wants_gradient;
}

bool msdu__handoff_is_due(const msdu__pipeline *p, uint32_t slice)
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
        due += msdu__handoff_is_due(p, slices[i]) ? 1 : 0;
    }
    if (due == 0) {
        return;
    }
    /* before the slices leave, or they could come back to a tensor that is not busy yet */
    atomic_fetch_add(&t->busy[kind], due);
    for (uint32_t i = 0; i < t->slice_count; i++) {
        if (msdu__handoff_is_due(p, slices[i]) &&
            atomic_fetch_sub(&p->runs[slices[i]].missing, 1) == 1) {
            msdu__handoff_push(p, slices[i]);
            is_complete = true;
        }
    }
    if (is_complete) {
        msdu__worker_kick(&p->worker);
    }
}

msdu_status msdu__handoff_ready(msdu__pipeline *p, uint32_t id, msdu_what what)
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

msdu_status msdu__handoff_rest(msdu__pipeline *p, msdu_what what)
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

static bool is_busy(const msdu__tensor *t, uint32_t what)
{
    return ((what & MSDU_GRADIENT) != 0 && atomic_load(&t->busy[0]) > 0) ||
           ((what & MSDU_PARAMETER) != 0 && atomic_load(&t->busy[1]) > 0);
}

/* A wait for the network. */
void msdu__handoff_block(msdu__pipeline *p, const msdu__awaited *a)
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
        msdu__handoff_block(
            p,
            &(msdu__awaited){.is_there = is_free,
                             .what = what == MSDU_GRADIENT ? "the gradient of tensor " : "tensor ",
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

msdu_status msdu__handoff_wait_free(msdu__pipeline *p, uint32_t id, uint32_t what)
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

msdu_status msdu__handoff_wait(msdu__pipeline *p, uint32_t id, uint32_t what)
{
    bool wants_gradient = (what & MSDU_GRADIENT) != 0;
    uint64_t gradient_step = is_of_last_step(p) ? p->step - 1 : p->step;
    msdu_status status = MSDU_OK;
    if (wants_gradient && !p->is_backward_closed && gradient_step == p->step) {
        p->is_backward_closed = true;
        status = msdu__handoff_rest(p, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = msdu__handoff_wait_free(p, id, what);
    }
    return status == MSDU_OK && wants_gradient ? check_skipped(p, id, gradient_step) : status;
}

msdu_status msdu__handoff_wait_alone(msdu__pipeline *p, uint32_t id, bool is_now)
{
    atomic_store(&p->is_sequential, true);
    if (is_now && is_busy(&p->tensors[id], MSDU_GRADIENT) && atomic_load(&p->status) == MSDU_OK) {
        return MSDU_IN_PROGRESS;
    }
    return msdu__handoff_wait_free(p, id, MSDU_GRADIENT);
}

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

/* Here and not where the mean is applied: only the owner knows that the optimizer is done with its
 * state in this step. Who waits for parameters waits for the zeros. */
void msdu__handoff_reset(msdu__pipeline *p)
{
    if (p->settings.state != MSDU__STATE_RESET) {
        return;
    }
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        atomic_fetch_add(&p->tensors[i].busy[1], 1);
    }
    msdu__handoff_push(p, MSDU__COMMAND_RESET);
}

/* Results that are due now: from here the parameters are the library's until they are applied. */
void msdu__handoff_apply_due(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        if (f->is_pending && f->apply_step <= p->step) {
            f->is_pending = false;
            msdu__handoff_reset(p);
            mark_busy(p, i);
            msdu__handoff_push(p, MSDU__COMMAND_APPLY | i);
        }
    }
}

static bool is_heard(const msdu__pipeline *p, const msdu__awaited *a)
{
    const msdu__fragment *f = a->of;
    (void)p;
    return atomic_load(&f->heard) >= a->count;
}

bool msdu__handoff_hear(msdu__pipeline *p, const msdu__fragment *f, uint64_t round)
{
    if (atomic_load(&f->heard) < round) {
        msdu__handoff_block(p, &(msdu__awaited){.is_there = is_heard,
                                                .what = "the control messages of a round",
                                                .of = f,
                                                .count = round});
    }
    return atomic_load(&p->status) == MSDU_OK;
}

static bool is_carried(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)a;
    return atomic_load(&p->is_carried);
}

void msdu__handoff_carried(msdu__pipeline *p)
{
    atomic_store(&p->is_carried, true);
    msdu__pipeline_wake(p);
}

msdu_status msdu__handoff_carry(msdu__pipeline *p, bool (*run)(msdu__pipeline *p), const char *what)
{
    p->carried = run;
    atomic_store(&p->is_carried, false);
    msdu__handoff_push(p, MSDU__COMMAND_CARRY);
    msdu__worker_kick(&p->worker);
    uint64_t spent =
        msdu__await(p, &(msdu__awaited){.is_there = is_carried, .what = what, .is_lent = true});
    /* neither computing nor waiting for the network: the step begins that much later */
    p->step_began_ns += spent;
    atomic_fetch_add(&p->step_start_ns, spent);
    return msdu__pipeline_status(p);
}

static bool is_drained(const msdu__pipeline *p, const msdu__awaited *a)
{
    (void)a;
    return atomic_load(&p->is_drained);
}

msdu_status msdu__handoff_drain(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].apply_step = 0; /* whatever is pending is due */
    }
    msdu__handoff_apply_due(p);
    atomic_store(&p->is_drained, false);
    msdu__handoff_push(p, MSDU__COMMAND_DRAIN);
    msdu__worker_kick(&p->worker);
    for (uint32_t id = 0; id < p->tensor_count; id++) {
        wait_for(p, &p->tensors[id], MSDU_GRADIENT | MSDU_PARAMETER);
    }
    msdu__handoff_block(
        p, &(msdu__awaited){.is_there = is_drained, .what = "the end of what is under way"});
    return msdu__pipeline_status(p);
}
