/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real MPI functions behind ours, however MPI came into the process. */
#ifndef MSDU_LADDER_H
#define MSDU_LADDER_H

#include <stdatomic.h>

#include "attach.h"

/* Never defined: what any function pointer is kept as. */
typedef void (*msdu__function)(void);

/* The name without its first letter: PMPI_Allreduce is sought first, then MPI_Allreduce. */
typedef struct msdu__real {
    const char *name; /* "MPI_Allreduce" or a Fortran name, "mpi_allreduce_" */
    _Atomic(msdu__function) found;
} msdu__real;

/*
 * The real function: the profiling name in the global scope; the next object that has it; the
 * library of the caller and what that needs; the MPI libraries by soname, if one is loaded; the
 * file that MSDU_ATTACH_LIBRARY names. NULL: not there, perhaps not yet. Thread: any.
 */
msdu__function msdu__ladder_find(msdu__real *real, const void *caller);

/* The module of the family whose library holds `function`; NULL: none, said once on standard
 * error. Loaded once. Thread: any. */
const msdu__attach *msdu__ladder_module(msdu__function function);

/* The module if it was loaded already. */
const msdu__attach *msdu__ladder_loaded(void);

#endif
