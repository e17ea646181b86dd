/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's command line, by argp. */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX  65536
#define WIDTH_MAX 65536

enum {
    OPT_DATA = 256,
    OPT_LAYERS,
    OPT_OPTIMIZER,
    OPT_LR,
    OPT_SCHEDULE,
    OPT_MOMENTUM,
    OPT_NESTEROV,
    OPT_DECAY,
    OPT_EPOCHS,
    OPT_BATCH,
    OPT_SEED,
    OPT_PROGRESS,
    OPT_JSON,
    OPT_LOG_STEPS,
    OPT_PARAMS
};

static const struct argp_option table[] = {
    {"data", OPT_DATA, "DIR", 0, "folder of the four idx files, named as MNIST's", 0},
    {"layers", OPT_LAYERS, "SIZES", 0, "sizes of the hidden layers (256-128)", 0},
    {"optimizer", OPT_OPTIMIZER, "NAME", 0, "sgd (default) or adam", 0},
    {"lr", OPT_LR, "X", 0, "learning rate (sgd 0.05, adam 0.001)", 0},
    {"lr-schedule", OPT_SCHEDULE, "NAME", 0, "cosine (default) or constant", 0},
    {"momentum", OPT_MOMENTUM, "X", 0, "momentum of sgd (0.9)", 0},
    {"nesterov", OPT_NESTEROV, NULL, 0, "Nesterov's momentum", 0},
    {"weight-decay", OPT_DECAY, "X", 0, "weight decay (0)", 0},
    {"epochs", OPT_EPOCHS, "N", 0, "passes over the data (30)", 0},
    {"batch", OPT_BATCH, "N", 0, "samples per rank and step (16)", 0},
    {"seed", OPT_SEED, "N", 0, "of weights and order of samples (1)", 0},
    {"progress", OPT_PROGRESS, NULL, 0, "rank 0 prints a line per epoch", 0},
    {"json", OPT_JSON, "FILE", 0, "write the result; %r becomes the rank, else rank 0 writes", 0},
    {"log-steps", OPT_LOG_STEPS, "FILE", 0, "write step, h, wire, bytes as CSV; likewise", 0},
    {"params", OPT_PARAMS, "FILE", 0, "write the final parameters, raw float32; likewise", 0},
    {0},
};

static uint64_t integer(struct argp_state *state, const char *name, const char *text, uint64_t low,
                        uint64_t high)
{
    char *end = NULL;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < low || value > high) {
        argp_error(state, "--%s %s: not an integer from %llu to %llu", name, text,
                   (unsigned long long)low, (unsigned long long)high);
    }
    return value;
}

static double real(struct argp_state *state, const char *name, const char *text, double high)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value < 0 || value > high) {
        argp_error(state, "--%s %s: not a number from 0 to %g", name, text, high);
    }
    return value;
}

/* True for the first of two names, false for the second. */
static bool choice(struct argp_state *state, const char *name, const char *text, const char *first,
                   const char *second)
{
    const bool is_first = strcmp(text, first) == 0;

    if (!is_first && strcmp(text, second) != 0) {
        argp_error(state, "--%s %s: neither %s nor %s", name, text, first, second);
    }
    return is_first;
}

static void layers(struct argp_state *state, const char *text, struct options *options)
{
    const char *at = text;

    options->hidden_count = 0;
    for (;;) {
        char *end = NULL;
        const unsigned long width = strtoul(at, &end, 10);
        const bool is_bad = *at < '0' || *at > '9' || width < 1 || width > WIDTH_MAX;

        if (is_bad || (*end != '-' && *end != '\0') ||
            options->hidden_count == NET_LAYERS_MAX - 1) {
            argp_error(state, "--layers %s: not 1 to %d sizes joined by '-'", text,
                       NET_LAYERS_MAX - 1);
            return;
        }
        options->hidden[options->hidden_count++] = width;
        if (*end == '\0') {
            return;
        }
        at = end + 1;
    }
}

static error_t parse_numbers(int key, const char *arg, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPT_LR:
        options->lr = real(state, "lr", arg, 1e6);
        return 0;
    case OPT_MOMENTUM:
        options->optim.momentum = real(state, "momentum", arg, 1);
        return 0;
    case OPT_DECAY:
        options->optim.weight_decay = real(state, "weight-decay", arg, 1);
        return 0;
    case OPT_EPOCHS:
        options->epochs = integer(state, "epochs", arg, 1, 1000000);
        return 0;
    case OPT_BATCH:
        options->batch = integer(state, "batch", arg, 1, ROWS_MAX);
        return 0;
    case OPT_SEED:
        options->seed = integer(state, "seed", arg, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPT_DATA:
        options->data = arg;
        return 0;
    case OPT_LAYERS:
        layers(state, arg, options);
        return 0;
    case OPT_OPTIMIZER:
        options->optim.kind =
            choice(state, "optimizer", arg, "sgd", "adam") ? OPTIM_SGD : OPTIM_ADAM;
        return 0;
    case OPT_SCHEDULE:
        options->is_cosine = choice(state, "lr-schedule", arg, "cosine", "constant");
        return 0;
    case OPT_NESTEROV:
        options->optim.is_nesterov = true;
        return 0;
    case OPT_PROGRESS:
        options->shows_progress = true;
        return 0;
    case OPT_JSON:
        options->json = arg;
        return 0;
    case OPT_LOG_STEPS:
        options->log_steps = arg;
        return 0;
    case OPT_PARAMS:
        options->params = arg;
        return 0;
    case ARGP_KEY_END:
        if (options->data == NULL) {
            argp_error(state, "--data DIR is needed");
        }
        return 0;
    default:
        return parse_numbers(key, arg, state);
    }
}

void options_read(int argc, char **argv, struct options *options_out)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Train a multilayer perceptron on labeled images, data parallel over libmsdu. Start "
               "one process per rank, by torchrun, mpirun, srun or by hand with RANK, WORLD_SIZE, "
               "MASTER_ADDR and MASTER_PORT. How the ranks synchronize is told by MSDU_* "
               "variables (`msdu info` lists them).",
    };
    struct options options = {
        .hidden = {256, 128},
        .hidden_count = 2,
        .optim =
            {.kind = OPTIM_SGD, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
        .is_cosine = true,
        .epochs = 30,
        .batch = 16,
        .seed = 1,
    };

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (options.lr <= 0) {
        options.lr = options.optim.kind == OPTIM_SGD ? 0.05 : 0.001;
    }
    *options_out = options;
}
