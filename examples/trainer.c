/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.c - data-parallel training of a small network through libmsdu.
 *
 * All that a trainer has to add for the library stands in open_group() and train_step(); the rest
 * is ordinary training. The network, the optimizers and the data are in the files beside this one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

#include "batch.h"
#include "idx.h"
#include "net.h"
#include "optim.h"
#include "options.h"
#include "report.h"

struct trainer {
    struct options options;
    struct idx_set train;
    struct idx_set test;
    struct net net;
    /* Layer l owns tensors 2 l (weight) and 2 l + 1 (bias); so are the library's ids. */
    struct optim_tensor tensors[2 * NET_LAYERS_MAX];
    uint32_t tensor_count;
    msdu_ctx *ctx;
    msdu_summary summary; /* refreshed after every step */
    uint32_t *order;      /* of this epoch's samples */
    float *images;        /* of this step */
    uint8_t *labels;
    uint64_t total_steps;
    FILE *step_log;
};

/* Print the library's line about a failing call; the program then ends with failure. */
static int failed(const struct trainer *t, const char *call)
{
    fprintf(stderr, "trainer: rank %d: %s: %s\n", (int)t->summary.rank, call, msdu_last_error());
    return -1;
}

static int out_of_memory(void)
{
    fprintf(stderr, "trainer: out of memory\n");
    return -1;
}

/* --- data and network --- */

static int load_data(struct trainer *t)
{
    char error[IDX_ERROR_BYTES];

    if (idx_load(t->options.data, "train", &t->train, error) != 0 ||
        idx_load(t->options.data, "t10k", &t->test, error) != 0) {
        fprintf(stderr, "trainer: %s\n", error);
        return -1;
    }
    if (t->test.pixels != t->train.pixels || t->test.classes > t->train.classes) {
        fprintf(stderr, "trainer: %s: test images have another size or unknown classes\n",
                t->options.data);
        return -1;
    }
    return 0;
}

static int build_net(struct trainer *t)
{
    const struct options *options = &t->options;
    const size_t layer_count = options->hidden_count + 1;
    size_t sizes[NET_LAYERS_MAX + 1] = {t->train.pixels};

    for (size_t l = 0; l < options->hidden_count; l++) {
        sizes[l + 1] = options->hidden[l];
    }
    sizes[layer_count] = t->train.classes;
    t->order = calloc(t->train.count, sizeof(*t->order));
    t->images = calloc(options->batch * t->train.pixels, sizeof(float));
    t->labels = calloc(options->batch, 1);
    if (t->order == NULL || t->images == NULL || t->labels == NULL ||
        net_init(&t->net, sizes, layer_count, options->batch, options->seed) != 0) {
        return out_of_memory();
    }
    return 0;
}

static int build_tensors(struct trainer *t)
{
    for (size_t l = 0; l < t->net.layer_count; l++) {
        const struct net_layer *layer = &t->net.layers[l];
        struct optim_tensor *weight = &t->tensors[2 * l];
        struct optim_tensor *bias = &t->tensors[2 * l + 1];

        weight->value = layer->weight;
        weight->gradient = layer->weight_gradient;
        weight->count = layer->inputs * layer->outputs;
        bias->value = layer->bias;
        bias->gradient = layer->bias_gradient;
        bias->count = layer->outputs;
        if (optim_init(&t->options.optim, weight) != 0 ||
            optim_init(&t->options.optim, bias) != 0) {
            return out_of_memory();
        }
        t->tensor_count += 2;
    }
    return 0;
}

/* --- libmsdu: joining the group --- */

static int create_context(struct trainer *t)
{
    const struct optim *optim = &t->options.optim;
    msdu_config config = MSDU_CONFIG_INIT;

    /* How to synchronize is left to the environment; what the optimizer is, only we know. */
    config.lr = t->options.lr;
    config.weight_decay = optim->weight_decay;
    if (optim->kind == OPTIM_SGD) {
        config.optimizer = "sgd";
        config.momentum = optim->momentum;
        config.nesterov = optim->is_nesterov ? "yes" : "no";
    } else {
        config.optimizer = "adam";
    }
    return msdu_create(&config, &t->ctx) == MSDU_OK ? 0 : failed(t, "msdu_create");
}

