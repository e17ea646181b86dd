! SPDX-License-Identifier: Apache-2.0
! A trainer in modern Fortran: mpi_f08, the error argument left out. Word "nonblocking":
! MPI_Iallreduce. Prints a loss for each step.
program attach_f08
    use mpi_f08
    implicit none
    integer, parameter :: length = 5000, steps = 40
    real :: weight(length), gradient(length), reduced(length)
    double precision :: loss, mean
    integer :: rank, ranks, step, i
    type(MPI_Request) :: request
    character(len=16) :: word
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    call get_command_argument(1, word)
    weight = 0
    do step = 0, steps - 1
        do i = 1, length
            gradient(i) = weight(i) - real(mod((i - 1) * 7 + rank * 3 + step, 11))
        end do
        loss = sum(dble(gradient)**2)
        if (word == 'nonblocking') then
            call MPI_Iallreduce(gradient, reduced, length, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, request)
            call MPI_Wait(request, MPI_STATUS_IGNORE)
        else if (word == 'in-place') then
            call MPI_Allreduce(MPI_IN_PLACE, gradient, length, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
            reduced = gradient
        else
            call MPI_Allreduce(gradient, reduced, length, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
        end if
        weight = weight - 0.1 * reduced / real(ranks)
        call MPI_Allreduce(loss, mean, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
        if (rank == 0) then
            print '(a, i0, a, es25.17)', 'step ', step, ' loss ', mean / ranks
        end if
    end do
    call MPI_Finalize()
end program
