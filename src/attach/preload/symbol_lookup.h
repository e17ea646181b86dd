/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real functions behind ours, however their library came into the process. */
#ifndef MSDU_SYMBOL_LOOKUP_H
#define MSDU_SYMBOL_LOOKUP_H

#include "attach/attach.h"
#include "base/cell.h"

/* Never defined: what any function pointer is kept as. */
typedef void (*msdu__function)(void);

/* Where the functions of a kind of library are. */
typedef struct msdu__shelf {
    const char *prefix;         /* of C names: those have a profiling name */
    char profiling;             /* its first letter: PMPI_Allreduce, pncclAllReduce */
    const char *const *sonames; /* ends with NULL */
    const char *variable;       /* of the environment: names a file */
} msdu__shelf;

/*
 * The real function: the profiling name in the global scope; the next object that has it; the
 * library of the caller and what that needs; libraries by soname, if one is loaded; the file that
 * the environment names. NULL: not there, perhaps not yet. Thread: any.
 */
msdu__function msdu__ladder_climb(const msdu__shelf *shelf, const char *name, const void *caller);

/* Where the object that holds an address is loaded; NULL: nowhere. */
const void *msdu__ladder_base(const void *address);
const void *msdu__ladder_base_of(msdu__function function);

/* A module of ours by name, beside this library or where MSDU_MODULE_PATH says: its symbol; NULL,
 * and why, as dlerror() has it. */
const void *msdu__ladder_beside(const char *name, const char *symbol, const char **why_out);

/* --- MPI --- */

/* The name without its first letter: PMPI_Allreduce is sought first, then MPI_Allreduce. */
typedef struct msdu__real {
    const char *name; /* "MPI_Allreduce" or a Fortran name, "mpi_allreduce_" */
    msdu__cell found; /* address of the function */
} msdu__real;

/* Said on standard error where there is none. Thread: any. */
msdu__function msdu__ladder_find(msdu__real *real, const void *caller);

/* The module of the family whose library holds `function`; NULL: none, said once on standard
 * error. Loaded once. Thread: any. */
const msdu__attach *msdu__ladder_module(msdu__function function);

/* The module if it was loaded already. */
const msdu__attach *msdu__ladder_loaded(void);

#endif
