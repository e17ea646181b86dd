/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench overlap`: one training step of the profile on one rank. */
#include "overlap.h"

#include <math.h>
#include <time.h>

#include "wire/wire.h"

#define NOT_BLOCKED_NS 20000.0 /* a wait that took less did not hold the device up */

/* --- computing --- */

static double thread_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (double)spent.tv_sec * 1e9 + (double)spent.tv_nsec;
}

/* A GPU's: its queue runs ahead, so the next operation begins when the one before ends, however
 * late this thread wakes up. */
static void sleep_until(double due_ns)
{
    struct timespec due = {.tv_sec = (time_t)(due_ns / 1e9)};
    due.tv_nsec = (long)(due_ns - (double)due.tv_sec * 1e9);
    while (msdu__bench_now() < due_ns) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
}

/* A CPU's: takes what other threads would like to have. */
static void spin(double from_thread_ns, double lasts_ns)
{
    while (thread_ns() - from_thread_ns < lasts_ns) {
    }
}

static void note_span(const msdu__overlap_rank *r, const char *pass, uint32_t layer,
                      const double ends_ns[2])
{
    if (r->spans != NULL) {
        fprintf(r->spans,
                ",\n{\"ph\":\"X\",\"cat\":\"compute\",\"name\":\"%s %s\",\"pid\":%d,\"tid\":0,"
                "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%llu,\"layer\":%u}}",
                pass, r->plan->profile.layers[layer].name, (int)r->rank,
                (ends_ns[0] - r->spans_from_ns) / 1e3, (ends_ns[1] - ends_ns[0]) / 1e3,
                (unsigned long long)r->step, layer);
    }
}

static void make_values(msdu__overlap_rank *r, uint32_t layer);

/* One pass over a layer. What this thread itself has to do meanwhile is a part of it. */
static void compute(msdu__overlap_rank *r, uint32_t layer, bool is_backward)
{
    const msdu__profile_layer *l = &r->plan->profile.layers[layer];
    double lasts_ns = is_backward ? l->backward_ns : l->forward_ns;
    double from_thread = r->plan->is_spinning ? thread_ns() : 0;
    double ends[2] = {r->due_ns, 0};
    if (is_backward) {
        make_values(r, layer);
    }
    if (r->plan->is_spinning) {
        spin(from_thread, lasts_ns);
        r->due_ns = msdu__bench_now();
    } else {
        r->due_ns += lasts_ns;
        sleep_until(r->due_ns);
    }
    ends[1] = r->due_ns;
    note_span(r, is_backward ? "B" : "F", layer, ends);
}

/* --- values --- */

static bool has_gradients(const msdu__overlap_rank *r)
{
    return r->method->kind == MSDU__OVERLAP_GRADIENT || r->method->kind == MSDU__OVERLAP_DEFAULTS;
}

/* Gradients of a layer, written anew as a backward pass does; parameters of local steps move. Under
 * the defaults the optimizer is a step behind, so that its time, too, is part of the computing. */
static void make_values(msdu__overlap_rank *r, uint32_t layer)
{
    const msdu__profile *p = &r->plan->profile;
    const msdu__profile_layer *l = &p->layers[layer];
    for (uint32_t t = l->first_tensor; t < l->first_tensor + l->tensor_count; t++) {
        uint64_t count = p->tensors[t].count;
        if (r->method->kind == MSDU__OVERLAP_DEFAULTS && r->step > 0) {
            msdu__overlap_apply(r->parameter[t], r->gradient[t], count);
        }
        if (r->method->kind == MSDU__OVERLAP_LOCAL) {
            msdu__overlap_update(&r->values, r->rank, r->step, t, r->parameter[t], count);
        } else {
            msdu__overlap_fill(&r->values, r->rank, r->step, t, r->gradient[t], count);
        }
    }
}

/* A mean gradient has come: into the hash, and compared with arithmetic. */
static void check_tensor(msdu__overlap_rank *r, uint32_t tensor, uint64_t step)
{
    if (step >= MSDU__OVERLAP_CHECKS || r->method->kind != MSDU__OVERLAP_GRADIENT) {
        return;
    }
    uint64_t count = r->plan->profile.tensors[tensor].count;
    const float *gradient = r->gradient[tensor];
    double *held = r->held + (uint64_t)tensor * MSDU__OVERLAP_SAMPLE;
    r->hash[step] += msdu__overlap_hash(gradient, count, tensor);
    for (uint64_t i = 0; i < MSDU__OVERLAP_SAMPLE && i < count; i++) {
        double mean = msdu__overlap_sum(&r->values, r->ranks, step, tensor, i) / r->ranks;
        held[i] = (step > 0 ? held[i] : 0) + (double)gradient[i] - mean;
        r->received += mean * mean;
        r->sampled++;
    }
}

/* --- a step --- */

/* Before F of a layer: what it needs has come. */
static bool wait_for_layer(msdu__overlap_rank *r, uint32_t layer)
{
    const msdu__profile_layer *l = &r->plan->profile.layers[layer];
    bool is_gradient = r->method->kind == MSDU__OVERLAP_GRADIENT;
    if (r->ctx == NULL || (is_gradient && (!r->method->is_free || r->step == 0))) {
        return true;
    }
    for (uint32_t t = l->first_tensor; t < l->first_tensor + l->tensor_count; t++) {
        msdu_what what = is_gradient ? MSDU_GRADIENT : MSDU_PARAMETER;
        if (msdu_tensor_wait(r->ctx, t, what) != MSDU_OK) {
            return false;
        }
        if (is_gradient) {
            check_tensor(r, t, r->step - 1);
        }
    }
    return true;
}

/* The device stood still while this thread was blocked. */
static void resume(msdu__overlap_rank *r, double began_ns)
{
    double now = msdu__bench_now();
    if (now - began_ns > NOT_BLOCKED_NS && now > r->due_ns) {
        r->due_ns = now;
    }
}

static bool announce_layer(msdu__overlap_rank *r, uint32_t layer)
{
    const msdu__profile_layer *l = &r->plan->profile.layers[layer];
    bool is_done = true;
    for (uint32_t t = l->first_tensor; t < l->first_tensor + l->tensor_count; t++) {
        if (has_gradients(r)) {
            is_done = is_done && msdu_tensor_ready(r->ctx, t, MSDU_GRADIENT) == MSDU_OK;
        }
        if (r->method->kind != MSDU__OVERLAP_GRADIENT) {
            is_done = is_done && msdu_tensor_ready(r->ctx, t, MSDU_PARAMETER) == MSDU_OK;
        }
    }
    return is_done;
}

/* The barrier behind the backward pass. */
static bool wait_for_all(msdu__overlap_rank *r)
{
    if (!has_gradients(r) || r->method->is_free) {
        return true;
    }
    if (msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT) != MSDU_OK) {
        return false;
    }
    for (uint32_t t = 0; t < r->plan->profile.tensor_count; t++) {
        check_tensor(r, t, r->step);
    }
    return true;
}

static bool end_step(msdu__overlap_rank *r)
{
    double began = msdu__bench_now();
    if (r->ctx != NULL && (!wait_for_all(r) || msdu_step(r->ctx) != MSDU_OK)) {
        return false;
    }
    resume(r, began);
    r->step++;
    return true;
}

bool msdu__overlap_step(msdu__overlap_rank *r)
{
    uint32_t layers = r->plan->profile.layer_count;
    /* what this thread was late is never made up for in a later step, which would be too short */
    r->due_ns = fmax(r->due_ns, msdu__bench_now());
    for (uint32_t l = 0; l < layers; l++) {
        double began = msdu__bench_now();
        if (!wait_for_layer(r, l)) {
            return false;
        }
        resume(r, began);
        compute(r, l, false);
    }
    for (uint32_t l = layers; l-- > 0;) {
        compute(r, l, true);
        if (r->ctx != NULL && !announce_layer(r, l)) {
            return false;
        }
    }
    return end_step(r);
}

bool msdu__overlap_last(msdu__overlap_rank *r)
{
    const msdu__profile *p = &r->plan->profile;
    bool is_gradient = r->method->kind == MSDU__OVERLAP_GRADIENT;
    if (r->ctx == NULL || (is_gradient && !r->method->is_free)) {
        return true;
    }
    for (uint32_t t = 0; t < p->tensor_count; t++) {
        if (msdu_tensor_wait(r->ctx, t, is_gradient ? MSDU_GRADIENT : MSDU_PARAMETER) != MSDU_OK) {
            return false;
        }
        if (is_gradient) {
            check_tensor(r, t, r->step - 1);
        }
        if (r->method->kind == MSDU__OVERLAP_DEFAULTS) {
            msdu__overlap_apply(r->parameter[t], r->gradient[t], p->tensors[t].count);
        }
    }
    return true;
}
