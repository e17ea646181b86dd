/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that repeat. */
#ifndef TEST_RANDOM_H
#define TEST_RANDOM_H

#include <stdint.h>

/* Xorshift: the next of 2^64 - 1 numbers; the state is never 0. */
uint64_t random_next(uint64_t *state);
/* Uniform in [-1, 1). */
double random_signed(uint64_t *state);
/* Normal, of mean 0 and variance 1. */
double random_gaussian(uint64_t *state);

#endif
