/* SPDX-License-Identifier: Apache-2.0 */
/* Backends by name: built in, then the module ladder; loaded once, never unloaded. */
#include "registry.h"

#include "mpi_family.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where an installed module lies; set by the build. */
#ifndef MSDU_MODULE_DIR
#define MSDU_MODULE_DIR "/usr/local/lib/msdu"
#endif

#define MODULES_MAX 16 /* different modules in one process */

/* The once-filled backend list; entries are only added. */
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf lock */
static const msdu_backend *modules[MODULES_MAX];
static size_t modules_count;

/* State of one search: what is sought, and the places looked at for the error text. */
struct search {
    const char *name;
    const msdu_backend *found;
    msdu_status status; /* ERR_NOT_FOUND until a file exists */
    char places[MSDU__TEXT_BYTES / 2];
};

static void note_place(struct search *search, const char *path)
{
    size_t used = strlen(search->places);
    const char *comma = used == 0 ? "" : ", ";
    (void)snprintf(search->places + used, sizeof(search->places) - used, "%s%s", comma, path);
}

static msdu_status check_table(const char *path, const msdu_backend *table)
{
    if (table->size < offsetof(msdu_backend, wait) || table->name == NULL || table->open == NULL ||
        table->close == NULL || table->start == NULL || table->test == NULL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED, "backend %s: its table is not complete", path);
    }
    return MSDU_OK;
}

/* Load one existing file. Sets the error text. */
static msdu_status load_file(const char *path, const msdu_backend **backend_out)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED, "backend cannot be loaded: %s", dlerror());
    }
    const msdu_backend *table = dlsym(handle, MSDU_BACKEND_SYMBOL);
    if (table == NULL) {
        (void)dlclose(handle);
        return msdu__fail(MSDU_ERR_UNSUPPORTED, "backend %s has no symbol %s", path,
                          MSDU_BACKEND_SYMBOL);
    }
    msdu_status status = check_table(path, table);
    if (status == MSDU_OK) {
        *backend_out = table;
    }
    return status;
}

static bool is_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return false;
    }
    (void)fclose(file);
    return true;
}

/* Look for the module in one folder; true ends the search, well or not. */
static bool try_folder(void *user, const char *folder)
{
    struct search *search = user;
    char path[PATH_MAX];
    int written = snprintf(path, sizeof(path), "%s/libmsdu_%s.so", folder, search->name);
    if (written < 0 || (size_t)written >= sizeof(path)) {
        return false;
    }
    note_place(search, path);
    if (!is_file(path)) {
        return false;
    }
    search->status = load_file(path, &search->found);
    return true;
}

/* The folder of the file that holds this code: libmsdu, or an executable linked with the core. */
static bool own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    char file[PATH_MAX];
    if (dladdr(&modules_count, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    /* An executable's name may have been found by PATH, or relative to a folder left since. */
    bool has_folder = strchr(info.dli_fname, '/') != NULL;
    if ((!has_folder || realpath(info.dli_fname, file) == NULL) &&
        realpath("/proc/self/exe", file) == NULL) {
        return false;
    }
    char *slash = strrchr(file, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    memcpy(folder, file, strlen(file) + 1);
    return true;
}

bool msdu__backend_folders(msdu__folder_fn look, void *user)
{
    static const char *const beside[] = {"", "/msdu", "/../lib", "/../lib/msdu"};
    const char *list = secure_getenv("MSDU_MODULE_PATH");
    char folder[PATH_MAX];
    char place[PATH_MAX + 16];
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");
        (void)snprintf(place, sizeof(place), "%.*s", (int)length, list);
        if (length > 0 && look(user, place)) {
            return true;
        }
        list += length;
        list += *list == ':';
    }
    bool has_own = own_folder(folder);
    for (size_t i = 0; has_own && i < sizeof(beside) / sizeof(beside[0]); i++) {
        (void)snprintf(place, sizeof(place), "%s%s", folder, beside[i]);
        if (look(user, place)) {
            return true;
        }
    }
    return look(user, MSDU_MODULE_DIR);
}

static msdu_status find_module(const char *name, const msdu_backend **backend_out)
{
    struct search search = {.name = name, .status = MSDU_ERR_NOT_FOUND};
    if (!msdu__backend_folders(try_folder, &search)) {
        return msdu__fail(MSDU_ERR_NOT_FOUND, "no backend \"%s\": looked for %s", name,
                          search.places);
    }
    if (search.status == MSDU_OK) {
        *backend_out = search.found;
    }
    return search.status;
}

static msdu_status find_path(const char *path, const msdu_backend **backend_out)
{
    if (!is_file(path)) {
        return msdu__fail(MSDU_ERR_NOT_FOUND, "no backend module at %s", path);
    }
    return load_file(path, backend_out);
}

static const msdu_backend *known_module(const char *name)
{
    const msdu_backend *found = NULL;
    (void)pthread_mutex_lock(&modules_lock);
    for (size_t i = 0; i < modules_count; i++) {
        if (strcmp(modules[i]->name, name) == 0) {
            found = modules[i];
        }
    }
    (void)pthread_mutex_unlock(&modules_lock);
    return found;
}

static void remember_module(const msdu_backend *backend)
{
    (void)pthread_mutex_lock(&modules_lock);
    bool is_known = false;
    for (size_t i = 0; i < modules_count; i++) {
        is_known = is_known || modules[i] == backend;
    }
    /* A full list costs a second dlopen() of the same file, which is harmless. */
    if (!is_known && modules_count < MODULES_MAX) {
        modules[modules_count++] = backend;
    }
    (void)pthread_mutex_unlock(&modules_lock);
}

/* "mpi" is whichever MPI this process uses. */
static msdu_status find_mpi(const msdu_backend **backend_out)
{
    const char *family = msdu__mpi_family();
    if (family == NULL) {
        return msdu__fail(MSDU_ERR_NOT_FOUND,
                          "backend mpi: no MPI library is loaded in this process, and no mpirun "
                          "started it; say openmpi or mpich");
    }
    return msdu__backend_find(family, backend_out);
}

msdu_status msdu__backend_find(const char *name, const msdu_backend **backend_out)
{
    if (name == NULL || name[0] == '\0' || strlen(name) >= PATH_MAX / 2) {
        return msdu__fail(MSDU_ERR_INVALID, "backend: the name is empty or too long");
    }
    if (strcmp(name, "mpi") == 0) {
        return find_mpi(backend_out);
    }
    if (strcmp(name, msdu__backend_host.name) == 0) {
        *backend_out = &msdu__backend_host;
        return MSDU_OK;
    }
    if (strcmp(name, msdu__backend_local.name) == 0) {
        *backend_out = &msdu__backend_local;
        return MSDU_OK;
    }
    bool is_path = strchr(name, '/') != NULL;
    const msdu_backend *known = is_path ? NULL : known_module(name);
    if (known != NULL) {
        *backend_out = known;
        return MSDU_OK;
    }
    msdu_status status = is_path ? find_path(name, backend_out) : find_module(name, backend_out);
    if (status == MSDU_OK && !is_path) {
        remember_module(*backend_out);
    }
    return status;
}
