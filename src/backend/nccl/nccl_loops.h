/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on the device (msdu/device.h), launched on a stream: nccl_loops.cu for CUDA, and
 * test/standin/loops.c, its twin on host memory. Both are nccl_loops.inc.
 */
#ifndef MSDU_NCCL_LOOPS_H
#define MSDU_NCCL_LOOPS_H

#include <cuda_runtime_api.h>
#include <msdu/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU__LOOPS_CHUNKS 4096 /* parts of a kernel at most; each leaves its own sums */
#define MSDU__LOOPS_SKETCH 64
/* Device memory for what the parts of a kernel found; one for each stream. */
#define MSDU__LOOPS_SCRATCH (MSDU__LOOPS_CHUNKS * (3 * sizeof(double)))

extern const msdu_kernels msdu__nccl_kernels;

/* Give a stream one of them with its arguments. */
typedef cudaError_t (*msdu__nccl_give)(void *args, void *scratch, cudaStream_t stream);
/* nccl_device.c: call it with stream and scratch of its stage, behind what it has to wait for. */
msdu_status msdu__nccl_run(const msdu_launch *at, msdu__nccl_give give, void *args);

#ifdef __cplusplus
}
#endif

#endif
