/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slicer: tensors -> slices. Pure: no I/O, locks, clock, globals; output arrays are the caller's.
 *
 * A slice is the unit of scheduling, communication and correction: a contiguous piece of one
 * tensor, or several whole small tensors fused. Every element is in exactly one slice.
 */
#ifndef MSDU_SLICER_H
#define MSDU_SLICER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct msdu__slicer_tensor {
    uint64_t count;   /* elements */
    int32_t dtype;    /* msdu_dtype; a slice holds one dtype only */
    int32_t priority; /* small = needed sooner */
} msdu__slicer_tensor;

/* A piece of a tensor. */
typedef struct msdu__segment {
    uint32_t tensor;
    uint64_t offset; /* elements, from the tensor's first */
    uint64_t count;  /* elements */
} msdu__segment;

typedef struct msdu__slice {
    uint32_t first_segment; /* into the segment array */
    uint32_t segments;      /* more than one: fused tensors */
    uint64_t count;         /* elements */
    uint64_t arena;         /* byte offset of the slice in an arena of working elements (4 bytes,
                               float64 8), aligned to 64 */
    int32_t dtype;
    int32_t priority;  /* smallest of its tensors */
    uint32_t fragment; /* 0 .. fragments - 1, for overlap "streamed" */
} msdu__slice;

typedef struct msdu__slicer_args {
    uint64_t slice_bytes; /* largest slice, in bytes of the tensor's dtype */
    uint64_t fuse_bytes;  /* tensors smaller than this are fused, up to this */
    uint64_t align;       /* cut points are multiples of this many elements (wire block) */
    uint32_t fragments;   /* P: slices are spread over fragments, balanced by bytes */
} msdu__slicer_args;

#define MSDU__SLICES_MOST (UINT32_C(1) << 26) /* an event has that many numbers for slices */

/* Upper bounds for the output arrays; false: more than MSDU__SLICES_MOST. */
bool msdu__slicer_bounds(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                         uint32_t tensor_count, uint32_t *slices_out, uint32_t *segments_out);

typedef struct msdu__slicing {
    msdu__slice *slices;     /* caller's array */
    msdu__segment *segments; /* caller's array */
    uint32_t slice_count;
    uint32_t segment_count;
    uint64_t arena_bytes; /* whole arena */
} msdu__slicing;

/*
 * Cut. Slices come in backward order: the last tensor in forward order (largest priority, then
 * largest index) first. Tensors fused together are neighbours in that order and of one dtype.
 */
void msdu__slicer_cut(const msdu__slicer_args *args, const msdu__slicer_tensor *tensors,
                      uint32_t tensor_count, msdu__slicing *out);

#endif
