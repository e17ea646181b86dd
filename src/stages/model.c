/* SPDX-License-Identifier: Apache-2.0 */
/* The question as numbers of one micro-batch; pure but for memory. */
#include "model.h"

#include <math.h>

#define NS_PER_S 1e9

/* Micro-batches of other samples than those that were timed. */
typedef struct scale {
    const msdu_stages_question *q;
    double factor;
} scale;

static double scale_of(const msdu_stages_question *q, uint32_t micro_batches)
{
    if (q->batch == 0 || q->samples == 0) {
        return 1;
    }
    return (double)q->batch / micro_batches / q->samples;
}

/* The fixed part stays, the rest grows. */
static double time_of(const scale *s, const double *times, const double *fixed, size_t at)
{
    double base = fixed != NULL ? fixed[at] : 0;
    return base + (times[at] - base) * s->factor;
}

static void sum_times(const scale *s, const double *times, const double *fixed, double *sums)
{
    size_t layers = s->q->layers;
    for (size_t d = 0; d < s->q->devices; d++) {
        for (size_t l = 0; l < layers; l++) {
            double *at = &sums[d * (layers + 1) + l];
            at[1] = at[0] + time_of(s, times, fixed, d * layers + l);
        }
    }
}

/* Gradients of weights: the share of the backward pass that they have. */
static void sum_weights(const scale *s, double *sums)
{
    const msdu_stages_question *q = s->q;
    size_t layers = q->layers;
    for (size_t d = 0; d < q->devices; d++) {
        for (size_t l = 0; l < layers; l++) {
            size_t from = d * layers + l;
            double whole = q->backward_ns[from];
            double share = q->weight_ns == NULL ? 0.5 : whole > 0 ? q->weight_ns[from] / whole : 0;
            double *at = &sums[d * (layers + 1) + l];
            at[1] = at[0] + share * time_of(s, q->backward_ns, q->fixed_backward_ns, from);
        }
    }
}

static void sum_bytes(const double *bytes, uint32_t count, double factor, double *sums)
{
    for (uint32_t l = 0; l < count; l++) {
        sums[l + 1] = sums[l] + (bytes != NULL ? bytes[l] * factor : 0);
    }
}

static double limit_of(const double *limits, uint32_t device, double unit)
{
    return limits != NULL && limits[device] > 0 ? limits[device] / unit : (double)INFINITY;
}

static void set_devices(const msdu_stages_question *q, msdu__stages_model *out)
{
    for (uint32_t d = 0; d < q->devices; d++) {
        out->memory[d] = limit_of(q->memory_bytes, d, 1);
        out->card[d] = limit_of(q->card_rate, d, NS_PER_S);
    }
    for (uint32_t d = 0; d < q->devices; d++) {
        for (uint32_t e = 0; e < q->devices; e++) {
            size_t at = (size_t)d * q->devices + e;
            double rate = d == e ? (double)INFINITY : q->link_rate[at] / NS_PER_S;
            out->rate[at] = fmin(rate, fmin(out->card[d], out->card[e]));
            out->latency[at] = q->latency_ns != NULL && d != e ? q->latency_ns[at] : 0;
        }
    }
}

static double *numbers(msdu__stages_memory *memory, size_t count)
{
    return msdu__stages_take(memory, count, sizeof(double));
}

bool msdu__stages_model_make(const msdu_stages_question *question, uint32_t micro_batches,
                             msdu__stages_memory *memory, msdu__stages_model *out)
{
    const msdu_stages_question *q = question;
    size_t layers = (size_t)q->layers + 1;
    size_t devices = q->devices;
    scale s = {q, scale_of(q, micro_batches)};
    *out = (msdu__stages_model){.layers = q->layers,
                                .devices = q->devices,
                                .micro_batches = micro_batches,
                                .may = q->may,
                                .forward = numbers(memory, devices * layers),
                                .backward = numbers(memory, devices * layers),
                                .weight = numbers(memory, devices * layers),
                                .kept = numbers(memory, layers),
                                .state = numbers(memory, layers),
                                .cross = numbers(memory, layers),
                                .memory = numbers(memory, devices),
                                .card = numbers(memory, devices),
                                .rate = numbers(memory, devices * devices),
                                .latency = numbers(memory, devices * devices)};
    if (memory->is_short) {
        return false;
    }
    sum_times(&s, q->forward_ns, q->fixed_forward_ns, out->forward);
    sum_times(&s, q->backward_ns, q->fixed_backward_ns, out->backward);
    sum_weights(&s, out->weight);
    sum_bytes(q->kept_bytes, q->layers, s.factor, out->kept);
    sum_bytes(q->state_bytes, q->layers, 1, out->state);
    for (uint32_t l = 1; l < q->layers; l++) {
        out->cross[l] = q->output_bytes[l - 1] * s.factor;
    }
    set_devices(q, out);
    return true;
}