static int add_tensor(struct trainer *t, size_t layer, const char *kind, float *value,
                      float *gradient, size_t count)
{
    char name[64];
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;

    snprintf(name, sizeof(name), "layer%zu.%s", layer, kind);
    desc.name = name;
    desc.parameter = value;
    desc.gradient = gradient;
    desc.count = count;
    desc.dtype = MSDU_FLOAT32;
    desc.priority = (int32_t)layer; /* the next forward needs the first layer first */
    return msdu_tensor_add(t->ctx, &desc, NULL) == MSDU_OK ? 0 : failed(t, "msdu_tensor_add");
}

static int open_group(struct trainer *t)
{
    if (create_context(t) != 0) {
        return -1;
    }
    for (size_t l = 0; l < t->net.layer_count; l++) {
        const struct net_layer *layer = &t->net.layers[l];
        const size_t count = layer->inputs * layer->outputs;

        if (add_tensor(t, l, "weight", layer->weight, layer->weight_gradient, count) != 0 ||
            add_tensor(t, l, "bias", layer->bias, layer->bias_gradient, layer->outputs) != 0) {
            return -1;
        }
    }
    if (msdu_start(t->ctx) != MSDU_OK) {
        return failed(t, "msdu_start");
    }
    return msdu_summary_get(t->ctx, &t->summary) == MSDU_OK ? 0 : failed(t, "msdu_summary_get");
}

/* --- one step: the calls that msdu.h lists --- */

static int forward(struct trainer *t)
{
    for (uint32_t l = 0; l < t->net.layer_count; l++) {
        /* A layer waits for its own parameters only; later ones may still be on their way. */
        if (msdu_tensor_wait(t->ctx, 2 * l, MSDU_PARAMETER) != MSDU_OK ||
            msdu_tensor_wait(t->ctx, 2 * l + 1, MSDU_PARAMETER) != MSDU_OK) {
            return failed(t, "msdu_tensor_wait");
        }
        net_forward(&t->net, l, t->images);
    }
    return 0;
}

static int backward(struct trainer *t)
{
    for (uint32_t l = (uint32_t)t->net.layer_count; l-- > 0;) {
        net_backward(&t->net, l, t->images);
        if (msdu_tensor_ready(t->ctx, 2 * l, MSDU_GRADIENT) != MSDU_OK ||
            msdu_tensor_ready(t->ctx, 2 * l + 1, MSDU_GRADIENT) != MSDU_OK) {
            return failed(t, "msdu_tensor_ready");
        }
    }
    return 0;
}

static int optimize(struct trainer *t, uint64_t step, double lr)
{
    for (uint32_t id = 0; id < t->tensor_count; id++) {
        if (msdu_tensor_wait(t->ctx, id, MSDU_GRADIENT) != MSDU_OK) {
            return failed(t, "msdu_tensor_wait");
        }
        optim_update(&t->options.optim, step, lr, &t->tensors[id]);
        if (msdu_tensor_ready(t->ctx, id, MSDU_PARAMETER) != MSDU_OK) {
            return failed(t, "msdu_tensor_ready");
        }
    }
    return 0;
}

static double learning_rate(const struct trainer *t, uint64_t step)
{
    const double done = (double)(step - 1) / (double)t->total_steps;

    return t->options.is_cosine ? t->options.lr * 0.5 * (1 + cos(M_PI * done)) : t->options.lr;
}

/* step counts from 1. */
static int train_step(struct trainer *t, uint64_t step, double *loss_out)
{
    const double lr = learning_rate(t, step);

    if (msdu_set_lr(t->ctx, lr) != MSDU_OK) {
        return failed(t, "msdu_set_lr");
    }
    if (forward(t) != 0) {
        return -1;
    }
    *loss_out = net_loss(&t->net, t->labels);
    if (msdu_set_loss(t->ctx, *loss_out) != MSDU_OK) {
        return failed(t, "msdu_set_loss");
    }
    if (backward(t) != 0 || optimize(t, step, lr) != 0) {
        return -1;
    }
    if (msdu_step(t->ctx) != MSDU_OK) {
        return failed(t, "msdu_step");
    }
    return msdu_summary_get(t->ctx, &t->summary) == MSDU_OK ? 0 : failed(t, "msdu_summary_get");
}

/* --- training and testing --- */

