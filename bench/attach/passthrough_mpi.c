/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n RANKS msdu run -- passthrough_FAMILY: what a reduction by MPI pays, see passthrough.h.
 */
#include <mpi.h>

#include "passthrough.h"

#ifndef BENCH_OVER
#define BENCH_OVER "mpi"
#endif

static MPI_Comm comm;

static MPI_Datatype type_of(passthrough_kind kind)
{
    return kind == PASSTHROUGH_INTEGERS ? MPI_INT : MPI_FLOAT;
}

static bool begin(void)
{
    return PMPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS;
}

static bool plain(passthrough_kind kind)
{
    float none[2] = {0};
    return PMPI_Allreduce(&none[0], &none[1], 0, type_of(kind), MPI_SUM, comm) == MPI_SUCCESS;
}

static bool ours(passthrough_kind kind)
{
    float none[2] = {0};
    return MPI_Allreduce(&none[0], &none[1], 0, type_of(kind), MPI_SUM, comm) == MPI_SUCCESS;
}

static bool end(void)
{
    return PMPI_Comm_free(&comm) == MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    passthrough_calls calls = {BENCH_OVER, 0, begin, plain, ours, end};
    int rank = 0;
    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &calls.ranks);
    int status = passthrough_run(&calls, rank == 0, argc, argv);
    (void)MPI_Finalize();
    return status;
}
