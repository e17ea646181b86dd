/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context, of the host and of a device; all of it is freed together. */
#ifndef MSDU_MEMORY_H
#define MSDU_MEMORY_H

#include "engine.h"

/* Zeroed memory, aligned to 64 bytes, freed by msdu__memory_free(); NULL if there is none. Pages
 * are touched on first use only. */
void *msdu__memory_block(msdu__engine *e, uint64_t bytes);
void msdu__memory_free(msdu__engine *e);
/* Take a block of the host's, by its first byte, away from the context: to be freed by free().
 * NULL: it is none of them. */
void *msdu__memory_take(msdu__engine *e, const void *place);
/* Likewise where the tensors are; freed by msdu__memory_release(), before the group is left. */
void *msdu__memory_slices(msdu__engine *e, uint64_t bytes);
/* Likewise for what kernels find: the host's, and within the device's reach. */
void *msdu__memory_shared(msdu__engine *e, uint64_t bytes);
/* Likewise for what compressed slices are sent from and received into. */
msdu_status msdu__memory_exchange(msdu__engine *e, uint64_t bytes, char **out);
void msdu__memory_release(msdu__engine *e);
msdu_status msdu__memory_none(const msdu__engine *e, const char *what);

#endif
