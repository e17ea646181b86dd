/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer as a Fortran compiler would make it: MPI by its Fortran names, all arguments by
 * address, handles from mpif.h. Prints a loss for each step. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT 5000
#define STEPS 40

void mpi_init_(int *error);
void mpi_finalize_(int *error);
void mpi_comm_rank_(const int *comm, int *rank, int *error);
void mpi_comm_size_(const int *comm, int *size, int *error);
void mpi_allreduce_(const void *send, void *recv, const int *count, const int *type, const int *op,
                    const int *comm, int *error);

static float weight[COUNT], gradient[COUNT], reduced[COUNT];

int main(void)
{
    int error = 0;
    int rank = 0;
    int ranks = 1;
    int count = COUNT;
    int one = 1;
    mpi_init_(&error);
    /* what mpif.h has as constants */
    int comm = (int)MPI_Comm_c2f(MPI_COMM_WORLD);
    int single = (int)MPI_Type_c2f(MPI_FLOAT);
    int real = (int)MPI_Type_c2f(MPI_DOUBLE);
    int sum = (int)MPI_Op_c2f(MPI_SUM);
    mpi_comm_rank_(&comm, &rank, &error);
    mpi_comm_size_(&comm, &ranks, &error);
    for (int step = 0; step < STEPS; step++) {
        double loss = 0;
        double mean = 0;
        for (int i = 0; i < COUNT; i++) {
            float e = weight[i] - (float)((i * 7 + rank * 3 + step) % 11);
            loss += (double)(e * e);
            gradient[i] = e;
        }
        mpi_allreduce_(gradient, reduced, &count, &single, &sum, &comm, &error);
        for (int i = 0; i < COUNT; i++) {
            weight[i] -= 0.1F * reduced[i] / (float)ranks;
        }
        mpi_allreduce_(&loss, &mean, &one, &real, &sum, &comm, &error);
        if (rank == 0) {
            (void)printf("step %d loss %.17g\n", step, mean / ranks);
        }
    }
    mpi_finalize_(&error);
    return error;
}
