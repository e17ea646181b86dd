/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's NCCL, called by pointers: each of several copies in a process by its own. */
#include "attach_nccl.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARIES_MOST 8

static msdu__nccl_library libraries[LIBRARIES_MOST];

static bool find_function(void *handle, const char *name, void *function_out)
{
    void *address = dlsym(handle, name);
    address = address != NULL ? address : dlsym(handle, name + 1);
    memcpy(function_out, &address, sizeof(address)); /* ISO C has no conversion between the two */
    return address != NULL;
}

/* A program that holds NCCL itself is not opened by its name, but without one. */
static void *open_holder(const msdu__nccl_call *call)
{
    Dl_info info;
    void *address = NULL;
    memcpy(&address, &call->real, sizeof(address));
    void *handle = dladdr(address, &info) == 0 || info.dli_fname == NULL
                       ? NULL
                       : dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return handle != NULL ? handle : dlopen(NULL, RTLD_LAZY);
}

static bool fill_library(msdu__nccl_library *library, const msdu__nccl_call *call)
{
    void *handle = open_holder(call);
    bool is_good = handle != NULL &&
                   find_function(handle, "pncclCommCount", (void *)&library->count) &&
                   find_function(handle, "pncclCommUserRank", (void *)&library->rank) &&
                   find_function(handle, "pncclCommCuDevice", (void *)&library->device) &&
                   find_function(handle, "pncclCommGetAsyncError", (void *)&library->async_error) &&
                   find_function(handle, "pncclGroupStart", (void *)&library->group_start) &&
                   find_function(handle, "pncclGroupEnd", (void *)&library->group_end);
    library->base = is_good ? call->library : NULL;
    if (handle != NULL) {
        (void)dlclose(handle);
    }
    return is_good;
}

const msdu__nccl_library *msdu__nccl_library_of(const msdu__nccl_call *call)
{
    for (size_t i = 0; i < LIBRARIES_MOST; i++) {
        if (libraries[i].base == call->library) {
            return &libraries[i];
        }
        if (libraries[i].base == NULL) {
            return fill_library(&libraries[i], call) ? &libraries[i] : NULL;
        }
    }
    return NULL;
}
