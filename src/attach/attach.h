/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between libmsdu_preload, which knows no MPI, and the module of an MPI family, which knows its
 * types. Handles cross as integers of a register's width, as the calling convention passes them:
 * Open MPI's are pointers, MPICH's are int.
 */
#ifndef MSDU_ATTACH_H
#define MSDU_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU_ATTACH_SYMBOL "msdu_attach_v1"

typedef struct msdu__reduction {
    const void *send;
    void *recv;
    int count;
    uintptr_t type;
    uintptr_t op;
    uintptr_t comm;
} msdu__reduction;

typedef struct msdu__attach {
    size_t size;
    const char *family;
    /* True: done, or failed with *code_out; false: the caller makes the real call. request_out:
     * NULL, or that of MPI_Iallreduce. */
    bool (*reduce)(const msdu__reduction *call, void *request_out, int *code_out);
    /* A reduction that MPI will make by a call that is not taken: to be counted, and told. */
    void (*observe)(const msdu__reduction *call);
    /* Another collective of the trainer, such as a barrier: it tells steps apart. */
    void (*mark)(void);
    /* Are calls that are passed through to be timed? Then with what they took. */
    bool (*is_timing)(void);
    void (*waited)(uint64_t time_ns);
    /* Requests that reduce() gave and that are not complete yet; read without a lock. */
    bool (*has_pending)(void);
    /* Make those of ours that are in the array ready for the real call: wait, or only look. */
    int (*settle)(int count, void *requests, bool may_block);
    /* The next step shall end with equal parameters on all ranks. */
    void (*meet)(void);
    /* The learning rate of the next step, where the settings' own does not hold. */
    void (*set_lr)(double lr);
    /* Before MPI ends: finish, tell what happened. */
    void (*finish)(void);
    /* Handles of Fortran. */
    uintptr_t (*comm_of)(int handle);
    uintptr_t (*type_of)(int handle);
    uintptr_t (*op_of)(int handle);
    const void *(*in_place)(void); /* C's MPI_IN_PLACE */
    /* Behind all else that the process does: 0, or the status that it ends with in place of 0. */
    int (*status)(void);
    /* The trainer gives one rank's values to others: parameters, perhaps. */
    void (*broadcast)(int64_t count, uintptr_t type);
} msdu__attach;

#endif
