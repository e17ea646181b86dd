/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer's thread gives to the communication thread and waits for. */
#include "caller.h"

#include "core/progress.h"

/* Does this step want this kind of this tensor at all? */
static bool is_wanted(const msdu__caller *c, const msdu__tensor *t, msdu_what what)
{
    bool wants_gradient = c->is_gradient || c->job->is_accumulated;
    if (t->slice_count == 0 || (what == MSDU_GRADIENT) != wants_gradient) {
        return false;
    }
    return t->role == MSDU_ROLE_MODEL || !wants_gradient;
}

bool msdu__caller_is_due(const msdu__caller *c, uint32_t slice)
{
    return c->job->is_accumulated ||
           (c->sync_mask >> msdu__fragment_of(c->model, slice, c->is_gradient) & 1U) != 0;
}

bool msdu__caller_is_between_steps(const msdu__caller *c)
{
    for (uint32_t i = 0; i < c->model->tensor_count; i++) {
        for (int kind = 0; kind < 2; kind++) {
            if (msdu__cell_get(&c->hand->leases[i].announced[kind]) == c->step + 1) {
                return false;
            }
        }
    }
    return true;
}

void msdu__caller_arm(msdu__caller *c)
{
    uint32_t bound = c->is_gradient || c->job->is_accumulated ? c->model->slice_bound
                                                              : c->model->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        if (msdu__caller_is_due(c, slice)) {
            msdu__cell_set(&c->hand->missing[slice], c->model->slicing.slices[slice].segments);
        }
    }
}

/* By samples, of all steps of the round; exactly 1 where shares are even. */
static double drawn_share(const msdu__caller *c, const msdu__schedule *f)
{
    const msdu__piece *piece = msdu__draw_piece(&c->draw, c->step);
    if (c->is_clocked) {
        return 1; /* progress since the last contribution, of as many steps as there were */
    }
    uint64_t samples = c->draw.samples - f->samples + (piece != NULL ? piece->samples : 0);
    uint64_t nominal = c->draw.nominal - f->nominal + (piece != NULL ? piece->batch : 0);
    return samples == nominal ? 1 : (double)samples / (double)nominal;
}

msdu__contribution msdu__caller_contribution(const msdu__caller *c, uint32_t fragment)
{
    const msdu__piece *piece = msdu__draw_piece(&c->draw, c->step);
    double weight = c->weight * drawn_share(c, &c->schedules[fragment]);
    return (msdu__contribution){.weight = c->is_idle ? 0 : weight,
                                .is_idle = c->is_idle,
                                .work = piece != NULL && !c->is_clocked ? piece->check : 0,
                                .is_moving = c->draw.shares.is_moving};
}

static void push_slice(const msdu__caller *c, uint32_t slice)
{
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_slice, .number = slice});
}

static void announce(const msdu__caller *c, uint32_t id, int kind)
{
    const msdu__tensor *t = &c->model->tensors[id];
    const uint32_t *slices = c->model->tensor_slices + t->first_slice;
    uint64_t due = 0;
    bool is_complete = false;
    for (uint32_t i = 0; i < t->slice_count; i++) {
        due += msdu__caller_is_due(c, slices[i]) ? 1 : 0;
    }
    if (due == 0 || c->hand->missing == NULL) { /* NULL: the start has failed */
        return;
    }
    /* before the slices leave, or they could come back to a tensor that is not busy yet */
    (void)msdu__cell_add(&c->hand->leases[id].free[kind], -due);
    for (uint32_t i = 0; i < t->slice_count; i++) {
        if (msdu__caller_is_due(c, slices[i]) &&
            msdu__cell_add(&c->hand->missing[slices[i]], (uint64_t)-1) == 1) {
            push_slice(c, slices[i]);
            is_complete = true;
        }
    }
    if (is_complete) {
        msdu__worker_kick(&c->hand->worker);
    }
}

msdu_status msdu__caller_ready(msdu__caller *c, uint32_t id, msdu_what what)
{
    const msdu__tensor *t = &c->model->tensors[id];
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    if (msdu__cell_swap(&c->hand->leases[id].announced[kind], c->step + 1) == c->step + 1) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: tensor '%s' was announced twice in step %llu, or after the "
                          "backward pass was over",
                          c->job->rank, t->name, (unsigned long long)c->step);
    }
    if ((msdu__cell_get(&c->hand->announced) & (uint64_t)what) == 0) {
        msdu__cell_mark(&c->hand->announced, (uint64_t)what);
    }
    if (is_wanted(c, t, what)) {
        announce(c, id, kind);
    }
    return MSDU_OK;
}

