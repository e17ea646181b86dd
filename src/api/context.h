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
    uint32_t forks;         /* of the process that made it; guard.h */
    struct msdu_ctx *inner; /* of this host's ranks, see inner.c; NULL: there is none */
};

/* --- context.c: a context as a whole --- */
/* Its settings are there. */
void msdu__context_init(msdu_ctx *ctx);
/* It may end before it has looked at the latest failure. */
void msdu__context_stop(msdu_ctx *ctx);
void msdu__context_free(msdu_ctx *ctx);

/* --- inner.c: means of gradients over a host, in every local step --- */
/* Once hosts are known: join its ranks, or say why not. */
msdu_status msdu__inner_open(msdu_ctx *ctx);
/* Its communication thread has ended. */
void msdu__inner_close(msdu_ctx *ctx);

/* --- tensor.c: what was added --- */
void msdu__tensors_free(msdu__model *model);

#endif
