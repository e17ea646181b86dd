/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the communication thread: take what became ready, start slices in the order of the
 * plan, test what is in flight, end rounds. Everything here runs on that thread (or in a test).
 */
#include "pipeline.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define MS_NS            1000000ULL
#define BACKOFF_LEAST_NS 20000ULL /* polling of backends without notify: 20 us .. 1 ms */
#define BACKOFF_MOST_NS  MS_NS
#define CHECK_NS         (500 * MS_NS) /* how often deadlines are looked at */

static void fail_forward(msdu__pipeline *p, msdu_status status)
{
    msdu__pipeline_fail(p, status, msdu_last_error());
}

/* --- taking events --- */

static void capture(msdu__pipeline *p, uint32_t slice)
{
    msdu__fragment *f = &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)];
    msdu__run *run = &p->runs[slice];
    run->times.ready_ns = msdu__pipeline_now(p);
    msdu__domain_capture(p, f, slice);
    run->state = MSDU__RUN_CAPTURED;
    f->captured++;
    if (!f->may_apply && !f->round.is_gradient) {
        /* delayed: the snapshot is taken, the trainer may go on */
        msdu__pipeline_release(p, slice, MSDU_PARAMETER);
    }
}

/* True if the command was carried out; false if it has to wait. */
static bool take_command(msdu__pipeline *p, uint32_t value)
{
    uint32_t index = value & MSDU__COMMAND_VALUE;
    if ((value & MSDU__COMMAND_OPEN) != 0) {
        msdu__fragment *f = &p->fragments[index];
        if (f->state != MSDU__FRAGMENT_IDLE || f->plan_req != NULL) {
            return false;
        }
        msdu__round_open(p, index);
        return true;
    }
    if ((value & MSDU__COMMAND_APPLY) != 0) {
        p->fragments[index].may_apply = true;
        return true;
    }
    if ((value & MSDU__COMMAND_ANCHOR) != 0) {
        if (p->active_count > 0 || p->fragments[0].plan_req != NULL) {
            return false;
        }
        msdu__round_enter_local(p);
        return true;
    }
    if ((value & MSDU__COMMAND_RESET) != 0) {
        msdu__domain_reset(p);
        return true;
    }
    return (value & MSDU__COMMAND_CARRY) != 0 ? p->carried(p) : msdu__round_drain(p);
}

/* Returns after each captured slice, so that it can leave before the next is read. */
static bool take_ready(msdu__pipeline *p)
{
    const uint32_t commands = ~MSDU__COMMAND_VALUE;
    uint32_t value = 0;
    bool did = false;
    bool has_captured = false;
    while (!has_captured && msdu__ready_peek(&p->ready, &value)) {
        if ((value & commands) != 0) {
            if (!take_command(p, value)) {
                break;
            }
        } else if (p->runs[value].state == MSDU__RUN_OPEN) {
            capture(p, value);
            has_captured = true;
        } else {
            assert(p->is_accumulated);
            msdu__domain_local(p, value);
            msdu__pipeline_release(p, value, MSDU_GRADIENT);
        }
        msdu__ready_pop(&p->ready);
        did = true;
    }
    return did;
}

/* --- starting slices --- */

static uint32_t slice_at(const msdu__pipeline *p, uint64_t position)
{
    return p->queue[position & p->queue_mask];
}

static msdu__fragment *fragment_at(msdu__pipeline *p, uint32_t slice)
{
    return &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)];
}

static int32_t free_slot(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tuning.window; i++) {
        if (!p->slots[i].is_used) {
            return (int32_t)i;
        }
    }
    return -1;
}

static void flight_begin(msdu__pipeline *p)
{
    if (p->in_flight++ == 0) {
        p->flight_began_ns = msdu__pipeline_now(p);
    }
}

static void flight_end(msdu__pipeline *p)
{
    if (--p->in_flight == 0) {
        p->link_ns += (double)(msdu__pipeline_now(p) - p->flight_began_ns);
    }
}

static int wire_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    int wire = p->runs[slice].is_state ? MSDU__WIRE_FLOAT32 : f->round.wire;
    return msdu__wire_of(p->slicing.slices[slice].dtype, wire);
}

static msdu__exchange exchange_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    const msdu__run *run = &p->runs[slice];
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    return (msdu__exchange){
        .wire = msdu__wire_at(wire_of(p, f, slice)),
        .block = (uint32_t)p->settings.wire_block,
        .rank = p->rank,
        .ranks = p->ranks,
        .factor = is_sum ? 1.0 : 1.0 / p->ranks,
        .share_count = run->share_count,
        .share_start = run->share_start,
        .share_bytes = p->slots[run->slot].share_bytes,
    };
}

