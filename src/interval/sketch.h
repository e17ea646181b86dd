/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sketch: 64 random projections of a vector, small enough to ride in a statistics message; what is
 * learned from those of all ranks. The projecting is a loop over arrays (correct/vec.h). Pure.
 *
 * With a compressed wire the mean that arrives holds the quantization noise of all ranks; drift
 * measured on it would make the controller steer by its own noise. Sketches are taken before
 * quantization, and the mean of |s_i - mean(s)|^2 over ranks estimates the drift variance without
 * bias (Alon, Matias and Szegedy 1996; FDA, arXiv 2405.20988, measures model variance with the same
 * tool).
 */
#ifndef MSDU_SKETCH_H
#define MSDU_SKETCH_H

#include <stdint.h>

#define MSDU__SKETCH 64 /* projections: relative error about sqrt(2 / 64) for one rank */

/* Weighted mean over ranks of |s_i - mean(s)|^2; sketch and weight of rank i are i * stride bytes
 * behind those of rank 0. The sum of weights is above 0. */
double msdu__sketch_variance(const float *sketch, const double *weight, uint64_t stride,
                             int32_t ranks);

#endif
