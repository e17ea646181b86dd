/* SPDX-License-Identifier: Apache-2.0 */
/* Are the results of a method of `msdu bench overlap` right? Compared with arithmetic, with those
 * of blocking steps, and between ranks. */
#include "overlap.h"

#include <math.h>
#include <string.h>

#include "wire/wire.h"

/*
 * Largest error. Gradients: what a format holds back of all steps so far, as a share of the root
 * mean square of a step's true mean; error feedback keeps it from growing with the steps.
 * Parameters: of the largest change.
 */
static double error_limit(const msdu__overlap_method *method)
{
    if (method->kind == MSDU__OVERLAP_LOCAL) {
        return 1e-4;
    }
    if (method->kind == MSDU__OVERLAP_DEFAULTS) {
        return 0.5; /* gradients may have been narrow, whose rest is not sent */
    }
    switch (method->wire) {
    case MSDU__WIRE_INT8:
        return 0.03;
    case MSDU__WIRE_INT4:
        return 0.4;
    case MSDU__WIRE_INT2:
        return 1.2;
    default:
        return 1e-6;
    }
}

static bool is_exact(const msdu__overlap_method *method)
{
    return method->kind == MSDU__OVERLAP_GRADIENT && method->wire == MSDU__WIRE_FLOAT32;
}

/* The first exact method is the blocking one: the others must have its bits. */
static bool is_as_blocking(msdu__overlap_rank *r, uint32_t step)
{
    if (r->reference[step] == 0) {
        r->reference[step] = r->hash[step];
    }
    return r->reference[step] == r->hash[step];
}

static void compare_gradients(msdu__overlap_rank *r)
{
    const msdu__profile *p = &r->plan->profile;
    double held = 0;
    uint64_t count = 0;
    for (uint32_t t = 0; t < p->tensor_count; t++) {
        for (uint64_t i = 0; i < MSDU__OVERLAP_SAMPLE && i < p->tensors[t].count; i++) {
            double e = r->held[(uint64_t)t * MSDU__OVERLAP_SAMPLE + i];
            held += e * e;
            count++;
        }
    }
    double mean_sq = r->received / (double)(r->sampled > 0 ? r->sampled : 1);
    r->error = sqrt(held / (double)(count > 0 ? count : 1) / (mean_sq > 0 ? mean_sq : 1));
}

/* Every rule here keeps the mean over ranks, and all ranks end with it: the start less the mean of
 * all that was subtracted. Relative to the largest change. */
static void compare_parameters(msdu__overlap_rank *r)
{
    const msdu__profile *p = &r->plan->profile;
    double worst = 0;
    double largest = 1e-9;
    for (uint32_t t = 0; t < p->tensor_count; t++) {
        uint64_t most = p->tensors[t].count < 8 ? p->tensors[t].count : 8;
        for (uint64_t i = 0; i < most; i++) {
            double change = 0;
            for (uint64_t step = 0; step < r->step; step++) {
                change += msdu__overlap_sum(&r->values, r->ranks, step, t, i) / r->ranks / 16;
            }
            double start = msdu__overlap_start(&r->values, t, i);
            worst = fmax(worst, fabs((double)r->parameter[t][i] - (start - change)));
            largest = fmax(largest, fabs(change));
        }
        r->hash[0] += msdu__overlap_hash(r->parameter[t], p->tensors[t].count, t);
    }
    r->error = worst / largest;
}

void msdu__overlap_compare(msdu__overlap_rank *r)
{
    if (r->method->kind == MSDU__OVERLAP_GRADIENT) {
        compare_gradients(r);
    } else if (r->ctx != NULL) {
        compare_parameters(r);
    }
}

/* Failed checks: arithmetic on this rank, equal bits on all, and those of blocking steps. */
bool msdu__overlap_check(msdu__overlap_rank *r, msdu__overlap_group *group, double *wrong_out)
{
    double numbers[MSDU__OVERLAP_CHECKS * 4] = {0};
    double own[MSDU__OVERLAP_CHECKS * 4];
    double wrong = r->error <= error_limit(r->method) ? 0 : 1;
    for (uint32_t i = 0; i < MSDU__OVERLAP_CHECKS; i++) {
        for (uint32_t k = 0; k < 4; k++) { /* 16 bits at a time, which every sum holds exactly */
            numbers[i * 4 + k] = (double)(r->hash[i] >> (16 * k) & 0xffff);
        }
        wrong += is_exact(r->method) && !is_as_blocking(r, i) ? 1 : 0;
    }
    memcpy(own, numbers, sizeof(own));
    if (!msdu__overlap_group_sum(group, numbers, MSDU__OVERLAP_CHECKS * 4)) {
        return false;
    }
    for (uint32_t i = 0; i < MSDU__OVERLAP_CHECKS * 4; i++) {
        wrong += numbers[i] != own[i] * r->ranks ? 1 : 0;
    }
    *wrong_out = wrong;
    return true;
}
