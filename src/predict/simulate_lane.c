/* SPDX-License-Identifier: Apache-2.0 */
/* Channels and links of the simulation. Pure. */
#include "simulate_impl.h"

#include <assert.h>
#include <math.h>

void msdu__sim_lanes_clear(msdu__sim *s)
{
    for (uint32_t i = 0; i < 2 * MSDU__SIM_LANES_MAX; i++) {
        s->lanes[i].current = s->lanes[i].previous = MSDU__SIM_NONE;
    }
}

void msdu__sim_lane_push(msdu__sim *s, uint32_t lane, uint32_t slice)
{
    msdu__sim_lane *to = &s->lanes[lane];
    assert(to->count < MSDU__SIM_WINDOW_MAX);
    to->queue[to->count++] = slice;
    s->in_flight++;
}

/* --- phases of an operation --- */

static const msdu__whatif_exchange *exchange_of(const msdu__sim *s, uint32_t slice)
{
    return &s->job->slices[slice].exchange;
}

/* Phases of the operation end before this one. */
static uint32_t phases_end(const msdu__sim *s, uint32_t slice)
{
    bool is_first = s->job->is_compressed && s->slices[slice].stage == MSDU__SIM_FIRST;
    return is_first ? exchange_of(s, slice)->first : exchange_of(s, slice)->count;
}

/* A channel waits for the sums of an allreduce before it goes on; exchanges have none. */
static bool is_scattered(const msdu__sim *s, uint32_t slice)
{
    return s->job->is_compressed || s->slices[slice].phase >= exchange_of(s, slice)->first;
}

static bool is_through(const msdu__sim *s, uint32_t slice)
{
    return s->slices[slice].phase >= phases_end(s, slice);
}

static void phase_begin(msdu__sim *s, uint32_t slice)
{
    msdu__sim_slice_state *state = &s->slices[slice];
    const msdu__whatif_phase *phase = &exchange_of(s, slice)->phases[state->phase];
    state->link = phase->link;
    state->left_ns = phase->work_ns;
    state->is_working = true;
    s->on_link[phase->link]++;
}

static void post(msdu__sim *s, uint32_t slice)
{
    if (!is_through(s, slice)) {
        s->active[s->active_count++] = slice;
        phase_begin(s, slice);
    }
}

/* Of an active slice: what ended by now; true if anything did. */
static bool phase_move(msdu__sim *s, uint32_t at)
{
    uint32_t slice = s->active[at];
    msdu__sim_slice_state *state = &s->slices[slice];
    if (state->is_working && state->left_ns <= 0) {
        state->is_working = false;
        s->on_link[state->link]--;
        state->due_ns = s->now_ns + exchange_of(s, slice)->phases[state->phase].latency_ns;
    }
    if (state->is_working || state->due_ns > s->now_ns) {
        return false;
    }
    state->phase++;
    if (is_through(s, slice)) {
        s->active[at] = s->active[--s->active_count];
    } else {
        phase_begin(s, slice);
    }
    return true;
}

/* --- channels --- */

static void answer(msdu__sim *s, uint32_t slice)
{
    msdu__sim_slice_state *state = &s->slices[slice];
    bool is_first = s->job->is_compressed && state->stage == MSDU__SIM_FIRST;
    state->stage = is_first ? MSDU__SIM_ANSWERED : MSDU__SIM_GATHERED;
    s->answered[s->answered_count++] = slice;
    s->in_flight--;
}

static bool take(msdu__sim *s, msdu__sim_lane *lane)
{
    if (lane->count == 0) {
        return false;
    }
    lane->current = lane->queue[0];
    lane->count--;
    for (uint32_t i = 0; i < lane->count; i++) {
        lane->queue[i] = lane->queue[i + 1];
    }
    post(s, lane->current);
    return true;
}

static bool lane_move(msdu__sim *s, msdu__sim_lane *lane)
{
    if (lane->current == MSDU__SIM_NONE && !lane->is_closing && take(s, lane)) {
        return true;
    }
    if (lane->previous != MSDU__SIM_NONE) {
        lane->is_closing = lane->current == MSDU__SIM_NONE;
        if (!is_through(s, lane->previous)) {
            return false;
        }
        answer(s, lane->previous);
        lane->previous = MSDU__SIM_NONE;
        lane->is_closing = false;
        return true;
    }
    if (lane->current == MSDU__SIM_NONE || !is_scattered(s, lane->current)) {
        return false;
    }
    lane->previous = lane->current;
    lane->current = MSDU__SIM_NONE;
    return true;
}

bool msdu__sim_lanes_move(msdu__sim *s)
{
    bool did = false;
    for (uint32_t i = s->active_count; i-- > 0;) {
        did |= phase_move(s, i);
    }
    for (uint32_t i = 0; i < (s->job->is_compressed ? 2 : 1) * s->job->lanes; i++) {
        did |= lane_move(s, &s->lanes[i]);
    }
    return did;
}

/* --- time --- */

static double ends_at(const msdu__sim *s, uint32_t slice)
{
    const msdu__sim_slice_state *state = &s->slices[slice];
    return state->is_working ? s->now_ns + state->left_ns * s->on_link[state->link] : state->due_ns;
}

double msdu__sim_lanes_next(const msdu__sim *s)
{
    double next = (double)INFINITY;
    for (uint32_t i = 0; i < s->active_count; i++) {
        next = fmin(next, ends_at(s, s->active[i]));
    }
    return next;
}

void msdu__sim_lanes_pass(msdu__sim *s, double until_ns)
{
    for (uint32_t i = 0; i < s->active_count; i++) {
        msdu__sim_slice_state *state = &s->slices[s->active[i]];
        if (!state->is_working) {
            continue;
        }
        /* what ends now ends exactly: no rest that rounding left */
        bool is_end = ends_at(s, s->active[i]) <= until_ns;
        state->left_ns -= (until_ns - s->now_ns) / s->on_link[state->link];
        state->left_ns = is_end ? 0 : fmax(state->left_ns, 0);
    }
}
