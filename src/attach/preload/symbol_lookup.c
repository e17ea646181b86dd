/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real functions behind ours, and the modules that know their types. */
#include "symbol_lookup.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/mpi_family.h"

static const char *const families[] = {"openmpi", "mpich"};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER; /* held while the module loads */
static msdu__cell module;                                       /* address of its table */
static bool has_tried;                                          /* module_lock */

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
static void *sought(const msdu__shelf *shelf, void *handle, const char *name)
{
    char profiling[64];
    void *address = NULL;
    if (strncmp(name, shelf->prefix, strlen(shelf->prefix)) == 0) {
        (void)snprintf(profiling, sizeof(profiling), "%c%s", shelf->profiling, name);
        address = dlsym(handle, profiling);
    }
    bool is_global = handle == RTLD_DEFAULT;
    return address != NULL || is_global ? address : dlsym(handle, name);
}

/* In a library that is loaded already, and in what it needs. Its count is given back: a library
 * that the trainer unloads takes its own with it. */
static void *sought_in(const msdu__shelf *shelf, const char *file, int flags, const char *name)
{
    void *handle = file == NULL ? NULL : dlopen(file, RTLD_LAZY | flags);
    void *address = handle == NULL ? NULL : sought(shelf, handle, name);
    if (handle != NULL && (flags & RTLD_NOLOAD) != 0) {
        (void)dlclose(handle);
    }
    return address;
}

const void *msdu__ladder_base(const void *address)
{
    Dl_info info;
    return address != NULL && dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

const void *msdu__ladder_base_of(msdu__function function)
{
    return msdu__ladder_base(as_address(function));
}

static bool is_own(const void *address)
{
    return address != NULL &&
           msdu__ladder_base(address) == msdu__ladder_base((const void *)&module_lock);
}

msdu__function msdu__ladder_climb(const msdu__shelf *shelf, const char *name, const void *caller)
{
    Dl_info info;
    void *address = sought(shelf, RTLD_DEFAULT, name);
    if (address == NULL || is_own(address)) {
        address = dlsym(RTLD_NEXT, name);
    }
    if (address == NULL && dladdr(caller, &info) != 0) {
        address = sought_in(shelf, info.dli_fname, RTLD_NOLOAD, name);
        address = is_own(address) ? NULL : address;
    }
    for (size_t i = 0; address == NULL && shelf->sonames[i] != NULL; i++) {
        address = sought_in(shelf, shelf->sonames[i], RTLD_NOLOAD, name);
    }
    if (address == NULL) {
        address = sought_in(shelf, getenv(shelf->variable), 0, name);
    }
    return as_function(is_own(address) ? NULL : address);
}

static msdu__function climb(const char *name, const void *caller)
{
    const char *sonames[FAMILIES + 1] = {NULL};
    for (size_t i = 0; i < FAMILIES; i++) {
        sonames[i] = msdu__mpi_soname(families[i]);
    }
    const msdu__shelf shelf = {"MPI_", 'P', sonames, "MSDU_ATTACH_LIBRARY"};
    return msdu__ladder_climb(&shelf, name, caller);
}

msdu__function msdu__ladder_find(msdu__real *real, const void *caller)
{
    msdu__function found = (msdu__function)(uintptr_t)msdu__cell_get(&real->found);
    if (found == NULL) {
        found = climb(real->name, caller);
        if (found == NULL) {
            (void)fprintf(stderr,
                          "msdu: %s is called, but no MPI library that has it is loaded; "
                          "MSDU_ATTACH_LIBRARY may name one\n",
                          real->name);
        }
        msdu__cell_set(&real->found, (uintptr_t)found);
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

static void *open_in(const char *folder, int length, const char *name)
{
    char path[PATH_MAX];
    int bytes = snprintf(path, sizeof(path), "%.*s/%s.so", length, folder, name);
    return bytes < 0 || (size_t)bytes >= sizeof(path)
               ? NULL
               : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static void *open_beside(const char *name)
{
    char installed[64];
    Dl_info info;
    const char *other = getenv("MSDU_MODULE_PATH");
    void *handle = other == NULL ? NULL : open_in(other, (int)strcspn(other, ":"), name);
    if (handle == NULL && dladdr((const void *)&module_lock, &info) != 0 &&
        info.dli_fname != NULL) {
        const char *slash = strrchr(info.dli_fname, '/');
        int length = slash == NULL ? 0 : (int)(slash - info.dli_fname);
        (void)snprintf(installed, sizeof(installed), "msdu/%s", name);
        handle = open_in(info.dli_fname, length, installed);
        handle = handle == NULL ? open_in(info.dli_fname, length, name) : handle;
    }
    return handle;
}

const void *msdu__ladder_beside(const char *name, const char *symbol, const char **why_out)
{
    void *handle = open_beside(name);
    const void *found = handle == NULL ? NULL : dlsym(handle, symbol);
    *why_out = found == NULL ? dlerror() : NULL;
    return found;
}

static const msdu__attach *load(msdu__function function)
{
    const char *family = family_of(function);
    if (family == NULL) {
        (void)fprintf(stderr, "msdu: this MPI is neither Open MPI's libmpi.so.40 nor MPICH's "
                              "libmpich.so.12; it is passed through\n");
        return NULL;
    }
    char name[64];
    const char *why = NULL;
    (void)snprintf(name, sizeof(name), "msdu_attach_%s", family);
    const msdu__attach *found = msdu__ladder_beside(name, MSDU_ATTACH_SYMBOL, &why);
    if (found == NULL || found->size < sizeof(*found)) {
        (void)fprintf(stderr, "msdu: no module for %s (%s); MPI is passed through\n", family,
                      why == NULL ? "its table is not complete" : why);
        return NULL;
    }
    return found;
}

const msdu__attach *msdu__ladder_module(msdu__function function)
{
    const msdu__attach *found = (const msdu__attach *)(uintptr_t)msdu__cell_get(&module);
    if (found != NULL) {
        return found;
    }
    (void)pthread_mutex_lock(&module_lock);
    found = (const msdu__attach *)(uintptr_t)msdu__cell_get(&module);
    if (found == NULL && !has_tried) {
        has_tried = true;
        found = load(function);
        msdu__cell_set(&module, (uintptr_t)found);
    }
    (void)pthread_mutex_unlock(&module_lock);
    return found;
}

const msdu__attach *msdu__ladder_loaded(void)
{
    return (const msdu__attach *)(uintptr_t)msdu__cell_get(&module);
}
