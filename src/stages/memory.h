/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a plan in the making: blocks that are freed together. */
#ifndef MSDU_STAGES_MEMORY_H
#define MSDU_STAGES_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU__STAGES_BLOCKS 48

typedef struct msdu__stages_memory {
    void *blocks[MSDU__STAGES_BLOCKS];
    uint32_t count;
    bool is_short; /* a block was refused, from then on */
} msdu__stages_memory;

/* Zeros. NULL: no memory, as is_short says from then on. */
void *msdu__stages_take(msdu__stages_memory *memory, size_t count, size_t bytes);
/* Free all blocks; the struct is as new. */
void msdu__stages_give_back(msdu__stages_memory *memory);

#endif
