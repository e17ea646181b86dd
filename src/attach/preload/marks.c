/* SPDX-License-Identifier: Apache-2.0 */
/* libmsdu_preload.so: collectives that are no reductions. They are passed through, and tell steps
 * apart where reductions alone would not. */
#include "preload.h"

#include <limits.h>

static void mark(void)
{
    const msdu__attach *attach = msdu__inside > 0 ? NULL : msdu__ladder_loaded();
    if (attach != NULL) {
        attach->mark();
    }
}

static void broadcast(int64_t count, uintptr_t type)
{
    const msdu__attach *attach = msdu__inside > 0 ? NULL : msdu__ladder_loaded();
    if (attach != NULL) {
        attach->mark();
        attach->broadcast(count, type);
    }
}

PRELOAD int MPI_Barrier(uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Barrier"};
    FIND(int (*)(uintptr_t), real, call);
    mark();
    return call == NULL ? ERR_OTHER : call(comm);
}

PRELOAD int MPI_Bcast(void *data, int count, uintptr_t type, int root, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Bcast"};
    FIND(int (*)(void *, int, uintptr_t, int, uintptr_t), real, call);
    broadcast(count, type);
    return call == NULL ? ERR_OTHER : call(data, count, type, root, comm);
}

/* As MPI_Allreduce_c in preload.c: a count that fits goes to the ordinary function. */
PRELOAD int MPI_Bcast_c(void *data, int64_t count, uintptr_t type, int root, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Bcast"};
    static msdu__real large = {.name = "MPI_Bcast_c"};
    broadcast(count, type);
    if (count <= INT_MAX) {
        FIND(int (*)(void *, int, uintptr_t, int, uintptr_t), real, call);
        return call == NULL ? ERR_OTHER : call(data, (int)count, type, root, comm);
    }
    FIND(int (*)(void *, int64_t, uintptr_t, int, uintptr_t), large, call);
    return call == NULL ? ERR_OTHER : call(data, count, type, root, comm);
}

PRELOAD int MPI_Reduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                       int root, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Reduce"};
    FIND(int (*)(const void *, void *, int, uintptr_t, uintptr_t, int, uintptr_t), real, call);
    mark();
    return call == NULL ? ERR_OTHER : call(send, recv, count, type, op, root, comm);
}

PRELOAD int MPI_Gather(const void *send, int send_count, uintptr_t send_type, void *recv,
                       int recv_count, uintptr_t recv_type, int root, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Gather"};
    FIND(int (*)(const void *, int, uintptr_t, void *, int, uintptr_t, int, uintptr_t), real, call);
    mark();
    return call == NULL
               ? ERR_OTHER
               : call(send, send_count, send_type, recv, recv_count, recv_type, root, comm);
}

PRELOAD int MPI_Allgather(const void *send, int send_count, uintptr_t send_type, void *recv,
                          int recv_count, uintptr_t recv_type, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Allgather"};
    FIND(int (*)(const void *, int, uintptr_t, void *, int, uintptr_t, uintptr_t), real, call);
    mark();
    return call == NULL ? ERR_OTHER
                        : call(send, send_count, send_type, recv, recv_count, recv_type, comm);
}
