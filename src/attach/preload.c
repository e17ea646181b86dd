/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so: stands before MPI (C names) and knows no MPI itself.
 *
 * Nothing runs when it is loaded, so it is inert in shells and in whatever never reduces. A call is
 * handed to the module of the MPI family, and if that does not want it, to the real function with
 * the same arguments. What is made from within such a call is passed through.
 */
#include "preload.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREAD_MULTIPLE 3 /* the same in both families, and in MPI's own ABI */
#define PAUSE_LEAST_NS  10000
#define PAUSE_MOST_NS   1000000

_Thread_local int msdu__inside; /* calls of ours on this thread's stack */

bool msdu__is_on(void)
{
    const char *text = getenv("MSDU_ATTACH");
    return text == NULL || strcmp(text, "off") != 0;
}

/* The module, if this call comes from the trainer. */
static const msdu__attach *module_for(msdu__function real)
{
    return msdu__inside > 0 || !msdu__is_on() ? NULL : msdu__ladder_module(real);
}

/* --- begin and end --- */

/* The library's own thread communicates too, so MPI must allow it; a trainer may be given more
 * than it asked for. */
PRELOAD int MPI_Init(int *argc, char ***argv)
{
    static msdu__real real = {.name = "MPI_Init_thread"};
    static msdu__real plain = {.name = "MPI_Init"};
    int level = 0;
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
    return call == NULL ? ERR_OTHER : call();
}

/* Found by trainers with dlsym(): parameters shall be equal on all ranks after the next step. */
PRELOAD void msdu_attach_meet(void)
{
    const msdu__attach *attach = msdu__ladder_loaded();
    if (attach != NULL) {
        attach->meet();
    }
}

/* Likewise: the learning rate of the next step. */
PRELOAD void msdu_attach_lr(double lr)
{
    const msdu__attach *attach = msdu__ladder_loaded();
    if (attach != NULL) {
        attach->set_lr(lr);
    }
}

/* --- reductions --- */

PRELOAD int MPI_Allreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                          uintptr_t comm)
{
    static msdu__real real = {.name = "MPI_Allreduce"};
    FIND(int (*)(const void *, void *, int, uintptr_t, uintptr_t, uintptr_t), real, call);
    const msdu__attach *attach = module_for((msdu__function)call);
    int code = ERR_OTHER;
    bool is_done = false;
    msdu__inside++;
    if (attach != NULL) {
        const msdu__reduction reduction = {send, recv, count, type, op, comm};
        is_done = attach->reduce(&reduction, NULL, &code);
    }
    if (!is_done && call != NULL) {
        code = call(send, recv, count, type, op, comm);
    }
    msdu__inside--;
    return code;
}

PRELOAD int MPI_Iallreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                           uintptr_t comm, void *request)
{
    static msdu__real real = {.name = "MPI_Iallreduce"};
    FIND(int (*)(const void *, void *, int, uintptr_t, uintptr_t, uintptr_t, void *), real, call);
    const msdu__attach *attach = module_for((msdu__function)call);
    int code = ERR_OTHER;
    bool is_done = false;
    msdu__inside++;
    if (attach != NULL) {
        const msdu__reduction reduction = {send, recv, count, type, op, comm};
        is_done = attach->reduce(&reduction, request, &code);
    }
    if (!is_done && call != NULL) {
        code = call(send, recv, count, type, op, comm, request);
    }
    msdu__inside--;
    return code;
}

/* --- completion --- */

/* The module, if requests of ours are pending anywhere. */
static const msdu__attach *pending(void)
{
    const msdu__attach *attach = msdu__inside > 0 ? NULL : msdu__ladder_loaded();
    return attach != NULL && attach->has_pending() ? attach : NULL;
}

/* Before the real call; 0, or MPI's code of a failure. */
static int settle(int count, void *requests, bool may_block)
{
    const msdu__attach *attach = pending();
    int code = 0;
    if (attach != NULL) {
        msdu__inside++;
        code = attach->settle(count, requests, may_block);
        msdu__inside--;
    }
    return code;
}

static void rest(uint64_t *pause_ns)
{
    uint64_t next = *pause_ns + *pause_ns / 2;
    next = next < PAUSE_LEAST_NS ? PAUSE_LEAST_NS : next;
    *pause_ns = next > PAUSE_MOST_NS ? PAUSE_MOST_NS : next;
    const struct timespec span = {.tv_nsec = (long)*pause_ns};
    (void)nanosleep(&span, NULL);
}

PRELOAD int MPI_Wait(void *request, void *status)
{
    static msdu__real real = {.name = "MPI_Wait"};
    FIND(int (*)(void *, void *), real, call);
    int code = settle(1, request, true);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER) : call(request, status);
}

PRELOAD int MPI_Waitall(int count, void *requests, void *statuses)
{
    static msdu__real real = {.name = "MPI_Waitall"};
    FIND(int (*)(int, void *, void *), real, call);
    int code = settle(count, requests, true);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER)
                                     : call(count, requests, statuses);
}

PRELOAD int MPI_Waitany(int count, void *requests, int *index, void *status)
{
    static msdu__real real = {.name = "MPI_Waitany"};
    FIND(int (*)(int, void *, int *, void *), real, call);
    const msdu__attach *attach = pending();
    uint64_t pause_ns = 0;
    int flag = 0;
    while (attach != NULL) {
        int code = settle(count, requests, false);
        code = code == 0 ? attach->testany(count, requests, index, &flag, status) : code;
        if (code != 0 || flag) {
            return code;
        }
        rest(&pause_ns);
    }
    return call == NULL ? ERR_OTHER : call(count, requests, index, status);
}

PRELOAD int MPI_Waitsome(int count, void *requests, int *out_count, int *indices, void *statuses)
{
    static msdu__real real = {.name = "MPI_Waitsome"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    const msdu__attach *attach = pending();
    uint64_t pause_ns = 0;
    while (attach != NULL) {
        int code = settle(count, requests, false);
        code = code == 0 ? attach->testsome(count, requests, out_count, indices, statuses) : code;
        if (code != 0 || *out_count != 0) {
            return code;
        }
        rest(&pause_ns);
    }
    return call == NULL ? ERR_OTHER : call(count, requests, out_count, indices, statuses);
}

PRELOAD int MPI_Test(void *request, int *flag, void *status)
{
    static msdu__real real = {.name = "MPI_Test"};
    FIND(int (*)(void *, int *, void *), real, call);
    int code = settle(1, request, false);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER) : call(request, flag, status);
}

PRELOAD int MPI_Testall(int count, void *requests, int *flag, void *statuses)
{
    static msdu__real real = {.name = "MPI_Testall"};
    FIND(int (*)(int, void *, int *, void *), real, call);
    int code = settle(count, requests, false);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER)
                                     : call(count, requests, flag, statuses);
}

PRELOAD int MPI_Testany(int count, void *requests, int *index, int *flag, void *status)
{
    static msdu__real real = {.name = "MPI_Testany"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    int code = settle(count, requests, false);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER)
                                     : call(count, requests, index, flag, status);
}

PRELOAD int MPI_Testsome(int count, void *requests, int *out_count, int *indices, void *statuses)
{
    static msdu__real real = {.name = "MPI_Testsome"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    int code = settle(count, requests, false);
    return code != 0 || call == NULL ? (code != 0 ? code : ERR_OTHER)
                                     : call(count, requests, out_count, indices, statuses);
}
