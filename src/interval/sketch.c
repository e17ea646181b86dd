/* SPDX-License-Identifier: Apache-2.0 */
/* Sketch: 64 random projections of a vector. Pure: no I/O, locks, clock, allocation, globals. */
#include "sketch.h"

#include <string.h>

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
