/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a prediction share. */
#ifndef MSDU_WHATIF_PREDICT_IMPL_H
#define MSDU_WHATIF_PREDICT_IMPL_H

#include "config/config.h"
#include "predict.h"
#include "simulate.h"
#include "slicer/plan.h"
#include "slicer/slicer.h"
#include "slicer/tuner.h"

#define MSDU__WHATIF_BLOCKS 20  /* of memory, at most */
#define MSDU__WHATIF_BLOCK  256 /* default of setting wire_block */

/* Everything that a prediction is made of; one block of memory each, freed together. */
typedef struct msdu__whatif_model {
    const msdu__whatif_question *q;
    const msdu__whatif_way *way;
    msdu__slicer_tensor *tensors;
    msdu__slicing slicing;
    uint32_t *layer_of; /* by tensor */
    msdu__sim_layer *layers;
    msdu__sim_slice *slices;
    uint32_t *by_layer;
    uint32_t *order;
    uint32_t *next_order;
    msdu__sim_times *times;
    msdu__plan_item *items;
    uint32_t *marks;
    uint64_t *ends;
    msdu__sim_memory memory;
    msdu__bound_layer *bound[MSDU__WHATIF_LINKS];
    msdu__settings settings; /* of the method, as the library reads them */
    msdu__tuning tuning;     /* where the question leaves it open */
    msdu__sim_job job;
    double bytes; /* of a round */
    void *blocks[MSDU__WHATIF_BLOCKS];
    uint32_t block_count;
    bool is_short; /* of memory */
} msdu__whatif_model;

/* Zeros, which the model frees in the end. NULL: no memory, as is_short says from then on. */
void *msdu__whatif_take(msdu__whatif_model *m, size_t count, size_t bytes);
/* predict_cut.c: tensors and slices of the method; false: too many, or no memory. */
bool msdu__whatif_cut(msdu__whatif_model *m);

#endif
