/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the communication thread: take what became ready, start slices in the order of the
 * plan, test what is in flight, end rounds. Everything here runs on that thread (or in a test).
 */
#include "progress.h"

#include "control.h"
#include "domain.h"
#include "issue_order.h"
#include "kernels.h"
#include "levels.h"
#include "round.h"
#include "tick.h"
#include "transfer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define MS_NS            1000000ULL
#define BACKOFF_LEAST_NS 20000ULL /* polling of backends without notify: 20 us .. 1 ms */
#define BACKOFF_MOST_NS  MS_NS
#define CHECK_NS         (500 * MS_NS) /* how often deadlines are looked at */

/* --- taking events --- */

static void capture(msdu__engine *e, uint32_t slice)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    run->times.ready_ns = msdu__engine_now(e);
    if (f->captured == 0) {
        f->contribution = msdu__engine_mailbox(e, f)->contributions[(f->opened - 1) & 1];
        msdu__tick_came(e, f);
    }
    msdu__domain_capture(e, f, slice);
    run->state = MSDU__RUN_CAPTURED;
    f->captured++;
    if ((!f->may_apply && !f->round.is_gradient) || e->ticks.is_on) {
        /* late: the snapshot is taken, the trainer may go on */
        msdu__engine_release(e, slice, MSDU_PARAMETER);
    }
}

msdu__outcome msdu__event_slice(msdu__engine *e, void *subject, uint64_t number)
{
    uint32_t slice = (uint32_t)number;
    (void)subject;
    if (e->runs[slice].state == MSDU__RUN_OPEN) {
        capture(e, slice);
        return MSDU__PAUSE; /* it can leave before the next event is read */
    }
    assert(e->job->is_accumulated);
    msdu__domain_local(e, slice);
    msdu__engine_release(e, slice, MSDU_GRADIENT);
    return MSDU__DONE;
}

msdu__outcome msdu__event_open(msdu__engine *e, void *subject, uint64_t number)
{
    const msdu__fragment *f = &e->fragments[number];
    (void)subject;
    if (f->state != MSDU__FRAGMENT_IDLE || f->order.req != NULL) {
        return MSDU__LATER;
    }
    msdu__round_open(e, (uint32_t)number);
    return MSDU__DONE;
}

msdu__outcome msdu__event_apply(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    e->fragments[number].may_apply = true;
    return MSDU__DONE;
}

msdu__outcome msdu__event_enter_local(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    if (e->active_count > 0 || e->fragments[0].order.req != NULL) {
        return MSDU__LATER;
    }
    msdu__round_enter_local(e);
    return MSDU__DONE;
}

msdu__outcome msdu__event_reset(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    msdu__domain_reset(e);
    return MSDU__DONE;
}

msdu__outcome msdu__event_drain(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    return msdu__round_is_drained(e) ? msdu__event_completed(e) : MSDU__LATER;
}

msdu__outcome msdu__event_excuse(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        e->fragments[i].last.blocked_ns += number;
    }
    return MSDU__DONE;
}

msdu__outcome msdu__event_completed(msdu__engine *e)
{
    (void)msdu__cell_add(&e->hand->completed, 1);
    msdu__handover_wake(e->hand);
    return MSDU__DONE;
}

static bool take_events(msdu__engine *e)
{
    msdu__event event;
    msdu__outcome outcome = MSDU__DONE;
    bool did = false;
    while (outcome == MSDU__DONE && msdu__ready_peek(&e->hand->events, &event)) {
        outcome = event.run(e, event.subject, event.number);
        if (outcome != MSDU__LATER) {
            msdu__ready_pop(&e->hand->events);
            did = true;
        }
    }
    return did;
}

/* --- starting slices --- */

static uint32_t slice_at(const msdu__engine *e, uint64_t position)
{
    return e->queue.slices[position & e->queue.mask];
}

static int32_t free_slot(const msdu__engine *e)
{
    for (uint32_t i = 0; i < e->model->tuning.window; i++) {
        if (!e->slots[i].is_used) {
            return (int32_t)i;
        }
    }
    return -1;
}

static void flight_begin(msdu__engine *e)
{
    if (e->link.in_flight++ == 0) {
        e->link.flight_began_ns = msdu__engine_now(e);
    }
}

static void flight_end(msdu__engine *e)
{
    if (--e->link.in_flight == 0) {
        e->link.now_ns += (double)(msdu__engine_now(e) - e->link.flight_began_ns);
    }
}

