/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links and cards in simulated time. A message has its link to itself in its direction, and takes
 * of the sender's and the receiver's card what it takes at their rates. Pure but for memory.
 */
#ifndef MSDU_STAGES_NETWORK_H
#define MSDU_STAGES_NETWORK_H

#include "model.h"

typedef struct msdu__stages_network {
    const msdu__stages_model *m;
    double *link_free; /* D x D: when the last message has passed */
    double *up_free;   /* D */
    double *down_free; /* D */
} msdu__stages_network;

bool msdu__stages_network_make(const msdu__stages_model *model, msdu__stages_memory *memory,
                               msdu__stages_network *out);
/* A step begins: nothing is under way. */
void msdu__stages_network_clear(msdu__stages_network *network);
/* A message that is ready at a time is sent behind those before; when it has come. *left_out: NULL,
 * or when the sender has sent it. */
double msdu__stages_network_send(msdu__stages_network *network, uint32_t from, uint32_t to,
                                 double bytes, double ready_ns, double *left_out);

#endif
