/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What formats cost a processor, by element. One table says it to the controller, to `msdu plan`
 * and to what measures it on a machine (core/costs.c). Pure.
 */
#ifndef MSDU_COST_H
#define MSDU_COST_H

#include "wire.h"

/* Passes over an element, in ns. */
typedef struct msdu__wire_cost {
    double encode;
    double sum; /* one contribution decoded and added */
    double decode;
} msdu__wire_cost;

typedef struct msdu__wire_costs {
    double copy_ns; /* of a byte that is copied */
    msdu__wire_cost of[MSDU__WIRE_COUNT];
} msdu__wire_costs;

/* Of one core of a server, as `msdu bench kernels` has it. */
extern const msdu__wire_costs msdu__wire_costs_server;

/* Of an element on a rank, both phases: encoded for its owner, summed up, the mean encoded and
 * decoded. */
double msdu__wire_code_ns(const msdu__wire_costs *costs, int wire, int32_t ranks);
/* `into` becomes the slower of both, number by number: ranks wait for the slowest of them. */
void msdu__wire_costs_slower(msdu__wire_costs *into, const msdu__wire_costs *other);

#endif
