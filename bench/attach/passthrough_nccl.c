/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msdu run -- passthrough_nccl: what a reduction by NCCL pays, see passthrough.h. The second rank
 * is a child; both may be on one GPU, because each says that it is a host of its own.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "passthrough.h"

#ifndef BENCH_OVER
#define BENCH_OVER "nccl"
#endif
#ifndef BENCH_NCCL
#define BENCH_NCCL "libnccl.so.2"
#endif

typedef ncclResult_t (*reduce_fn)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                  ncclComm_t, cudaStream_t);

static int rank;
static int to_child[2];
static float *memory;
static cudaStream_t stream;
static ncclComm_t comm;
static reduce_fn real;

/* Past the library that stands before it. */
static bool find_real(void)
{
    void *handle = dlopen(BENCH_NCCL, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = handle == NULL ? NULL : dlsym(handle, "ncclAllReduce");
    memcpy(&real, &symbol, sizeof(real));
    return real != NULL;
}

static bool begin(void)
{
    ncclUniqueId id;
    ssize_t bytes = (ssize_t)sizeof(id);
    if (rank == 0 &&
        (ncclGetUniqueId(&id) != ncclSuccess || write(to_child[1], &id, sizeof(id)) != bytes)) {
        return false;
    }
    if (rank == 1 && read(to_child[0], &id, sizeof(id)) != bytes) {
        return false;
    }
    return ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess;
}

static bool call(reduce_fn function, passthrough_kind kind)
{
    ncclDataType_t type = kind == PASSTHROUGH_INTEGERS ? ncclInt32 : ncclFloat32;
    return function(memory, memory, 0, type, ncclSum, comm, stream) == ncclSuccess;
}

static bool plain(passthrough_kind kind)
{
    return call(real, kind);
}

static bool ours(passthrough_kind kind)
{
    ncclDataType_t type = kind == PASSTHROUGH_INTEGERS ? ncclInt32 : ncclFloat32;
    return ncclAllReduce(memory, memory, 0, type, ncclSum, comm, stream) == ncclSuccess;
}

static bool end(void)
{
    return ncclCommDestroy(comm) == ncclSuccess;
}

int main(int argc, char **argv)
{
    static const passthrough_calls calls = {BENCH_OVER, 2, begin, plain, ours, end};
    int status = 0;
    pid_t child = pipe(to_child) == 0 ? fork() : -1;
    if (child < 0) {
        return 2;
    }
    rank = child == 0 ? 1 : 0;
    (void)setenv("NCCL_HOSTID", rank == 0 ? "first" : "second", 1);
    if (!find_real() || cudaMalloc((void **)&memory, 1024) != cudaSuccess ||
        cudaStreamCreate(&stream) != cudaSuccess) {
        return 2;
    }
    int own = passthrough_run(&calls, rank == 0, argc, argv);
    if (child > 0 && waitpid(child, &status, 0) == child && own == 0) {
        own = status;
    }
    return own == 0 ? 0 : 1;
}
