/* SPDX-License-Identifier: Apache-2.0 */
/* The toy model of fault_rank; no call of the library. */
#include "fault_model.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t counts[FAULT_TENSORS] = {700, 33, 1500, 8, 260};

/* Between -1 and 1. */
static float noise(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xc2b2ae3d27d4eb4fULL + c * 0x165667b19e3779f9ULL;
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    return (float)(x >> 40) / 8388608.0F - 1.0F;
}

uint64_t fault_model_count(uint64_t tensor)
{
    return counts[tensor];
}

static bool make_tensor(fault_model *model, uint64_t t)
{
    model->parameter[t] = calloc(counts[t], sizeof(float));
    model->gradient[t] = calloc(counts[t], sizeof(float));
    model->velocity[t] = calloc(counts[t], sizeof(float));
    model->copy[t] = calloc(counts[t], sizeof(float));
    return model->parameter[t] != NULL && model->gradient[t] != NULL &&
           model->velocity[t] != NULL && model->copy[t] != NULL;
}

bool fault_model_make(fault_model *model)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        if (!make_tensor(model, t)) {
            return false;
        }
        for (uint64_t i = 0; i < counts[t]; i++) {
            model->parameter[t][i] = noise(t, i, 5);
        }
    }
    fault_model_keep(model);
    return true;
}

void fault_model_free(fault_model *model)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        free(model->parameter[t]);
        free(model->gradient[t]);
        free(model->velocity[t]);
        free(model->copy[t]);
    }
}

void fault_model_gradients(fault_model *model, int rank, int step)
{
    uint64_t seed = (uint64_t)rank * 1000 + (uint64_t)step + 1;
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) {
            float target = noise(t, i, (uint64_t)rank + 77);
            model->gradient[t][i] =
                0.5F * (model->parameter[t][i] - target) + 0.125F * noise(seed, t, i);
        }
    }
}

void fault_model_update(fault_model *model, uint64_t t)
{
    for (uint64_t i = 0; i < counts[t]; i++) {
        model->velocity[t][i] = FAULT_MOMENTUM * model->velocity[t][i] + model->gradient[t][i];
        model->parameter[t][i] -= FAULT_LR * model->velocity[t][i];
    }
    memcpy(model->copy[t], model->parameter[t], counts[t] * sizeof(float));
}

void fault_model_keep(const fault_model *model)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        memcpy(model->copy[t], model->parameter[t], counts[t] * sizeof(float));
    }
}

bool fault_model_is_kept(const fault_model *model)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        if (memcmp(model->copy[t], model->parameter[t], counts[t] * sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

uint64_t fault_model_hash(const fault_model *model, uint64_t hash)
{
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        const unsigned char *bytes = (const unsigned char *)model->parameter[t];
        for (uint64_t i = 0; i < counts[t] * sizeof(float); i++) {
            hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
        }
    }
    return hash;
}

int fault_number(const char *word, const char *key, int otherwise)
{
    size_t length = strlen(key);
    return strncmp(word, key, length) == 0 ? (int)strtol(word + length, NULL, 10) : otherwise;
}
