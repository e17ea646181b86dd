/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context, of the host and of a device; all of it is freed together. */
#include "memory.h"

#include <stdlib.h>

#define ALIGN_BYTES 64
#define BLOCKS_MAX  (32 + 4 * MSDU__WINDOW_MAX + 4 * MSDU__FRAGMENTS_MAX)

void *msdu__memory_block(msdu__engine *e, uint64_t bytes)
{
    msdu__memory *m = &e->model->memory;
    if (m->blocks == NULL) {
        m->blocks = calloc(BLOCKS_MAX, sizeof(*m->blocks));
    }
    if (m->blocks == NULL || m->block_count == BLOCKS_MAX) {
        return NULL;
    }
    /* calloc and not aligned_alloc: large zeroed blocks come as pages that are not touched yet */
    char *raw = calloc(1, bytes + ALIGN_BYTES);
    if (raw == NULL) {
        return NULL;
    }
    m->blocks[m->block_count++] = raw;
    return raw + (ALIGN_BYTES - (uintptr_t)raw % ALIGN_BYTES);
}

static void *keep_device_block(msdu__engine *e, void *memory, bool is_shared)
{
    msdu__memory *m = &e->model->memory;
    if (memory != NULL) {
        m->device_blocks[m->device_block_count] = memory;
        m->is_shared[m->device_block_count++] = is_shared;
    }
    return memory;
}

static void *device_block(msdu__engine *e, uint64_t bytes, bool is_shared)
{
    msdu__memory *m = &e->model->memory;
    if (m->device_block_count == MSDU__DEVICE_BLOCKS_MAX) {
        return NULL;
    }
    return keep_device_block(e, e->job->device->allocate(e->job->comm, bytes, is_shared ? 1 : 0),
                             is_shared);
}

/* Memory of slices: where the tensors are. */
void *msdu__memory_slices(msdu__engine *e, uint64_t bytes)
{
    if (e->job->device == NULL) {
        return msdu__memory_block(e, bytes);
    }
    return device_block(e, bytes, false);
}

/* Memory that compressed slices are sent from and received into. */
msdu_status msdu__memory_exchange(msdu__engine *e, uint64_t bytes, char **out)
{
    const size_t end = offsetof(msdu_device, exchange) + sizeof(e->job->device->exchange);
    bool has_own =
        e->job->device != NULL && e->job->device->size >= end && e->job->device->exchange != NULL;
    void *memory = NULL;
    msdu_status status = MSDU_OK;
    if (has_own && e->model->memory.device_block_count < MSDU__DEVICE_BLOCKS_MAX) {
        status = e->job->device->exchange(e->job->comm, bytes, &memory);
        *out = keep_device_block(e, memory, false);
    } else {
        *out = msdu__memory_slices(e, bytes);
    }
    bool is_missing = status == MSDU_OK && *out == NULL;
    return is_missing ? msdu__memory_none(e, "slices in flight") : status;
}

/* Memory for what kernels find: the host's, and within the device's reach. */
void *msdu__memory_shared(msdu__engine *e, uint64_t bytes)
{
    if (e->job->device == NULL) {
        return msdu__memory_block(e, bytes);
    }
    return device_block(e, bytes, true);
}

void msdu__memory_release(msdu__engine *e)
{
    msdu__memory *m = &e->model->memory;
    while (m->device_block_count > 0) {
        uint32_t i = --m->device_block_count;
        e->job->device->release(e->job->comm, m->device_blocks[i], m->is_shared[i] ? 1 : 0);
    }
}

void *msdu__memory_take(msdu__engine *e, const void *place)
{
    msdu__memory *m = &e->model->memory;
    for (uint32_t i = 0; i < m->block_count; i++) {
        char *raw = m->blocks[i];
        if ((const char *)place > raw && (const char *)place <= raw + ALIGN_BYTES) {
            m->blocks[i] = m->blocks[--m->block_count];
            return raw;
        }
    }
    return NULL;
}

void msdu__memory_free(msdu__engine *e)
{
    msdu__memory *m = &e->model->memory;
    for (uint32_t i = 0; i < m->block_count; i++) {
        free(m->blocks[i]);
    }
    free(m->blocks);
    m->blocks = NULL;
    m->block_count = 0;
}

msdu_status msdu__memory_none(const msdu__engine *e, const char *what)
{
    return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for %s", e->job->rank, what);
}
