/* SPDX-License-Identifier: Apache-2.0 */
/* A profile's tensors, cut into slices as a method of the bench cuts them. */
#include "predict_impl.h"

#include <math.h>
#include <stdlib.h>

#define MIB         1048576.0
#define SLICE_LEAST 262144.0 /* these as bench/overlap_rank.c has them */
#define BUCKET_MIB  25.0
#define PARTS_MOST  8
#define SLICES_MAX  (1U << 20)

static msdu__slicer_args slicer_args(const msdu__whatif_model *m)
{
    const msdu__whatif_question *q = m->q;
    bool is_bucketed = m->way->method->is_bucketed;
    double whole = (is_bucketed ? BUCKET_MIB : 1) * MIB * fmin(1, q->scale);
    bool is_given = q->slice_bytes > 0 && !is_bucketed;
    uint64_t bytes = is_given ? q->slice_bytes : (uint64_t)fmax(SLICE_LEAST, whole);
    bool is_streamed = m->way->method->is_streamed && m->way->method->kind == MSDU__OVERLAP_LOCAL;
    uint32_t most = m->way->interval < PARTS_MOST ? m->way->interval : PARTS_MOST;
    return (msdu__slicer_args){.slice_bytes = bytes,
                               .fuse_bytes = bytes,
                               .align = MSDU__WHATIF_BLOCK,
                               .fragments = is_streamed ? most : 1};
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
    msdu__slicer_args args = slicer_args(m);
    uint32_t slices = 0;
    uint32_t segments = 0;
    uint32_t count = tensor_count(m);
    m->tensors = calloc((size_t)p->tensor_count + 1, sizeof(*m->tensors));
    m->layer_of = calloc((size_t)p->tensor_count + 1, sizeof(*m->layer_of));
    if (m->tensors == NULL || m->layer_of == NULL) {
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
    if (pieces_of(m, &args, count) > SLICES_MAX) {
        return false;
    }
    msdu__slicer_bounds(&args, m->tensors, count, &slices, &segments);
    m->slicing.slices = calloc((size_t)slices + 1, sizeof(*m->slicing.slices));
    m->slicing.segments = calloc((size_t)segments + 1, sizeof(*m->slicing.segments));
    if (m->slicing.slices == NULL || m->slicing.segments == NULL) {
        return false;
    }
    msdu__slicer_cut(&args, m->tensors, count, &m->slicing);
    m->job.parts = args.fragments;
    return true;
}