static int train_epoch(struct trainer *t, uint64_t epoch, size_t steps, double *loss_out)
{
    const size_t rows = t->options.batch;
    double sum = 0;

    batch_shuffle(t->options.seed, epoch, t->order, t->train.count);
    for (size_t s = 0; s < steps; s++) {
        const size_t first =
            batch_first(s, (size_t)t->summary.rank, (size_t)t->summary.ranks, rows);
        double loss = 0;

        batch_gather(&t->train, t->order + first, rows, t->images, t->labels);
        if (train_step(t, epoch * steps + s + 1, &loss) != 0) {
            return -1;
        }
        sum += loss;
        if (t->step_log != NULL) {
            report_step(t->step_log, &t->summary);
        }
    }
    *loss_out = sum / (double)steps;
    return 0;
}

static int train(struct trainer *t, double *loss_out)
{
    const uint64_t epochs = t->options.epochs;
    const size_t steps = batch_steps(t->train.count, (size_t)t->summary.ranks, t->options.batch);

    if (steps == 0) {
        fprintf(stderr, "trainer: %zu samples are too few for %d ranks with batches of %zu\n",
                t->train.count, (int)t->summary.ranks, (size_t)t->options.batch);
        return -1;
    }
    t->total_steps = epochs * steps;
    for (uint64_t epoch = 0; epoch < epochs; epoch++) {
        if (train_epoch(t, epoch, steps, loss_out) != 0) {
            return -1;
        }
        if (t->options.shows_progress && t->summary.rank == 0) {
            report_epoch(stdout, epoch + 1, epochs, *loss_out, &t->summary);
        }
    }
    if (msdu_finish(t->ctx) != MSDU_OK) {
        return failed(t, "msdu_finish");
    }
    return msdu_summary_get(t->ctx, &t->summary) == MSDU_OK ? 0 : failed(t, "msdu_summary_get");
}

/* Share of the test images whose class is found. */
static double test_accuracy(struct trainer *t)
{
    const size_t rows = t->net.rows;
    size_t right = 0;

    for (size_t first = 0; first < t->test.count; first += rows) {
        const size_t left = t->test.count - first;

        t->net.rows = left < rows ? left : rows;
        for (size_t l = 0; l < t->net.layer_count; l++) {
            net_forward(&t->net, l, t->test.images + first * t->test.pixels);
        }
        for (size_t r = 0; r < t->net.rows; r++) {
            right += net_class(&t->net, r) == t->test.labels[first + r];
        }
    }
    t->net.rows = rows;
    return (double)right / (double)t->test.count;
}

static int write_result(struct trainer *t, double loss)
{
    const struct options *options = &t->options;
    FILE *json = NULL;
    FILE *params = NULL;
    int result = report_open(options->json, &t->summary, &json);

    if (result == 0 && json != NULL) {
        report_result(json, &t->summary, test_accuracy(t), loss, options->seed);
        result = report_close(json, options->json);
    }
    if (result == 0) {
        result = report_open(options->params, &t->summary, &params);
    }
    if (params != NULL) {
        report_parameters(params, &t->net);
        result = report_close(params, options->params);
    }
    return result;
}

static int run(struct trainer *t)
{
    double loss = 0;

    if (load_data(t) != 0 || build_net(t) != 0 || build_tensors(t) != 0 || open_group(t) != 0 ||
        report_open(t->options.log_steps, &t->summary, &t->step_log) != 0) {
        return -1;
    }
    if (train(t, &loss) != 0 || write_result(t, loss) != 0) {
        return -1;
    }
    if (t->summary.rank == 0) {
        printf("test accuracy %.2f %%\n", 100 * test_accuracy(t));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct trainer t = {.summary = MSDU_SUMMARY_INIT};
    int result;

    options_read(argc, argv, &t.options);
    result = run(&t);
    if (report_close(t.step_log, t.options.log_steps) != 0) {
        result = -1;
    }
    msdu_destroy(t.ctx); /* before the tensors that it borrows */
    for (uint32_t id = 0; id < t.tensor_count; id++) {
        optim_free(&t.tensors[id]);
    }
    net_free(&t.net);
    free(t.order);
    free(t.images);
    free(t.labels);
    idx_free(&t.train);
    idx_free(&t.test);
    return result == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
