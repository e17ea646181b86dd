/* SPDX-License-Identifier: Apache-2.0 */
/* What one collective operation is, and its data moved between the ranks of a process. Pure. */
#ifndef MSDU_LOCAL_MOVE_H
#define MSDU_LOCAL_MOVE_H

#include <stdbool.h>

#include <msdu/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Is the operation one that a backend must take? Writes the cause if not. */
bool msdu__op_is_valid(const msdu_op *op, char *text, size_t bytes);

/* Do two ranks mean the same operation? */
bool msdu__op_is_equal(const msdu_op *left, const msdu_op *right, int32_t ranks);

/* Is its memory read and written in place: recv alone? */
bool msdu__op_is_in_place(const msdu_op *op);

/* Bytes of one of what `count` counts. */
size_t msdu__op_width(const msdu_op *op);

/* Bytes that a rank's part of it reads and writes. */
uint64_t msdu__op_reads(const msdu_op *op, int32_t rank, int32_t ranks);
uint64_t msdu__op_writes(const msdu_op *op, int32_t rank, int32_t ranks);

/* Its fingerprint, for telling apart ranks that disagree (rank_list.h); never 0. */
uint32_t msdu__op_print(const msdu_op *op, int32_t ranks);

/* Carry an operation out; ops[rank] points at each rank's own description of it. */
void msdu__op_move(const msdu_op *const *ops, int32_t ranks);

#ifdef __cplusplus
}
#endif

#endif
