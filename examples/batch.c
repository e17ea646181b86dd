/* SPDX-License-Identifier: Apache-2.0 */
/* Shuffle, sharding over ranks, and gathering of a batch. */
#include "batch.h"

#include <string.h>

uint64_t random_next(uint64_t *state)
{
    uint64_t z;

    *state += UINT64_C(0x9E3779B97F4A7C15);
    z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

double random_real(uint64_t *state)
{
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

void batch_shuffle(uint64_t seed, uint64_t epoch, uint32_t *order, size_t count)
{
    uint64_t state = seed;

    state = random_next(&state) ^ epoch; /* neighboring seeds must not share epochs */
    for (size_t i = 0; i < count; i++) {
        const size_t j = (size_t)(random_real(&state) * (double)(i + 1));

        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

size_t batch_steps(size_t samples, size_t ranks, size_t rows)
{
    return samples / (ranks * rows);
}

size_t batch_first(size_t step, size_t rank, size_t ranks, size_t rows)
{
    return (step * ranks + rank) * rows;
}

void batch_gather(const struct idx_set *set, const uint32_t *order, size_t rows, float *images_out,
                  uint8_t *labels_out)
{
    for (size_t i = 0; i < rows; i++) {
        memcpy(images_out + i * set->pixels, set->images + order[i] * set->pixels,
               set->pixels * sizeof(float));
        labels_out[i] = set->labels[order[i]];
    }
}
