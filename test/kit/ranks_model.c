/* SPDX-License-Identifier: Apache-2.0 */
/* The toy trainer's model and optimizer: numbers only; what the reference shares with it. */
#include "ranks.h"

#include <math.h>
#include <string.h>

#include "half.h"

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

double ranks_round(int32_t dtype, double x)
{
    switch (dtype) {
    case MSDU_FLOAT64:
        return x;
    case MSDU_FLOAT32:
        return (double)(float)x;
    default:
        return half_round(dtype == MSDU_BFLOAT16, x);
    }
}

double ranks_get(int32_t dtype, const void *array, uint64_t i)
{
    switch (dtype) {
    case MSDU_FLOAT64:
        return ((const double *)array)[i];
    case MSDU_FLOAT32:
        return (double)((const float *)array)[i];
    default:
        return half_get(dtype == MSDU_BFLOAT16, ((const uint16_t *)array)[i]);
    }
}

void ranks_put(int32_t dtype, void *array, uint64_t i, double value)
{
    switch (dtype) {
    case MSDU_FLOAT64:
        ((double *)array)[i] = value;
        break;
    case MSDU_FLOAT32:
        ((float *)array)[i] = (float)value;
        break;
    default:
        ((uint16_t *)array)[i] = half_put(dtype == MSDU_BFLOAT16, value);
        break;
    }
}

double ranks_initial(const ranks_job *job, int rank, int32_t dtype, uint64_t at)
{
    double x = noise(at, 1, job->starts_apart ? (uint64_t)rank : 0);
    return ranks_round(dtype, job->is_dyadic ? round(64 * x) / 64 : x);
}

double ranks_gradient(const ranks_job *job, int rank, int step, int32_t dtype, uint64_t at,
                      double parameter)
{
    double target = noise(at, 2, (uint64_t)rank);
    if (job->has_constant_gradient) {
        return ranks_round(dtype, target);
    }
    if (job->is_dyadic) {
        return ranks_round(dtype, round(8 * noise(at, 4 + (uint64_t)rank, (uint64_t)step)) / 8);
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
