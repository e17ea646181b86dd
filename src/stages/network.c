/* SPDX-License-Identifier: Apache-2.0 */
/* Links and cards in simulated time; pure but for memory. */
#include "network.h"

#include <math.h>
#include <string.h>

bool msdu__stages_network_make(const msdu__stages_model *model, msdu__stages_memory *memory,
                               msdu__stages_network *out)
{
    size_t n = model->devices;
    *out = (msdu__stages_network){.m = model,
                                  .link_free = msdu__stages_take(memory, n * n, sizeof(double)),
                                  .up_free = msdu__stages_take(memory, n, sizeof(double)),
                                  .down_free = msdu__stages_take(memory, n, sizeof(double))};
    return !memory->is_short;
}

void msdu__stages_network_clear(msdu__stages_network *network)
{
    size_t n = network->m->devices;
    memset(network->link_free, 0, n * n * sizeof(double));
    memset(network->up_free, 0, n * sizeof(double));
    memset(network->down_free, 0, n * sizeof(double));
}

double msdu__stages_network_send(msdu__stages_network *network, uint32_t from, uint32_t to,
                                 double bytes, double ready_ns, double *left_out)
{
    const msdu__stages_model *m = network->m;
    size_t at = (size_t)from * m->devices + to;
    double *link = &network->link_free[at];
    double start = fmax(ready_ns, *link);
    start = fmax(start, fmax(network->up_free[from], network->down_free[to]));
    double passing = bytes > 0 ? bytes / m->rate[at] : 0;
    *link = start + passing;
    network->up_free[from] = start + bytes / m->card[from];
    network->down_free[to] = start + bytes / m->card[to];
    if (left_out != NULL) {
        *left_out = start + passing;
    }
    return start + passing + m->latency[at];
}
