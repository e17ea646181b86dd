/* SPDX-License-Identifier: Apache-2.0 */
/* Ends well if mpirun -n 2 made one job of two processes. Run by CMake, not by CTest. */
#include <mpi.h>

int main(int argc, char **argv)
{
    int ranks = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Finalize();
    return ranks == 2 ? 0 : 1;
}
