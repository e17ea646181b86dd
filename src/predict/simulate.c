/* SPDX-License-Identifier: Apache-2.0 */
/* Simulation of one rank: its API thread, and time. Pure. */
#include "simulate_impl.h"

#include <math.h>
#include <string.h>

/* --- the API thread --- */

static bool meets(const msdu__sim *s, uint32_t part, uint64_t step)
{
    return step % s->job->interval == part % s->job->interval;
}

static void begin_step(msdu__sim *s)
{
    s->pass = 0;
    s->layer_asked = 0;
    for (uint32_t i = 0; i < s->job->parts; i++) {
        if (meets(s, i, s->step)) {
            s->parts[i].armed = s->step + 1;
            s->parts[i].armed_ns = s->now_ns;
        }
    }
    if (s->step == (uint64_t)(s->job->rounds / 2) * s->job->interval) {
        s->is_counting = true;
        s->counted_from_ns = s->now_ns;
    }
}

/* Step + 1 of the last round whose mean the present step needs; 0: none. */
static uint64_t needed(const msdu__sim *s, uint32_t part)
{
    uint64_t behind = (uint64_t)s->job->delay + 1 + part % s->job->interval;
    if (s->step < behind) {
        return 0;
    }
    return (s->step - behind) / s->job->interval * s->job->interval + part % s->job->interval + 1;
}

static bool has_layer(msdu__sim *s, const msdu__sim_layer *layer)
{
    for (; s->layer_asked < layer->slice_count; s->layer_asked++) {
        uint32_t slice = s->job->by_layer[layer->first_slice + s->layer_asked];
        uint32_t part = s->job->slices[slice].part;
        uint64_t met = s->job->commits_slices ? s->slices[slice].met : s->parts[part].over;
        if (met < needed(s, part)) {
            return false;
        }
    }
    return true;
}

static bool has_step(const msdu__sim *s)
{
    for (uint32_t i = 0; i < s->job->parts; i++) {
        uint64_t met = s->job->commits_slices ? s->parts[i].met : s->parts[i].over;
        if (meets(s, i, s->step) && met < s->step + 1) {
            return false;
        }
    }
    return true;
}

static void end_layer(msdu__sim *s)
{
    uint32_t layers = s->job->layer_count;
    s->is_computing = false;
    s->layer_asked = 0;
    if (s->pass >= layers) {
        const msdu__sim_layer *layer = &s->job->layers[2 * layers - 1 - s->pass];
        for (uint32_t i = layer->slice_count; i-- > 0;) {
            uint32_t slice = s->job->by_layer[layer->first_slice + i];
            if (meets(s, s->job->slices[slice].part, s->step)) {
                msdu__sim_announce(s, slice);
            }
        }
    }
    s->pass++;
}

static bool begin_layer(msdu__sim *s)
{
    uint32_t layers = s->job->layer_count;
    bool is_forward = s->pass < layers;
    const msdu__sim_layer *layer = &s->job->layers[is_forward ? s->pass : 2 * layers - 1 - s->pass];
    if (is_forward && s->job->wait == MSDU__SIM_WAIT_LAYER && !has_layer(s, layer)) {
        return false;
    }
    s->is_computing = true;
    s->due_ns = s->now_ns + (is_forward ? layer->forward_ns : layer->backward_ns);
    return true;
}

static bool move_owner(msdu__sim *s)
{
    if (s->is_computing) {
        if (s->due_ns > s->now_ns) {
            return false;
        }
        end_layer(s);
        return true;
    }
    if (s->pass < 2 * s->job->layer_count) {
        return begin_layer(s);
    }
    if (s->job->wait == MSDU__SIM_WAIT_STEP && !has_step(s)) {
        return false;
    }
    s->step++;
    begin_step(s);
    return true;
}

/* --- time --- */

static bool is_over(const msdu__sim *s)
{
    return s->step >= (uint64_t)s->job->rounds * s->job->interval;
}

/* Everything that needs no time; the last of it may be the end. */
static void settle(msdu__sim *s)
{
    bool did = true;
    while (did && !is_over(s)) {
        did = msdu__sim_lanes_move(s);
        did |= msdu__sim_thread_move(s);
        did |= move_owner(s);
    }
}

static double next_time(const msdu__sim *s)
{
    double next = s->is_computing ? s->due_ns : (double)INFINITY;
    next = fmin(next, msdu__sim_lanes_next(s));
    return fmin(next, msdu__sim_thread_next(s));
}

static void pass_time(msdu__sim *s, double until_ns)
{
    if (s->is_counting) {
        s->waited_ns += s->is_computing ? 0 : until_ns - s->now_ns;
        s->flown_ns += s->in_flight > 0 ? until_ns - s->now_ns : 0;
    }
    msdu__sim_lanes_pass(s, until_ns);
    s->now_ns = until_ns;
}

static void init(msdu__sim *s, const msdu__sim_job *job, const msdu__sim_memory *memory)
{
    *s = (msdu__sim){.job = job,
                     .slices = memory->slices,
                     .announced = memory->announced,
                     .queue = memory->queue,
                     .busy_with = MSDU__SIM_NONE};
    memset(s->slices, 0, job->slice_count * sizeof(*s->slices));
    msdu__sim_lanes_clear(s);
    for (uint32_t i = 0; i < job->slice_count; i++) {
        s->parts[job->slices[i].part].slice_count++;
    }
    begin_step(s);
}

msdu__sim_result msdu__sim_run(const msdu__sim_job *job, const msdu__sim_memory *memory,
                               msdu__sim_times *times_out)
{
    msdu__sim s;
    msdu__sim_result result = {.step_ns = 0};
    uint32_t counted = job->rounds - job->rounds / 2;
    double rounds = counted;
    init(&s, job, memory);
    settle(&s);
    while (!is_over(&s) && !result.is_stuck) {
        double next = next_time(&s);
        result.is_stuck = isinf(next);
        if (!result.is_stuck) {
            pass_time(&s, next);
            settle(&s);
        }
    }
    result.step_ns = (s.now_ns - s.counted_from_ns) / (rounds * job->interval);
    result.wait_ns = s.waited_ns / (rounds * job->interval);
    result.link_ns = s.flown_ns / rounds;
    for (uint32_t i = 0; i < job->slice_count && times_out != NULL; i++) {
        times_out[i].ready_ns = s.slices[i].sum.ready_ns / rounds;
        times_out[i].link_ns = s.slices[i].sum.link_ns / rounds;
    }
    return result;
}
