/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that update one tensor at a time: SGD with momentum, and Adam. */
#ifndef EXAMPLE_OPTIM_H
#define EXAMPLE_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum optim_kind { OPTIM_SGD, OPTIM_ADAM };

struct optim {
    enum optim_kind kind;
    double momentum;     /* SGD */
    bool is_nesterov;    /* SGD */
    double weight_decay; /* SGD: part of the gradient; Adam: decoupled (AdamW) */
    double beta1;        /* Adam */
    double beta2;        /* Adam */
    double epsilon;      /* Adam */
};

struct optim_tensor {
    float *value;
    const float *gradient;
    size_t count;
    float *first;  /* momentum or first moment */
    float *second; /* Adam's second moment, else NULL */
};

/* Allocate the tensor's state. Returns 0, or -1 when out of memory. */
int optim_init(const struct optim *optim, struct optim_tensor *tensor);
void optim_free(struct optim_tensor *tensor);

/* One update; step counts from 1. */
void optim_update(const struct optim *optim, uint64_t step, double lr, struct optim_tensor *tensor);

#endif
