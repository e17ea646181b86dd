/* SPDX-License-Identifier: Apache-2.0 */
/* From a profile and a method to a simulated step. */
#include "predict_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/costs.h"
#include "interval/cost.h"
#include "wire/wire.h"

#define ROUNDS       8
#define ROUNDS_LEAST 4
#define PASSES_MOST  2e7    /* over layers */
#define ROUNDS_MOST  64     /* streamed: rounds overlap, so many are needed for a mean */
#define RENEWALS     2      /* looks at the plan */
#define FLOOR_NS     100000 /* as src/core/replan.c */

/*
 * Of an element in each format, as bytes that a copy takes as long for: the capture, a sum of
 * squares, takes 0.19 ns, and for float32 the division by the number of ranks 0.22 (`msdu bench
 * kernels`, bench/results/kernels.txt: 64 MiB arrays, one core).
 */
#define CAPTURED 2.24
#define DIVIDED  2.59

msdu__wire_costs msdu__whatif_costs(const msdu__whatif_question *question)
{
    msdu__wire_costs costs = question->costs != NULL ? *question->costs : msdu__wire_costs_server;
    costs.copy_ns *= question->pass_factor;
    for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
        costs.of[wire].encode *= question->pass_factor;
        costs.of[wire].sum *= question->pass_factor;
        costs.of[wire].decode *= question->pass_factor;
    }
    return costs;
}

const msdu__wire_costs *msdu__whatif_costs_here(void)
{
    return msdu__costs_here();
}

msdu__whatif_way msdu__whatif_way_of(const msdu__whatif_question *question,
                                     const msdu__overlap_method *method)
{
    bool is_local = method->kind == MSDU__OVERLAP_LOCAL;
    return (msdu__whatif_way){.method = method,
                              .interval = is_local ? question->interval : 1,
                              .delay = method->delay,
                              .wire = method->wire};
}

void *msdu__whatif_take(msdu__whatif_model *m, size_t count, size_t bytes)
{
    void *block = calloc(count, bytes);
    if (block == NULL) {
        m->is_short = true;
    } else {
        assert(m->block_count < MSDU__WHATIF_BLOCKS);
        m->blocks[m->block_count++] = block;
    }
    return block;
}

static bool allocate(msdu__whatif_model *m)
{
    size_t slices = (size_t)m->slicing.slice_count + 1;
    uint32_t layers = m->q->profile->layer_count;
    m->slices = msdu__whatif_take(m, slices, sizeof(*m->slices));
    m->by_layer = msdu__whatif_take(m, slices, sizeof(*m->by_layer));
    m->order = msdu__whatif_take(m, slices, sizeof(*m->order));
    m->next_order = msdu__whatif_take(m, slices, sizeof(*m->next_order));
    m->times = msdu__whatif_take(m, slices, sizeof(*m->times));
    m->items = msdu__whatif_take(m, slices, sizeof(*m->items));
    m->marks = msdu__whatif_take(m, slices, sizeof(*m->marks));
    m->ends = msdu__whatif_take(m, slices, sizeof(*m->ends));
    m->memory.slices = msdu__whatif_take(m, slices, sizeof(*m->memory.slices));
    m->memory.queue = msdu__whatif_take(m, 2 * slices + 1, sizeof(*m->memory.queue));
    m->memory.announced = msdu__whatif_take(m, 2 * slices + 1, sizeof(*m->memory.announced));
    m->layers = msdu__whatif_take(m, layers, sizeof(*m->layers));
    for (int i = 0; i < MSDU__WHATIF_LINKS; i++) {
        m->bound[i] = msdu__whatif_take(m, layers, sizeof(*m->bound[i]));
    }
    return !m->is_short;
}

/* --- exchange --- */

