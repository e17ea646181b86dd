/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so: stands before MPI (C names) and knows no MPI itself.
 *
 * What runs when it is loaded is one on_exit() (status.c), so it is inert in shells and in whatever
 * never reduces. A call is
 * handed to the module of the MPI family, and if that does not want it, to the real function with
 * the same arguments. What is made from within such a call is passed through.
 */
#include "preload.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define THREAD_MULTIPLE 3 /* the same in both families, and in MPI's own ABI */

const msdu__attach *msdu__module_for(msdu__function real)
{
    if (msdu__inside > 0 || !msdu__is_on()) {
        return NULL;
    }
    msdu__end_reached();
    return msdu__ladder_module(real);
}

/* --- begin and end --- */

/* The library's own thread communicates too, so MPI must allow it; a trainer may be given more
 * than it asked for. */
PRELOAD int MPI_Init(int *argc, char ***argv)
{
    static msdu__real real = {.name = "MPI_Init_thread"};
    static msdu__real plain = {.name = "MPI_Init"};
    int level = 0;
    msdu__end_begun();
    if (!msdu__is_on()) {
        FIND(int (*)(int *, char ***), plain, call);
        return call == NULL ? ERR_OTHER : call(argc, argv);
    }
    FIND(int (*)(int *, char ***, int, int *), real, call);
    return call == NULL ? ERR_OTHER : call(argc, argv, THREAD_MULTIPLE, &level);
}

PRELOAD int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    static msdu__real real = {.name = "MPI_Init_thread"};
    FIND(int (*)(int *, char ***, int, int *), real, call);
    msdu__end_begun();
    return call == NULL ? ERR_OTHER
                        : call(argc, argv, msdu__is_on() ? THREAD_MULTIPLE : required, provided);
}

PRELOAD int MPI_Finalize(void)
{
    static msdu__real real = {.name = "MPI_Finalize"};
    FIND(int (*)(void), real, call);
    const msdu__attach *attach = msdu__ladder_loaded();
    if (attach != NULL && msdu__inside == 0) {
        msdu__inside++;
        attach->finish();
        msdu__inside--;
    }
    msdu__end_mpi();
    return call == NULL ? ERR_OTHER : call();
}

/* --- how long calls take that are passed through --- */

uint64_t msdu__timing_begin(void)
{
    const msdu__attach *attach = msdu__inside > 0 ? NULL : msdu__ladder_loaded();
    return attach != NULL && attach->is_timing() ? msdu__clock_now() : 0;
}

void msdu__timing_end(uint64_t begin_ns)
{
    if (begin_ns > 0) {
        msdu__ladder_loaded()->waited(msdu__clock_now() - begin_ns);
    }
}

/* --- reductions --- */

/* Ours, or false. request: NULL, or MPI_Iallreduce's. */
static bool reduce(const msdu__reduction *reduction, msdu__function real, void *request,
                   int *code_out)
{
    const msdu__attach *attach = msdu__module_for(real);
    *code_out = ERR_OTHER;
    msdu__inside++;
    bool is_ours = attach != NULL && attach->reduce(reduction, request, code_out);
    msdu__inside--;
    return is_ours;
}

typedef int (*reduce_call)(const void *, void *, int, uintptr_t, uintptr_t, uintptr_t);
typedef int (*begin_call)(const void *, void *, int, uintptr_t, uintptr_t, uintptr_t, void *);

static int allreduce(const msdu__reduction *reduction, reduce_call call)
{
    int code = ERR_OTHER;
    bool is_done = reduce(reduction, (msdu__function)call, NULL, &code);
    if (!is_done && call != NULL) {
        const uint64_t begin = msdu__timing_begin();
        msdu__inside++;
        code = call(reduction->send, reduction->recv, reduction->count, reduction->type,
                    reduction->op, reduction->comm);
        msdu__inside--;
        msdu__timing_end(begin);
    }
    return code;
}

static int begin_allreduce(const msdu__reduction *reduction, begin_call call, void *request)
{
    int code = ERR_OTHER;
    bool is_done = reduce(reduction, (msdu__function)call, request, &code);
    if (!is_done && call != NULL) {
        msdu__inside++;
        code = call(reduction->send, reduction->recv, reduction->count, reduction->type,
                    reduction->op, reduction->comm, request);
        msdu__inside--;
    }
    return code;
}

PRELOAD int MPI_Allreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                          uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Allreduce"};
    FIND(reduce_call, real, call);
    const msdu__reduction reduction = {send, recv, count, type, op, comm};
    return allreduce(&reduction, call);
}

PRELOAD int MPI_Iallreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                           uintptr_t comm, void *request)
{
    static msdu__real real = {.name = "MPI_Iallreduce"};
    FIND(begin_call, real, call);
    const msdu__reduction reduction = {send, recv, count, type, op, comm};
    return begin_allreduce(&reduction, call, request);
}

/*
 * Of MPI 4, with large counts; bindings such as mpi4py 4 call no others. A count that fits the
 * ordinary function goes to it, so that this name serves an MPI that lacks it, too.
 */
PRELOAD int MPI_Allreduce_c(const void *send, void *recv, int64_t count, uintptr_t type,
                            uintptr_t op, uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Allreduce"};
    static msdu__real large = {.name = "MPI_Allreduce_c"};
    if (count <= INT_MAX) {
        FIND(reduce_call, real, call);
        const msdu__reduction reduction = {send, recv, (int)count, type, op, comm};
        return allreduce(&reduction, call);
    }
    FIND(int (*)(const void *, void *, int64_t, uintptr_t, uintptr_t, uintptr_t), large, call);
    return call == NULL ? ERR_OTHER : call(send, recv, count, type, op, comm);
}

PRELOAD int MPI_Iallreduce_c(const void *send, void *recv, int64_t count, uintptr_t type,
                             uintptr_t op, uintptr_t comm, void *request)
{
    static msdu__real real = {.name = "MPI_Iallreduce"};
    static msdu__real large = {.name = "MPI_Iallreduce_c"};
    if (count <= INT_MAX) {
        FIND(begin_call, real, call);
        const msdu__reduction reduction = {send, recv, (int)count, type, op, comm};
        return begin_allreduce(&reduction, call, request);
    }
    FIND(int (*)(const void *, void *, int64_t, uintptr_t, uintptr_t, uintptr_t, void *), large,
         call);
    return call == NULL ? ERR_OTHER : call(send, recv, count, type, op, comm, request);
}
