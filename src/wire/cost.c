/* SPDX-License-Identifier: Apache-2.0 */
/* What formats cost a processor. Pure. */
#include "cost.h"

/* bench/results/kernels.txt (64 MiB arrays, one core); sparse was measured later, with 16.8 million
 * elements. */
const msdu__wire_costs msdu__wire_costs_server = {
    .copy_ns = 0.085,
    .of =
        {
            [MSDU__WIRE_BFLOAT16] = {.encode = 0.47, .sum = 0.34, .decode = 0.35},
            [MSDU__WIRE_FLOAT16] = {.encode = 0.52, .sum = 0.37, .decode = 0.25},
            [MSDU__WIRE_INT8] = {.encode = 0.58, .sum = 0.32, .decode = 0.26},
            [MSDU__WIRE_INT4] = {.encode = 0.84, .sum = 0.31, .decode = 0.25},
            [MSDU__WIRE_INT2] = {.encode = 1.84, .sum = 0.27, .decode = 0.24},
            [MSDU__WIRE_SPARSE] = {.encode = 5.2, .sum = 0.20, .decode = 0.21},
        },
};

/* Each rank sums up the contributions of all to its share, which is as much as one of its own. */
double msdu__wire_code_ns(const msdu__wire_costs *costs, int wire, int32_t ranks)
{
    const msdu__wire_cost *cost = &costs->of[wire];
    double shares = ranks > 0 ? 1.0 / ranks : 0;

    return cost->encode * (1 + shares) + cost->sum + cost->decode;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void msdu__wire_costs_slower(msdu__wire_costs *into, const msdu__wire_costs *other)
{
    into->copy_ns = larger(into->copy_ns, other->copy_ns);
    for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
        msdu__wire_cost *cost = &into->of[wire];

        cost->encode = larger(cost->encode, other->of[wire].encode);
        cost->sum = larger(cost->sum, other->of[wire].sum);
        cost->decode = larger(cost->decode, other->of[wire].decode);
    }
}
