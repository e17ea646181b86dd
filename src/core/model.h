/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer's tensors and the slices that they were cut into. Both threads read it. It changes
 * before the start, and while the API thread waits and nothing is in flight.
 */
#ifndef MSDU_MODEL_H
#define MSDU_MODEL_H

#include "base/base.h"
#include "slicer/slicer.h"
#include "slicer/tuner.h"

typedef struct msdu__tensor {
    char *name;
    void *parameter;
    void *gradient;
    uint64_t count;
    int32_t dtype;
    int32_t role;
    int32_t priority;
    int32_t place;        /* msdu_place, the same for all */
    uint32_t first_slice; /* into msdu__model.tensor_slices */
    uint32_t slice_count;
} msdu__tensor;

#define MSDU__DEVICE_BLOCKS_MAX 216 /* three a slot, and 24 */

/* Allocations of a context; memory.c. */
typedef struct msdu__memory {
    void **blocks;
    uint32_t block_count;
    void *device_blocks[MSDU__DEVICE_BLOCKS_MAX];
    bool is_shared[MSDU__DEVICE_BLOCKS_MAX];
    uint32_t device_block_count;
} msdu__memory;

/* May slices be cut anew? Equal on all ranks, and constant after the start; tune.c. */
typedef struct msdu__recut {
    bool may_cut;  /* they may */
    bool is_tuned; /* they are, as measured */
    bool is_recut; /* they are, as measured or as the wire changes */
    msdu__tuning first;
    msdu__tuner_args args;
} msdu__recut;

typedef struct msdu__model {
    msdu__tensor *tensors;
    void *tensor_names; /* a tree, to find names that are used twice */
    uint32_t tensor_count;
    uint64_t tensor_bytes; /* of all, as doubles */
    msdu__tuning tuning;   /* in use */
    msdu__recut recut;
    msdu__slicing slicing;
    uint32_t *tensor_slices;
    uint32_t fragment_count;
    uint32_t slice_bound;   /* slices of model tensors */
    uint32_t buffer_bound;  /* then of buffers, then of optimizer state */
    uint64_t element_count; /* model elements synchronized */
    msdu__memory memory;
} msdu__model;

/* Fragment of a slice. */
static inline uint32_t msdu__fragment_of(const msdu__model *model, uint32_t slice, bool is_whole)
{
    return is_whole ? 0 : model->slicing.slices[slice].fragment;
}

/* Number of the latest announcement of a tensor's memory, as kernels name it. */
static inline uint32_t msdu__announcement(uint32_t tensor, msdu_what what)
{
    return 1 + 2 * tensor + (what == MSDU_GRADIENT ? 0 : 1);
}

#endif
