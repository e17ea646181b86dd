/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes on the device (msdu/device.h), launched on a stream: nccl_loops.cu for CUDA, and
 * test/standin/loops.c, its twin on host memory. Both are nccl_loops.inc.
 */
#ifndef MSDU_NCCL_LOOPS_H
#define MSDU_NCCL_LOOPS_H

#include <cuda_runtime_api.h>
#include <msdu/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU__LOOPS_CHUNKS 4096 /* parts of a pass at most; each leaves its own sums */
#define MSDU__LOOPS_SKETCH 64
/* Device memory for what the parts of a pass found; one for each stream. */
#define MSDU__LOOPS_SCRATCH (MSDU__LOOPS_CHUNKS * (3 * sizeof(double)))

/* Launch a pass other than FILL and COPY, which are the runtime's. */
cudaError_t msdu__loops_launch(const msdu_pass *pass, void *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
