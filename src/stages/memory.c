/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a plan in the making: the only file of the folder that allocates. */
#include "memory.h"

#include <assert.h>
#include <stdlib.h>

void *msdu__stages_take(msdu__stages_memory *memory, size_t count, size_t bytes)
{
    assert(memory->count < MSDU__STAGES_BLOCKS);
    void *block = calloc(count > 0 ? count : 1, bytes);
    if (block == NULL) {
        memory->is_short = true;
        return NULL;
    }
    memory->blocks[memory->count++] = block;
    return block;
}

void msdu__stages_give_back(msdu__stages_memory *memory)
{
    for (uint32_t i = 0; i < memory->count; i++) {
        free(memory->blocks[i]);
    }
    *memory = (msdu__stages_memory){.count = 0};
}
