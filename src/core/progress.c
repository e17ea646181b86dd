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
#include "round.h"
#include "tick.h"

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

static int wire_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    int wire = e->runs[slice].is_state ? MSDU__WIRE_FLOAT32 : f->round.wire;
    return msdu__wire_of(e->model->slicing.slices[slice].dtype, wire);
}

static msdu_exchange exchange_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    return (msdu_exchange){
        .format = wire_of(e, f, slice),
        .block = (uint32_t)e->job->settings.wire_block,
        .ranks = e->job->ranks,
        .factor = is_sum ? 1.0 : 1.0 / e->job->ranks,
    };
}

/* A kernel over floats of a slice in flight. */
static msdu_launch floats_at(const msdu__engine *e, msdu_stage stage, uint64_t count)
{
    return msdu__kernels_at(e, stage, MSDU_FLOAT32, count);
}

static uint64_t ring_bytes(const msdu__engine *e, uint64_t bytes)
{
    uint64_t ranks = (uint64_t)e->job->ranks;
    return 2 * bytes * (ranks - 1) / ranks;
}

/*
 * Gradients of a device that are given out one by one, with nothing that is decided from how long
 * they took: then all of a slice's way is launched at once, and no API thread waits for the
 * network.
 */
static uint32_t flags_of(const msdu__engine *e, const msdu__fragment *f)
{
    bool is_timed =
        e->job->settings.domain != MSDU__DOMAIN_GRADIENT || e->job->interval_args.fixed_wire < 0;
    bool is_chained =
        e->job->device != NULL && e->job->settings.commit_tensor && f->round.is_gradient;
    return is_chained && !is_timed ? MSDU_OP_CHAINED : 0;
}

/* Formats without error feedback send what others held back. */
static void send_held(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    bool has_feedback = msdu__wire_at(wire_of(e, f, slice))->has_feedback;
    if (!has_feedback && f->contribution.weight > 0) {
        msdu__domain_flush(e, msdu__domain_buffer(e, f, slice), slice, 1,
                           is_sum ? 1 : e->job->ranks);
    }
}

static msdu_status start_whole(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    bool is_double = cut->dtype == MSDU_FLOAT64;
    msdu_op op = {
        .kind = MSDU_OP_ALLREDUCE,
        .place = msdu__place(e->job),
        .dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32,
        .count = cut->count,
        .recv = msdu__domain_buffer(e, f, slice),
        .flags = flags_of(e, f),
    };
    e->runs[slice].times.bytes = ring_bytes(e, cut->count * (is_double ? 8 : 4));
    return msdu__engine_start(e, &op, e->runs[slice].times.lane, &e->runs[slice].req);
}

static msdu_status start_exchange(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    msdu__slot *slot = &e->slots[run->slot];
    msdu_exchange x = exchange_of(e, f, slice);
    const msdu__wire *wire = msdu__wire_at(x.format);
    msdu_launch at = floats_at(e, MSDU_STAGE_EARLY, e->model->slicing.slices[slice].count);
    uint64_t total = 0;
    for (int32_t i = 0; i < e->job->ranks; i++) {
        slot->share_bytes[i] = msdu__wire_bytes(wire, run->share_count[i], x.block);
        total += slot->share_bytes[i];
    }
    const float *value = msdu__domain_buffer(e, f, slice);
    /* a rank without weight sends nothing, not even what it held back */
    bool has_weight = f->contribution.weight > 0;
    float *residual = wire->has_feedback && has_weight ? run->residual : NULL;
    if (residual != NULL) {
        run->has_residual = true;
        MSDU__KERNEL(e, sketch, &at, value, slice, run->found->sketch);
    }
    MSDU__KERNEL(e, encode, &at, &x, value, residual, slot->send, &run->found->residual);
    msdu_op op = {
        .kind = MSDU_OP_ALLTOALL,
        .place = msdu__place(e->job),
        .send = slot->send,
        .recv = slot->received,
        .shares = slot->share_bytes,
        .flags = flags_of(e, f),
    };
    /* all other owners' shares once, then the own share to every other rank */
    run->times.bytes = total - slot->share_bytes[e->job->rank] +
                       slot->share_bytes[e->job->rank] * (uint64_t)(e->job->ranks - 1);
    return msdu__engine_start(e, &op, run->times.lane, &run->req);
}

