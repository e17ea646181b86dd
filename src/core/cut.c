/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors become slices: how large, which fragment, and which slices a tensor lies in. */
#include "cut.h"

#include "memory.h"

#include <stdlib.h>

#define ALIGN_BYTES 64
#define FUSE_MOST   (1024U * 1024U) /* setting fuse_bytes auto */

static bool is_sliced(const msdu__job *job, const msdu__tensor *t)
{
    return t->role != MSDU_ROLE_STATE || job->settings.state == MSDU__STATE_AVERAGE;
}

/* Cut the tensors of one role behind what was cut before. */
static void cut_role(msdu__engine *e, int32_t role, const msdu__slicer_args *args,
                     msdu__slicer_tensor *list, uint32_t *ids)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        const msdu__tensor *t = &e->model->tensors[i];
        if (t->role == role && is_sliced(e->job, t)) {
            list[count] = (msdu__slicer_tensor){t->count, t->dtype, t->priority};
            ids[count++] = i;
        }
    }
    msdu__slicing part = {
        .slices = e->model->slicing.slices + e->model->slicing.slice_count,
        .segments = e->model->slicing.segments + e->model->slicing.segment_count,
    };
    if (count == 0) {
        return;
    }
    msdu__slicer_cut(args, list, count, &part);
    for (uint32_t i = 0; i < part.segment_count; i++) {
        part.segments[i].tensor = ids[part.segments[i].tensor];
    }
    for (uint32_t i = 0; i < part.slice_count; i++) {
        part.slices[i].first_segment += e->model->slicing.segment_count;
        part.slices[i].arena += e->model->slicing.arena_bytes;
    }
    e->model->slicing.slice_count += part.slice_count;
    e->model->slicing.segment_count += part.segment_count;
    e->model->slicing.arena_bytes +=
        (part.arena_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* Fewer slices than fragments: a fragment without model slices would be synchronized for nothing.
 */
static void drop_empty_fragments(msdu__engine *e)
{
    bool is_used[MSDU__FRAGMENTS_MAX] = {false};
    uint32_t number[MSDU__FRAGMENTS_MAX] = {0};
    uint32_t count = 0;
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        is_used[e->model->slicing.slices[slice].fragment] = true;
    }
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        number[i] = is_used[i] ? count++ : 0;
    }
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        e->model->slicing.slices[slice].fragment = number[e->model->slicing.slices[slice].fragment];
    }
    e->model->fragment_count = count;
}

static msdu__slicer_args slicer_args(const msdu__engine *e, uint64_t slice_bytes)
{
    uint64_t fuse = slice_bytes < FUSE_MOST ? slice_bytes : FUSE_MOST;
    return (msdu__slicer_args){
        .slice_bytes = slice_bytes,
        .fuse_bytes =
            e->job->settings.fuse_bytes < 0 ? fuse : (uint64_t)e->job->settings.fuse_bytes,
        .align = (uint64_t)e->job->settings.wire_block,
        .fragments = e->model->fragment_count,
    };
}

/* The first tensor that takes more slices than there are numbers, by itself or with those before.
 */
static msdu_status too_many_slices(const msdu__engine *e, const msdu__slicer_args *args,
                                   const msdu__slicer_tensor *list)
{
    uint32_t slices = 0;
    uint32_t segments = 0;
    uint32_t count = 1;
    while (msdu__slicer_bounds(args, list, count, &slices, &segments)) {
        count++;
    }
    return msdu__fail(MSDU_ERR_INVALID,
                      "rank %d: up to tensor '%s' there are more than %u slices: setting "
                      "slice_bytes is too small for so many elements",
                      e->job->rank, e->model->tensors[count - 1].name, MSDU__SLICES_MOST);
}

/* Most slices that any slicing of this context may have. */
msdu_status msdu__cut_bound(msdu__engine *e, uint32_t *slices_out)
{
    uint64_t bytes =
        e->model->recut.may_cut ? e->model->recut.args.slice_least : e->model->tuning.slice_bytes;
    msdu__slicer_args args =
        slicer_args(e, bytes < e->model->tuning.slice_bytes ? bytes : e->model->tuning.slice_bytes);
    msdu__slicer_tensor *list = calloc(e->model->tensor_count, sizeof(*list));
    uint32_t segments = 0;
    if (list == NULL) {
        return msdu__memory_none(e, "the list of tensors");
    }
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        list[i] = (msdu__slicer_tensor){e->model->tensors[i].count, e->model->tensors[i].dtype,
                                        e->model->tensors[i].priority};
    }
    bool is_possible =
        msdu__slicer_bounds(&args, list, e->model->tensor_count, slices_out, &segments);
    msdu_status status = is_possible ? MSDU_OK : too_many_slices(e, &args, list);
    free(list);
    return status;
}

