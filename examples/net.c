/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward pass in plain loops whose inner ones run over contiguous memory. */
#include "net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

static float *floats(size_t count)
{
    return calloc(count, sizeof(float));
}

/* Uniform with variance 2 / inputs (He et al. 2015), which keeps signals alive through ReLUs. */
static void draw_weights(struct net_layer *layer, uint64_t *state)
{
    const double limit = sqrt(6.0 / (double)layer->inputs);

    for (size_t i = 0; i < layer->inputs * layer->outputs; i++) {
        layer->weight[i] = (float)((2.0 * random_real(state) - 1.0) * limit);
    }
}

int net_init(struct net *net, const size_t *sizes, size_t layer_count, size_t rows, uint64_t seed)
{
    uint64_t state = seed;

    memset(net, 0, sizeof(*net));
    net->layer_count = layer_count;
    net->rows = rows;
    for (size_t l = 0; l < layer_count; l++) {
        struct net_layer *layer = &net->layers[l];

        layer->inputs = sizes[l];
        layer->outputs = sizes[l + 1];
        layer->weight = floats(layer->inputs * layer->outputs);
        layer->weight_gradient = floats(layer->inputs * layer->outputs);
        layer->bias = floats(layer->outputs);
        layer->bias_gradient = floats(layer->outputs);
        layer->output = floats(rows * layer->outputs);
        layer->error = floats(rows * layer->outputs);
        if (layer->weight == NULL || layer->weight_gradient == NULL || layer->bias == NULL ||
            layer->bias_gradient == NULL || layer->output == NULL || layer->error == NULL) {
            return -1;
        }
        draw_weights(layer, &state);
    }
    return 0;
}

void net_free(struct net *net)
{
    for (size_t l = 0; l < net->layer_count; l++) {
        struct net_layer *layer = &net->layers[l];

        free(layer->weight);
        free(layer->weight_gradient);
        free(layer->bias);
        free(layer->bias_gradient);
        free(layer->output);
        free(layer->error);
    }
    memset(net, 0, sizeof(*net));
}

/*
 * sum[0 .. n) += factor[k * stride] * row k of rows, for k in 0 .. count. Four rows at a time, so
 * that sum is loaded and stored once for four multiplications.
 */
static void add_rows(float *restrict sum, size_t n, const float *restrict rows, size_t count,
                     const float *restrict factor, size_t stride)
{
    size_t k = 0;

    for (; k + 4 <= count; k += 4) {
        const float *restrict row = rows + k * n;
        const float *restrict f = factor + k * stride;
        const float f0 = f[0], f1 = f[stride], f2 = f[2 * stride], f3 = f[3 * stride];

        for (size_t j = 0; j < n; j++) {
            sum[j] += (f0 * row[j] + f1 * row[n + j]) + (f2 * row[2 * n + j] + f3 * row[3 * n + j]);
        }
    }
    for (; k < count; k++) {
        for (size_t j = 0; j < n; j++) {
            sum[j] += factor[k * stride] * rows[k * n + j];
        }
    }
}

/* Eight sums side by side: a compiler may not reorder one float sum to make it a vector's. */
static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    float part[8] = {0};
    float rest = 0;
    size_t j = 0;

    for (; j + 8 <= n; j += 8) {
        for (size_t k = 0; k < 8; k++) {
            part[k] += a[j + k] * b[j + k];
        }
    }
    for (; j < n; j++) {
        rest += a[j] * b[j];
    }
    return ((part[0] + part[4]) + (part[1] + part[5])) +
           ((part[2] + part[6]) + (part[3] + part[7])) + rest;
}

static const float *input_of(const struct net *net, size_t layer, const float *images)
{
    return layer == 0 ? images : net->layers[layer - 1].output;
}

static void relu(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = values[i] > 0 ? values[i] : 0;
    }
}

void net_forward(struct net *net, size_t layer, const float *images)
{
    struct net_layer *self = &net->layers[layer];
    const float *input = input_of(net, layer, images);

    for (size_t r = 0; r < net->rows; r++) {
        float *output = self->output + r * self->outputs;

        memcpy(output, self->bias, self->outputs * sizeof(float));
        add_rows(output, self->outputs, self->weight, self->inputs, input + r * self->inputs, 1);
    }
    if (layer + 1 < net->layer_count) {
        relu(self->output, net->rows * self->outputs);
    }
}

/* Softmax and cross entropy of one row; error = (probability - truth) / rows. */
static double row_loss(const float *output, float *error, size_t n, size_t label, size_t rows)
{
    double largest = (double)output[0];
    double sum = 0;

    for (size_t j = 1; j < n; j++) {
        largest = fmax(largest, (double)output[j]);
    }
    for (size_t j = 0; j < n; j++) {
        sum += exp((double)output[j] - largest);
    }
    for (size_t j = 0; j < n; j++) {
        const double probability = exp((double)output[j] - largest) / sum;

        error[j] = (float)((probability - (j == label ? 1.0 : 0.0)) / (double)rows);
    }
    return log(sum) + largest - (double)output[label];
}

double net_loss(struct net *net, const uint8_t *labels)
{
    struct net_layer *last = &net->layers[net->layer_count - 1];
    double loss = 0;

    for (size_t r = 0; r < net->rows; r++) {
        const size_t at = r * last->outputs;

        loss += row_loss(last->output + at, last->error + at, last->outputs, labels[r], net->rows);
    }
    return loss / (double)net->rows;
}

/* Error of the layer before: through the weights, and through its ReLU where that was open. */
static void pass_error(const struct net *net, const struct net_layer *self,
                       const struct net_layer *before)
{
    for (size_t r = 0; r < net->rows; r++) {
        const float *error = self->error + r * self->outputs;
        const size_t at = r * self->inputs;

        for (size_t i = 0; i < self->inputs; i++) {
            before->error[at + i] =
                before->output[at + i] > 0
                    ? dot(error, self->weight + i * self->outputs, self->outputs)
                    : 0;
        }
    }
}

void net_backward(struct net *net, size_t layer, const float *images)
{
    struct net_layer *self = &net->layers[layer];
    const float *input = input_of(net, layer, images);
    const float one = 1;

    memset(self->weight_gradient, 0, self->inputs * self->outputs * sizeof(float));
    memset(self->bias_gradient, 0, self->outputs * sizeof(float));
    for (size_t i = 0; i < self->inputs; i++) {
        add_rows(self->weight_gradient + i * self->outputs, self->outputs, self->error, net->rows,
                 input + i, self->inputs);
    }
    for (size_t r = 0; r < net->rows; r++) {
        add_rows(self->bias_gradient, self->outputs, self->error + r * self->outputs, 1, &one, 1);
    }
    if (layer > 0) {
        pass_error(net, self, &net->layers[layer - 1]);
    }
}

size_t net_class(const struct net *net, size_t row)
{
    const struct net_layer *last = &net->layers[net->layer_count - 1];
    const float *output = last->output + row * last->outputs;
    size_t best = 0;

    for (size_t j = 1; j < last->outputs; j++) {
        if (output[j] > output[best]) {
            best = j;
        }
    }
    return best;
}
