/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulated domain: how far this rank's optimizer is from what all ranks have in common. */
#include "guard.h"

#include <stdlib.h>

/* Elements `at` on of a slice's recursion, to element `to` on. The trainer's momentum buffer holds
 * that of the recursion and what our own additions left in it. */
typedef struct part {
    const msdu__recursion_state *from;
    uint64_t at;
    uint64_t to;
    uint64_t count;
    uint64_t width; /* bytes of an element */
} part;

static void add(const void *trace, void *momentum, const part *one)
{
    const float *narrow = trace;
    const double *wide = trace;
    for (uint64_t i = 0; i < one->count; i++) {
        if (one->width == sizeof(double)) {
            ((double *)momentum)[i] += wide[i];
        } else {
            ((float *)momentum)[i] += narrow[i];
        }
    }
}

/* The recursion may be in a device's memory. */
static msdu_status copy_part(msdu__pipeline *p, const part *one, const msdu_apart *out)
{
    const uint64_t bytes = one->count * one->width;
    const uint64_t at = one->at * one->width;
    char *parameter = (char *)out->parameter + one->to * one->width;
    char *momentum = (char *)out->momentum + one->to * one->width;
    void *trace = malloc(bytes > 0 ? bytes : 1);
    if (trace == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: out of memory", p->rank);
    }
    msdu_status status = msdu__pass_copy(p, parameter, (const char *)one->from->drift + at, bytes);
    status = status == MSDU_OK
                 ? msdu__pass_copy(p, momentum, (const char *)one->from->velocity + at, bytes)
                 : status;
    status = status == MSDU_OK
                 ? msdu__pass_copy(p, trace, (const char *)one->from->trace + at, bytes)
                 : status;
    if (status == MSDU_OK) {
        add(trace, momentum, one);
    }
    free(trace);
    return status;
}

static msdu_status copy_slice(msdu__pipeline *p, uint32_t slice, uint32_t id, const msdu_apart *out)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    const uint64_t width = msdu__dtype_working_bytes(cut->dtype);
    msdu_status status = MSDU_OK;
    uint64_t at = 0;
    for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
        const msdu__segment *segment = &p->slicing.segments[i];
        const part one = {&p->runs[slice].recursion, at, segment->offset, segment->count, width};
        if (segment->tensor == id && status == MSDU_OK) {
            status = copy_part(p, &one, out);
        }
        at += segment->count;
    }
    return status;
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
    if (!p->is_accumulated || t->role != MSDU_ROLE_MODEL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: only gradients in domain accumulated have a distance", p->rank);
    }
    return msdu__pipeline_status(p);
}

msdu_status msdu_apart_get(msdu_ctx *ctx, uint32_t id, msdu_apart *apart_out)
{
    msdu_status status = msdu__guard(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    if (apart_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "apart_out is NULL");
    }
    msdu__pipeline *p = &ctx->pipeline;
    status = check(p, id, apart_out);
    if (status != MSDU_OK) {
        return status;
    }
    const msdu__tensor *t = &p->tensors[id];
    for (uint32_t i = 0; i < t->slice_count && status == MSDU_OK; i++) {
        status = copy_slice(p, p->tensor_slices[t->first_slice + i], id, apart_out);
    }
    if (status != MSDU_OK) {
        return status;
    }
    apart_out->lr = atomic_load(&p->lr);
    apart_out->mu = p->settings.momentum;
    apart_out->dampening = p->settings.dampening;
    apart_out->weight_decay = p->settings.weight_decay;
    apart_out->is_nesterov = p->settings.nesterov != 0 ? 1 : 0;
    return MSDU_OK;
}