static bool start_slice(msdu__engine *e, uint32_t slice, uint32_t slot)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    run->slot = slot;
    run->position = e->queue.first;
    run->times.round = f->opened;
    run->times.slice = slice;
    run->times.lane = (uint32_t)(e->queue.first % e->model->tuning.lanes);
    run->times.issued_ns = msdu__engine_now(e);
    msdu__transfer_prepare(e, f, slice);
    run->times.bytes = 0;
    msdu_status status = MSDU_OK;
    if (e->is_two_level) {
        run->state = MSDU__RUN_HOST_SUM;
        status = msdu__levels_sum(e, slice, msdu__domain_buffer(e, f, slice));
    } else {
        status = msdu__transfer_start(e, f, slice);
        e->queue.outer++;
    }
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
        return false;
    }
    e->slots[slot].is_used = true;
    flight_begin(e);
    f->issued++;
    return true;
}

/* Strictly in queue order: with that, a window cannot make two ranks wait for each other. */
static bool start_first(msdu__engine *e)
{
    bool did = false;
    while (e->queue.first < e->queue.tail) {
        uint32_t slice = slice_at(e, e->queue.first);
        const msdu__fragment *f = msdu__engine_fragment(e, slice);
        int32_t slot = free_slot(e);
        bool is_gated =
            e->job->settings.overlap == MSDU__OVERLAP_BLOCKING && f->captured < f->slice_count;
        if (e->runs[slice].state != MSDU__RUN_CAPTURED || slot < 0 || is_gated ||
            !msdu__order_may_first(e, f)) {
            break;
        }
        if (!start_slice(e, slice, (uint32_t)slot)) {
            return false;
        }
        e->queue.first++;
        did = true;
    }
    return did;
}

/* Has the slice at this position come so far, or further? */
static bool is_past(const msdu__engine *e, uint64_t position, msdu__run_state state)
{
    return e->runs[slice_at(e, position)].state >= state;
}

/* Two levels: sums of this host leave it in queue order, those that this rank carries. */
static bool start_carried(msdu__engine *e)
{
    bool did = false;
    while (e->is_two_level && e->queue.outer < e->queue.first) {
        uint32_t slice = slice_at(e, e->queue.outer);
        if (!is_past(e, e->queue.outer, MSDU__RUN_HOST_SUMMED)) {
            break;
        }
        if (msdu__levels_carries(e, slice)) {
            msdu_status status = msdu__transfer_start(e, msdu__engine_fragment(e, slice), slice);
            if (status != MSDU_OK) {
                msdu__handover_fail_last(e->hand, status);
                return false;
            }
            flight_begin(e);
        }
        e->queue.outer++;
        did = true;
    }
    return did;
}

/* And means are given to this host in queue order. */
static bool start_spread(msdu__engine *e)
{
    bool did = false;
    while (e->is_two_level && e->queue.spread < e->queue.second) {
        uint32_t slice = slice_at(e, e->queue.spread);
        msdu__fragment *f = msdu__engine_fragment(e, slice);
        bool is_mine = msdu__levels_carries(e, slice);
        if (e->runs[slice].state != (is_mine ? MSDU__RUN_CARRIED : MSDU__RUN_HOST_SUMMED)) {
            break;
        }
        e->runs[slice].state = MSDU__RUN_SPREAD;
        msdu_status status = msdu__levels_spread(e, slice, msdu__domain_buffer(e, f, slice));
        if (status != MSDU_OK) {
            msdu__handover_fail_last(e->hand, status);
            return false;
        }
        flight_begin(e);
        e->queue.spread++;
        did = true;
    }
    return did;
}

/* All-gathers start in queue order too, on channels of their own. */
static bool start_second(msdu__engine *e)
{
    bool did = false;
    while (e->queue.second < e->queue.outer) {
        uint32_t slice = slice_at(e, e->queue.second);
        const msdu__run *run = &e->runs[slice];
        if (run->is_compressed && msdu__levels_carries(e, slice)) {
            if (run->state != MSDU__RUN_SUMMED ||
                !msdu__order_may_second(e, msdu__engine_fragment(e, slice))) {
                break;
            }
            msdu_status status = msdu__transfer_gather(e, slice);
            if (status != MSDU_OK) {
                msdu__handover_fail_last(e->hand, status);
                return false;
            }
            flight_begin(e);
        }
        e->queue.second++;
        e->queue.spread += e->is_two_level ? 0 : 1;
        did = true;
    }
    return did;
}

/* --- testing --- */

static void slice_reduced(msdu__engine *e, uint32_t slice)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    run->times.done_ns = msdu__engine_now(e);
    e->slots[run->slot].is_used = false;
    msdu__domain_reduced(e, f, slice);
    run->state = MSDU__RUN_REDUCED;
    f->reduced++;
    if (!msdu__domain_commits_slice(e, f)) {
        return;
    }
    if (!f->round.is_gradient) {
        msdu__domain_apply(e, f, slice);
    }
    msdu__engine_release(e, slice, MSDU_GRADIENT);
}

/* Two levels: at its carrier first, then on this host. */
static void mean_is_here(msdu__engine *e, uint32_t slice)
{
    if (e->is_two_level && e->runs[slice].state != MSDU__RUN_SPREAD) {
        e->runs[slice].state = MSDU__RUN_CARRIED;
    } else {
        slice_reduced(e, slice);
    }
}