static msdu__whatif_load load_of(const msdu__whatif_model *m, const msdu__slice *slice)
{
    const msdu__wire *wire = msdu__wire_at(msdu__wire_of(slice->dtype, m->way->wire));
    uint64_t ranks = m->q->network.ranks;
    uint64_t blocks = (slice->count + MSDU__WHATIF_BLOCK - 1) / MSDU__WHATIF_BLOCK;
    uint64_t share = (blocks + ranks - 1) / ranks * MSDU__WHATIF_BLOCK;
    return (msdu__whatif_load){
        .bytes = (double)slice->count * msdu__dtype_working_bytes(slice->dtype),
        .wire_bytes = (double)msdu__wire_bytes(wire, slice->count, MSDU__WHATIF_BLOCK),
        .share_bytes = (double)msdu__wire_bytes(wire, share < slice->count ? share : slice->count,
                                                MSDU__WHATIF_BLOCK),
        .is_compressed = wire != msdu__wire_at(MSDU__WIRE_FLOAT32),
    };
}

/* The lowest layer that a slice holds something of: its gradient is last, and needed first. */
static uint32_t lowest_layer(const msdu__whatif_model *m, const msdu__slice *slice)
{
    uint32_t lowest = UINT32_MAX;
    for (uint32_t i = 0; i < slice->segments; i++) {
        uint32_t layer = m->layer_of[m->slicing.segments[slice->first_segment + i].tensor];
        lowest = layer < lowest ? layer : lowest;
    }
    return lowest;
}

/* For the bound: a layer's part of what a slice keeps each link for. */
static void share_work(msdu__whatif_model *m, const msdu__slice *slice,
                       const msdu__whatif_exchange *x)
{
    for (uint32_t i = 0; i < slice->segments && slice->count > 0; i++) {
        const msdu__segment *segment = &m->slicing.segments[slice->first_segment + i];
        uint32_t layer = m->layer_of[segment->tensor];
        for (uint32_t k = 0; k < x->count; k++) {
            m->bound[x->phases[k].link][layer].bytes +=
                x->phases[k].work_ns * (double)segment->count / (double)slice->count;
        }
    }
}

/* Of the communication thread over an element; float32 is not coded. */
static double pass_ns(const msdu__wire_costs *costs, int wire, int pass)
{
    switch (pass) {
    case MSDU__SIM_CAPTURE:
        return CAPTURED * costs->copy_ns;
    case MSDU__SIM_ENCODE:
        return costs->of[wire].encode;
    case MSDU__SIM_SUM:
        return costs->of[wire].sum;
    default:
        return wire != MSDU__WIRE_FLOAT32 ? costs->of[wire].decode : DIVIDED * costs->copy_ns;
    }
}

static void fill_slice(msdu__whatif_model *m, uint32_t index)
{
    const msdu__slice *slice = &m->slicing.slices[index];
    msdu__sim_slice *out = &m->slices[index];
    msdu__whatif_load load = load_of(m, slice);
    msdu__wire_costs costs = msdu__whatif_costs(m->q);
    out->part = slice->fragment;
    out->exchange = msdu__whatif_exchange_of(&m->q->network, &load);
    for (int i = 0; i < MSDU__SIM_PASSES; i++) {
        out->pass_ns[i] =
            pass_ns(&costs, msdu__wire_of(slice->dtype, m->way->wire), i) * (double)slice->count;
    }
    /* half of it sends, half receives */
    out->pass_ns[MSDU__SIM_ENCODE] += m->q->slice_ns / 2;
    out->pass_ns[MSDU__SIM_DECODE] += m->q->slice_ns / 2;
    m->job.is_compressed = m->job.is_compressed || load.is_compressed;
    m->bytes += out->exchange.bytes;
    share_work(m, slice, &out->exchange);
}

/* --- job --- */

static double slowness(const msdu__whatif_model *m)
{
    return m->q->slowness > 0 ? m->q->slowness : 1;
}

/* Slices by their lowest layer, in the order of the slicer. */
static void fill_layers(msdu__whatif_model *m)
{
    const msdu__profile *p = m->q->profile;
    double factor = slowness(m);
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->slicing.slice_count; i++) {
        m->layers[lowest_layer(m, &m->slicing.slices[i])].slice_count++;
    }
    for (uint32_t l = 0; l < p->layer_count; l++) {
        m->layers[l].forward_ns = factor * p->layers[l].forward_ns;
        m->layers[l].backward_ns = factor * p->layers[l].backward_ns;
        for (int i = 0; i < MSDU__WHATIF_LINKS; i++) {
            m->bound[i][l].forward_ns = m->layers[l].forward_ns;
            m->bound[i][l].backward_ns = m->layers[l].backward_ns;
        }
        m->layers[l].first_slice = at;
        at += m->layers[l].slice_count;
        m->layers[l].slice_count = 0;
    }
    for (uint32_t i = m->slicing.slice_count; i-- > 0;) {
        msdu__sim_layer *layer = &m->layers[lowest_layer(m, &m->slicing.slices[i])];
        m->by_layer[layer->first_slice + layer->slice_count++] = i;
    }
}

