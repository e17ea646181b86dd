/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients for `msdu bench overlap`: one Gaussian pattern, read from another place by each rank,
 * step and tensor. */
#include "overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD 65521 /* prime: no block of a wire format begins twice at one place */
#define UNIT   64.0  /* multiples of 1/64 within +-6: sums of 64 ranks are exact in float32 */
#define RATE   0.0625F

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U; /* splitmix64 */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

bool msdu__overlap_values_make(msdu__overlap_values *values)
{
    values->pattern = malloc(PERIOD * sizeof(float));
    for (uint64_t i = 0; values->pattern != NULL && i < PERIOD; i++) {
        double sum = -6; /* of twelve uniform numbers: variance 1 */
        for (uint64_t k = 0; k < 12; k++) {
            sum += (double)(mix(i * 12 + k + 1) >> 11) / 9007199254740992.0;
        }
        values->pattern[i] = (float)(round(sum * UNIT) / UNIT);
    }
    return values->pattern != NULL;
}

void msdu__overlap_values_free(msdu__overlap_values *values)
{
    free(values->pattern);
    values->pattern = NULL;
}

static uint64_t place_of(int32_t rank, uint64_t step, uint32_t tensor)
{
    return mix(((uint64_t)(uint32_t)rank << 48) ^ (step << 20) ^ tensor ^ 0x9e3779b97f4a7c15U) %
           PERIOD;
}

void msdu__overlap_fill(const msdu__overlap_values *values, int32_t rank, uint64_t step,
                        uint32_t tensor, float *out, uint64_t count)
{
    uint64_t from = place_of(rank, step, tensor);
    while (count > 0) {
        uint64_t part = count < PERIOD - from ? count : PERIOD - from;
        memcpy(out, values->pattern + from, part * sizeof(*out));
        out += part;
        count -= part;
        from = 0;
    }
}

void msdu__overlap_apply(float *w, const float *gradient, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        w[i] -= RATE * gradient[i];
    }
}

void msdu__overlap_update(const msdu__overlap_values *values, int32_t rank, uint64_t step,
                          uint32_t tensor, float *w, uint64_t count)
{
    uint64_t from = place_of(rank, step, tensor);
    while (count > 0) {
        uint64_t part = count < PERIOD - from ? count : PERIOD - from;
        msdu__overlap_apply(w, values->pattern + from, part);
        w += part;
        count -= part;
        from = 0;
    }
}

double msdu__overlap_start(const msdu__overlap_values *values, uint32_t tensor, uint64_t element)
{
    return (double)values->pattern[(place_of(-1, 0, tensor) + element) % PERIOD];
}

double msdu__overlap_sum(const msdu__overlap_values *values, int32_t ranks, uint64_t step,
                         uint32_t tensor, uint64_t element)
{
    double sum = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        sum += (double)values->pattern[(place_of(rank, step, tensor) + element) % PERIOD];
    }
    return sum;
}

uint64_t msdu__overlap_hash(const float *values, uint64_t count, uint64_t seed)
{
    uint64_t hash = mix(seed + 1);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        memcpy(&bits, &values[i], sizeof(bits));
        hash = (hash ^ bits) * 1099511628211U; /* FNV-1a, by words */
    }
    return hash;
}
