/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmsdu_preload.so: one line where a trainer ends and none of its reductions was reached. Without
 * it the user would believe that it worked. What was reached is told by the module that took it.
 *
 * The library is in every process behind `msdu run`: a program that begins MPI is a trainer, any
 * other is one if it is the process that was started, knows its rank, and has a library for
 * training in it.
 */
#include "preload.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach/place.h"
#include "base/cell.h"

static msdu__flag is_reached;
static msdu__flag is_told;
static msdu__cell mpi_process; /* which has begun MPI */

void msdu__end_reached(void)
{
    if (!msdu__flag_get(&is_reached)) {
        msdu__flag_set(&is_reached, true);
    }
}

void msdu__end_begun(void)
{
    msdu__cell_set(&mpi_process, (uint64_t)getpid());
}

/* Rank 0 speaks for all; who does not know its rank speaks for itself. */
static bool is_silent(void)
{
    const char *level = getenv("MSDU_LOG");
    return msdu__flag_get(&is_reached) || msdu__nccl_loaded() != NULL || !msdu__is_on() ||
           msdu__attach_place() > 0 || (level != NULL && strcmp(level, "error") == 0) ||
           msdu__flag_swap(&is_told, true);
}

void msdu__end_mpi(void)
{
    if (!is_silent()) {
        (void)fprintf(stderr,
                      "msdu: nothing was attached: the trainer made no reduction that is reached "
                      "(MPI_Allreduce, MPI_Iallreduce). Not reached are persistent ones, mpi4py's "
                      "pickled ones (comm.allreduce; comm.Allreduce is) and MPI_Reduce\n");
    }
}

/* --- a trainer without MPI --- */

/* The process that `msdu run` became, or a child of the launcher that it became. */
static bool is_started(void)
{
    const char *text = getenv(MSDU__RUN_VARIABLE);
    long process = text == NULL ? 0 : strtol(text, NULL, 10);
    return process > 0 ? process == (long)getpid() : process < 0 && -process == (long)getppid();
}

static bool has_training_library(void)
{
    static const char *const names[] = {"libtorch_cpu.so", "libtorch.so", "libnccl.so.2"};
    bool is_found = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !is_found; i++) {
        void *handle = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
        is_found = handle != NULL;
        if (is_found) {
            (void)dlclose(handle);
        }
    }
    return is_found;
}

__attribute__((destructor)) static void end(void)
{
    if (msdu__cell_get(&mpi_process) == (uint64_t)getpid()) {
        msdu__end_mpi(); /* it did not end MPI itself */
        return;
    }
    if (msdu__attach_place() == 0 && is_started() && has_training_library() && !is_silent()) {
        (void)fprintf(stderr,
                      "msdu: nothing was attached: the program called neither MPI_Allreduce nor "
                      "ncclAllReduce where it is reached. A PyTorch script over Gloo runs under "
                      "python -m msdu\n");
    }
}
