/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread of the simulation: rounds, captures, window, order. Pure. */
#include "simulate_impl.h"

#include <math.h>

static uint64_t place(const msdu__sim *s, uint64_t position)
{
    return position % (2 * (uint64_t)s->job->slice_count + 1);
}

static msdu__sim_part *part_of(msdu__sim *s, uint32_t slice)
{
    return &s->parts[s->job->slices[slice].part];
}

void msdu__sim_announce(msdu__sim *s, uint32_t slice)
{
    s->announced[place(s, s->announced_end++)] = slice;
}

/* --- rounds --- */

static void open_round(msdu__sim *s, uint32_t part)
{
    msdu__sim_part *p = &s->parts[part];
    p->opened = p->armed;
    p->began_ns = p->armed_ns;
    p->captured = p->started = p->reduced = 0;
    p->is_sent = false;
    p->message_due_ns = (double)INFINITY;
    for (uint32_t i = 0; i < s->job->slice_count; i++) {
        if (s->job->slices[s->job->order[i]].part == part) {
            s->queue[place(s, s->queue_end++)] = s->job->order[i];
        }
    }
}

static bool move_rounds(msdu__sim *s)
{
    bool did = false;
    for (uint32_t i = 0; i < s->job->parts; i++) {
        msdu__sim_part *p = &s->parts[i];
        if (p->over == p->opened && p->armed > p->opened) {
            open_round(s, i);
            did = true;
        }
        if (p->over < p->opened && !p->is_sent && p->started == p->slice_count) {
            p->is_sent = true;
            p->message_due_ns = s->now_ns + s->job->message_ns;
            did = true;
        }
        bool is_complete = p->is_sent && p->reduced == p->slice_count;
        if (p->over < p->opened && is_complete && p->message_due_ns <= s->now_ns) {
            p->over = p->opened;
            did = true;
        }
    }
    return did;
}

/* --- one pass at a time --- */

static void begin_pass(msdu__sim *s, uint32_t slice, int pass)
{
    s->busy_with = slice;
    s->busy_pass = pass;
    s->busy_until_ns = s->now_ns + s->job->slices[slice].pass_ns[pass];
}

static void reduced(msdu__sim *s, uint32_t slice)
{
    msdu__sim_slice_state *state = &s->slices[slice];
    msdu__sim_part *p = part_of(s, slice);
    state->stage = MSDU__SIM_IDLE;
    state->met = p->opened;
    s->used--;
    if (++p->reduced == p->slice_count) {
        p->met = p->opened;
    }
    if (s->is_counting) {
        state->sum.link_ns += s->now_ns - state->issued_ns;
    }
}

static void start_operation(msdu__sim *s, uint32_t slice)
{
    msdu__sim_slice_state *state = &s->slices[slice];
    uint32_t lane = (uint32_t)(s->queue_first % s->job->lanes);
    state->stage = s->job->is_compressed ? MSDU__SIM_FIRST : MSDU__SIM_SECOND;
    state->phase = 0;
    msdu__sim_lane_push(s, lane, slice);
    s->queue_first++;
    part_of(s, slice)->started++;
}

static void end_pass(msdu__sim *s)
{
    uint32_t slice = s->busy_with;
    msdu__sim_slice_state *state = &s->slices[slice];
    s->busy_with = MSDU__SIM_NONE;
    switch (s->busy_pass) {
    case MSDU__SIM_CAPTURE:
        state->stage = MSDU__SIM_CAPTURED;
        part_of(s, slice)->captured++;
        break;
    case MSDU__SIM_ENCODE:
        start_operation(s, slice);
        break;
    case MSDU__SIM_SUM:
        state->stage = MSDU__SIM_SUMMED;
        break;
    default:
        reduced(s, slice);
    }
}

/* --- what to do next --- */

static bool look_at_answer(msdu__sim *s)
{
    if (s->answered_count == 0) {
        return false;
    }
    uint32_t slice = s->answered[0];
    s->answered_count--;
    for (uint32_t i = 0; i < s->answered_count; i++) {
        s->answered[i] = s->answered[i + 1];
    }
    bool is_first = s->slices[slice].stage == MSDU__SIM_ANSWERED;
    begin_pass(s, slice, is_first ? MSDU__SIM_SUM : MSDU__SIM_DECODE);
    return true;
}

/* All-gathers start in queue order too. */
static bool start_second(msdu__sim *s)
{
    if (!s->job->is_compressed || s->queue_second >= s->queue_first) {
        return false;
    }
    uint32_t slice = s->queue[place(s, s->queue_second)];
    if (s->slices[slice].stage != MSDU__SIM_SUMMED) {
        return false;
    }
    s->slices[slice].stage = MSDU__SIM_SECOND;
    uint32_t lane = s->job->lanes + (uint32_t)(s->queue_second % s->job->lanes);
    msdu__sim_lane_push(s, lane, slice);
    s->queue_second++;
    return true;
}

static bool start_first(msdu__sim *s)
{
    if (s->queue_first >= s->queue_end || s->used >= s->job->window) {
        return false;
    }
    uint32_t slice = s->queue[place(s, s->queue_first)];
    const msdu__sim_part *p = part_of(s, slice);
    bool is_held = s->job->is_gated && p->captured < p->slice_count;
    if (s->slices[slice].stage != MSDU__SIM_CAPTURED || is_held) {
        return false;
    }
    s->used++;
    s->slices[slice].issued_ns = s->now_ns;
    begin_pass(s, slice, MSDU__SIM_ENCODE);
    return true;
}

/* A slice whose round is not open holds up those behind it, as in the library's queue. */
static bool capture(msdu__sim *s)
{
    if (s->announced_first >= s->announced_end) {
        return false;
    }
    uint32_t slice = s->announced[place(s, s->announced_first)];
    const msdu__sim_part *p = part_of(s, slice);
    const msdu__sim_slice_state *state = &s->slices[slice];
    bool is_open = p->over < p->opened && state->met < p->opened;
    if (!is_open || state->stage != MSDU__SIM_IDLE) {
        return false;
    }
    if (s->is_counting) {
        s->slices[slice].sum.ready_ns += s->now_ns - p->began_ns;
    }
    s->announced_first++;
    begin_pass(s, slice, MSDU__SIM_CAPTURE);
    return true;
}

bool msdu__sim_thread_move(msdu__sim *s)
{
    bool did = move_rounds(s);
    if (s->busy_with != MSDU__SIM_NONE) {
        if (s->busy_until_ns > s->now_ns) {
            return did;
        }
        end_pass(s);
        return true;
    }
    return look_at_answer(s) || start_second(s) || start_first(s) || capture(s) || did;
}

double msdu__sim_thread_next(const msdu__sim *s)
{
    double next = s->busy_with != MSDU__SIM_NONE ? s->busy_until_ns : (double)INFINITY;
    for (uint32_t i = 0; i < s->job->parts; i++) {
        const msdu__sim_part *p = &s->parts[i];
        if (p->over < p->opened && p->is_sent && p->message_due_ns > s->now_ns) {
            next = fmin(next, p->message_due_ns);
        }
    }
    return next;
}
