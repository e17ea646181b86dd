/* SPDX-License-Identifier: Apache-2.0 */
/* A profile's tensors, cut into slices as a method of the bench cuts them. */
#include "predict_impl.h"

#include <math.h>

#include "core/engine.h"
#include "wire/wire.h"

#define MIB          1048576.0
#define BUCKET_LEAST 262144.0 /* these as bench/overlap/overlap_rank.c has them */
#define BUCKET_MIB   25.0
#define PARTS_MOST   8
#define SLICES_MAX   (1U << 20)
#define DEEP         2 /* messages, one after the other, of a small sum */

/* What a round of this wire sends of it; 16-bit tensors keep their format. */
static uint64_t wire_bytes(const msdu__whatif_model *m)
{
    const msdu__profile *p = m->q->profile;
    const msdu__wire *wire = msdu__wire_at(m->way->wire);
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < p->layer_count; l++) {
        for (uint32_t k = 0; k < p->layers[l].tensor_count; k++) {
            uint64_t count = p->tensors[p->layers[l].first_tensor + k].count;
            bool is_whole = p->layers[l].dtype != MSDU_FLOAT32;
            bytes += is_whole ? count * sizeof(float)
                              : msdu__wire_bytes(wire, count, MSDU__WHATIF_BLOCK);
        }
    }
    return bytes;
}

static uint32_t fragments_of(const msdu__whatif_model *m)
{
    bool is_streamed = m->way->method->is_streamed && m->way->method->kind == MSDU__OVERLAP_LOCAL;
    uint32_t most = m->way->interval < PARTS_MOST ? m->way->interval : PARTS_MOST;
    return is_streamed ? most : 1;
}

/* Where the library measures, the tuner's choice for this network; else its first one. */
static msdu__tuning tuning_of(const msdu__whatif_model *m)
{
    const msdu__whatif_question *q = m->q;
    const msdu__whatif_network *network = &q->network;
    const msdu__whatif_link *link =
        &network->links[network->nodes > 1 ? MSDU__WHATIF_BETWEEN : MSDU__WHATIF_INSIDE];
    uint64_t model = msdu__profile_elements(q->profile) * sizeof(float);
    msdu__tuning first = msdu__tuner_first(model, MSDU__WINDOW_AUTO, (uint32_t)m->settings.lanes);
    first.slice_bytes =
        msdu__tuner_compressed(first.slice_bytes, model, wire_bytes(m), fragments_of(m));
    bool is_measured = m->way->method->kind == MSDU__OVERLAP_GRADIENT &&
                       m->way->wire == MSDU__WIRE_FLOAT32 && network->ranks > 1 &&
                       isfinite(link->bytes_per_ns);
    if (!is_measured) {
        return first;
    }
    double bytes = 2.0 * (network->ranks - 1) / network->ranks * (double)model;
    msdu__tuner_args args = {.model_bytes = model,
                             .latency_ns = DEEP * link->latency_ns,
                             .slice_least = msdu__tuner_slice_least(model),
                             .slice_most = msdu__tuner_slice_most(model),
                             .window_least = MSDU__WINDOW_AUTO,
                             .window_most = MSDU__WINDOW_TUNED,
                             .is_whole = m->settings.commit_tensor == 0};
    msdu__tuner_round round = {.bytes = (uint64_t)bytes,
                               .slices = 1 + (uint32_t)(model / first.slice_bytes),
                               .window = first.window,
                               .link_ns = bytes / link->bytes_per_ns};
    msdu__tuner_point point = {first, round};
    msdu__tuner_cost cost = msdu__tuner_fit(&point, 1, args.latency_ns);
    cost.bytes_per_ns = link->bytes_per_ns;
    cost.slice_ns = q->slice_ns > 0 ? q->slice_ns : cost.slice_ns;
    return msdu__tuner_best(&args, &cost, &round, first);
}

static uint64_t slice_bytes(const msdu__whatif_model *m)
{
    const msdu__whatif_question *q = m->q;
    if (m->way->method->is_bucketed) {
        return (uint64_t)fmax(BUCKET_LEAST, BUCKET_MIB * MIB * fmin(1, q->scale));
    }
    return q->slice_bytes > 0 ? q->slice_bytes : m->tuning.slice_bytes;
}

static msdu__slicer_args slicer_args(const msdu__whatif_model *m)
{
    uint64_t bytes = slice_bytes(m);
    return (msdu__slicer_args){.slice_bytes = bytes,
                               .fuse_bytes = bytes,
                               .align = MSDU__WHATIF_BLOCK,
                               .fragments = fragments_of(m)};
}

/* Computing alone exchanges none. */
static uint32_t tensor_count(const msdu__whatif_model *m)
{
    return m->way->method->kind == MSDU__OVERLAP_COMPUTE ? 0 : m->q->profile->tensor_count;
}

/* At most; the slicer counts in 32 bits. */
static double pieces_of(const msdu__whatif_model *m, const msdu__slicer_args *args,
                        uint32_t tensors)
{
    double pieces = 0;
    for (uint32_t t = 0; t < tensors; t++) {
        pieces += 1 + (double)m->tensors[t].count * 8 / (double)args->slice_bytes;
    }
    return pieces;
}

bool msdu__whatif_cut(msdu__whatif_model *m)
{
    const msdu__profile *p = m->q->profile;
    m->tuning = tuning_of(m);
    msdu__slicer_args args = slicer_args(m);
    uint32_t slices = 0;
    uint32_t segments = 0;
    uint32_t count = tensor_count(m);
    m->tensors = msdu__whatif_take(m, (size_t)p->tensor_count + 1, sizeof(*m->tensors));
    m->layer_of = msdu__whatif_take(m, (size_t)p->tensor_count + 1, sizeof(*m->layer_of));
    if (m->is_short) {
        return false;
    }
    for (uint32_t l = 0; l < p->layer_count; l++) {
        for (uint32_t k = 0; k < p->layers[l].tensor_count; k++) {
            uint32_t t = p->layers[l].first_tensor + k;
            m->layer_of[t] = l;
            m->tensors[t] = (msdu__slicer_tensor){
                .count = p->tensors[t].count,
                .dtype = p->layers[l].dtype,
                .priority = m->way->method->has_priority ? (int32_t)l : 0,
            };
        }
    }
    if (pieces_of(m, &args, count) > SLICES_MAX ||
        !msdu__slicer_bounds(&args, m->tensors, count, &slices, &segments)) {
        return false;
    }
    m->slicing.slices = msdu__whatif_take(m, (size_t)slices + 1, sizeof(*m->slicing.slices));
    m->slicing.segments = msdu__whatif_take(m, (size_t)segments + 1, sizeof(*m->slicing.segments));
    if (m->is_short) {
        return false;
    }
    msdu__slicer_cut(&args, m->tensors, count, &m->slicing);
    m->job.parts = args.fragments;
    return true;
}
