/* SPDX-License-Identifier: Apache-2.0 */
/* Slicer: cuts large tensors, fuses small ones, lays slices out in the arena. Pure. */
#include "slicer.h"

#include <assert.h>

#include <msdu/msdu.h>

#include "base/dtype.h"

#define ARENA_ALIGN 64 /* a cache line: slices never share one */

static uint64_t divide_up(uint64_t value, uint64_t by)
{
    return value / by + (value % by != 0);
}

static uint64_t alignment(const msdu__slicer_args *args)
{
    return args->align > 0 ? args->align : 1;
}

/* Most elements of a slice: a multiple of the alignment, and at least one such unit. */
static uint64_t slice_elements(const msdu__slicer_args *args, int32_t dtype)
{
    uint64_t align = alignment(args);
    uint64_t count = args->slice_bytes / msdu__dtype_bytes(dtype) / align * align;

    return count > 0 ? count : align;
}

/* Most elements of a slice of fused tensors, which has no cut to align. */
static uint64_t fused_elements(const msdu__slicer_args *args, int32_t dtype)
{
    uint64_t bytes = args->fuse_bytes < args->slice_bytes ? args->fuse_bytes : args->slice_bytes;

    return bytes / msdu__dtype_bytes(dtype);
}

static bool is_small(const msdu__slicer_args *args, const msdu__slicer_tensor *tensor)
{
    return tensor->count <= fused_elements(args, tensor->dtype) &&
           tensor->count * msdu__dtype_bytes(tensor->dtype) < args->fuse_bytes;
}

bool msdu__slicer_bounds(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                         uint32_t tensor_count, uint32_t *slices_out, uint32_t *segments_out)
{
    uint64_t pieces = 0;

    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t most = slice_elements(args, tensors[i].dtype);

        assert(tensors[i].count > 0);
        pieces += divide_up(tensors[i].count, most);
        if (pieces > MSDU__SLICES_MOST) {
            return false;
        }
    }
    *slices_out = (uint32_t)pieces;
    *segments_out = (uint32_t)pieces;
    return true;
}

/* Does tensor x come before y in backward order? */
static bool comes_before(const msdu__slicer_tensor *tensors, uint32_t x, uint32_t y)
{
    if (tensors[x].priority != tensors[y].priority) {
        return tensors[x].priority > tensors[y].priority;
    }
    return x > y;
}

/* Tensor numbers in backward order, by Shell's sort: in place, and quick where trainers add tensors
 * in forward order or in its reverse. The order is total, so it has one result. */
static void sort_backward(const msdu__slicer_tensor *tensors, uint32_t tensor_count,
                          msdu__segment *list)
{
    uint32_t gap = 1;

    for (uint32_t i = 0; i < tensor_count; i++) {
        list[i].tensor = tensor_count - 1 - i;
    }
    while (gap < tensor_count / 3) {
        gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
        for (uint32_t i = gap; i < tensor_count; i++) {
            uint32_t tensor = list[i].tensor;
            uint32_t at = i;

            while (at >= gap && comes_before(tensors, tensor, list[at - gap].tensor)) {
                list[at].tensor = list[at - gap].tensor;
                at -= gap;
            }
            list[at].tensor = tensor;
        }
    }
}

/* Begin a slice without segments. */
static msdu__slice *slice_open(msdu__slicing *out, const msdu__slicer_tensor *tensor)
{
    msdu__slice *slice = &out->slices[out->slice_count++];

    slice->first_segment = out->segment_count;
    slice->segments = 0;
    slice->count = 0;
    slice->arena = 0;
    slice->dtype = tensor->dtype;
    slice->priority = tensor->priority;
    slice->fragment = 0;
    return slice;
}

static void slice_append(msdu__slicing *out, msdu__slice *slice, const msdu__segment *segment,
                         int32_t priority)
{
    out->segments[out->segment_count++] = *segment;
    slice->segments++;
    slice->count += segment->count;
    if (priority < slice->priority) {
        slice->priority = priority;
    }
}

/* Pieces are made equal, so that no short remainder pays a message of its own. */
static void cut_large(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                      uint32_t index, msdu__slicing *out)
{
    const msdu__slicer_tensor *tensor = &tensors[index];
    uint64_t align = alignment(args);
    uint64_t pieces = divide_up(tensor->count, slice_elements(args, tensor->dtype));
    uint64_t most = divide_up(divide_up(tensor->count, pieces), align) * align;
    msdu__segment segment = {.tensor = index};

    while (segment.offset < tensor->count) {
        uint64_t left = tensor->count - segment.offset;

        segment.count = left < most ? left : most;
        slice_append(out, slice_open(out, tensor), &segment, tensor->priority);
        segment.offset += segment.count;
    }
}

