/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so before NCCL: as preload.c before MPI, and without knowing NCCL or CUDA.
 *
 * Groups are counted by thread and by NCCL: what is called between ncclGroupStart() and the
 * outermost ncclGroupEnd() takes effect there.
 */
#include "preload.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "attach/nccl_table.h"
#include "base/cell.h"
#include "call_site.h"

#define LIBRARIES_MOST 4 /* NCCLs in whose groups a thread is at once */

static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER; /* held while the module loads */
static msdu__cell module;                                       /* address of its table */
static bool has_tried;                                          /* module_lock */

typedef struct group {
    const void *library;
    int depth;
} group;

static _Thread_local group groups[LIBRARIES_MOST];

static int *depth_in(const void *library)
{
    group *unused = &groups[0];
    for (size_t i = 0; i < LIBRARIES_MOST; i++) {
        if (groups[i].library == library) {
            return &groups[i].depth;
        }
        unused = groups[i].depth == 0 ? &groups[i] : unused;
    }
    *unused = (group){.library = library};
    return &unused->depth;
}

static const msdu__attach_nccl *load(void)
{
    const char *why = NULL;
    const msdu__attach_nccl *found =
        msdu__ladder_beside("msdu_attach_nccl", MSDU_ATTACH_NCCL_SYMBOL, &why);
    if (found == NULL || found->size < sizeof(*found)) {
        (void)fprintf(stderr, "msdu: no module for NCCL (%s); it is passed through\n",
                      why == NULL ? "its table is not complete" : why);
        return NULL;
    }
    return found;
}

const msdu__attach_nccl *msdu__nccl_loaded(void)
{
    return (const msdu__attach_nccl *)(uintptr_t)msdu__cell_get(&module);
}

/* The module, if this call is the trainer's. */
static const msdu__attach_nccl *module_for(const msdu__site *site)
{
    if (msdu__inside > 0 || site->is_own || !msdu__is_on()) {
        return NULL;
    }
    const msdu__attach_nccl *found = msdu__nccl_loaded();
    if (found != NULL) {
        return found;
    }
    (void)pthread_mutex_lock(&module_lock);
    if (!has_tried) {
        has_tried = true;
        msdu__cell_set(&module, (uintptr_t)load());
    }
    found = msdu__nccl_loaded();
    (void)pthread_mutex_unlock(&module_lock);
    return found;
}

PRELOAD int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op,
                          uintptr_t comm, uintptr_t stream)
{
    msdu__site site = msdu__site_of("ncclAllReduce", __builtin_return_address(0));
    msdu__nccl_reduce_fn call = (msdu__nccl_reduce_fn)site.real;
    if (call == NULL) {
        return MSDU__NCCL_SYSTEM_ERROR;
    }
    const msdu__attach_nccl *attach = module_for(&site);
    int code = MSDU__NCCL_SUCCESS;
    msdu__inside++;
    if (attach == NULL) {
        code = call(send, recv, count, type, op, comm, stream);
    } else {
        const msdu__nccl_call reduction = {
            .send = send,
            .recv = recv,
            .count = count,
            .type = type,
            .op = op,
            .comm = comm,
            .stream = stream,
            .real = call,
            .library = site.library,
            .is_in_group = *depth_in(site.library) > 0,
        };
        code = attach->all_reduce(&reduction);
    }
    msdu__inside--;
    return code;
}

/* --- groups --- */

PRELOAD int ncclGroupStart(void)
{
    msdu__site site = msdu__site_of("ncclGroupStart", __builtin_return_address(0));
    int (*call)(void) = (int (*)(void))site.real;
    if (call != NULL && !site.is_own) {
        ++*depth_in(site.library);
    }
    return call == NULL ? MSDU__NCCL_SYSTEM_ERROR : call();
}

static int group_over(const msdu__site *site, int code)
{
    const msdu__attach_nccl *attach = msdu__nccl_loaded();
    int *depth = depth_in(site->library);
    if (site->is_own || *depth == 0 || --*depth > 0 || attach == NULL || msdu__inside > 0) {
        return code;
    }
    msdu__inside++;
    code = attach->group_end(site->library, code);
    msdu__inside--;
    return code;
}

PRELOAD int ncclGroupEnd(void)
{
    msdu__site site = msdu__site_of("ncclGroupEnd", __builtin_return_address(0));
    int (*call)(void) = (int (*)(void))site.real;
    return call == NULL ? MSDU__NCCL_SYSTEM_ERROR : group_over(&site, call());
}

/* --- the end of a communicator --- */

static int end(const char *name, const void *caller, uintptr_t comm, msdu__nccl_end how)
{
    msdu__site site = msdu__site_of(name, caller);
    int (*call)(uintptr_t) = (int (*)(uintptr_t))site.real;
    const msdu__attach_nccl *attach = msdu__nccl_loaded();
    if (call == NULL) {
        return MSDU__NCCL_SYSTEM_ERROR;
    }
    if (attach != NULL && !site.is_own && msdu__inside == 0) {
        msdu__inside++;
        attach->comm_end(comm, site.library, (int)how);
        msdu__inside--;
    }
    return call(comm);
}

PRELOAD int ncclCommFinalize(uintptr_t comm)
{
    return end("ncclCommFinalize", __builtin_return_address(0), comm, MSDU__NCCL_ENDED);
}

PRELOAD int ncclCommDestroy(uintptr_t comm)
{
    return end("ncclCommDestroy", __builtin_return_address(0), comm, MSDU__NCCL_ENDED);
}

PRELOAD int ncclCommAbort(uintptr_t comm)
{
    return end("ncclCommAbort", __builtin_return_address(0), comm, MSDU__NCCL_ABORTED);
}
