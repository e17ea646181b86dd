/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors become slices: how large, which fragment, and which slices a tensor lies in. */
#include "start.h"

#include <stdlib.h>

#define ALIGN_BYTES 64
#define FUSE_MOST   (1024U * 1024U) /* setting fuse_bytes auto */

static bool is_sliced(const msdu__pipeline *p, const msdu__tensor *t)
{
    return t->role != MSDU_ROLE_STATE || p->settings.state == MSDU__STATE_AVERAGE;
}

/* Cut the tensors of one role behind what was cut before. */
static void cut_role(msdu__pipeline *p, int32_t role, const msdu__slicer_args *args,
                     msdu__slicer_tensor *list, uint32_t *ids)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        if (t->role == role && is_sliced(p, t)) {
            list[count] = (msdu__slicer_tensor){t->count, t->dtype, t->priority};
            ids[count++] = i;
        }
    }
    msdu__slicing part = {
        .slices = p->slicing.slices + p->slicing.slice_count,
        .segments = p->slicing.segments + p->slicing.segment_count,
    };
    if (count == 0) {
        return;
    }
    msdu__slicer_cut(args, list, count, &part);
    for (uint32_t i = 0; i < part.segment_count; i++) {
        part.segments[i].tensor = ids[part.segments[i].tensor];
    }
    for (uint32_t i = 0; i < part.slice_count; i++) {
        part.slices[i].first_segment += p->slicing.segment_count;
        part.slices[i].arena += p->slicing.arena_bytes;
    }
    p->slicing.slice_count += part.slice_count;
    p->slicing.segment_count += part.segment_count;
    p->slicing.arena_bytes += (part.arena_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* Fewer slices than fragments: a fragment without model slices would meet for nothing. */
static void drop_empty_fragments(msdu__pipeline *p)
{
    bool is_used[MSDU__FRAGMENTS_MAX] = {false};
    uint32_t number[MSDU__FRAGMENTS_MAX] = {0};
    uint32_t count = 0;
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        is_used[p->slicing.slices[slice].fragment] = true;
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        number[i] = is_used[i] ? count++ : 0;
    }
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        p->slicing.slices[slice].fragment = number[p->slicing.slices[slice].fragment];
    }
    p->fragment_count = count;
}

static msdu__slicer_args slicer_args(const msdu__pipeline *p, uint64_t slice_bytes)
{
    uint64_t fuse = slice_bytes < FUSE_MOST ? slice_bytes : FUSE_MOST;
    return (msdu__slicer_args){
        .slice_bytes = slice_bytes,
        .fuse_bytes = p->settings.fuse_bytes < 0 ? fuse : (uint64_t)p->settings.fuse_bytes,
        .align = (uint64_t)p->settings.wire_block,
        .fragments = p->fragment_count,
    };
}

/* The first tensor that takes more slices than there are numbers, by itself or with those before.
 */
static msdu_status too_many_slices(const msdu__pipeline *p, const msdu__slicer_args *args,
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
                      p->rank, p->tensors[count - 1].name, MSDU__SLICES_MOST);
}

/* Most slices that any cut of this context may have. */
msdu_status msdu__cut_bound(msdu__pipeline *p, uint32_t *slices_out)
{
    uint64_t bytes = p->may_cut ? p->tuner_args.slice_least : p->tuning.slice_bytes;
    msdu__slicer_args args =
        slicer_args(p, bytes < p->tuning.slice_bytes ? bytes : p->tuning.slice_bytes);
    msdu__slicer_tensor *list = calloc(p->tensor_count, sizeof(*list));
    uint32_t segments = 0;
    if (list == NULL) {
        return msdu__memory_none(p, "the list of tensors");
    }
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        list[i] =
            (msdu__slicer_tensor){p->tensors[i].count, p->tensors[i].dtype, p->tensors[i].priority};
    }
    bool is_possible = msdu__slicer_bounds(&args, list, p->tensor_count, slices_out, &segments);
    msdu_status status = is_possible ? MSDU_OK : too_many_slices(p, &args, list);
    free(list);
    return status;
}

uint64_t msdu__cut_bytes(const msdu__pipeline *p)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        bytes += is_sliced(p, &p->tensors[i])
                     ? p->tensors[i].count * msdu__dtype_bytes(p->tensors[i].dtype)
                     : 0;
    }
    return bytes;
}

uint64_t msdu__cut_wire_bytes(const msdu__pipeline *p, int wire)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        int format = msdu__wire_of(t->dtype, t->role == MSDU_ROLE_MODEL ? wire : 0);
        uint64_t narrow =
            msdu__wire_bytes(msdu__wire_at(format), t->count, (uint32_t)p->settings.wire_block);
        uint64_t whole = t->count * msdu__dtype_bytes(t->dtype);
        bytes += !is_sliced(p, t) ? 0 : format == MSDU__WIRE_FLOAT32 ? whole : narrow;
    }
    return bytes;
}

msdu_status msdu__cut_tensors(msdu__pipeline *p)
{
    msdu__slicer_args args = slicer_args(p, p->tuning.slice_bytes);
    msdu__slicer_tensor *list = calloc(p->tensor_count, sizeof(*list));
    uint32_t *ids = calloc(p->tensor_count, sizeof(*ids));
    msdu_status status = MSDU_OK;
    if (list == NULL || ids == NULL) {
        status = msdu__memory_none(p, "the list of tensors");
        goto err_free;
    }
    uint32_t slices = 0;
    uint32_t segments = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        list[i] =
            (msdu__slicer_tensor){p->tensors[i].count, p->tensors[i].dtype, p->tensors[i].priority};
    }
    (void)msdu__slicer_bounds(&args, list, p->tensor_count, &slices, &segments); /* checked */
    p->slicing = (msdu__slicing){.slices = NULL};
    p->slicing.slices = msdu__memory_block(p, slices * sizeof(msdu__slice));
    p->slicing.segments = msdu__memory_block(p, segments * sizeof(msdu__segment));
    if (p->slicing.slices == NULL || p->slicing.segments == NULL) {
        status = msdu__memory_none(p, "slices");
        goto err_free;
    }
    cut_role(p, MSDU_ROLE_MODEL, &args, list, ids);
    p->slice_bound = p->slicing.slice_count;
    cut_role(p, MSDU_ROLE_BUFFER, &args, list, ids);
    p->buffer_bound = p->slicing.slice_count;
    cut_role(p, MSDU_ROLE_STATE, &args, list, ids);
    drop_empty_fragments(p);

err_free:
    free(ids);
    free(list);
    return status;
}

/* Which slices hold a piece of which tensor, as one array indexed by first_slice. */
msdu_status msdu__cut_list(msdu__pipeline *p)
{
    p->tensor_slices = msdu__memory_block(p, p->slicing.segment_count * sizeof(uint32_t));
    if (p->tensor_slices == NULL) {
        return msdu__memory_none(p, "the list of slices");
    }
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        p->tensors[i].slice_count = 0;
    }
    for (uint32_t i = 0; i < p->slicing.segment_count; i++) {
        p->tensors[p->slicing.segments[i].tensor].slice_count++;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        p->tensors[i].first_slice = at;
        at += p->tensors[i].slice_count;
        p->tensors[i].slice_count = 0;
    }
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        const msdu__slice *cut = &p->slicing.slices[slice];
        for (uint32_t i = 0; i < cut->segments; i++) {
            msdu__tensor *t = &p->tensors[p->slicing.segments[cut->first_segment + i].tensor];
            p->tensor_slices[t->first_slice + t->slice_count++] = slice;
        }
    }
    return MSDU_OK;
}