static void fill_waiting(msdu__whatif_model *m)
{
    const msdu__overlap_method *method = m->way->method;
    bool is_gradient = method->kind == MSDU__OVERLAP_GRADIENT ||
                       (method->kind == MSDU__OVERLAP_DEFAULTS && m->way->interval == 1);
    bool is_blocking = m->settings.overlap == MSDU__OVERLAP_BLOCKING;
    m->job.is_gated = is_blocking;
    m->job.commits_slices = is_gradient && m->settings.commit_tensor != 0;
    m->job.wait = is_blocking || (is_gradient && !method->is_free) ? MSDU__SIM_WAIT_STEP
                                                                   : MSDU__SIM_WAIT_LAYER;
    m->job.window = m->settings.window < 0 ? m->tuning.window : (uint32_t)m->settings.window;
    m->job.lanes = (uint32_t)m->settings.lanes;
}

/* Enough for a mean, and no more than takes seconds. */
static uint32_t rounds_of(const msdu__whatif_model *m)
{
    double passes = 2.0 * m->q->profile->layer_count * m->way->interval;
    uint32_t wanted = m->job.parts > 1 ? ROUNDS_MOST : ROUNDS;
    double most = fmax(ROUNDS_LEAST, PASSES_MOST / passes);
    return wanted < most ? wanted : (uint32_t)most;
}

static void fill_job(msdu__whatif_model *m)
{
    const msdu__whatif_question *q = m->q;
    m->job.layers = m->layers;
    m->job.layer_count = q->profile->layer_count;
    m->job.slices = m->slices;
    m->job.slice_count = m->slicing.slice_count;
    m->job.by_layer = m->by_layer;
    m->job.order = m->order;
    m->job.interval = m->way->interval;
    m->job.delay = m->way->delay;
    m->job.message_ns = msdu__whatif_message_ns(&q->network);
    m->job.rounds = rounds_of(m);
    fill_waiting(m);
    for (uint32_t i = 0; i < m->slicing.slice_count; i++) {
        fill_slice(m, i);
    }
    fill_layers(m);
    msdu__plan_initial(m->slicing.slice_count, m->order);
}

/* --- the plan, as src/core/replan.c renews it --- */

static bool renew(msdu__whatif_model *m)
{
    uint32_t count = m->job.slice_count;
    for (uint32_t i = 0; i < count; i++) {
        m->items[i] = (msdu__plan_item){
            .ready_ns = (uint64_t)m->times[i].ready_ns,
            .cost_ns = (uint64_t)(m->times[i].link_ns / m->job.window),
            .priority = m->slicing.slices[i].priority,
        };
    }
    uint64_t present = msdu__plan_cost(m->items, count, m->order);
    uint64_t best = msdu__plan_simulate(m->items, count, m->job.window, m->next_order, m->marks);
    if (m->job.commits_slices) {
        present = msdu__plan_need(m->items, count, m->order, m->ends);
        best = msdu__plan_need(m->items, count, m->next_order, m->ends);
    }
    if (!msdu__plan_is_stale(present, best, FLOOR_NS)) {
        return false;
    }
    memcpy(m->order, m->next_order, count * sizeof(*m->order));
    return true;
}