static uint64_t ring_bytes(const msdu__pipeline *p, uint64_t bytes)
{
    uint64_t ranks = (uint64_t)p->ranks;
    return 2 * bytes * (ranks - 1) / ranks;
}

/*
 * Gradients of a device that are given out one by one, with nothing that is decided from how long
 * they took: then all of a slice's way is launched at once, and no owner waits for the network.
 */
static uint32_t flags_of(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool is_timed = p->settings.domain != MSDU__DOMAIN_GRADIENT || p->interval_args.fixed_wire < 0;
    bool is_chained = p->device != NULL && p->settings.commit_tensor && f->round.is_gradient;
    return is_chained && !is_timed ? MSDU_OP_CHAINED : 0;
}

/* Formats without error feedback send what others held back. */
static void send_held(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    bool has_feedback = msdu__wire_at(wire_of(p, f, slice))->has_feedback;
    if (!has_feedback && msdu__voice_of(f)->weight > 0) {
        msdu__domain_flush(p, msdu__domain_buffer(p, f, slice), slice, 1, is_sum ? 1 : p->ranks);
    }
}

static msdu_status start_whole(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    bool is_double = cut->dtype == MSDU_FLOAT64;
    msdu_op op = {
        .kind = MSDU_OP_ALLREDUCE,
        .place = msdu__place(p),
        .dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32,
        .count = cut->count,
        .recv = msdu__domain_buffer(p, f, slice),
        .flags = flags_of(p, f),
    };
    p->runs[slice].times.bytes = ring_bytes(p, cut->count * (is_double ? 8 : 4));
    return msdu__pipeline_start(p, &op, p->runs[slice].times.lane, &p->runs[slice].req);
}

static void sketch(msdu__pipeline *p, const float *value, uint32_t slice)
{
    msdu__pass pass = {.data = {.kind = MSDU_PASS_SKETCH,
                                .count = p->slicing.slices[slice].count,
                                .in = value,
                                .sketch = p->runs[slice].found->sketch,
                                .seed = slice}};
    msdu__pass_run(p, &pass);
}

static msdu_status start_exchange(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    msdu__slot *slot = &p->slots[run->slot];
    msdu__exchange x = exchange_of(p, f, slice);
    uint64_t total = 0;
    for (int32_t i = 0; i < p->ranks; i++) {
        slot->share_bytes[i] = msdu__wire_bytes(x.wire, run->share_count[i], x.block);
        total += slot->share_bytes[i];
    }
    const float *value = msdu__domain_buffer(p, f, slice);
    /* a rank without weight sends nothing, not even what it held back */
    bool has_voice = msdu__voice_of(f)->weight > 0;
    float *residual = x.wire->has_feedback && has_voice ? run->residual : NULL;
    if (residual != NULL) {
        run->has_residual = true;
        sketch(p, value, slice);
    }
    msdu__pass pass = {.data = {.kind = MSDU_PASS_ENCODE,
                                .in = value,
                                .out = slot->send,
                                .residual = residual,
                                .sums = &run->found->residual},
                       .exchange = &x};
    msdu__pass_run(p, &pass);
    msdu_op op = {
        .kind = MSDU_OP_ALLTOALL,
        .place = msdu__place(p),
        .send = slot->send,
        .recv = slot->received,
        .shares = slot->share_bytes,
        .flags = flags_of(p, f),
    };
    /* all other owners' shares once, then the own share to every other rank */
    run->times.bytes =
        total - slot->share_bytes[p->rank] + slot->share_bytes[p->rank] * (uint64_t)(p->ranks - 1);
    return msdu__pipeline_start(p, &op, run->times.lane, &run->req);
}

static bool start_slice(msdu__pipeline *p, uint32_t slice, uint32_t slot)
{
    msdu__fragment *f = fragment_at(p, slice);
    msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    run->slot = slot;
    run->position = p->queue_first;
    run->is_narrow = wire_of(p, f, slice) != MSDU__WIRE_FLOAT32 && dtype != MSDU_FLOAT64;
    run->times.round = f->opened;
    run->times.slice = slice;
    run->times.lane = (uint32_t)(p->queue_first % p->tuning.lanes);
    run->times.issued_ns = msdu__pipeline_now(p);
    if (f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_SKIP) {
        msdu__domain_keep(p, slice);
    }
    send_held(p, f, slice);
    msdu_status status = run->is_narrow ? start_exchange(p, f, slice) : start_whole(p, f, slice);
    if (status != MSDU_OK) {
        fail_forward(p, status);
        return false;
    }
    p->slots[slot].is_used = true;
    run->state = MSDU__RUN_FIRST;
    flight_begin(p);
    f->issued++;
    f->bytes += run->times.bytes;
    return true;
}

