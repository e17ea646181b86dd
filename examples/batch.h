/* SPDX-License-Identifier: Apache-2.0 */
/* Which sample is seen by which rank in which step: one seeded shuffle per epoch, cut in rows. */
#ifndef EXAMPLE_BATCH_H
#define EXAMPLE_BATCH_H

#include "idx.h"

/* Next number of a small reproducible generator (splitmix64). */
uint64_t random_next(uint64_t *state);
/* Uniform in [0, 1). */
double random_real(uint64_t *state);

/* Fill order with 0 .. count - 1, shuffled by seed and epoch alone: equal on all ranks. */
void batch_shuffle(uint64_t seed, uint64_t epoch, uint32_t *order, size_t count);

/* Steps of an epoch; the ragged end is dropped, so that all ranks step equally often. */
size_t batch_steps(size_t samples, size_t ranks, size_t rows);

/* First place in the order for this rank in this step of the epoch. */
size_t batch_first(size_t step, size_t rank, size_t ranks, size_t rows);

/* Copy rows samples of the set, order[0 .. rows - 1], next to each other. */
void batch_gather(const struct idx_set *set, const uint32_t *order, size_t rows, float *images_out,
                  uint8_t *labels_out);

#endif
