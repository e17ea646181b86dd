/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for CUDA: a warp is a team. Compiled without contraction (-fmad=false). */
#include "nccl_loops.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#define LANES   32
#define FN      static __device__ __forceinline__
#define FULL    0xffffffffU
#define LANE    (threadIdx.x % LANES)
#define THREADS 256
#define GRID    2048 /* blocks at most: teams take several chunks where there are more */

#define EACH(i, begin, end)                                                                        \
    for (uint64_t i = (begin) + LANE, each_end = (end); i < each_end; i += LANES)
#define TEAM_SYNC() __syncwarp()
#define IS_FIRST    (LANE == 0)

struct lane_sum {
    double value;
};
struct lane_most {
    uint32_t value;
};
#define SUM_ADD(sum, i, x)  ((sum).value += (x))
#define MOST_ADD(most, i, x) ((most).value = max((most).value, (x)))
#define SUM_TEAM(sum)       team_sum((sum).value)
#define MOST_TEAM(most)     team_most((most).value)

FN double team_sum(double value)
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(FULL, value, step);
    }
    return value;
}

FN uint32_t team_most(uint32_t value)
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        value = max(value, __shfl_xor_sync(FULL, value, step));
    }
    return value;
}

#include "nccl_loops.inc"

#define KERNEL(name, args)                                                                         \
    static __global__ void __launch_bounds__(THREADS) name##_kernel(const args a)                  \
    {                                                                                              \
        const uint64_t teams = (uint64_t)gridDim.x * (THREADS / LANES);                            \
        uint64_t chunk = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;                   \
        for (; chunk < a.l.chunks; chunk += teams) {                                               \
            name(&a, chunk);                                                                       \
        }                                                                                          \
    }
#define KERNELS_REAL(name, args) KERNEL(f32_##name, args) KERNEL(f64_##name, args)
/* The folds are one team whatever the number of chunks. */
#define FOLD_KERNEL(name, args)                                                                    \
    static __global__ void name##_kernel(const args a)                                             \
    {                                                                                              \
        name(&a);                                                                                  \
    }

LOOPS_REAL(KERNELS_REAL)
LOOPS_PLAIN(KERNEL)
KERNEL(sketch, sketch_args)
FOLD_KERNEL(fold_sums, loop)
FOLD_KERNEL(fold_sketch, sketch_args)

#define LAUNCH(name, a, stream)                                                                    \
    name##_kernel<<<grid_of((a).l), THREADS, 0, stream>>>(a)
#define LAUNCH_FOLD(name, a, stream) name##_kernel<<<1, LANES, 0, stream>>>(a)

static unsigned grid_of(const loop &l)
{
    const uint64_t blocks = (l.chunks + THREADS / LANES - 1) / (THREADS / LANES);
    return (unsigned)(blocks < GRID ? blocks : GRID);
}

#define LOOPS_RESULT cudaGetLastError()
#include "nccl_loops_launch.inc"