msdu_status msdu__caller_rest(msdu__caller *c, msdu_what what)
{
    int kind = what == MSDU_GRADIENT ? 0 : 1;
    for (uint32_t id = 0; id < c->model->tensor_count; id++) {
        msdu__cell *announced = &c->hand->leases[id].announced[kind];
        if (msdu__cell_swap(announced, c->step + 1) != c->step + 1 &&
            is_wanted(c, &c->model->tensors[id], what)) {
            announce(c, id, kind);
        }
    }
    return msdu__handover_status(c->hand);
}

void msdu__caller_announce_all(msdu__caller *c, msdu_what what)
{
    for (uint32_t id = 0; id < c->model->tensor_count; id++) {
        if (is_wanted(c, &c->model->tensors[id], what)) {
            announce(c, id, what == MSDU_GRADIENT ? 0 : 1);
        }
    }
}

/* --- waits --- */

/* A wait for the network. */
void msdu__caller_block(msdu__caller *c, const msdu__ticket *ticket)
{
    uint64_t blocked = msdu__handover_wait(c->hand, ticket);
    c->step_blocked_ns += blocked;
    /* at once: the next statistics message tells it */
    (void)msdu__cell_add(&c->hand->reports.blocked_ns, blocked);
}

static void wait_for(msdu__caller *c, uint32_t id, uint32_t what)
{
    for (int kind = 0; kind < 2; kind++) {
        const msdu__ticket ticket = {
            .counter = &c->hand->leases[id].free[kind],
            .what = kind == 0 ? "the gradient of tensor " : "tensor ",
            .name = c->model->tensors[id].name,
        };
        bool is_meant = (what & (kind == 0 ? MSDU_GRADIENT : MSDU_PARAMETER)) != 0;
        if (is_meant && !msdu__ticket_is_there(&ticket)) {
            msdu__caller_block(c, &ticket);
        }
    }
}

/*
 * A trainer may run its optimizer layer by layer in the next forward: then it waits, in a step in
 * which nothing was announced yet, for gradients of the step before. Any other wait for a gradient
 * says that the backward pass is over.
 */
static bool is_of_last_step(const msdu__caller *c)
{
    bool has_announced = (msdu__cell_get(&c->hand->announced) & MSDU_GRADIENT) != 0;
    return c->is_deferred && !c->is_backward_closed && !has_announced;
}

/* Were the gradients that were waited for dropped (setting check_finite: skip)? */
static msdu_status check_skipped(msdu__caller *c, uint32_t id, uint64_t step)
{
    msdu__handover *h = c->hand;
    bool has_gradient = id == MSDU_ALL_TENSORS || c->model->tensors[id].role == MSDU_ROLE_MODEL;
    if (msdu__cell_get(&h->failure.skipped) != step + 1 || !has_gradient) {
        return MSDU_OK;
    }
    pthread_mutex_lock(&h->lock);
    msdu__fail_text(MSDU_ERR_NOT_FINITE, h->failure.skip_text);
    pthread_mutex_unlock(&h->lock);
    return MSDU_ERR_NOT_FINITE;
}

msdu_status msdu__caller_wait_free(msdu__caller *c, uint32_t id, uint32_t what)
{
    uint32_t first = id == MSDU_ALL_TENSORS ? 0 : id;
    uint32_t end = id == MSDU_ALL_TENSORS ? c->model->tensor_count : id + 1;
    bool are_free = true;
    for (uint32_t i = first; i < end; i++) {
        wait_for(c, i, what);
        are_free = are_free && !msdu__handover_is_busy(c->hand, i, what);
    }
    /* Gradients of a complete round are good whatever failed since: an optimizer that began with
     * them may end its loop over tensors; the failure is the answer of msdu_step(). */
    return what == MSDU_GRADIENT && are_free ? MSDU_OK : msdu__handover_status(c->hand);
}

