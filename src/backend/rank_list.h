/* SPDX-License-Identifier: Apache-2.0 */
/* Names of ranks and spans of time for error texts. Pure. */
#ifndef MSDU_RANK_LIST_H
#define MSDU_RANK_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Write "rank 2", "ranks 1, 3" or "ranks 1, 2, ... and 5 more": the ranks with marks[rank] equal
 * to wanted. Returns how many there are.
 */
int32_t msdu__rank_list(const bool *marks, bool wanted, int32_t ranks, char *text, size_t bytes);

/* Lowest bit of an operation's fingerprint: the flag MSDU_OP_FINAL. */
#define MSDU__PRINT_FINAL 1U
/* What one rank started as an operation, by its fingerprint. */
struct msdu__said {
    int32_t rank;
    uint32_t print;
};
/* Write why two ranks cannot go on: they started different operations. */
void msdu__differ_text(struct msdu__said a, struct msdu__said b, uint64_t sequence, uint32_t lane,
                       char *text, size_t bytes);

/* Write a span of time as "60 s" or "250 ms". */
void msdu__span_text(uint64_t span_ns, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
