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

#define CALLER __builtin_return_address(0)

/* --- begin and end --- */

typedef void (*change_call)(int *error);
typedef void (*thread_call)(const int *required, int *provided, int *error);

/* C's own, `ours`, or what stands behind Fortran's name. */
static void change(msdu__real *real, int (*ours)(void), const void *caller, int *error)
{
    change_call call = ours != NULL ? NULL : (change_call)msdu__ladder_find(real, caller);
    if (ours != NULL) {
        give(error, ours());
    } else if (call != NULL) {
        call(error);
    }
}

static int begin(void)
{
    return MPI_Init(NULL, NULL);
}

PRELOAD void mpi_init_(int *error)
{
    static msdu__real real = {.name = "mpi_init_"};
    change(&real, is_openmpi() ? begin : NULL, CALLER, error);
}

PRELOAD void mpi_init_f08_(int *error)
{
    static msdu__real real = {.name = "mpi_init_f08_"};
    change(&real, is_known() ? begin : NULL, CALLER, error);
}

static void begin_threads(msdu__real *real, bool is_ours, const void *caller, const int *required,
                          int *provided, int *error)
{
    thread_call call = is_ours ? NULL : (thread_call)msdu__ladder_find(real, caller);
    if (is_ours) {
        give(error, MPI_Init_thread(NULL, NULL, *required, provided));
    } else if (call != NULL) {
        call(required, provided, error);
    }
}

PRELOAD void mpi_init_thread_(const int *required, int *provided, int *error)
{
    static msdu__real real = {.name = "mpi_init_thread_"};
    begin_threads(&real, is_openmpi(), CALLER, required, provided, error);
}

PRELOAD void mpi_init_thread_f08_(const int *required, int *provided, int *error)
{
    static msdu__real real = {.name = "mpi_init_thread_f08_"};
    begin_threads(&real, is_known(), CALLER, required, provided, error);
}

PRELOAD void mpi_finalize_(int *error)
{
    static msdu__real real = {.name = "mpi_finalize_"};
    change(&real, is_openmpi() ? MPI_Finalize : NULL, CALLER, error);
}

PRELOAD void mpi_finalize_f08_(int *error)
{
    static msdu__real real = {.name = "mpi_finalize_f08_"};
    change(&real, is_known() ? MPI_Finalize : NULL, CALLER, error);
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

static void reduce(msdu__real *real, const arguments *from, const void *caller, int *error)
{
    msdu__fortran_reduce call = (msdu__fortran_reduce)msdu__ladder_find(real, caller);
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
    } else if (call != NULL) {
        call(from->send, from->recv, from->count, from->type, from->op, from->comm, error);
    }
}

PRELOAD void mpi_allreduce_(const void *send, void *recv, const int *count, const int *type,
                            const int *op, const int *comm, int *error)
{
    static msdu__real real = {.name = "mpi_allreduce_"};
    reduce(&real, &(arguments){send, recv, count, type, op, comm}, CALLER, error);
}

PRELOAD void mpi_allreduce_f08_(const void *send, void *recv, const int *count, const int *type,
                                const int *op, const int *comm, int *error)
{
    static msdu__real real = {.name = "mpi_allreduce_f08_"};
    reduce(&real, &(arguments){send, recv, count, type, op, comm}, CALLER, error);
}

enum { TOLD = 1, ALONE = 2 }; /* C's public name does not see it; nor may it see what is called */

/* A call that is passed through. */
static void pass(msdu__real *real, const arguments *from, unsigned how, const void *caller,
                 int *request, int *error)
{
    msdu__fortran_begin call = (msdu__fortran_begin)msdu__ladder_find(real, caller);
    msdu__reduction reduction;
    const msdu__attach *attach = (how & TOLD) != 0 ? translate(from, caller, &reduction) : NULL;
    if (attach != NULL) {
        msdu__inside++;
        attach->observe(&reduction);
        msdu__inside--;
    }
    msdu__inside += (how & ALONE) != 0 ? 1 : 0;
    if (call != NULL) {
        call(from->send, from->recv, from->count, from->type, from->op, from->comm, request, error);
    }
    msdu__inside -= (how & ALONE) != 0 ? 1 : 0;
}

PRELOAD void mpi_iallreduce_(const void *send, void *recv, const int *count, const int *type,
                             const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_"};
    const arguments from = {send, recv, count, type, op, comm};
    pass(&real, &from, is_openmpi() ? TOLD : 0, CALLER, request, error);
}

PRELOAD void mpi_iallreduce_f08_(const void *send, void *recv, const int *count, const int *type,
                                 const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_f08_"};
    const arguments from = {send, recv, count, type, op, comm};
    pass(&real, &from, TOLD, CALLER, request, error);
}

/*
 * MPICH's mpi_f08: buffers are descriptors, and C's public names are reached, but its waits
 * call the profiling names. So what would have to be waited for is passed through.
 */
PRELOAD void mpi_iallreduce_f08ts_(const void *send, void *recv, const int *count, const int *type,
                                   const int *op, const int *comm, int *request, int *error)
{
    static msdu__real real = {.name = "mpi_iallreduce_f08ts_"};
    const arguments from = {send, recv, count, type, op, comm};
    pass(&real, &from, TOLD | ALONE, CALLER, request, error);
}
