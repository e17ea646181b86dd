/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floating point numbers for tests, by arithmetic in double; slow, and nobody's but theirs.
 */
#ifndef TEST_HALF_H
#define TEST_HALF_H

#include <stdbool.h>
#include <stdint.h>

/* x with the precision of bfloat16, else float16; half to even. */
double half_round(bool is_bfloat, double x);
double half_get(bool is_bfloat, uint16_t bits);
uint16_t half_put(bool is_bfloat, double x);

#endif
