/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so: the Fortran names, of mpif.h, `use mpi` and `use mpi_f08`. MPICH's Fortran
 * calls the public names of its C functions, so ours are reached anyway, but for those that begin
 * and end mpi_f08; Open MPI's calls the profiling names, so reductions are taken here. mpi_f08's
 * handles are structs of one integer, and its error is optional: the same but for a NULL.
 */
#include "preload.h"

#include <dlfcn.h>
#include <string.h>

#include "backend/mpi_family.h"

/* The MPI of this process; the trainer links it, so it is loaded before main(). */
static bool is_family(const char *wanted)
{
    const char *family = msdu__mpi_family();
    return msdu__is_on() && msdu__inside == 0 && family != NULL && strcmp(family, wanted) == 0;
}

static bool is_openmpi(void)
{
    return is_family("openmpi");
}

static bool is_known(void)
{
    return is_openmpi() || is_family("mpich");
}

static void give(int *error, int code)
{
    if (error != NULL) {
        *error = code;
    }
}

/* --- begin and end --- */

PRELOAD void mpi_init_(int *error)
{
    static msdu__real real = {.name = "mpi_init_"};
    if (is_openmpi()) {
        give(error, MPI_Init(NULL, NULL));
        return;
    }
    FIND(void (*)(int *), real, call);
    if (call != NULL) {
        call(error);
    }
}

PRELOAD void mpi_init_f08_(int *error)
{
    static msdu__real real = {.name = "mpi_init_f08_"};
    if (is_known()) {
        give(error, MPI_Init(NULL, NULL));
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
        give(error, MPI_Init_thread(NULL, NULL, *required, provided));
        return;
    }
    FIND(void (*)(const int *, int *, int *), real, call);
    if (call != NULL) {
        call(required, provided, error);
    }
}

PRELOAD void mpi_init_thread_f08_(const int *required, int *provided, int *error)
{
    static msdu__real real = {.name = "mpi_init_thread_f08_"};
    if (is_known()) {
        give(error, MPI_Init_thread(NULL, NULL, *required, provided));
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
        give(error, MPI_Finalize());
        return;
    }
    FIND(void (*)(int *), real, call);
    if (call != NULL) {
        call(error);
    }
}

PRELOAD void mpi_finalize_f08_(int *error)
{
    static msdu__real real = {.name = "mpi_finalize_f08_"};
    if (is_known()) {
        give(error, MPI_Finalize());
        return;
    }
    FIND(void (*)(int *), real, call);
    if (call != NULL) {
        call(error);
    }
}

/* --- reductions --- */

/* Arguments of a reduction as Fortran passes them. */
typedef struct arguments {
    const void *send;
    void *recv;
    const int *count;
    const int *type;
    const int *op;
    const int *comm;
} arguments;

/* The address of a common block stands for MPI_IN_PLACE. */
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

/* The module, and the call in C's terms; NULL: no MPI that is known, or not the trainer's call. */
static const msdu__attach *translate(const arguments *from, const void *caller,
                                     msdu__reduction *reduction_out)
{
    static msdu__real c_real = {.name = "MPI_Allreduce"};
    if (!is_known()) {
        return NULL;
    }
    msdu__end_reached();
    const msdu__attach *attach = msdu__ladder_module(msdu__ladder_find(&c_real, caller));
    if (attach != NULL) {
        *reduction_out =
            (msdu__reduction){is_in_place(from->send) ? attach->in_place() : from->send,
                              from->recv,
                              *from->count,
                              attach->type_of(*from->type),
                              attach->op_of(*from->op),
                              attach->comm_of(*from->comm)};
    }
    return attach;
}

static bool reduce(const arguments *from, const void *caller, int *error)
{
    msdu__reduction reduction;
    int code = ERR_OTHER;
    bool is_done = false;
    const msdu__attach *attach = is_openmpi() ? translate(from, caller, &reduction) : NULL;
    if (attach != NULL) {
        msdu__inside++;
        is_done = attach->reduce(&reduction, NULL, &code);
        msdu__inside--;
    }
    if (is_done) {
        give(error, code);
    }
    return is_done;
}

/* A call that is passed through, and told. */
static void observe(const arguments *from, const void *caller)
{
    msdu__reduction reduction;
    const msdu__attach *attach = translate(from, caller, &reduction);
    if (attach != NULL) {
        msdu__inside++;
        attach->observe(&reduction);
        msdu__inside--;
    }
}

#define CALLER __builtin_return_address(0)

PRELOAD void mpi_allreduce_(const void *send, void *recv, const int *count, const int *type,
                            const int *op, const int *comm, int *error)
{
    static msdu__real real = {.name = "mpi_allreduce_"};
    FIND(msdu__fortran_reduce, real, call);
    const arguments from = {send, recv, count, type, op, comm};
    if (!reduce(&from, CALLER, error) && call != NULL) {
        call(send, recv, count, type, op, comm, error);
    }
}

PRELOAD void mpi_allreduce_f08_(const void *send, void *recv, const int *count, const int *type,
                                const int *op, const int *comm, int *error)
{
    static msdu__real real = {.name = "mpi_allreduce_f08_"};
    FIND(msdu__fortran_reduce, real, call);
    const arguments from = {send, recv, count, type, op, comm};
    if (!reduce(&from, CALLER, error) && call != NULL) {
        call(send, recv, count, type, op, comm, error);
    }
}

PRELOAD void mpi_iallreduce_(const void *send, void *recv, const int *count, const int *type,
                             const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_"};
    FIND(msdu__fortran_begin, real, call);
    const arguments from = {send, recv, count, type, op, comm};
    if (is_openmpi()) { /* else C's is called */
        observe(&from, CALLER);
    }
    if (call != NULL) {
        call(send, recv, count, type, op, comm, request, error);
    }
}

PRELOAD void mpi_iallreduce_f08_(const void *send, void *recv, const int *count, const int *type,
                                 const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_f08_"};
    FIND(msdu__fortran_begin, real, call);
    const arguments from = {send, recv, count, type, op, comm};
    observe(&from, CALLER);
    if (call != NULL) {
        call(send, recv, count, type, op, comm, request, error);
    }
}

/*
 * MPICH's mpi_f08: buffers are descriptors, and C's public names are reached, but its waits
 * call the profiling names. So what would have to be waited for is passed through.
 */
PRELOAD void mpi_iallreduce_f08ts_(const void *send, void *recv, const int *count, const int *type,
                                   const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_f08ts_"};
    FIND(msdu__fortran_begin, real, call);
    const arguments from = {send, recv, count, type, op, comm};
    observe(&from, CALLER);
    if (call != NULL) {
        msdu__inside++;
        call(send, recv, count, type, op, comm, request, error);
        msdu__inside--;
    }
}