/* The larger of the links' bounds; bound.h, with times on a link for bytes. */
static double bound_of(const msdu__whatif_model *m)
{
    msdu__bound_link link = {.bytes_per_ns = 1};
    bool is_streamed = m->way->method->is_streamed && m->way->interval > 1;
    double most = 0;
    if (m->job.slice_count > 0 && m->slices[0].exchange.count > 0) {
        const msdu__whatif_exchange *x = &m->slices[0].exchange;
        link.latency_ns = x->phases[x->count - 1].latency_ns; /* behind the last byte */
    }
    for (int i = 0; i < MSDU__WHATIF_LINKS; i++) {
        msdu__bound bound = msdu__bound_of(m->bound[i], m->job.layer_count, &link);
        double least = is_streamed ? msdu__bound_streamed_ns(&bound, m->way->interval)
                                   : msdu__bound_step_ns(&bound, m->way->interval, m->way->delay);
        most = fmax(most, least);
    }
    return most;
}

static msdu_status read_settings(msdu__whatif_model *m)
{
    msdu_config config = MSDU_CONFIG_INIT;
    msdu__log log;
    config.settings = m->way->method->settings;
    return msdu__settings_load(&config, &m->settings, &log);
}

/* Of a step, by the formula that the controller goes by. */
static double taken_ns(const msdu__whatif_model *m, const msdu__sim_result *result)
{
    msdu__wire_costs costs = msdu__whatif_costs(m->q);
    msdu__choice choice = {.interval = m->way->interval, .wire = m->way->wire};
    msdu__interval_args args = {.copy_ns = costs.copy_ns,
                                .wire_count = MSDU__WIRE_COUNT,
                                .widest_wire = MSDU__WIRE_FLOAT32};
    msdu__round_stats stats = {
        .ranks = (int32_t)m->q->network.ranks,
        .elements = m->job.slice_count > 0 ? msdu__profile_elements(m->q->profile) : 0,
        .is_gradient = m->way->method->kind != MSDU__OVERLAP_LOCAL,
        .taken_share = m->q->taken_share,
    };
    for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
        args.wires[wire] = (msdu__interval_wire){
            .bits = msdu__wire_at(wire)->bits,
            .code_ns = msdu__wire_code_ns(&costs, wire, stats.ranks),
        };
    }
    return msdu__cost_hidden_ns(&args, &stats, &choice, result->link_ns,
                                result->wait_ns * m->way->interval) /
           m->way->interval;
}

static bool run(msdu__whatif_model *m, msdu__whatif_answer *answer)
{
    msdu__sim_result result = msdu__sim_run(&m->job, &m->memory, m->times);
    /* fragments renew their plans apart, over few slices each: the order of cutting stays */
    for (int i = 0; i < RENEWALS && m->job.parts == 1 && !result.is_stuck && renew(m); i++) {
        answer->has_renewed = true;
        result = msdu__sim_run(&m->job, &m->memory, m->times);
    }
    answer->taken_ns = taken_ns(m, &result);
    answer->step_ns = result.step_ns + answer->taken_ns;
    answer->compute_ns = slowness(m) * msdu__profile_compute_ns(m->q->profile);
    answer->bound_ns = bound_of(m);
    answer->exposed_share = fmax(0, 1 - answer->compute_ns / answer->step_ns);
    answer->bytes = m->job.slice_count > 0 ? m->bytes / m->way->interval : 0;
    answer->link_ns = result.link_ns;
    answer->wait_ns = result.wait_ns;
    answer->slices = m->job.slice_count;
    return !result.is_stuck;
}

bool msdu__whatif_predict(const msdu__whatif_question *question, const msdu__whatif_way *way,
                          msdu__whatif_answer *answer, char *why, size_t why_bytes)
{
    msdu__whatif_model m = {.q = question, .way = way};
    *answer = (msdu__whatif_answer){.slices = 0};
    if (read_settings(&m) != MSDU_OK) {
        snprintf(why, why_bytes, "%s", msdu_last_error());
        return false;
    }
    bool is_done = msdu__whatif_cut(&m) && allocate(&m);
    if (!is_done) {
        snprintf(why, why_bytes, "too many slices, or no memory: give larger --slice-bytes");
    } else {
        fill_job(&m);
        is_done = run(&m, answer);
        if (!is_done) {
            snprintf(why, why_bytes, "the simulation of %s waits for itself", way->method->name);
        }
    }
    while (m.block_count > 0) {
        free(m.blocks[--m.block_count]);
    }
    return is_done;
}
