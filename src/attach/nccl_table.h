/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between libmsdu_preload, which knows neither NCCL nor CUDA, and the module that does. Handles and
 * enumerations cross as integers, as the calling convention passes them.
 */
#ifndef MSDU_NCCL_TABLE_H
#define MSDU_NCCL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU_ATTACH_NCCL_SYMBOL "msdu_attach_nccl_v1"

/* ncclResult_t, as far as the library gives them itself. */
#define MSDU__NCCL_SUCCESS      0
#define MSDU__NCCL_SYSTEM_ERROR 2
#define MSDU__NCCL_REMOTE_ERROR 6

typedef int (*msdu__nccl_reduce_fn)(const void *send, void *recv, size_t count, int type, int op,
                                    uintptr_t comm, uintptr_t stream);

typedef struct msdu__nccl_call {
    const void *send;
    void *recv;
    size_t count;
    int type;
    int op;
    uintptr_t comm;
    uintptr_t stream;
    msdu__nccl_reduce_fn real; /* of the library that the trainer calls */
    const void *library;       /* where that is loaded */
    bool is_in_group;
} msdu__nccl_call;

/* What ends a communicator. */
typedef enum msdu__nccl_end {
    MSDU__NCCL_ENDED = 0,   /* all ranks end it: ncclCommFinalize(), ncclCommDestroy() */
    MSDU__NCCL_ABORTED = 1, /* this rank does */
} msdu__nccl_end;

typedef struct msdu__attach_nccl {
    size_t size;
    /* The whole call, real one included where it is not a gradient that is taken. */
    int (*all_reduce)(const msdu__nccl_call *call);
    /* Behind the real end of this thread's outermost group: what it held. `code` is what the real
     * call answered, and is the answer if nothing fails here. */
    int (*group_end)(const void *library, int code);
    /* Before the real call. */
    void (*comm_end)(uintptr_t comm, const void *library, int how);
    void (*meet)(void);
    void (*set_lr)(double lr);
    int (*status)(void); /* as in attach.h */
} msdu__attach_nccl;

#endif
