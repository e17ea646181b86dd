/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What belongs to elements of tensors and outlives the slices that it lay in: what error feedback
 * holds back, outer momentum, measured times. Where slices are cut anew it moves to the new ones
 * (caller/reslice.c); where the group of ranks changes, see heal.c.
 */
#ifndef MSDU_FORMER_H
#define MSDU_FORMER_H

#include "core/engine.h"

#define MSDU__FORMER_BLOCKS 7

/* Slices of before, with as much of their memory as is needed still. Zeroed: there are none. */
typedef struct msdu__former {
    msdu__slicing slicing;
    msdu__run *runs;
    int32_t owner; /* whose shares this rank had */
    int32_t ranks; /* so many it was one of */
    bool is_local; /* it holds back pseudo-gradients; false: gradients */
    bool has_residual;
    bool has_momentum;
    void *blocks[MSDU__FORMER_BLOCKS]; /* NULL where another one owns the memory */
} msdu__former;

/* The slices of now; their memory stays with the engine. */
msdu__former msdu__former_of(const msdu__engine *e);
/* Likewise, but memory that holds anything leaves the engine, which may be taken apart then. No
 * thread is at work. What rounds held back that were not applied is as before them. */
msdu__former msdu__former_take(msdu__engine *e);
void msdu__former_free(msdu__former *former);

/* To the slices of now, element by element. */
void msdu__former_move_residual(msdu__engine *e, const msdu__former *former);
void msdu__former_move_momentum(msdu__engine *e, const msdu__former *former);
void msdu__former_move_times(msdu__engine *e, const msdu__former *former);
/* Subtract what is held back of pseudo-gradients from a piece of a tensor, so that it gets into a
 * mean of parameters over `ranks` ranks. values: of the piece, float32. */
void msdu__former_deliver(const msdu__former *former, const msdu__segment *elements, int32_t ranks,
                          float *values);
/* That mean has come: nothing is held back of these any more. */
void msdu__former_delivered(const msdu__former *former, const msdu__segment *elements);

#endif