static double between(const double *sums, uint32_t layers, uint32_t device, uint32_t first,
                      uint32_t end)
{
    const double *row = &sums[(size_t)device * (layers + 1)];
    return row[end] - row[first];
}

double msdu__stages_forward(const msdu__stages_model *m, uint32_t device, uint32_t first,
                            uint32_t end)
{
    return between(m->forward, m->layers, device, first, end);
}

double msdu__stages_backward(const msdu__stages_model *m, uint32_t device, uint32_t first,
                             uint32_t end)
{
    return between(m->backward, m->layers, device, first, end);
}

double msdu__stages_weight(const msdu__stages_model *m, uint32_t device, uint32_t first,
                           uint32_t end)
{
    return between(m->weight, m->layers, device, first, end);
}

double msdu__stages_own(const msdu__stages_model *m, uint32_t device, uint32_t first, uint32_t end)
{
    double computing =
        msdu__stages_forward(m, device, first, end) + msdu__stages_backward(m, device, first, end);
    return fmax(computing, (m->cross[first] + m->cross[end]) / m->card[device]);
}

double msdu__stages_bytes(const msdu__stages_model *m, uint32_t first, uint32_t end, double holds)
{
    return m->state[end] - m->state[first] + holds * (m->kept[end] - m->kept[first]) +
           m->micro_batches * (m->cross[first] + m->cross[end]);
}

/* A link that is not there takes for ever, even for nothing. */
static double passing(const msdu__stages_model *m, uint32_t from, uint32_t to, double bytes)
{
    double rate = m->rate[(size_t)from * m->devices + to];
    return rate > 0 ? bytes / rate : (double)INFINITY;
}

double msdu__stages_link(const msdu__stages_model *m, uint32_t from, uint32_t to, double bytes)
{
    return fmax(passing(m, from, to, bytes), passing(m, to, from, bytes));
}

double msdu__stages_way(const msdu__stages_model *m, uint32_t from, uint32_t to, double bytes)
{
    return passing(m, from, to, bytes) + m->latency[(size_t)from * m->devices + to];
}

/* Bytes of each micro-batch between stage s - 1 and s, one way; in a V the same link has those of
 * the other arm. */
static double boundary_bytes(const msdu__stages_model *m, const msdu__stages_layout *layout,
                             uint32_t s)
{
    double bytes = m->cross[layout->first[s]];
    uint32_t other = layout->count - s;
    bool is_vee = layout->count > layout->ranks;
    return is_vee && other != s ? bytes + m->cross[layout->first[other]] : bytes;
}

double msdu__stages_beta(const msdu__stages_model *m, const msdu__stages_layout *layout)
{
    double rank_ns[MSDU_STAGES_DEVICES_MAX] = {0};
    double slowest = 0;
    for (uint32_t s = 0; s < layout->count; s++) {
        double *sum = &rank_ns[layout->rank[s]];
        *sum += msdu__stages_own(m, layout->device[s], layout->first[s], layout->first[s + 1]);
        slowest = fmax(slowest, *sum);
        if (s > 0 && layout->device[s] != layout->device[s - 1]) {
            slowest = fmax(slowest, msdu__stages_link(m, layout->device[s - 1], layout->device[s],
                                                      boundary_bytes(m, layout, s)));
        }
    }
    return slowest;
}
