/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so: the Fortran names. MPICH's Fortran calls its C functions by their public
 * names, so ours are reached anyway; Open MPI's calls the profiling names, so it is taken here.
 */
#include "preload.h"

#include <dlfcn.h>
#include <string.h>

#include "../backend/mpi_family.h"

/* Of this process's MPI; the trainer links it, so it is loaded before main(). */
static bool is_openmpi(void)
{
    const char *family = msdu__mpi_family();
    return msdu__is_on() && msdu__inside == 0 && family != NULL && strcmp(family, "openmpi") == 0;
}

PRELOAD void mpi_init_(int *error)
{
    static msdu__real real = {.name = "mpi_init_"};
    if (is_openmpi()) {
        *error = MPI_Init(NULL, NULL);
        return;
    }
    FIND(void (*)(int *), real, call);
    if (call != NULL) {
        call(error);
    }
}

PRELOAD void mpi_init_thread_(const int *required, int *provided, int *error)
{
    static msdu__real real = {.name = "mpi_init_thread_"};
    if (is_openmpi()) {
        *error = MPI_Init_thread(NULL, NULL, *required, provided);
        return;
    }
    FIND(void (*)(const int *, int *, int *), real, call);
    if (call != NULL) {
        call(required, provided, error);
    }
}

PRELOAD void mpi_finalize_(int *error)
{
    static msdu__real real = {.name = "mpi_finalize_"};
    if (is_openmpi()) {
        *error = MPI_Finalize();
        return;
    }
    FIND(void (*)(int *), real, call);
    if (call != NULL) {
        call(error);
    }
}

/* Open MPI: the address of a common block stands for MPI_IN_PLACE. */
static bool is_in_place(const void *send)
{
    static const char *const names[] = {"mpi_fortran_in_place_", "mpi_fortran_in_place__",
                                        "mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (send != NULL && send == dlsym(RTLD_DEFAULT, names[i])) {
            return true;
        }
    }
    return false;
}

PRELOAD void mpi_allreduce_(const void *send, void *recv, const int *count, const int *type,
                            const int *op, const int *comm, int *error)
{
    static msdu__real real = {.name = "mpi_allreduce_"};
    FIND(void (*)(const void *, void *, const int *, const int *, const int *, const int *, int *),
         real, call);
    static msdu__real c_real = {.name = "MPI_Allreduce"};
    bool is_done = false;
    if (is_openmpi()) {
        const msdu__attach *attach =
            msdu__ladder_module(msdu__ladder_find(&c_real, __builtin_return_address(0)));
        msdu__inside++;
        if (attach != NULL) {
            const msdu__reduction reduction = {is_in_place(send) ? attach->in_place() : send,
                                               recv,
                                               *count,
                                               attach->type_of(*type),
                                               attach->op_of(*op),
                                               attach->comm_of(*comm)};
            is_done = attach->reduce(&reduction, NULL, error);
        }
        msdu__inside--;
    }
    if (!is_done && call != NULL) {
        call(send, recv, count, type, op, comm, error);
    } else if (!is_done) {
        *error = ERR_OTHER;
    }
}
