/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STAND-IN for NCCL, not NCCL: registered memory. It holds its caller to these rules: what is
 * registered came from ncclMemAlloc(); it is deregistered once, by the communicator that has it,
 * before it is freed and before the communicator is destroyed (an abort lets go of it); and all
 * ranks of an operation use registered memory or none does, else it never ends.
 */
#include "nccl_impl.h"

#include <stdlib.h>

typedef struct piece {
    struct piece *next;
    unsigned char *memory;
    size_t bytes;
    ncclComm_t comm; /* registered with; NULL: not */
} piece;

static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;
static piece *pieces;
static standin_registered counts;

#ifndef STANDIN_OLD /* an NCCL that has none of this */
/* With the lock held. */
static piece **find(const void *memory)
{
    piece **at = &pieces;
    while (*at != NULL && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    return at;
}

static ncclResult_t answer(bool is_right)
{
    counts.faults += is_right ? 0 : 1;
    (void)pthread_mutex_unlock(&pieces_lock);
    return is_right ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    piece *p = calloc(1, sizeof(*p));
    if (p == NULL || cudaMalloc(memory, bytes) != cudaSuccess) {
        free(p);
        return ncclUnhandledCudaError;
    }
    (void)pthread_mutex_lock(&pieces_lock);
    *p = (piece){.next = pieces, .memory = *memory, .bytes = bytes};
    pieces = p;
    counts.memories++;
    return answer(true);
}

ncclResult_t ncclMemFree(void *memory)
{
    (void)pthread_mutex_lock(&pieces_lock);
    piece **at = find(memory);
    piece *p = *at;
    bool is_right = p != NULL && p->comm == NULL;
    if (is_right) {
        *at = p->next;
        counts.memories--;
        is_right = cudaFree(memory) == cudaSuccess; /* else it was freed behind our back */
        free(p);
    }
    return answer(is_right);
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    (void)pthread_mutex_lock(&pieces_lock);
    piece *p = *find(memory);
    bool is_right = p != NULL && p->comm == NULL && bytes <= p->bytes && !comm->must_ask &&
                    !atomic_load(&comm->is_aborted);
    if (is_right) {
        p->comm = comm;
        *handle = p;
        counts.handles++;
    }
    return answer(is_right);
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    (void)pthread_mutex_lock(&pieces_lock);
    piece *p = pieces;
    while (p != NULL && p != handle) {
        p = p->next;
    }
    bool is_right = p != NULL && p->comm == comm && !comm->must_ask;
    if (is_right) {
        p->comm = NULL;
        counts.handles--;
    }
    return answer(is_right);
}

#endif

/* Within one registered piece? */
static bool is_within(ncclComm_t comm, const void *memory, size_t bytes)
{
    uintptr_t first = (uintptr_t)memory;
    for (const piece *p = pieces; p != NULL; p = p->next) {
        uintptr_t begin = (uintptr_t)p->memory;
        if (p->comm == comm && first >= begin && first - begin + bytes <= p->bytes) {
            return true;
        }
    }
    return false;
}

bool standin_is_registered(ncclComm_t comm, const void *memory, size_t bytes)
{
    (void)pthread_mutex_lock(&pieces_lock);
    bool is = is_within(comm, memory, bytes);
    counts.operations += is ? 1 : 0;
    (void)pthread_mutex_unlock(&pieces_lock);
    return is;
}

void standin_end_registered(ncclComm_t comm, bool is_abort)
{
    (void)pthread_mutex_lock(&pieces_lock);
    for (piece *p = pieces; p != NULL; p = p->next) {
        if (p->comm == comm) {
            p->comm = NULL;
            counts.handles--;
            counts.abandoned += is_abort ? 1 : 0;
            counts.faults += is_abort ? 0 : 1;
        }
    }
    (void)pthread_mutex_unlock(&pieces_lock);
}

standin_registered standin_registered_now(void)
{
    (void)pthread_mutex_lock(&pieces_lock);
    standin_registered now = counts;
    (void)pthread_mutex_unlock(&pieces_lock);
    return now;
}