uint64_t msdu__cut_bytes(const msdu__job *job, const msdu__model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        bytes += is_sliced(job, &model->tensors[i])
                     ? model->tensors[i].count * msdu__dtype_bytes(model->tensors[i].dtype)
                     : 0;
    }
    return bytes;
}

uint64_t msdu__cut_wire_bytes(const msdu__job *job, const msdu__model *model, int wire)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const msdu__tensor *t = &model->tensors[i];
        int format = msdu__wire_of(t->dtype, t->role == MSDU_ROLE_MODEL ? wire : 0);
        uint64_t narrow =
            msdu__wire_bytes(msdu__wire_at(format), t->count, (uint32_t)job->settings.wire_block);
        uint64_t whole = t->count * msdu__dtype_bytes(t->dtype);
        bytes += !is_sliced(job, t) ? 0 : format == MSDU__WIRE_FLOAT32 ? whole : narrow;
    }
    return bytes;
}

msdu_status msdu__cut_tensors(msdu__engine *e)
{
    msdu__slicer_args args = slicer_args(e, e->model->tuning.slice_bytes);
    msdu__slicer_tensor *list = calloc(e->model->tensor_count, sizeof(*list));
    uint32_t *ids = calloc(e->model->tensor_count, sizeof(*ids));
    msdu_status status = MSDU_OK;
    if (list == NULL || ids == NULL) {
        status = msdu__memory_none(e, "the list of tensors");
        goto err_free;
    }
    uint32_t slices = 0;
    uint32_t segments = 0;
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        list[i] = (msdu__slicer_tensor){e->model->tensors[i].count, e->model->tensors[i].dtype,
                                        e->model->tensors[i].priority};
    }
    (void)msdu__slicer_bounds(&args, list, e->model->tensor_count, &slices,
                              &segments); /* checked */
    e->model->slicing = (msdu__slicing){.slices = NULL};
    e->model->slicing.slices = msdu__memory_block(e, slices * sizeof(msdu__slice));
    e->model->slicing.segments = msdu__memory_block(e, segments * sizeof(msdu__segment));
    if (e->model->slicing.slices == NULL || e->model->slicing.segments == NULL) {
        status = msdu__memory_none(e, "slices");
        goto err_free;
    }
    cut_role(e, MSDU_ROLE_MODEL, &args, list, ids);
    e->model->slice_bound = e->model->slicing.slice_count;
    cut_role(e, MSDU_ROLE_BUFFER, &args, list, ids);
    e->model->buffer_bound = e->model->slicing.slice_count;
    cut_role(e, MSDU_ROLE_STATE, &args, list, ids);
    drop_empty_fragments(e);

err_free:
    free(ids);
    free(list);
    return status;
}

/* Which slices hold a piece of which tensor, as one array indexed by first_slice. */
msdu_status msdu__cut_list(msdu__engine *e)
{
    e->model->tensor_slices =
        msdu__memory_block(e, e->model->slicing.segment_count * sizeof(uint32_t));
    if (e->model->tensor_slices == NULL) {
        return msdu__memory_none(e, "the list of slices");
    }
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        e->model->tensors[i].slice_count = 0;
    }
    for (uint32_t i = 0; i < e->model->slicing.segment_count; i++) {
        e->model->tensors[e->model->slicing.segments[i].tensor].slice_count++;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        e->model->tensors[i].first_slice = at;
        at += e->model->tensors[i].slice_count;
        e->model->tensors[i].slice_count = 0;
    }
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        const msdu__slice *cut = &e->model->slicing.slices[slice];
        for (uint32_t i = 0; i < cut->segments; i++) {
            msdu__tensor *t =
                &e->model->tensors[e->model->slicing.segments[cut->first_segment + i].tensor];
            e->model->tensor_slices[t->first_slice + t->slice_count++] = slice;
        }
    }
    return MSDU_OK;
}