static bool start_slice(msdu__engine *e, uint32_t slice, uint32_t slot)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    run->slot = slot;
    run->position = e->queue.first;
    run->is_narrow = wire_of(e, f, slice) != MSDU__WIRE_FLOAT32 && dtype != MSDU_FLOAT64;
    run->times.round = f->opened;
    run->times.slice = slice;
    run->times.lane = (uint32_t)(e->queue.first % e->model->tuning.lanes);
    run->times.issued_ns = msdu__engine_now(e);
    if (f->round.is_gradient && e->job->settings.check_finite == MSDU__CHECK_SKIP) {
        msdu__domain_keep(e, slice);
    }
    send_held(e, f, slice);
    msdu_status status = run->is_narrow ? start_exchange(e, f, slice) : start_whole(e, f, slice);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
        return false;
    }
    e->slots[slot].is_used = true;
    run->state = MSDU__RUN_FIRST;
    flight_begin(e);
    f->issued++;
    f->bytes += run->times.bytes;
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

static bool start_gather(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    msdu__slot *slot = &e->slots[run->slot];
    uint64_t own = 0;
    for (int32_t i = 0; i < e->job->rank; i++) {
        own += slot->share_bytes[i];
    }
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .place = msdu__place(e->job),
        .send = slot->send + own,
        .recv = slot->send,
        .shares = slot->share_bytes,
        .flags = flags_of(e, msdu__engine_fragment(e, slice)),
    };
    uint32_t lane = (uint32_t)e->job->settings.lanes + run->times.lane;
    msdu_status status = msdu__engine_start(e, &op, lane, &run->req);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
        return false;
    }
    run->state = MSDU__RUN_SECOND;
    flight_begin(e);
    return true;
}

/* All-gathers start in queue order too, on lanes of their own. */
static bool start_second(msdu__engine *e)
{
    bool did = false;
    while (e->queue.second < e->queue.first) {
        uint32_t slice = slice_at(e, e->queue.second);
        const msdu__run *run = &e->runs[slice];
        if (run->is_narrow) {
            if (run->state != MSDU__RUN_SUMMED ||
                !msdu__order_may_second(e, msdu__engine_fragment(e, slice)) ||
                !start_gather(e, slice)) {
                break;
            }
        }
        e->queue.second++;
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

/* Is there anything in the sum of all contributions to the own share? Waits for the kernel. */
static bool is_empty(msdu__engine *e, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, run->share_count[e->job->rank]);
    run->found->summed.update_sq = 0;
    MSDU__KERNEL(e, norm, &at, e->slots[run->slot].sum, &run->found->summed);
    return msdu__kernels_settle(e) == MSDU_OK && run->found->summed.update_sq == 0;
}

/* Sum of all contributions to the own share, encoded behind those of the owners before. */
static void sum_share(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    const msdu__slot *slot = &e->slots[run->slot];
    msdu_exchange x = exchange_of(e, f, slice);
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, run->share_count[e->job->rank]);
    uint8_t *out = slot->send;
    for (int32_t i = 0; i < e->job->rank; i++) {
        out += slot->share_bytes[i];
    }
    bool may_be_void = f->contribution.weight == 0;
    float *residual = msdu__wire_at(x.format)->has_feedback ? run->owner_residual : NULL;
    MSDU__KERNEL(e, reduce, &at, &x, slot->received, may_be_void ? NULL : residual, slot->sum, out);
    /* if no rank has weight the mean is dropped, and what it held back with it: not sent */
    if (may_be_void && residual != NULL && !is_empty(e, slice)) {
        MSDU__KERNEL(e, reduce, &at, &x, slot->received, residual, slot->sum, out);
    }
}

static void phase_done(msdu__engine *e, uint32_t slice)
{
    msdu__fragment *f = msdu__engine_fragment(e, slice);
    msdu__run *run = &e->runs[slice];
    msdu__slot *slot = &e->slots[run->slot];
    flight_end(e);
    if (!run->is_narrow) {
        slice_reduced(e, slice);
        return;
    }
    if (run->state == MSDU__RUN_FIRST) {
        sum_share(e, f, slice);
        run->state = MSDU__RUN_SUMMED;
        return;
    }
    msdu_exchange x = exchange_of(e, f, slice);
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, e->model->slicing.slices[slice].count);
    MSDU__KERNEL(e, decode, &at, &x, slot->send, msdu__domain_buffer(e, f, slice));
    slice_reduced(e, slice);
}

/* Test one slice in flight; false if nothing changed. */
static bool test_slice(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    if (run->state != MSDU__RUN_FIRST && run->state != MSDU__RUN_SECOND) {
        return false;
    }
    msdu_status status = e->job->backend->test(e->job->comm, run->req);
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
    return run->position == position && run->state >= MSDU__RUN_FIRST &&
           run->state <= MSDU__RUN_SECOND;
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
    while (e->queue.oldest < e->queue.second && !is_in_flight(e, e->queue.oldest)) {
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
        /* control messages leave in order of opening, as all ranks opened */
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
    static bool (*const parts[])(msdu__engine *) = {take_events, msdu__tick_advance, start_first,
                                                    test_slices, start_second,       step_rounds};
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