msdu_status msdu__caller_wait(msdu__caller *c, uint32_t id, uint32_t what)
{
    bool wants_gradient = (what & MSDU_GRADIENT) != 0;
    uint64_t gradient_step = is_of_last_step(c) ? c->step - 1 : c->step;
    msdu_status status = MSDU_OK;
    if (wants_gradient && !c->is_backward_closed && gradient_step == c->step) {
        c->is_backward_closed = true;
        status = msdu__caller_rest(c, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = msdu__caller_wait_free(c, id, what);
    }
    return status == MSDU_OK && wants_gradient ? check_skipped(c, id, gradient_step) : status;
}

msdu_status msdu__caller_wait_alone(msdu__caller *c, uint32_t id, bool is_now)
{
    msdu__flag_set(&c->hand->reports.is_sequential, true);
    if (is_now && msdu__handover_is_busy(c->hand, id, MSDU_GRADIENT) &&
        !msdu__handover_has_failed(c->hand)) {
        return MSDU_IN_PROGRESS;
    }
    return msdu__caller_wait_free(c, id, MSDU_GRADIENT);
}

bool msdu__caller_hear(msdu__caller *c, uint32_t fragment, uint64_t round)
{
    const msdu__ticket ticket = {.counter = &c->hand->fragments[fragment].heard,
                                 .value = round,
                                 .what = "the statistics messages of a round"};
    if (!msdu__ticket_is_there(&ticket)) {
        msdu__caller_block(c, &ticket);
    }
    return !msdu__handover_has_failed(c->hand);
}

/* --- results and commands --- */

/* Slices of a tensor that belong to a fragment, as leases. */
void msdu__caller_lend(const msdu__caller *c, uint32_t fragment)
{
    for (uint32_t id = 0; id < c->model->tensor_count; id++) {
        const msdu__tensor *t = &c->model->tensors[id];
        const uint32_t *slices = c->model->tensor_slices + t->first_slice;
        for (uint32_t i = 0; i < t->slice_count; i++) {
            if (msdu__fragment_of(c->model, slices[i], false) == fragment) {
                (void)msdu__cell_add(&c->hand->leases[id].free[1], (uint64_t)-1);
            }
        }
    }
}

/* Here and not where the mean is applied: only this thread knows that the optimizer is done with
 * its state in this step. Who waits for parameters waits for the zeros. */
void msdu__caller_reset(msdu__caller *c)
{
    if (c->job->settings.state != MSDU__STATE_RESET) {
        return;
    }
    for (uint32_t i = 0; i < c->model->tensor_count; i++) {
        (void)msdu__cell_add(&c->hand->leases[i].free[1], (uint64_t)-1);
    }
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_reset});
}

void msdu__caller_apply_due(msdu__caller *c)
{
    for (uint32_t i = 0; i < c->model->fragment_count; i++) {
        msdu__schedule *s = &c->schedules[i];
        if (s->is_pending && s->apply_step <= c->step) {
            s->is_pending = false;
            msdu__caller_reset(c);
            msdu__caller_lend(c, i);
            msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_apply, .number = i});
        }
    }
}

static msdu__ticket command(msdu__caller *c, const msdu__event *event, const char *what)
{
    msdu__handover_push(c->hand, event);
    msdu__worker_kick(&c->hand->worker);
    return (msdu__ticket){.counter = &c->hand->completed, .value = ++c->commands, .what = what};
}

msdu_status msdu__caller_carry(msdu__caller *c, const msdu__event *event, const char *what)
{
    msdu__ticket ticket = command(c, event, what);
    ticket.is_lent = true;
    uint64_t spent = msdu__handover_wait(c->hand, &ticket);
    /* neither computing nor waiting for the network: the step begins that much later */
    c->step_began_ns += spent;
    (void)msdu__cell_add(&c->hand->reports.step_start_ns, spent);
    return msdu__handover_status(c->hand);
}

msdu_status msdu__caller_drain(msdu__caller *c)
{
    const msdu__event drain = {.run = msdu__event_drain};
    for (uint32_t i = 0; i < c->model->fragment_count; i++) {
        c->schedules[i].apply_step = 0; /* whatever is pending is due */
    }
    msdu__caller_apply_due(c);
    msdu__ticket ticket = command(c, &drain, "the end of what is under way");
    for (uint32_t id = 0; id < c->model->tensor_count; id++) {
        wait_for(c, id, MSDU_GRADIENT | MSDU_PARAMETER);
    }
    msdu__caller_block(c, &ticket);
    return msdu__handover_status(c->hand);
}
