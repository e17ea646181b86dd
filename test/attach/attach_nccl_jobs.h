/* SPDX-License-Identifier: Apache-2.0 */
/* What attach_nccl_trainer.c computes on the device, as host functions on its streams. */
#ifndef TEST_ATTACH_NCCL_JOBS_H
#define TEST_ATTACH_NCCL_JOBS_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <nccl.h>

#include "half.h"

#define LAYERS_MAX 4
#define STEPS_MAX  200
#define MOMENTUM   0.9
#define RATE       0.02
#define CAPTURED   5

typedef struct trainer {
    int rank, ranks, steps, layers, local, learned, warmup, seed, at;
    bool nesterov, thaw, reorder, resize, join;
    bool group, streams, moving, apart, mean, late, same, adam, change, freeze, poll;
    bool is_double, is_half, is_bfloat, mixed;
    bool capture, held, open, abort, meet, forks, differ, dies, spike;
    bool is_bad; /* device: the present step is left out */
    size_t count[LAYERS_MAX];
    double *weight[LAYERS_MAX]; /* device, as all below */
    double *velocity[LAYERS_MAX];
    double *second[LAYERS_MAX];
    void *gradient[LAYERS_MAX];
    void *reduced[LAYERS_MAX];
    double *sums; /* of a step: loss and nothing */
    float *norms;
    int *ones;
    float *graphed;
    cudaStream_t stream[2];
    cudaEvent_t event;
    cudaGraphExec_t graph;
    ncclComm_t comm;
    _Atomic int opened;
    int bad;
} trainer;

/* What a piece of work on a stream does; freed by it. */
typedef struct job {
    trainer *t;
    int step, layer;
    void *gradient;
    double scale;
} job;

static void check(int code, const char *what)
{
    if (code != 0 && code != (int)ncclInProgress) {
        (void)fprintf(stderr, "trainer: %s answered %d\n", what, code);
        _exit(3);
    }
}

static void *take(size_t bytes)
{
    void *memory = NULL;
    check((int)cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

static void *take_zeros(size_t bytes)
{
    void *memory = take(bytes);
    memset(memory, 0, bytes);
    return memory;
}

static double noise(unsigned a, unsigned b, unsigned c, unsigned d)
{
    unsigned x = a * 2654435761U ^ b * 2246822519U ^ c * 3266489917U ^ d * 668265263U;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    return (double)(x % 20001) / 10000.0 - 1.0;
}

static cudaStream_t stream_of(const trainer *t, int layer)
{
    return t->stream[t->streams ? layer % 2 : 0];
}

static void enqueue(trainer *t, cudaHostFn_t function, job j)
{
    job *one = malloc(sizeof(*one));
    if (one == NULL) {
        _exit(5);
    }
    *one = j;
    check((int)cudaLaunchHostFunc(stream_of(t, j.layer), function, one), "cudaLaunchHostFunc");
}

/* --- on the device --- */

static ncclDataType_t type_of(const trainer *t, int layer)
{
    bool is_compressed = (t->is_half || t->is_bfloat) && !(t->mixed && layer == 0);
    ncclDataType_t narrow = t->is_half ? ncclFloat16 : ncclBfloat16;
    return is_compressed ? narrow : t->is_double ? ncclFloat64 : ncclFloat32;
}

static size_t width_of(const trainer *t, int layer)
{
    ncclDataType_t type = type_of(t, layer);
    return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2;
}

static double gradient_at(const job *j, size_t i)
{
    ncclDataType_t type = type_of(j->t, j->layer);
    if (type == ncclFloat16 || type == ncclBfloat16) {
        return half_get(type == ncclBfloat16, ((const uint16_t *)j->gradient)[i]);
    }
    return type == ncclFloat64 ? ((double *)j->gradient)[i] : (double)((float *)j->gradient)[i];
}

static void put_gradient(const job *j, size_t i, double x)
{
    ncclDataType_t type = type_of(j->t, j->layer);
    if (type == ncclFloat16 || type == ncclBfloat16) {
        ((uint16_t *)j->gradient)[i] = half_put(type == ncclBfloat16, x);
    } else if (type == ncclFloat64) {
        ((double *)j->gradient)[i] = x;
    } else {
        ((float *)j->gradient)[i] = (float)x;
    }
}

static void backward(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    double loss = 0;
    unsigned rank = t->same ? 0 : (unsigned)t->rank;
    for (size_t i = 0; i < t->count[j->layer]; i++) {
        double target = sin((double)i * 0.1 + j->layer + t->seed) +
                        noise((unsigned)j->step, rank, (unsigned)j->layer, (unsigned)i);
        double error = t->weight[j->layer][i] - target;
        loss += 0.5 * error * error;
        put_gradient(j, i, error * j->scale);
    }
    double *sums = t->sums + (size_t)LAYERS_MAX * 2 * (size_t)j->step;
    sums[j->layer] = loss;
    sums[LAYERS_MAX + j->layer] = 1;
    free(j);
}

static void spoil(void *argument)
{
    job *j = argument;
    double value = j->t->rank == 0 ? 1e30 : (double)INFINITY;
    put_gradient(j, 5, value);
    free(j);
}

/* At layers one after the other. */
static void look(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    t->is_bad = t->is_bad && j->layer > 0;
    for (size_t i = 0; i < t->count[j->layer]; i++) {
        t->is_bad = t->is_bad || !isfinite(gradient_at(j, i));
    }
    free(j);
}

static void update(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    for (size_t i = 0; i < t->count[j->layer] && !t->is_bad; i++) {
        double g = j->scale * gradient_at(j, i);
        double *v = &t->velocity[j->layer][i];
        double *s = &t->second[j->layer][i];
        if (t->adam) {
            *v = 0.9 * *v + 0.1 * g;
            *s = 0.999 * *s + 0.001 * g * g;
            double v_hat = *v / (1 - pow(0.9, j->step + 1));
            double s_hat = *s / (1 - pow(0.999, j->step + 1));
            t->weight[j->layer][i] -= RATE * v_hat / (sqrt(s_hat) + 1e-8);
        } else {
            *v = MOMENTUM * *v + g;
            t->weight[j->layer][i] -= RATE * (t->nesterov ? g + MOMENTUM * *v : *v);
        }
    }
    free(j);
}

static void divide(void *argument)
{
    job *j = argument;
    double *sums = j->gradient;
    for (size_t i = 0; i < j->t->count[j->layer]; i++) {
        sums[i] /= j->t->ranks;
    }
    free(j);
}

static void measure(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    t->norms[j->step] = 0;
    for (size_t i = 0; i < t->count[0]; i++) {
        t->norms[j->step] += (float)(t->weight[0][i] * t->weight[0][i]);
    }
    t->ones[j->step] = t->is_bad ? 1001 : 1;
    free(j);
}

static void pass_gate(void *argument)
{
    job *j = argument;
    while (atomic_load(&j->t->opened) <= j->step) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    free(j);
}

static void fill_graphed(void *argument)
{
    trainer *t = argument;
    for (int i = 0; i < 3001; i++) {
        t->graphed[i] = (float)(t->rank + i % 7);
    }
}

static void check_graphed(void *argument)
{
    trainer *t = argument;
    float ranks = (float)t->ranks;
    for (int i = 0; i < 3001; i++) {
        float once = ranks * (ranks - 1) / 2 + ranks * (float)(i % 7);
        t->bad += t->graphed[i] == once * powf(ranks, CAPTURED - 1) ? 0 : 1;
    }
}

#endif