/* Into the open slice, if there is one with room and of the same type, else into a new one. */
static msdu__slice *fuse_small(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                               uint32_t index, msdu__slice *open, msdu__slicing *out)
{
    const msdu__slicer_tensor *tensor = &tensors[index];
    msdu__segment segment = {.tensor = index, .offset = 0, .count = tensor->count};

    if (open == NULL || open->dtype != tensor->dtype ||
        open->count + tensor->count > fused_elements(args, tensor->dtype)) {
        open = slice_open(out, tensor);
    }
    slice_append(out, open, &segment, tensor->priority);
    return open;
}

static uint64_t slice_size(const msdu__slice *slice)
{
    return slice->count * msdu__dtype_bytes(slice->dtype);
}

/* The lightest fragment that has no slice of this row yet; loads lie in slices[].arena. */
static uint32_t lightest_fragment(const msdu__slicing *out, uint32_t first, uint32_t last,
                                  uint32_t fragments)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t f = 0; f < fragments; f++) {
        uint32_t i = first;

        while (i < last && out->slices[i].fragment != f) {
            i++;
        }
        if (i == last && (best == UINT32_MAX || out->slices[f].arena < out->slices[best].arena)) {
            best = f;
        }
    }
    assert(best != UINT32_MAX);
    return best;
}

/* Largest slice of a row that has no fragment yet. */
static uint32_t heaviest_slice(const msdu__slicing *out, uint32_t first, uint32_t last)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = first; i < last; i++) {
        if (out->slices[i].fragment == UINT32_MAX &&
            (best == UINT32_MAX || slice_size(&out->slices[i]) > slice_size(&out->slices[best]))) {
            best = i;
        }
    }
    assert(best != UINT32_MAX);
    return best;
}

/*
 * Slices in rows of `fragments` neighbours; every row gives one slice to every fragment (stride),
 * the largest to the lightest. Loads then never differ by more than the largest slice.
 */
static void spread_fragments(msdu__slicing *out, uint32_t fragments)
{
    uint32_t count = out->slice_count;

    for (uint32_t i = 0; i < count; i++) {
        out->slices[i].fragment = count <= fragments ? i : UINT32_MAX;
    }
    if (count <= fragments) {
        return;
    }
    for (uint32_t first = 0; first < count; first += fragments) {
        uint32_t last = count - first < fragments ? count : first + fragments;

        for (uint32_t i = first; i < last; i++) {
            uint32_t slice = heaviest_slice(out, first, last);
            uint32_t f = lightest_fragment(out, first, last, fragments);

            out->slices[slice].fragment = f;
            out->slices[f].arena += slice_size(&out->slices[slice]);
        }
    }
}

/* After spread_fragments(), which uses the same field as scratch. */
static void lay_out_arena(msdu__slicing *out)
{
    out->arena_bytes = 0;
    for (uint32_t i = 0; i < out->slice_count; i++) {
        msdu__slice *slice = &out->slices[i];
        uint64_t bytes = slice->count * msdu__dtype_working_bytes(slice->dtype);

        slice->arena = out->arena_bytes;
        out->arena_bytes += divide_up(bytes, ARENA_ALIGN) * ARENA_ALIGN;
    }
}

void msdu__slicer_cut(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                      uint32_t tensor_count, msdu__slicing *out)
{
    msdu__slice *open = NULL;
    uint32_t slices = 0;
    uint32_t segments = 0;

    /* The order is kept in the last entries of the segment array: every tensor yields no more
     * segments than bounds() counted for it, so that output never reaches an unread entry. */
    bool is_possible = msdu__slicer_bounds(args, tensors, tensor_count, &slices, &segments);
    assert(is_possible);
    (void)is_possible;
    sort_backward(tensors, tensor_count, out->segments + (segments - tensor_count));
    out->slice_count = 0;
    out->segment_count = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint32_t index = out->segments[segments - tensor_count + i].tensor;

        if (is_small(args, &tensors[index])) {
            open = fuse_small(args, tensors, index, open, out);
        } else {
            cut_large(args, tensors, index, out);
            open = NULL;
        }
    }
    assert(out->slice_count <= slices && out->segment_count <= segments);
    spread_fragments(out, args->fragments > 0 ? args->fragments : 1);
    lay_out_arena(out);
}
