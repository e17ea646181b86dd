/* SPDX-License-Identifier: Apache-2.0 */
/* Sketch: 64 random projections of a vector. Pure: no I/O, locks, clock, allocation, globals. */
#include "sketch.h"

#include <string.h>

/* splitmix64 (Steele, Lea and Flood 2014): 64 independent signs for a block of 64 elements. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static float with_sign(float value, uint32_t is_negative)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    bits ^= is_negative << 31;
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

void msdu__sketch_add(const float *x, uint64_t count, uint64_t seed, float *sketch)
{
    uint64_t block = 0;
    uint64_t signs = 0;
    uint64_t key = mix(seed);
    for (; (block + 1) * MSDU__SKETCH <= count; block++) {
        const float *at = x + block * MSDU__SKETCH;
        signs = mix(key + block);
        uint32_t low = (uint32_t)signs;
        uint32_t high = (uint32_t)(signs >> 32);
        for (uint32_t k = 0; k < 32; k++) {
            sketch[k] += with_sign(at[k], low >> k & 1U);
        }
        for (uint32_t k = 0; k < 32; k++) {
            sketch[32 + k] += with_sign(at[32 + k], high >> k & 1U);
        }
    }
    signs = mix(key + block);
    for (uint64_t i = block * MSDU__SKETCH; i < count; i++) {
        uint64_t k = i % MSDU__SKETCH;
        sketch[k] += with_sign(x[i], (uint32_t)(signs >> k) & 1U);
    }
}

static double float_at(const void *first, uint64_t bytes)
{
    float value = 0;
    memcpy(&value, (const char *)first + bytes, sizeof(value));
    return (double)value;
}

static double double_at(const void *first, uint64_t bytes)
{
    double value = 0;
    memcpy(&value, (const char *)first + bytes, sizeof(value));
    return value;
}

double msdu__sketch_variance(const float *sketch, const double *weight, uint64_t stride,
                             int32_t ranks)
{
    double sum = 0;
    double weights = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        weights += double_at(weight, (uint64_t)rank * stride);
    }
    for (uint32_t k = 0; k < MSDU__SKETCH; k++) {
        double mean = 0;
        double square = 0;
        for (int32_t rank = 0; rank < ranks; rank++) {
            double share = double_at(weight, (uint64_t)rank * stride);
            double value = float_at(sketch + k, (uint64_t)rank * stride);
            mean += share * value / weights;
            square += share * (value * value) / weights;
        }
        sum += square - mean * mean;
    }
    return sum > 0 ? sum : 0;
}
