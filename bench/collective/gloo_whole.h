/* SPDX-License-Identifier: Apache-2.0 */
/* The peer of `msdu bench allreduce`: Gloo as its users call it, behind a C table, because the
 * command itself knows no C++. */
#ifndef MSDU_BENCH_GLOO_WHOLE_H
#define MSDU_BENCH_GLOO_WHOLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU__GLOO_WHOLE_FILE   "bench_gloo_whole.so"
#define MSDU__GLOO_WHOLE_SYMBOL "msdu__gloo_whole_table"

typedef struct msdu__gloo_whole {
    /* Join through files in `folder`; blocks. NULL: why says what went wrong. */
    void *(*open)(int rank, int ranks, const char *folder, const char *interface, char *why,
                  size_t why_bytes);
    /* In-place sum over all ranks; blocks. 0, or -1 and why. */
    int (*allreduce)(void *group, float *values, size_t count, char *why, size_t why_bytes);
    void (*close)(void *group);
} msdu__gloo_whole;

#ifdef __cplusplus
}
#endif

#endif
