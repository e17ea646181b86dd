/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's command line. */
#ifndef EXAMPLE_OPTIONS_H
#define EXAMPLE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net.h"
#include "optim.h"

struct options {
    const char *data;      /* folder of idx files */
    const char *json;      /* result; NULL: none. %r in these three becomes the rank */
    const char *log_steps; /* a line per step; NULL: none */
    const char *params;    /* final parameters, raw float32; NULL: none */
    size_t hidden[NET_LAYERS_MAX - 1];
    size_t hidden_count;
    struct optim optim;
    double lr; /* 0 was replaced by the optimizer's default */
    bool is_cosine;
    bool shows_progress;
    uint64_t epochs;
    uint64_t batch; /* rows per rank and step */
    uint64_t seed;
};

/* Read the command line; prints and exits on --help and on errors. */
void options_read(int argc, char **argv, struct options *options_out);

#endif
