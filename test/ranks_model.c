/* SPDX-License-Identifier: Apache-2.0 */
/* The toy trainer's model and optimizer: numbers only; what the reference shares with it. */
#include "ranks.h"

#include <math.h>
#include <string.h>

const char *const ranks_overlaps[RANKS_OVERLAPS] = {"backward", "blocking", "delayed", "streamed",
                                                    "auto"};

msdu_config ranks_config(const char *domain, const char *overlap)
{
    return (msdu_config){.domain = domain,
                         .overlap = overlap,
                         .interval = "fixed",
                         .interval_steps = 4,
                         .delay_steps = 2,
                         .fragments = 3,
                         .wire = "float32",
                         .slice_bytes = 4096,
                         .fuse_bytes = 2048,
                         .wire_block = 64,
                         .warmup_steps = 2,
                         .lr = 0.05,
                         .momentum = 0.5};
}

/* A fixed pseudo-random number in -1 .. 1 for each combination of arguments. */
static double noise(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15U + b * 0xbf58476d1ce4e5b9U + c * 0x94d049bb133111ebU;
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93U;
    x ^= x >> 32;
    return (double)(x >> 11) / 4503599627370496.0 - 1.0;
}

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

double ranks_round(int32_t dtype, double x)
{
    switch (dtype) {
    case MSDU_FLOAT64:
        return x;
    case MSDU_FLOAT32:
        return (double)(float)x;
    case MSDU_FLOAT16:
        return round_binary(x, 11, ldexp(1.0, -24));
    default:
        return round_binary(x, 8, ldexp(1.0, -133));
    }
}

static double from_half(uint16_t bits)
{
    double mantissa = bits & 0x3ffU;
    int exponent = (bits >> 10) & 0x1f;
    double magnitude = exponent == 31  ? (mantissa > 0 ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(1024.0 + mantissa, exponent - 25);
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

static uint16_t to_half(double x)
{
    unsigned sign = signbit(x) ? 0x8000U : 0;
    double magnitude = fabs(ranks_round(MSDU_FLOAT16, x));
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

double ranks_get(int32_t dtype, const void *array, uint64_t i)
{
    float single = 0;
    uint32_t bits = 0;
    switch (dtype) {
    case MSDU_FLOAT64:
        return ((const double *)array)[i];
    case MSDU_FLOAT32:
        return (double)((const float *)array)[i];
    case MSDU_FLOAT16:
        return from_half(((const uint16_t *)array)[i]);
    default:
        bits = (uint32_t)((const uint16_t *)array)[i] << 16;
        memcpy(&single, &bits, sizeof(single));
        return (double)single;
    }
}

void ranks_put(int32_t dtype, void *array, uint64_t i, double value)
{
    float single = (float)ranks_round(dtype, value);
    uint32_t bits = 0;
    switch (dtype) {
    case MSDU_FLOAT64:
        ((double *)array)[i] = value;
        break;
    case MSDU_FLOAT32:
        ((float *)array)[i] = single;
        break;
    case MSDU_FLOAT16:
        ((uint16_t *)array)[i] = to_half(value);
        break;
    default:
        memcpy(&bits, &single, sizeof(bits));
        ((uint16_t *)array)[i] = (uint16_t)(bits >> 16);
        break;
    }
}

double ranks_initial(const ranks_job *job, int rank, int32_t dtype, uint64_t at)
{
    return ranks_round(dtype, noise(at, 1, job->starts_apart ? (uint64_t)rank : 0));
}

double ranks_gradient(const ranks_job *job, int rank, int step, int32_t dtype, uint64_t at,
                      double parameter)
{
    double target = noise(at, 2, (uint64_t)rank);
    if (job->has_constant_gradient) {
        return ranks_round(dtype, target);
    }
    double slope = 1.5 + noise(at, 3, 0);
    double wind = 0.1 * noise(at, 4 + (uint64_t)rank, (uint64_t)step);
    return ranks_round(dtype, slope * (parameter - target) + wind);
}

double ranks_state(int rank, int step, int32_t dtype, uint64_t at, double state)
{
    return ranks_round(dtype, 0.9 * state + noise(at, 20 + (uint64_t)rank, (uint64_t)step));
}

double ranks_lr(const ranks_job *job, int step)
{
    return job->lr_at != NULL ? job->lr_at(job, step) : job->config.lr;
}

double ranks_weight(const ranks_job *job, int rank, int step)
{
    return job->weight_at != NULL ? job->weight_at(job, rank, step) : 1.0;
}

double ranks_update(const ranks_job *job, int step, int32_t dtype, double parameter,
                    double gradient, double *velocity)
{
    const msdu_config *c = &job->config;
    bool is_nesterov = c->nesterov != NULL && strcmp(c->nesterov, "yes") == 0;
    double input = gradient + c->weight_decay * parameter;
    *velocity = isnan(*velocity) ? input : c->momentum * *velocity + (1.0 - c->dampening) * input;
    double direction = is_nesterov ? input + c->momentum * *velocity : *velocity;
    return ranks_round(dtype, parameter - ranks_lr(job, step) * direction);
}
