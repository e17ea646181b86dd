/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings in which one rank has a bad gradient in one step. */
#ifndef TEST_POISON_H
#define TEST_POISON_H

#include "ranks.h"

#define POISON_TENSORS 6

typedef struct poison {
    int rank;
    int step;
    uint32_t tensor; /* its last element */
    double value;
    bool is_spike; /* other ranks have a huge finite value there, in another block */
} poison;

/* Three ranks, gradients in this wire; the trainer's `goes_on` or `looks` is still to be said. */
ranks_job poison_job(poison *p, const char *check_finite, const char *wire);

#endif