/* Strictly in queue order: with that, a window cannot make two ranks wait for each other. */
static bool start_first(msdu__pipeline *p)
{
    bool did = false;
    while (p->queue_first < p->queue_tail) {
        uint32_t slice = slice_at(p, p->queue_first);
        const msdu__fragment *f = fragment_at(p, slice);
        int32_t slot = free_slot(p);
        bool is_gated =
            p->settings.overlap == MSDU__OVERLAP_BLOCKING && f->captured < f->slice_count;
        if (p->runs[slice].state != MSDU__RUN_CAPTURED || slot < 0 || is_gated ||
            !msdu__order_may_first(p, f)) {
            break;
        }
        if (!start_slice(p, slice, (uint32_t)slot)) {
            return false;
        }
        p->queue_first++;
        did = true;
    }
    return did;
}

static bool start_gather(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    msdu__slot *slot = &p->slots[run->slot];
    uint64_t own = 0;
    for (int32_t i = 0; i < p->rank; i++) {
        own += slot->share_bytes[i];
    }
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .place = msdu__place(p),
        .send = slot->send + own,
        .recv = slot->send,
        .shares = slot->share_bytes,
        .flags = flags_of(p, fragment_at(p, slice)),
    };
    uint32_t lane = (uint32_t)p->settings.lanes + run->times.lane;
    msdu_status status = msdu__pipeline_start(p, &op, lane, &run->req);
    if (status != MSDU_OK) {
        fail_forward(p, status);
        return false;
    }
    run->state = MSDU__RUN_SECOND;
    flight_begin(p);
    return true;
}

/* All-gathers start in queue order too, on lanes of their own. */
static bool start_second(msdu__pipeline *p)
{
    bool did = false;
    while (p->queue_second < p->queue_first) {
        uint32_t slice = slice_at(p, p->queue_second);
        const msdu__run *run = &p->runs[slice];
        if (run->is_narrow) {
            if (run->state != MSDU__RUN_SUMMED ||
                !msdu__order_may_second(p, fragment_at(p, slice)) || !start_gather(p, slice)) {
                break;
            }
        }
        p->queue_second++;
        did = true;
    }
    return did;
}

/* --- testing --- */

static void slice_reduced(msdu__pipeline *p, uint32_t slice)
{
    msdu__fragment *f = fragment_at(p, slice);
    msdu__run *run = &p->runs[slice];
    run->times.done_ns = msdu__pipeline_now(p);
    p->slots[run->slot].is_used = false;
    msdu__domain_reduced(p, f, slice);
    run->state = MSDU__RUN_REDUCED;
    f->reduced++;
    if (!msdu__domain_commits_slice(p, f)) {
        return;
    }
    if (!f->round.is_gradient) {
        msdu__domain_apply(p, f, slice);
    }
    msdu__pipeline_release(p, slice, MSDU_GRADIENT);
}

/* Is there anything in the sum of all contributions to the own share? Waits for the pass. */
static bool is_empty(msdu__pipeline *p, uint32_t slice)
{
    const msdu__run *run = &p->runs[slice];
    msdu__pass pass = {.data = {.kind = MSDU_PASS_NORM,
                                .dtype = MSDU_FLOAT32,
                                .count = run->share_count[p->rank],
                                .stage = MSDU_STAGE_LATE,
                                .in = p->slots[run->slot].sum,
                                .sums = &run->found->summed}};
    run->found->summed.update_sq = 0;
    msdu__pass_run(p, &pass);
    return msdu__pass_settle(p) == MSDU_OK && run->found->summed.update_sq == 0;
}

/* Sum of all contributions to the own share, encoded behind those of the owners before. */
static void sum_share(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    const msdu__run *run = &p->runs[slice];
    const msdu__slot *slot = &p->slots[run->slot];
    msdu__exchange x = exchange_of(p, f, slice);
    uint8_t *out = slot->send;
    for (int32_t i = 0; i < p->rank; i++) {
        out += slot->share_bytes[i];
    }
    bool may_be_void = msdu__voice_of(f)->weight == 0;
    float *residual = x.wire->has_feedback ? run->owner_residual : NULL;
    msdu__pass pass = {.data = {.kind = MSDU_PASS_REDUCE,
                                .stage = MSDU_STAGE_LATE,
                                .in = slot->received,
                                .out = out,
                                .residual = may_be_void ? NULL : residual,
                                .sum = slot->sum},
                       .exchange = &x};
    msdu__pass_run(p, &pass);
    /* if no rank has weight the mean is dropped, and what it held back with it: not sent */
    if (may_be_void && residual != NULL && !is_empty(p, slice)) {
        pass.data.residual = residual;
        msdu__pass_run(p, &pass);
    }
}

