/* SPDX-License-Identifier: Apache-2.0 */
/* The public handle: what each thread owns, and what they share. */
#ifndef MSDU_CONTEXT_H
#define MSDU_CONTEXT_H

#include "caller/caller.h"

struct msdu_ctx {
    msdu__job job;
    msdu__model model;
    msdu__handover hand;
    msdu__engine engine;
    msdu__caller caller;
    uint32_t forks; /* of the process that made it; guard.h */
};

/* tensor.c: what was added. */
void msdu__tensors_free(msdu__model *model);

#endif
