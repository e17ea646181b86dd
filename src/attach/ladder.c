/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real MPI functions behind ours, and the module that knows their types. */
#include "ladder.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../backend/mpi_family.h"

static const char *const families[] = {"openmpi", "mpich"};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER; /* held while the module loads */
static _Atomic(const msdu__attach *) module;
static bool has_tried; /* module_lock */

/* ISO C has no conversion between the two kinds of pointer; POSIX asks that they have one size. */
static msdu__function as_function(void *address)
{
    msdu__function function = NULL;
    memcpy(&function, &address, sizeof(function));
    return function;
}

static void *as_address(msdu__function function)
{
    void *address = NULL;
    memcpy(&address, &function, sizeof(address));
    return address;
}

/* The profiling name of a C function: "PMPI_Allreduce"; Fortran's are sought as they are. */
static void *sought(void *handle, const char *name)
{
    char profiling[64];
    void *address = NULL;
    if (strncmp(name, "MPI_", 4) == 0) {
        (void)snprintf(profiling, sizeof(profiling), "P%s", name);
        address = dlsym(handle, profiling);
    }
    bool is_global = handle == RTLD_DEFAULT;
    return address != NULL || is_global ? address : dlsym(handle, name);
}

/* In a library that is loaded already, and in what it needs. Its count is given back: a library
 * that the trainer unloads takes its MPI with it. */
static void *sought_in(const char *file, int flags, const char *name)
{
    void *handle = file == NULL ? NULL : dlopen(file, RTLD_LAZY | flags);
    void *address = handle == NULL ? NULL : sought(handle, name);
    if (handle != NULL && (flags & RTLD_NOLOAD) != 0) {
        (void)dlclose(handle);
    }
    return address;
}

static bool is_own(void *address)
{
    Dl_info found;
    Dl_info own;
    return address != NULL && dladdr(address, &found) != 0 &&
           dladdr((const void *)&module_lock, &own) != 0 && found.dli_fbase == own.dli_fbase;
}

static void *climb(const char *name, const void *caller)
{
    Dl_info info;
    void *address = sought(RTLD_DEFAULT, name);
    if (address == NULL || is_own(address)) {
        address = dlsym(RTLD_NEXT, name);
    }
    if (address == NULL && dladdr(caller, &info) != 0) {
        address = sought_in(info.dli_fname, RTLD_NOLOAD, name);
    }
    for (size_t i = 0; address == NULL && i < FAMILIES; i++) {
        address = sought_in(msdu__mpi_soname(families[i]), RTLD_NOLOAD, name);
    }
    if (address == NULL) {
        address = sought_in(getenv("MSDU_ATTACH_LIBRARY"), 0, name);
    }
    return is_own(address) ? NULL : address;
}

msdu__function msdu__ladder_find(msdu__real *real, const void *caller)
{
    msdu__function found = atomic_load_explicit(&real->found, memory_order_acquire);
    if (found == NULL) {
        found = as_function(climb(real->name, caller));
        if (found == NULL) {
            (void)fprintf(stderr,
                          "msdu: %s is called, but no MPI library that has it is loaded; "
                          "MSDU_ATTACH_LIBRARY may name one\n",
                          real->name);
        }
        atomic_store_explicit(&real->found, found, memory_order_release);
    }
    return found;
}

/* --- the module --- */

/* The family whose own library the function is from; MPI linked into something else has none. */
static const char *family_of(msdu__function function)
{
    Dl_info info;
    if (function == NULL || dladdr(as_address(function), &info) == 0) {
        return NULL;
    }
    for (size_t i = 0; i < FAMILIES; i++) {
        void *handle = dlopen(msdu__mpi_soname(families[i]), RTLD_LAZY | RTLD_NOLOAD);
        void *symbol = handle == NULL ? NULL : dlsym(handle, "PMPI_Allreduce");
        Dl_info own;
        bool is_same =
            symbol != NULL && dladdr(symbol, &own) != 0 && own.dli_fbase == info.dli_fbase;
        if (handle != NULL) {
            (void)dlclose(handle);
        }
        if (is_same) {
            return families[i];
        }
    }
    return NULL;
}

static void *open_beside(const char *family)
{
    static const char *const folders[] = {"", "/msdu"};
    char path[PATH_MAX];
    Dl_info info;
    if (dladdr((const void *)&module_lock, &info) == 0 || info.dli_fname == NULL) {
        return NULL;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash == NULL ? 0 : (int)(slash - info.dli_fname);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        (void)snprintf(path, sizeof(path), "%.*s%s/msdu_attach_%s.so", length, info.dli_fname,
                       folders[i], family);
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle != NULL) {
            return handle;
        }
    }
    return NULL;
}

static const msdu__attach *load(msdu__function function)
{
    const char *family = family_of(function);
    if (family == NULL) {
        (void)fprintf(stderr, "msdu: this MPI is neither Open MPI's libmpi.so.40 nor MPICH's "
                              "libmpich.so.12; it is passed through\n");
        return NULL;
    }
    void *handle = open_beside(family);
    const msdu__attach *found = handle == NULL ? NULL : dlsym(handle, MSDU_ATTACH_SYMBOL);
    if (found == NULL || found->size < sizeof(*found)) {
        const char *why = handle == NULL ? dlerror() : "its table is not complete";
        (void)fprintf(stderr, "msdu: no module for %s (%s); MPI is passed through\n", family,
                      why == NULL ? "?" : why);
        return NULL;
    }
    return found;
}

const msdu__attach *msdu__ladder_module(msdu__function function)
{
    const msdu__attach *found = atomic_load_explicit(&module, memory_order_acquire);
    if (found != NULL) {
        return found;
    }
    (void)pthread_mutex_lock(&module_lock);
    found = atomic_load_explicit(&module, memory_order_relaxed);
    if (found == NULL && !has_tried) {
        has_tried = true;
        found = load(function);
        atomic_store_explicit(&module, found, memory_order_release);
    }
    (void)pthread_mutex_unlock(&module_lock);
    return found;
}

const msdu__attach *msdu__ladder_loaded(void)
{
    return atomic_load_explicit(&module, memory_order_acquire);
}