static void phase_done(msdu__pipeline *p, uint32_t slice)
{
    msdu__fragment *f = fragment_at(p, slice);
    msdu__run *run = &p->runs[slice];
    msdu__slot *slot = &p->slots[run->slot];
    flight_end(p);
    if (!run->is_narrow) {
        slice_reduced(p, slice);
        return;
    }
    if (run->state == MSDU__RUN_FIRST) {
        sum_share(p, f, slice);
        run->state = MSDU__RUN_SUMMED;
        return;
    }
    msdu__exchange x = exchange_of(p, f, slice);
    msdu__pass pass = {.data = {.kind = MSDU_PASS_DECODE,
                                .stage = MSDU_STAGE_LATE,
                                .in = slot->send,
                                .out = msdu__domain_buffer(p, f, slice)},
                       .exchange = &x};
    msdu__pass_run(p, &pass);
    slice_reduced(p, slice);
}

/* Test one slice in flight; false if nothing changed. */
static bool test_slice(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    if (run->state != MSDU__RUN_FIRST && run->state != MSDU__RUN_SECOND) {
        return false;
    }
    msdu_status status = p->backend->test(p->comm, run->req);
    if (status == MSDU_IN_PROGRESS) {
        status = msdu__pipeline_overdue(p, run->times.issued_ns, "a slice");
    }
    if (status == MSDU_IN_PROGRESS) {
        return false;
    }
    if (status != MSDU_OK) {
        fail_forward(p, status);
        return false;
    }
    phase_done(p, slice);
    return true;
}

/* The slice may meanwhile be open again, further up the queue. */
static bool is_in_flight(const msdu__pipeline *p, uint64_t position)
{
    const msdu__run *run = &p->runs[slice_at(p, position)];
    return run->position == position && run->state >= MSDU__RUN_FIRST &&
           run->state <= MSDU__RUN_SECOND;
}

static bool test_slices(msdu__pipeline *p)
{
    bool did = false;
    for (uint64_t at = p->queue_oldest; at < p->queue_first; at++) {
        did |= test_slice(p, slice_at(p, at));
        if (atomic_load(&p->status) != MSDU_OK) {
            return false;
        }
    }
    while (p->queue_oldest < p->queue_second && !is_in_flight(p, p->queue_oldest)) {
        p->queue_oldest++;
    }
    return did;
}

/* --- rounds --- */

static bool step_rounds(msdu__pipeline *p)
{
    bool did = false;
    for (uint32_t i = 0; i < p->active_count; i++) {
        msdu__fragment *f = &p->fragments[p->active[i]];
        /* control messages leave in order of opening, as all ranks opened */
        if (!f->is_control_issued && (i == 0 || p->fragments[p->active[i - 1]].is_control_issued)) {
            did |= msdu__control_start(p, f);
        }
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        did |= msdu__control_poll(p, &p->fragments[i]);
    }
    /* rounds end in order of opening, so that the policy sees them in one order on all ranks */
    while (p->active_count > 0 && msdu__round_finish(p, &p->fragments[p->active[0]])) {
        did = true;
    }
    return did;
}

static bool is_waiting_for_peers(const msdu__pipeline *p)
{
    if (p->in_flight > 0 || p->waits_for_device) {
        return true;
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        const msdu__fragment *f = &p->fragments[i];
        if (f->control_req != NULL || f->plan_req != NULL) {
            return true;
        }
    }
    return false;
}

static uint64_t sleep_limit(msdu__pipeline *p, bool did)
{
    if (!is_waiting_for_peers(p)) {
        return UINT64_MAX;
    }
    if ((p->backend->caps & MSDU_CAP_NOTIFY) != 0) {
        return CHECK_NS;
    }
    uint64_t next = p->backoff_ns * 2;
    p->backoff_ns = did || next < BACKOFF_LEAST_NS ? BACKOFF_LEAST_NS : next;
    if (p->backoff_ns > BACKOFF_MOST_NS) {
        p->backoff_ns = BACKOFF_MOST_NS;
    }
    return p->backoff_ns;
}

uint64_t msdu__pipeline_advance(void *user)
{
    static bool (*const parts[])(msdu__pipeline *) = {take_ready, start_first, test_slices,
                                                      start_second, step_rounds};
    msdu__pipeline *p = user;
    bool did_any = false;
    bool did = true;
    while (did && atomic_load(&p->status) == MSDU_OK) {
        p->waits_for_device = false;
        did = false;
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            did |= atomic_load(&p->status) == MSDU_OK && parts[i](p);
        }
        if (did) {
            atomic_fetch_add(&p->progress, 1);
        }
        did_any |= did;
    }
    if (atomic_load(&p->status) != MSDU_OK) {
        msdu__pipeline_end(p);
        return UINT64_MAX;
    }
    return sleep_limit(p, did_any);
}