static void phase_done(msdu__engine *e, uint32_t slice)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    flight_end(e);
    if (run->state == MSDU__RUN_HOST_SUM) {
        run->state = MSDU__RUN_HOST_SUMMED;
        return;
    }
    if (!run->is_compressed || run->state == MSDU__RUN_SPREAD) {
        mean_is_here(e, slice);
        return;
    }
    if (run->state == MSDU__RUN_FIRST) {
        msdu__transfer_sum(e, f, slice);
        run->state = MSDU__RUN_SUMMED;
        return;
    }
    msdu__transfer_decode(e, f, slice);
    mean_is_here(e, slice);
}

/* Test one slice in flight; false if nothing changed. */
static bool test_slice(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    bool is_inside = run->state == MSDU__RUN_HOST_SUM || run->state == MSDU__RUN_SPREAD;
    if (run->state != MSDU__RUN_FIRST && run->state != MSDU__RUN_SECOND && !is_inside) {
        return false;
    }
    msdu_status status =
        msdu__engine_test(e, is_inside ? MSDU_GROUP_HOST : MSDU_GROUP_WORLD, run->req);
    if (status == MSDU_IN_PROGRESS) {
        status = msdu__engine_overdue(e, run->times.issued_ns, "a slice");
    }
    if (status == MSDU_IN_PROGRESS) {
        return false;
    }
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
        return false;
    }
    phase_done(e, slice);
    return true;
}

/* The slice may meanwhile be open again, further up the queue. */
static bool is_in_flight(const msdu__engine *e, uint64_t position)
{
    const msdu__run *run = &e->runs[slice_at(e, position)];
    return run->position == position && run->state > MSDU__RUN_CAPTURED &&
           run->state < MSDU__RUN_REDUCED;
}

static bool test_slices(msdu__engine *e)
{
    bool did = false;
    for (uint64_t at = e->queue.oldest; at < e->queue.first; at++) {
        did |= test_slice(e, slice_at(e, at));
        if (msdu__handover_has_failed(e->hand)) {
            return false;
        }
    }
    while (e->queue.oldest < e->queue.spread && !is_in_flight(e, e->queue.oldest)) {
        e->queue.oldest++;
    }
    return did;
}

/* --- rounds --- */

static bool step_rounds(msdu__engine *e)
{
    bool did = false;
    for (uint32_t i = 0; i < e->active_count; i++) {
        msdu__fragment *f = &e->fragments[e->active[i]];
        /* statistics messages leave in order of opening, as all ranks opened */
        if (!f->control.is_issued && (i == 0 || e->fragments[e->active[i - 1]].control.is_issued)) {
            did |= msdu__control_start(e, f);
        }
    }
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        did |= msdu__control_poll(e, &e->fragments[i]);
    }
    /* rounds end in order of opening, so that the policy sees them in one order on all ranks */
    while (e->active_count > 0 && msdu__round_finish(e, &e->fragments[e->active[0]])) {
        did = true;
    }
    return did;
}

static bool is_waiting_for_peers(const msdu__engine *e)
{
    if (e->link.in_flight > 0 || e->waits_for_device) {
        return true;
    }
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        const msdu__fragment *f = &e->fragments[i];
        if (f->control.req != NULL || f->order.req != NULL) {
            return true;
        }
    }
    return false;
}

static uint64_t sleep_limit(msdu__engine *e, bool did)
{
    uint64_t due = msdu__tick_wait_ns(e);
    if (!is_waiting_for_peers(e)) {
        return due;
    }
    if ((e->job->backend->caps & MSDU_CAP_NOTIFY) != 0) {
        return due < CHECK_NS ? due : CHECK_NS;
    }
    uint64_t next = e->backoff_ns * 2;
    e->backoff_ns = did || next < BACKOFF_LEAST_NS ? BACKOFF_LEAST_NS : next;
    if (e->backoff_ns > BACKOFF_MOST_NS) {
        e->backoff_ns = BACKOFF_MOST_NS;
    }
    return e->backoff_ns;
}

uint64_t msdu__engine_advance(void *user)
{
    static bool (*const parts[])(msdu__engine *) = {take_events,   msdu__tick_advance, start_first,
                                                    start_carried, test_slices,        start_second,
                                                    start_spread,  step_rounds};
    msdu__engine *e = user;
    bool did_any = false;
    bool did = true;
    while (did && !msdu__handover_has_failed(e->hand)) {
        e->waits_for_device = false;
        did = false;
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            did |= !msdu__handover_has_failed(e->hand) && parts[i](e);
        }
        if (did) {
            (void)msdu__cell_add(&e->hand->progress, 1);
        }
        did_any |= did;
    }
    if (msdu__handover_has_failed(e->hand)) {
        msdu__handover_end(e->hand);
        return UINT64_MAX;
    }
    return sleep_limit(e, did_any);
}
