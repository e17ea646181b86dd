/* SPDX-License-Identifier: Apache-2.0 */
/* A multilayer perceptron with ReLU and softmax cross entropy, a layer at a time. */
#ifndef EXAMPLE_NET_H
#define EXAMPLE_NET_H

#include <stddef.h>
#include <stdint.h>

#define NET_LAYERS_MAX 8

struct net_layer {
    size_t inputs;
    size_t outputs;
    float *weight;          /* inputs rows of outputs */
    float *bias;            /* outputs */
    float *weight_gradient; /* as weight */
    float *bias_gradient;   /* as bias */
    float *output;          /* rows of outputs, after the ReLU */
    float *error;           /* rows of outputs: d loss / d (output before the ReLU) */
};

struct net {
    size_t layer_count;
    size_t rows; /* samples of a batch */
    struct net_layer layers[NET_LAYERS_MAX];
};

/*
 * Allocate layer_count layers, sizes[0] inputs to sizes[layer_count] outputs, and draw weights
 * from the seed. Returns 0, or -1 when out of memory. Release with net_free(), in both cases.
 */
int net_init(struct net *net, const size_t *sizes, size_t layer_count, size_t rows, uint64_t seed);
void net_free(struct net *net);

/* Outputs of one layer from those of the one before; images are what layer 0 reads. */
void net_forward(struct net *net, size_t layer, const float *images);

/* Mean loss of the batch after the forward pass; sets the last layer's error. */
double net_loss(struct net *net, const uint8_t *labels);

/* Gradients of one layer from its error, and the error of the layer before. */
void net_backward(struct net *net, size_t layer, const float *images);

/* Class with the largest output, for one row of the batch. */
size_t net_class(const struct net *net, size_t row);

#endif
