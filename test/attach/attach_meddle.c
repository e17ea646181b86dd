/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A faulty network, by LD_PRELOAD: what rank 1 receives in the 10th gather of the largest
 * gradient differs in one bit from what was sent. No error tells of it; the guard of attached
 * trainers has to.
 */
#include <mpi.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#define BROKEN 10
#define BYTES  390 /* of a rank: its share in four bits */
#define EXPORT __attribute__((visibility("default")))

typedef int (*gather)(const void *, int, MPI_Datatype, void *, const int *, const int *,
                      MPI_Datatype, MPI_Comm, MPI_Request *);
typedef int (*test)(MPI_Request *, int *, MPI_Status *);

static atomic_int gathers;
static MPI_Request *broken; /* one thread communicates */
static unsigned char *last_byte;

EXPORT int PMPI_Iallgatherv(const void *send, int sends, MPI_Datatype send_type, void *recv,
                            const int *counts, const int *places, MPI_Datatype recv_type,
                            MPI_Comm comm, MPI_Request *request)
{
    gather next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "PMPI_Iallgatherv");
    int rank = 0;
    (void)PMPI_Comm_rank(comm, &rank);
    if (rank == 1 && counts[0] == BYTES && ++gathers == BROKEN) {
        broken = request;
        last_byte = (unsigned char *)recv + places[0] + counts[0] - 1;
    }
    return next(send, sends, send_type, recv, counts, places, recv_type, comm, request);
}

EXPORT int PMPI_Test(MPI_Request *request, int *is_done, MPI_Status *status)
{
    test next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "PMPI_Test");
    const int code = next(request, is_done, status);
    if (*is_done && request == broken) {
        *last_byte ^= 1U;
        broken = NULL;
    }
    return code;
}
