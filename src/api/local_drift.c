/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulated domain: how far this rank's optimizer is from what all ranks have in common. */
#include "core/kernels.h"
#include "guard.h"

#include <stdlib.h>

/* Elements `at` on of a slice's recursion, to element `to` on. The trainer's momentum buffer holds
 * that of the recursion and what our own additions left in it. */
typedef struct part {
    const msdu_recursion_state *from;
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
static msdu_status copy_part(msdu__caller *c, const part *one, const msdu_local_drift *out)
{
    const uint64_t bytes = one->count * one->width;
    const uint64_t at = one->at * one->width;
    char *parameter = (char *)out->parameter + one->to * one->width;
    char *momentum = (char *)out->momentum + one->to * one->width;
    void *trace = malloc(bytes > 0 ? bytes : 1);
    if (trace == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: out of memory", c->job->rank);
    }
    msdu_status status =
        msdu__kernels_copy(c->engine, parameter, (const char *)one->from->drift + at, bytes);
    status = status == MSDU_OK ? msdu__kernels_copy(c->engine, momentum,
                                                    (const char *)one->from->velocity + at, bytes)
                               : status;
    status = status == MSDU_OK
                 ? msdu__kernels_copy(c->engine, trace, (const char *)one->from->trace + at, bytes)
                 : status;
    if (status == MSDU_OK) {
        add(trace, momentum, one);
    }
    free(trace);
    return status;
}

static msdu_status copy_slice(msdu__caller *c, uint32_t slice, uint32_t id,
                              const msdu_local_drift *out)
{
    const msdu__slice *cut = &c->model->slicing.slices[slice];
    const uint64_t width = msdu__dtype_working_bytes(cut->dtype);
    msdu_status status = MSDU_OK;
    uint64_t at = 0;
    for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
        const msdu__segment *segment = &c->model->slicing.segments[i];
        const part one = {&c->engine->runs[slice].recursion, at, segment->offset, segment->count,
                          width};
        if (segment->tensor == id && status == MSDU_OK) {
            status = copy_part(c, &one, out);
        }
        at += segment->count;
    }
    return status;
}

static msdu_status check(msdu__caller *c, uint32_t id, const msdu_local_drift *out)
{
    if (out->size != sizeof(*out) || out->parameter == NULL || out->momentum == NULL ||
        id >= c->model->tensor_count) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: no tensor %u, or an incomplete msdu_local_drift", c->job->rank,
                          id);
    }
    const msdu__tensor *t = &c->model->tensors[id];
    if (!c->is_started || c->is_finished || msdu__handover_is_busy(c->hand, id, MSDU_GRADIENT)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: not between msdu_start() and msdu_finish(), or tensor '%s' was "
                          "announced and not waited for",
                          c->job->rank, t->name);
    }
    if (!c->job->is_accumulated || t->role != MSDU_ROLE_MODEL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: only gradients in domain accumulated have a distance",
                          c->job->rank);
    }
    return msdu__handover_status(c->hand);
}

msdu_status msdu_local_drift_get(msdu_ctx *ctx, uint32_t id, msdu_local_drift *drift_out)
{
    msdu_status status = msdu__guard(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    if (drift_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "drift_out is NULL");
    }
    msdu__caller *c = &ctx->caller;
    status = check(c, id, drift_out);
    if (status != MSDU_OK) {
        return status;
    }
    const msdu__tensor *t = &c->model->tensors[id];
    for (uint32_t i = 0; i < t->slice_count && status == MSDU_OK; i++) {
        status = copy_slice(c, c->model->tensor_slices[t->first_slice + i], id, drift_out);
    }
    if (status != MSDU_OK) {
        return status;
    }
    drift_out->lr = msdu__number_get(&c->hand->reports.lr);
    drift_out->mu = c->job->settings.momentum;
    drift_out->dampening = c->job->settings.dampening;
    drift_out->weight_decay = c->job->settings.weight_decay;
    drift_out->is_nesterov = c->job->settings.nesterov != 0 ? 1 : 0;
    return MSDU_OK;
}
