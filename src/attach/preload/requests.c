/* SPDX-License-Identifier: Apache-2.0 */
/* libmsdu_preload.so: requests that MPI_Iallreduce gave; persistent ones are MPI's. */
#include "preload.h"

#include "base/clock.h"

/* --- persistent reductions: MPI's own, and told --- */

static int begin(msdu__init_call call, const msdu__reduction *r, uintptr_t info, void *request)
{
    const msdu__attach *attach = msdu__module_for((msdu__function)call);
    if (attach != NULL) {
        msdu__inside++;
        attach->observe(r);
        msdu__inside--;
    }
    return call == NULL ? ERR_OTHER
                        : call(r->send, r->recv, r->count, r->type, r->op, r->comm, info, request);
}

PRELOAD int MPI_Allreduce_init(const void *send, void *recv, int count, uintptr_t type,
                               uintptr_t op, uintptr_t comm, uintptr_t info, void *request)
{
    static msdu__real real = {.name = "MPI_Allreduce_init"};
    FIND(msdu__init_call, real, call);
    return begin(call, &(msdu__reduction){send, recv, count, type, op, comm}, info, request);
}

/* Open MPI's name before MPI 4. */
PRELOAD int MPIX_Allreduce_init(const void *send, void *recv, int count, uintptr_t type,
                                uintptr_t op, uintptr_t comm, uintptr_t info, void *request)
{
    static msdu__real real = {.name = "MPIX_Allreduce_init"};
    FIND(msdu__init_call, real, call);
    return begin(call, &(msdu__reduction){send, recv, count, type, op, comm}, info, request);
}

/* --- completion --- */

/* The module, if requests of ours are pending anywhere. */
static const msdu__attach *pending(void)
{
    const msdu__attach *attach = msdu__inside > 0 ? NULL : msdu__ladder_loaded();
    return attach != NULL && attach->has_pending() ? attach : NULL;
}

/* Before the real call, which must be there; 0, or MPI's code of a failure. */
static int settle(bool has_call, int count, void *requests, bool may_block)
{
    const msdu__attach *attach = pending();
    int code = has_call ? 0 : ERR_OTHER;
    if (attach != NULL) {
        msdu__inside++;
        code = attach->settle(count, requests, may_block);
        msdu__inside--;
    }
    return code;
}

PRELOAD int MPI_Wait(void *request, void *status)
{
    static msdu__real real = {.name = "MPI_Wait"};
    FIND(int (*)(void *, void *), real, call);
    int code = settle(call != NULL, 1, request, true);
    if (code == 0) {
        const uint64_t begin = msdu__timing_begin();
        code = call(request, status);
        msdu__timing_end(begin);
    }
    return code;
}

PRELOAD int MPI_Waitall(int count, void *requests, void *statuses)
{
    static msdu__real real = {.name = "MPI_Waitall"};
    FIND(int (*)(int, void *, void *), real, call);
    int code = settle(call != NULL, count, requests, true);
    if (code == 0) {
        const uint64_t begin = msdu__timing_begin();
        code = call(count, requests, statuses);
        msdu__timing_end(begin);
    }
    return code;
}

PRELOAD int MPI_Test(void *request, int *flag, void *status)
{
    static msdu__real real = {.name = "MPI_Test"};
    FIND(int (*)(void *, int *, void *), real, call);
    int code = settle(call != NULL, 1, request, false);
    return code != 0 ? code : call(request, flag, status);
}

PRELOAD int MPI_Testall(int count, void *requests, int *flag, void *statuses)
{
    static msdu__real real = {.name = "MPI_Testall"};
    FIND(int (*)(int, void *, int *, void *), real, call);
    int code = settle(call != NULL, count, requests, false);
    return code != 0 ? code : call(count, requests, flag, statuses);
}

PRELOAD int MPI_Testany(int count, void *requests, int *index, int *flag, void *status)
{
    static msdu__real real = {.name = "MPI_Testany"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    int code = settle(call != NULL, count, requests, false);
    return code != 0 ? code : call(count, requests, index, flag, status);
}

PRELOAD int MPI_Testsome(int count, void *requests, int *out_count, int *indices, void *statuses)
{
    static msdu__real real = {.name = "MPI_Testsome"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    int code = settle(call != NULL, count, requests, false);
    return code != 0 ? code : call(count, requests, out_count, indices, statuses);
}

/* A blocking call cannot be used while any of ours pends: looked at again and again. */
PRELOAD int MPI_Waitany(int count, void *requests, int *index, void *status)
{
    static msdu__real real = {.name = "MPI_Waitany"};
    FIND(int (*)(int, void *, int *, void *), real, call);
    uint64_t pause_ns = 0;
    while (pending() != NULL) {
        int flag = 0;
        int code = MPI_Testany(count, requests, index, &flag, status);
        if (code != 0 || flag) {
            return code;
        }
        msdu__clock_pause(&pause_ns);
    }
    const uint64_t begin = msdu__timing_begin();
    const int code = call == NULL ? ERR_OTHER : call(count, requests, index, status);
    msdu__timing_end(begin);
    return code;
}

PRELOAD int MPI_Waitsome(int count, void *requests, int *out_count, int *indices, void *statuses)
{
    static msdu__real real = {.name = "MPI_Waitsome"};
    FIND(int (*)(int, void *, int *, int *, void *), real, call);
    uint64_t pause_ns = 0;
    while (pending() != NULL) {
        int code = MPI_Testsome(count, requests, out_count, indices, statuses);
        if (code != 0 || *out_count != 0) {
            return code;
        }
        msdu__clock_pause(&pause_ns);
    }
    const uint64_t begin = msdu__timing_begin();
    const int code = call == NULL ? ERR_OTHER : call(count, requests, out_count, indices, statuses);
    msdu__timing_end(begin);
    return code;
}
