/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twin of src/backend/nccl/nccl_loops.cu on host memory, for the stand-in: the same loops, with the
 * lanes of a team one after the other and sums in the order in which the lanes of a warp take them.
 */
#include "nccl_loops.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LANES 32
#define FN    static inline

#define EACH(i, begin, end) for (uint64_t i = (begin), each_end = (end); i < each_end; i++)
#define TEAM_SYNC()         ((void)0)
#define IS_FIRST            true

typedef struct lane_sum {
    double lanes[LANES];
} lane_sum;
typedef struct lane_most {
    uint32_t value;
} lane_most;
/* chunks begin at multiples of LANES, so the element says which lane it is */
#define SUM_ADD(sum, i, x)   ((sum).lanes[(i) % LANES] += (x))
#define MOST_ADD(most, i, x) ((most).value = (x) > (most).value ? (x) : (most).value)
#define SUM_TEAM(sum)        team_sum((sum))
#define MOST_TEAM(most)      ((most).value)

static double team_sum(lane_sum sum)
{
    for (uint32_t step = LANES / 2; step > 0; step /= 2) {
        lane_sum next;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            next.lanes[lane] = sum.lanes[lane] + sum.lanes[lane ^ step];
        }
        sum = next;
    }
    return sum.lanes[0];
}

#include "nccl_loops.inc"

#define KERNEL(name, args)                                                                         \
    static void name##_kernel(void *given)                                                         \
    {                                                                                              \
        const args *a = given;                                                                     \
        for (uint64_t chunk = 0; chunk < a->l.chunks; chunk++) {                                   \
            name(a, chunk);                                                                        \
        }                                                                                          \
    }
#define KERNELS_REAL(name, args) KERNEL(f32_##name, args) KERNEL(f64_##name, args)
#define FOLD_KERNEL(name)                                                                          \
    static void name##_kernel(void *given)                                                         \
    {                                                                                              \
        name(given);                                                                               \
    }

LOOPS_REAL(KERNELS_REAL)
LOOPS_PLAIN(KERNEL)
KERNEL(sketch, sketch_args)
FOLD_KERNEL(fold_sums)
FOLD_KERNEL(fold_sketch)

static _Thread_local cudaError_t failed; /* the first failure stays, as with CUDA */

static void launch(cudaStream_t stream, void (*kernel)(void *), const void *args, size_t bytes)
{
    failed = failed == cudaSuccess ? standin_lead(stream) : failed;
    failed = failed == cudaSuccess ? standin_launch(stream, kernel, args, bytes) : failed;
}

#define LAUNCH(name, a, stream)      launch(stream, name##_kernel, &(a), sizeof(a))
#define LAUNCH_FOLD(name, a, stream) LAUNCH(name, a, stream)
#define LOOPS_RESULT                 failed
#include "nccl_loops_launch.inc"
