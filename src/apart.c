/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulated domain: how far this rank's optimizer is from what all ranks have in common. */
#include "pipeline.h"

#include <string.h>

/* Elements `at` on of a slice's recursion, to element `to` on. The trainer's momentum buffer holds
 * that of the recursion and what our own additions left in it. */
typedef struct part {
    const msdu__recursion_state *from;
    uint64_t at;
    uint64_t to;
    uint64_t count;
} part;

static void copy_float(const part *p, const msdu_apart *out)
{
    const float *velocity = (const float *)p->from->velocity + p->at;
    const float *trace = (const float *)p->from->trace + p->at;
    float *momentum = (float *)out->momentum + p->to;
    memcpy((float *)out->parameter + p->to, (const float *)p->from->drift + p->at,
           p->count * sizeof(float));
    for (uint64_t i = 0; i < p->count; i++) {
        momentum[i] = velocity[i] + trace[i];
    }
}

static void copy_double(const part *p, const msdu_apart *out)
{
    const double *velocity = (const double *)p->from->velocity + p->at;
    const double *trace = (const double *)p->from->trace + p->at;
    double *momentum = (double *)out->momentum + p->to;
    memcpy((double *)out->parameter + p->to, (const double *)p->from->drift + p->at,
           p->count * sizeof(double));
    for (uint64_t i = 0; i < p->count; i++) {
        momentum[i] = velocity[i] + trace[i];
    }
}

static void copy_slice(const msdu__pipeline *p, uint32_t slice, uint32_t id, const msdu_apart *out)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    uint64_t at = 0;
    for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
        const msdu__segment *segment = &p->slicing.segments[i];
        const part one = {&p->runs[slice].recursion, at, segment->offset, segment->count};
        if (segment->tensor == id && cut->dtype == MSDU_FLOAT64) {
            copy_double(&one, out);
        } else if (segment->tensor == id) {
            copy_float(&one, out);
        }
        at += segment->count;
    }
}

static msdu_status check(msdu__pipeline *p, uint32_t id, const msdu_apart *out)
{
    if (out->size != sizeof(*out) || out->parameter == NULL || out->momentum == NULL ||
        id >= p->tensor_count) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or an incomplete msdu_apart",
                          p->rank, id);
    }
    const msdu__tensor *t = &p->tensors[id];
    if (!p->is_started || p->is_finished || atomic_load(&t->busy[0]) > 0) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: not between msdu_start() and msdu_finish(), or tensor '%s' was "
                          "announced and not waited for",
                          p->rank, t->name);
    }
    if (!p->is_accumulated || p->device != NULL || t->role != MSDU_ROLE_MODEL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: only gradients in domain accumulated, in memory of the host, "
                          "have a distance",
                          p->rank);
    }
    return msdu__pipeline_status(p);
}

msdu_status msdu_apart_get(msdu_ctx *ctx, uint32_t id, msdu_apart *apart_out)
{
    if (ctx == NULL || apart_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "ctx or apart_out is NULL");
    }
    msdu__pipeline *p = &ctx->pipeline;
    msdu_status status = check(p, id, apart_out);
    if (status != MSDU_OK) {
        return status;
    }
    const msdu__tensor *t = &p->tensors[id];
    for (uint32_t i = 0; i < t->slice_count; i++) {
        copy_slice(p, p->tensor_slices[t->first_slice + i], id, apart_out);
    }
    apart_out->lr = atomic_load(&p->lr);
    apart_out->mu = p->settings.momentum;
    apart_out->dampening = p->settings.dampening;
    apart_out->weight_decay = p->settings.weight_decay;
    apart_out->is_nesterov = p->settings.nesterov != 0 ? 1 : 0;
    return MSDU_OK;
}
