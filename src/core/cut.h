/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors become slices; before the start, and where slices are cut anew. */
#ifndef MSDU_CUT_H
#define MSDU_CUT_H

#include "engine.h"

/* Slices of all tensors; the slices of each tensor. */
msdu_status msdu__cut_tensors(msdu__engine *e);
msdu_status msdu__cut_list(msdu__engine *e);
/* Most slices that any slicing of this context may have. */
msdu_status msdu__cut_bound(msdu__engine *e, uint32_t *slices_out);
/* Bytes of what is synchronized, in the types of the tensors, and in the formats in which they
 * travel in a round of this wire. */
uint64_t msdu__cut_bytes(const msdu__job *job, const msdu__model *model);
uint64_t msdu__cut_wire_bytes(const msdu__job *job, const msdu__model *model, int wire);

#endif
