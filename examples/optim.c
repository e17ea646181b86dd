/* SPDX-License-Identifier: Apache-2.0 */
/* SGD with momentum and Adam, one pass over a tensor. */
#include "optim.h"

#include <math.h>
#include <stdlib.h>

int optim_init(const struct optim *optim, struct optim_tensor *tensor)
{
    tensor->first = calloc(tensor->count, sizeof(float));
    if (tensor->first == NULL) {
        return -1;
    }
    if (optim->kind == OPTIM_ADAM) {
        tensor->second = calloc(tensor->count, sizeof(float));
    }
    return optim->kind == OPTIM_ADAM && tensor->second == NULL ? -1 : 0;
}

void optim_free(struct optim_tensor *tensor)
{
    free(tensor->first);
    free(tensor->second);
    tensor->first = NULL;
    tensor->second = NULL;
}

static void sgd(const struct optim *optim, double lr, struct optim_tensor *tensor)
{
    float *restrict value = tensor->value;
    float *restrict trace = tensor->first;
    const float *restrict gradient = tensor->gradient;
    const float rate = (float)lr;
    const float mu = (float)optim->momentum;
    const float decay = (float)optim->weight_decay;
    /* Nesterov looks ahead by mu * trace and keeps the plain gradient beside it. */
    const float ahead = optim->is_nesterov ? mu : 1;
    const float plain = optim->is_nesterov ? 1 : 0;

    for (size_t i = 0; i < tensor->count; i++) {
        const float g = gradient[i] + decay * value[i];

        trace[i] = mu * trace[i] + g;
        value[i] -= rate * (ahead * trace[i] + plain * g);
    }
}

static void adam(const struct optim *optim, uint64_t step, double lr, struct optim_tensor *tensor)
{
    float *restrict value = tensor->value;
    float *restrict first = tensor->first;
    float *restrict second = tensor->second;
    const float *restrict gradient = tensor->gradient;
    const float b1 = (float)optim->beta1;
    const float b2 = (float)optim->beta2;
    const float epsilon = (float)optim->epsilon;
    const float shrink = (float)(1 - lr * optim->weight_decay);
    const float rate = (float)(lr / (1 - pow(optim->beta1, (double)step)));
    const float scale = (float)(1 / (1 - pow(optim->beta2, (double)step)));

    for (size_t i = 0; i < tensor->count; i++) {
        const float g = gradient[i];

        first[i] = b1 * first[i] + (1 - b1) * g;
        second[i] = b2 * second[i] + (1 - b2) * g * g;
        value[i] = shrink * value[i] - rate * first[i] / (sqrtf(second[i] * scale) + epsilon);
    }
}

void optim_update(const struct optim *optim, uint64_t step, double lr, struct optim_tensor *tensor)
{
    if (optim->kind == OPTIM_ADAM) {
        adam(optim, step, lr, tensor);
    } else {
        sgd(optim, lr, tensor);
    }
}
