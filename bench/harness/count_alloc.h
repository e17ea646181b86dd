/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the allocations of the whole process while asked to. */
#ifndef MSDU_BENCH_COUNT_ALLOC_H
#define MSDU_BENCH_COUNT_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* False: not in this build (a sanitizer or another C library owns malloc). */
bool msdu__count_alloc_is_there(void);
void msdu__count_alloc_begin(void);
/* Calls of malloc, calloc, realloc and the aligned ones on all threads since begin. */
uint64_t msdu__count_alloc_end(void);

#endif
