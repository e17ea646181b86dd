/* SPDX-License-Identifier: Apache-2.0 */
/* Data of one collective operation moved between the ranks of a process. Pure. */
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

/* Carry an operation out; ops[rank] points at each rank's own description of it. */
void msdu__op_move(const msdu_op *const *ops, int32_t ranks);

#ifdef __cplusplus
}
#endif

#endif
