/* SPDX-License-Identifier: Apache-2.0 */
/* The toy model of fault_rank: a few tensors, gradients from numbers alone, SGD with momentum. */
#ifndef TEST_FAULT_MODEL_H
#define TEST_FAULT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define FAULT_TENSORS  5
#define FAULT_LR       0.125F
#define FAULT_MOMENTUM 0.5F

typedef struct fault_model {
    float *parameter[FAULT_TENSORS];
    float *gradient[FAULT_TENSORS];
    float *velocity[FAULT_TENSORS];
    float *copy[FAULT_TENSORS]; /* of the parameters, as this rank last made or received them */
} fault_model;

/* Elements of a tensor. */
uint64_t fault_model_count(uint64_t tensor);
/* Equal parameters on all ranks. False: no memory. */
bool fault_model_make(fault_model *model);
void fault_model_free(fault_model *model);
/* Gradients of a step, other ones on every rank. */
void fault_model_gradients(fault_model *model, int rank, int step);
/* Step one tensor; the copy follows. */
void fault_model_update(fault_model *model, uint64_t tensor);
/* copy <- parameters */
void fault_model_keep(const fault_model *model);
/* Are the parameters the copy, bit by bit? */
bool fault_model_is_kept(const fault_model *model);
/* Go on with a hash over all parameters. */
uint64_t fault_model_hash(const fault_model *model, uint64_t hash);

/* The number behind `key` of an argument "key=number"; otherwise: another argument. */
int fault_number(const char *word, const char *key, int otherwise);

#endif
