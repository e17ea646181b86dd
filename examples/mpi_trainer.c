/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_trainer.c - data-parallel training of a small network with MPI and nothing else. It knows
 * nothing of libmsdu, and is what `msdu run` is for:
 *
 *     mpirun -n 4 msdu run -- ./mpi_trainer DATA sgd 1 45
 *
 * DATA is a folder of idx files; then the optimizer (sgd or adam), the seed, the epochs.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "idx.h"
#include "net.h"
#include "optim.h"

#define BATCH 8 /* rows of a rank in a step */

struct trainer {
    struct idx_set train;
    struct idx_set test;
    struct net net;
    struct optim optim;
    struct optim_tensor tensors[2 * NET_LAYERS_MAX];
    size_t tensor_count;
    double lr;
    uint64_t seed;
    uint64_t epochs;
    int rank;
    int ranks;
    uint32_t *order;
    float *images;
    uint8_t *labels;
};

static void stop(const char *why)
{
    fprintf(stderr, "mpi_trainer: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void add_tensor(struct trainer *t, float *value, const float *gradient, size_t count)
{
    struct optim_tensor *tensor = &t->tensors[t->tensor_count++];

    tensor->value = value;
    tensor->gradient = gradient;
    tensor->count = count;
    if (optim_init(&t->optim, tensor) != 0) {
        stop("out of memory");
    }
}

static void build(struct trainer *t, const char *data)
{
    char error[IDX_ERROR_BYTES];

    if (idx_load(data, "train", &t->train, error) != 0 ||
        idx_load(data, "t10k", &t->test, error) != 0) {
        stop(error);
    }
    const size_t sizes[] = {t->train.pixels, 512, 256, t->train.classes};
    t->order = calloc(t->train.count, sizeof(*t->order));
    t->images = calloc(BATCH * t->train.pixels, sizeof(float));
    t->labels = calloc(BATCH, 1);
    if (t->order == NULL || t->images == NULL || t->labels == NULL ||
        net_init(&t->net, sizes, 3, BATCH, t->seed) != 0) { /* equal on all ranks */
        stop("out of memory");
    }
    for (size_t l = 0; l < t->net.layer_count; l++) {
        struct net_layer *layer = &t->net.layers[l];
        add_tensor(t, layer->weight, layer->weight_gradient, layer->inputs * layer->outputs);
        add_tensor(t, layer->bias, layer->bias_gradient, layer->outputs);
    }
}

/* The mean of all ranks, in place. */
static void average(const struct trainer *t, float *gradient, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, gradient, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < count; i++) {
        gradient[i] /= (float)t->ranks;
    }
}

/* step counts from 1; returns the mean loss of all ranks. */
static double train_step(struct trainer *t, uint64_t step)
{
    double loss = 0;

    for (size_t l = 0; l < t->net.layer_count; l++) {
        net_forward(&t->net, l, t->images);
    }
    loss = net_loss(&t->net, t->labels);
    for (size_t l = t->net.layer_count; l-- > 0;) {
        struct net_layer *layer = &t->net.layers[l];
        net_backward(&t->net, l, t->images);
        average(t, layer->weight_gradient, layer->inputs * layer->outputs);
        average(t, layer->bias_gradient, layer->outputs);
    }
    for (size_t i = 0; i < t->tensor_count; i++) {
        optim_update(&t->optim, step, t->lr, &t->tensors[i]);
    }
    MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return loss / t->ranks;
}

static void train(struct trainer *t)
{
    const size_t ranks = (size_t)t->ranks;
    const size_t steps = batch_steps(t->train.count, ranks, BATCH);

    for (uint64_t epoch = 0; epoch < t->epochs; epoch++) {
        double loss = 0;
        batch_shuffle(t->seed, epoch, t->order, t->train.count);
        for (size_t s = 0; s < steps; s++) {
            const size_t first = batch_first(s, (size_t)t->rank, ranks, BATCH);
            batch_gather(&t->train, t->order + first, BATCH, t->images, t->labels);
            loss += train_step(t, epoch * steps + s + 1);
        }
        if (t->rank == 0 && (epoch + 1) % 10 == 0) {
            printf("epoch %d loss %.5f\n", (int)epoch + 1, loss / (double)steps);
        }
    }
}

/* Share of the test images whose class is found. */
static double test_accuracy(struct trainer *t)
{
    size_t right = 0;

    for (size_t first = 0; first < t->test.count; first += BATCH) {
        const size_t left = t->test.count - first;
        t->net.rows = left < BATCH ? left : BATCH;
        for (size_t l = 0; l < t->net.layer_count; l++) {
            net_forward(&t->net, l, t->test.images + first * t->test.pixels);
        }
        for (size_t r = 0; r < t->net.rows; r++) {
            right += net_class(&t->net, r) == t->test.labels[first + r];
        }
    }
    return (double)right / (double)t->test.count;
}

int main(int argc, char **argv)
{
    static struct trainer t;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
    if (argc != 5 || (strcmp(argv[2], "sgd") != 0 && strcmp(argv[2], "adam") != 0)) {
        stop("usage: mpi_trainer DATA sgd|adam SEED EPOCHS");
    }
    const bool is_adam = strcmp(argv[2], "adam") == 0;
    t.optim = (struct optim){.kind = is_adam ? OPTIM_ADAM : OPTIM_SGD,
                             .momentum = 0.9,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8};
    t.lr = is_adam ? 0.001 : 0.02;
    t.seed = strtoull(argv[3], NULL, 10);
    t.epochs = strtoull(argv[4], NULL, 10);
    build(&t, argv[1]);
    train(&t);
    if (t.rank == 0) {
        printf("test accuracy %.2f %%\n", 100 * test_accuracy(&t));
    }
    for (size_t i = 0; i < t.tensor_count; i++) {
        optim_free(&t.tensors[i]);
    }
    net_free(&t.net);
    free(t.order);
    free(t.images);
    free(t.labels);
    idx_free(&t.train);
    idx_free(&t.test);
    MPI_Finalize();
    return 0;
}
