/* SPDX-License-Identifier: Apache-2.0 */
#include "half.h"

#include <math.h>
#include <string.h>

/* Round to `bits` of precision, no finer than `least`. */
static double round_binary(double x, int bits, double least)
{
    int exponent = 0;
    if (x == 0 || !isfinite(x)) {
        return x;
    }
    (void)frexp(x, &exponent);
    double unit = ldexp(1.0, exponent - bits);
    unit = unit > least ? unit : least;
    return nearbyint(x / unit) * unit;
}

double half_round(bool is_bfloat, double x)
{
    return is_bfloat ? round_binary(x, 8, ldexp(1.0, -133)) : round_binary(x, 11, ldexp(1.0, -24));
}

static double from_float16(uint16_t bits)
{
    double mantissa = bits & 0x3ffU;
    int exponent = (bits >> 10) & 0x1f;
    double magnitude = exponent == 31  ? (mantissa > 0 ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(1024.0 + mantissa, exponent - 25);
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

static uint16_t to_float16(double x)
{
    unsigned sign = signbit(x) ? 0x8000U : 0;
    double magnitude = fabs(half_round(false, x));
    int exponent = 0;
    if (isnan(magnitude) || magnitude >= 65536.0) {
        return (uint16_t)(sign | (isnan(magnitude) ? 0x7e00U : 0x7c00U));
    }
    if (magnitude < ldexp(1.0, -14)) {
        return (uint16_t)(sign | (unsigned)ldexp(magnitude, 24));
    }
    double fraction = frexp(magnitude, &exponent);
    unsigned mantissa = (unsigned)ldexp(fraction, 11) & 0x3ffU;
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 | mantissa);
}

double half_get(bool is_bfloat, uint16_t bits)
{
    float single = 0;
    uint32_t wide = (uint32_t)bits << 16;
    memcpy(&single, &wide, sizeof(single));
    return is_bfloat ? (double)single : from_float16(bits);
}

uint16_t half_put(bool is_bfloat, double x)
{
    float single = (float)half_round(is_bfloat, x);
    uint32_t bits = 0;
    memcpy(&bits, &single, sizeof(bits));
    return is_bfloat ? (uint16_t)(bits >> 16) : to_float16(x);
}
