/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPICH over UCX waits by calling ucp_worker_progress() in a loop. Where a machine has fewer cores
 * than ranks, a rank that waits keeps the core of the rank that it waits for. Preloaded into a
 * test's ranks, this gives the core away after some calls in which nothing came.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>

#define IDLE_CALLS 64

typedef unsigned progress_function(void *worker);

__attribute__((visibility("default"))) unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker)
{
    static progress_function *next; /* all threads store the same value */
    static _Thread_local unsigned idle;

    if (next == NULL) {
        void *library = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD); /* MPI may be a module */
        *(void **)&next = dlsym(library, "ucp_worker_progress");
    }
    unsigned count = next(worker);
    idle = count > 0 ? 0 : idle + 1;
    if (idle >= IDLE_CALLS) {
        (void)sched_yield();
        idle = 0;
    }
    return count;
}
