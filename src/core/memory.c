/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context, of the host and of a device; all of it is freed together. */
#include "start.h"

#include <stdlib.h>

#define ALIGN_BYTES 64
#define BLOCKS_MAX  (32 + 4 * MSDU__WINDOW_MAX + 4 * MSDU__FRAGMENTS_MAX)

void *msdu__memory_block(msdu__pipeline *p, uint64_t bytes)
{
    if (p->blocks == NULL) {
        p->blocks = calloc(BLOCKS_MAX, sizeof(*p->blocks));
    }
    if (p->blocks == NULL || p->block_count == BLOCKS_MAX) {
        return NULL;
    }
    /* calloc and not aligned_alloc: large zeroed blocks come as pages that are not touched yet */
    char *raw = calloc(1, bytes + ALIGN_BYTES);
    if (raw == NULL) {
        return NULL;
    }
    p->blocks[p->block_count++] = raw;
    return raw + (ALIGN_BYTES - (uintptr_t)raw % ALIGN_BYTES);
}

static void *keep_device_block(msdu__pipeline *p, void *memory, bool is_shared)
{
    if (memory != NULL) {
        p->device_blocks[p->device_block_count] = memory;
        p->device_block_shared[p->device_block_count++] = is_shared;
    }
    return memory;
}

static void *device_block(msdu__pipeline *p, uint64_t bytes, bool is_shared)
{
    if (p->device_block_count == MSDU__DEVICE_BLOCKS_MAX) {
        return NULL;
    }
    return keep_device_block(p, p->device->allocate(p->comm, bytes, is_shared ? 1 : 0), is_shared);
}

/* Memory of slices: where the tensors are. */
void *msdu__memory_slices(msdu__pipeline *p, uint64_t bytes)
{
    if (p->device == NULL) {
        return msdu__memory_block(p, bytes);
    }
    return device_block(p, bytes, false);
}

/* Memory that narrow slices are sent from and received into. */
msdu_status msdu__memory_exchange(msdu__pipeline *p, uint64_t bytes, char **out)
{
    const size_t end = offsetof(msdu_device, exchange) + sizeof(p->device->exchange);
    bool has_own = p->device != NULL && p->device->size >= end && p->device->exchange != NULL;
    void *memory = NULL;
    msdu_status status = MSDU_OK;
    if (has_own && p->device_block_count < MSDU__DEVICE_BLOCKS_MAX) {
        status = p->device->exchange(p->comm, bytes, &memory);
        *out = keep_device_block(p, memory, false);
    } else {
        *out = msdu__memory_slices(p, bytes);
    }
    bool is_missing = status == MSDU_OK && *out == NULL;
    return is_missing ? msdu__memory_none(p, "slices in flight") : status;
}

/* Memory for what passes find: the host's, and within the device's reach. */
void *msdu__memory_shared(msdu__pipeline *p, uint64_t bytes)
{
    if (p->device == NULL) {
        return msdu__memory_block(p, bytes);
    }
    return device_block(p, bytes, true);
}

void msdu__memory_release(msdu__pipeline *p)
{
    while (p->device_block_count > 0) {
        uint32_t i = --p->device_block_count;
        p->device->release(p->comm, p->device_blocks[i], p->device_block_shared[i] ? 1 : 0);
    }
}

void msdu__memory_free(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->block_count; i++) {
        free(p->blocks[i]);
    }
    free(p->blocks);
    p->blocks = NULL;
    p->block_count = 0;
    msdu__ready_free(&p->ready);
}

msdu_status msdu__memory_none(const msdu__pipeline *p, const char *what)
{
    return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for %s", p->rank, what);
}
