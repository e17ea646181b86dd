/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libmsdu_preload share, and prototypes of what it exports. */
#ifndef MSDU_PRELOAD_H
#define MSDU_PRELOAD_H

#include "attach/nccl_table.h"
#include "symbol_lookup.h"

#define ERR_OTHER 15 /* a failure, by MPICH's name; any code but 0 is one */

#define PRELOAD __attribute__((visibility("default")))

/* Declare `name`, the real function behind `real` as a pointer of this type. */
#define FIND(type, real, name)                                                                     \
    __typeof__(type) name =                                                                        \
        (__typeof__(type))msdu__ladder_find(&(real), __builtin_return_address(0))

extern _Thread_local int msdu__inside;

/* Setting MSDU_ATTACH=off: all is passed through, and MPI begins as the trainer asked. */
bool msdu__is_on(void);

/* The module, if this call comes from the trainer. */
const msdu__attach *msdu__module_for(msdu__function real);

/* Around a real call that may wait: nothing, unless the module times the trainer's plain calls. */
uint64_t msdu__timing_begin(void);
void msdu__timing_end(uint64_t begin_ns);

/* --- end.c: was anything reached? --- */
void msdu__end_reached(void); /* a reduction of the trainer */
void msdu__end_begun(void);   /* the trainer begins MPI */
void msdu__end_mpi(void);     /* it ends MPI: a line if nothing was reached */

/* NCCL's module if it was loaded already. */
const msdu__attach_nccl *msdu__nccl_loaded(void);

/* As NCCL declares them, with handles and enumerations as integers. */
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, uintptr_t comm,
                  uintptr_t stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclCommFinalize(uintptr_t comm);
int ncclCommDestroy(uintptr_t comm);
int ncclCommAbort(uintptr_t comm);

/* MPI_Allreduce_init, by whatever name the library has it; info and the rest as integers. */
typedef int (*msdu__init_call)(const void *send, void *recv, int count, uintptr_t type,
                               uintptr_t op, uintptr_t comm, uintptr_t info, void *request_out);

/* As MPI declares them, with handles as integers. */
int MPI_Init(int *argc, char ***argv);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Finalize(void);
void msdu_attach_sync_after_step(void);
void msdu_attach_lr(double lr);
int MPI_Allreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                  uintptr_t comm);
int MPI_Iallreduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                   uintptr_t comm, void *request);
int MPI_Allreduce_c(const void *send, void *recv, int64_t count, uintptr_t type, uintptr_t op,
                    uintptr_t comm);
int MPI_Iallreduce_c(const void *send, void *recv, int64_t count, uintptr_t type, uintptr_t op,
                     uintptr_t comm, void *request);
int MPI_Allreduce_init(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                       uintptr_t comm, uintptr_t info, void *request);
int MPIX_Allreduce_init(const void *send, void *recv, int count, uintptr_t type, uintptr_t op,
                        uintptr_t comm, uintptr_t info, void *request);
int MPI_Barrier(uintptr_t comm);
int MPI_Bcast(void *data, int count, uintptr_t type, int root, uintptr_t comm);
int MPI_Bcast_c(void *data, int64_t count, uintptr_t type, int root, uintptr_t comm);
int MPI_Reduce(const void *send, void *recv, int count, uintptr_t type, uintptr_t op, int root,
               uintptr_t comm);
int MPI_Gather(const void *send, int send_count, uintptr_t send_type, void *recv, int recv_count,
               uintptr_t recv_type, int root, uintptr_t comm);
int MPI_Allgather(const void *send, int send_count, uintptr_t send_type, void *recv, int recv_count,
                  uintptr_t recv_type, uintptr_t comm);
int MPI_Wait(void *request, void *status);
int MPI_Waitall(int count, void *requests, void *statuses);
int MPI_Waitany(int count, void *requests, int *index, void *status);
int MPI_Waitsome(int count, void *requests, int *out_count, int *indices, void *statuses);
int MPI_Test(void *request, int *flag, void *status);
int MPI_Testall(int count, void *requests, int *flag, void *statuses);
int MPI_Testany(int count, void *requests, int *index, int *flag, void *status);
int MPI_Testsome(int count, void *requests, int *out_count, int *indices, void *statuses);

/* As gfortran calls them; names that end in _f08_ are those of mpi_f08, where error may be NULL. */
typedef void (*msdu__fortran_reduce)(const void *send, void *recv, const int *count,
                                     const int *type, const int *op, const int *comm, int *error);
typedef void (*msdu__fortran_begin)(const void *send, void *recv, const int *count, const int *type,
                                    const int *op, const int *comm, int *request, int *error);
void mpi_init_(int *error);
void mpi_init_f08_(int *error);
void mpi_init_thread_(const int *required, int *provided, int *error);
void mpi_init_thread_f08_(const int *required, int *provided, int *error);
void mpi_finalize_(int *error);
void mpi_finalize_f08_(int *error);
__typeof__(*(msdu__fortran_reduce)NULL) mpi_allreduce_, mpi_allreduce_f08_;
__typeof__(*(msdu__fortran_begin)NULL) mpi_iallreduce_, mpi_iallreduce_f08_, mpi_iallreduce_f08ts_;

#endif
