/* SPDX-License-Identifier: Apache-2.0 */
/* Which MPI does this process use? Loads nothing. */
#include "mpi_family.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Sonames of Open MPI 1.10 to 5 and of MPICH 3.2 to 4 as distributions build them. */
static const struct family {
    const char *name;
    const char *soname;
    const char *variables[3]; /* set by its launcher */
} families[] = {
    {"openmpi", "libmpi.so.40", {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"}},
    {"mpich", "libmpich.so.12", {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"}},
};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

static bool is_loaded(const char *soname)
{
    void *handle = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle != NULL) {
        (void)dlclose(handle); /* takes back the count of this call only */
    }
    return handle != NULL;
}

static bool is_launched(const struct family *family)
{
    for (size_t i = 0; i < sizeof(family->variables) / sizeof(family->variables[0]); i++) {
        if (getenv(family->variables[i]) != NULL) {
            return true;
        }
    }
    return false;
}

const char *msdu__mpi_family(void)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (is_loaded(families[i].soname)) {
            return families[i].name;
        }
    }
    for (size_t i = 0; i < FAMILIES; i++) {
        if (is_launched(&families[i])) {
            return families[i].name;
        }
    }
    return NULL;
}

const char *msdu__mpi_soname(const char *family)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i].name, family) == 0) {
            return families[i].soname;
        }
    }
    return NULL;
}
