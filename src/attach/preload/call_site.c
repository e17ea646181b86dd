/* SPDX-License-Identifier: Apache-2.0 */
/* Real functions of NCCL by the place that calls, kept in a table that only grows. */
#include "call_site.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "attach/nccl_table.h"
#include "base/cell.h"

#define SITES 512 /* a power of two; programs have a handful */
#define TRIES 8

typedef struct entry {
    msdu__cell caller; /* an address, set last; then the rest does not change */
    const char *name;  /* a place that calls by a pointer may call several functions */
    msdu__site site;
} entry;

static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who write */
static entry sites[SITES];

static size_t slot_of(const void *caller)
{
    uint64_t bits = (uint64_t)(uintptr_t)caller * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(bits >> 40) % SITES;
}

/* Names are compared as pointers: each function has one. */
static const entry *find(const void *caller, const char *name)
{
    size_t slot = slot_of(caller);
    for (size_t i = 0; i < TRIES; i++) {
        const entry *e = &sites[(slot + i) % SITES];
        const void *known = (const void *)(uintptr_t)msdu__cell_get(&e->caller);
        if (known == caller && e->name == name) {
            return e;
        }
        if (known == NULL) {
            break;
        }
    }
    return NULL;
}

/* Without room it is looked up again each time. */
static void keep(const void *caller, const char *name, const msdu__site *site)
{
    size_t slot = slot_of(caller);
    (void)pthread_mutex_lock(&sites_lock);
    for (size_t i = 0; i < TRIES && find(caller, name) == NULL; i++) {
        entry *e = &sites[(slot + i) % SITES];
        if (msdu__cell_get(&e->caller) == 0) {
            e->name = name;
            e->site = *site;
            msdu__cell_set(&e->caller, (uintptr_t)caller);
        }
    }
    (void)pthread_mutex_unlock(&sites_lock);
}

/* Is there a backend of ours in the object that calls? What it exports says so. */
static bool is_backend(const void *caller)
{
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    const void *table = handle == NULL ? NULL : dlsym(handle, "msdu_backend_v2");
    bool is = table != NULL && msdu__ladder_base(table) == info.dli_fbase;
    if (handle != NULL) {
        (void)dlclose(handle);
    }
    return is;
}

msdu__site msdu__site_of(const char *name, const void *caller)
{
    static const char *const sonames[] = {"libnccl.so.2", "libnccl.so", NULL};
    static const msdu__shelf shelf = {"nccl", 'p', sonames, "MSDU_ATTACH_NCCL_LIBRARY"};
    const entry *known = find(caller, name);
    if (known != NULL) {
        return known->site;
    }
    msdu__site site = {.real = msdu__ladder_climb(&shelf, name, caller)};
    if (site.real == NULL) {
        (void)fprintf(stderr,
                      "msdu: %s is called, but no NCCL that has it is loaded; "
                      "MSDU_ATTACH_NCCL_LIBRARY may name one\n",
                      name);
        return site;
    }
    site.library = msdu__ladder_base_of(site.real);
    site.is_own = is_backend(caller);
    keep(caller, name, &site);
    return site;
}
