/* SPDX-License-Identifier: Apache-2.0 */
/* Which MPI does this process use? Open MPI and MPICH differ in every handle, so each has a module
 * of its own; this finds the one that the name "mpi" means. */
#ifndef MSDU_MPI_FAMILY_H
#define MSDU_MPI_FAMILY_H

#include <stdbool.h>

/*
 * "openmpi" or "mpich": of the one whose library is loaded already, else of the one whose launcher
 * set its variables; NULL if neither can be told. Loads nothing. Thread: any.
 */
const char *msdu__mpi_family(void);

/* The soname of a family's library: what the dynamic loader knows it by. NULL: no such family. */
const char *msdu__mpi_soname(const char *family);

#endif
