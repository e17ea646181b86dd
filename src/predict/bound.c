/* SPDX-License-Identifier: Apache-2.0 */
/* The bound on a training step; bound.h states and proves it. Pure. */
#include "bound.h"

#include <math.h>

msdu__bound msdu__bound_of(const msdu__bound_layer *layers, uint32_t count,
                           const msdu__bound_link *link)
{
    msdu__bound bound = {.compute_ns = 0};
    double behind = 0; /* computing of the layers from the present one on */
    for (uint32_t l = 0; l < count; l++) {
        bound.compute_ns += layers[l].forward_ns + layers[l].backward_ns;
    }
    behind = bound.compute_ns;
    for (uint32_t l = 0; l < count; l++) {
        bound.link_ns += layers[l].bytes / link->bytes_per_ns;
        double chain = behind + bound.link_ns + link->latency_ns;
        if (layers[l].bytes > 0 && chain > bound.chain_ns) {
            bound.chain_ns = chain;
            bound.layer = l;
        }
        behind -= layers[l].forward_ns + layers[l].backward_ns;
    }
    return bound;
}

double msdu__bound_step_ns(const msdu__bound *bound, uint32_t interval, uint32_t delay)
{
    double hidden = ((double)delay + 1) * bound->compute_ns;
    return bound->compute_ns + fmax(0, bound->chain_ns - hidden) / (double)interval;
}

double msdu__bound_streamed_ns(const msdu__bound *bound, uint32_t interval)
{
    return fmax(bound->compute_ns, bound->link_ns / (double)interval);
}

double msdu__bound_ring_bytes(double bytes, uint32_t ranks)
{
    return ranks > 1 ? 2 * bytes * ((double)ranks - 1) / (double)ranks : 0;
}
