/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that repeat. */
#include "random.h"

#include <math.h>

uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

double random_signed(uint64_t *state)
{
    return (double)(random_next(state) >> 11) / 4503599627370496.0 - 1.0;
}

/* In (0, 1): its logarithm is finite. */
static double positive(uint64_t *state)
{
    return (double)((random_next(state) >> 11) + 1) / 9007199254740993.0;
}

double random_gaussian(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(positive(state)));
    return radius * cos(6.283185307179586 * positive(state));
}
