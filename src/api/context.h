/* SPDX-License-Identifier: Apache-2.0 */
/* The public handle: what each thread owns, and what they share. */
#ifndef MSDU_CONTEXT_H
#define MSDU_CONTEXT_H

#include "caller/caller.h"
#include "startup/startup.h"

#include <msdu/backend.h>

/* Groups that change while they train (setting ranks_least); epoch.c. */
typedef struct msdu__epochs {
    const msdu_membership *membership; /* NULL: the group is fixed */
    msdu_members *members;             /* NULL: it is no member, or not any more */
    msdu_host host;                    /* that these borrow */
    msdu__settings settings;           /* as they were set: of the job, not of an epoch */
    msdu_epoch now;
    msdu__carried carried;
    msdu__former former; /* of the epoch before, until the next one has what it holds */
    bool needs_rest;     /* it took parameters, and not yet what the trainer shares */
    uint32_t lost;       /* ranks, so far */
    uint32_t joined;
} msdu__epochs;

struct msdu_ctx {
    msdu__job job;
    msdu__model model;
    msdu__handover hand;
    msdu__engine engine;
    msdu__caller caller;
    uint32_t forks;         /* of the process that made it; guard.h */
    struct msdu_ctx *inner; /* of this host's ranks, see inner.c; NULL: there is none */
    msdu__epochs epochs;
};

/* --- context.c: a context as a whole --- */
/* Its settings are there. */
void msdu__context_init(msdu_ctx *ctx);
/* It may end before it has looked at the latest failure. */
void msdu__context_stop(msdu_ctx *ctx);
/* As after msdu_create(), with its tensors; the group was left. */
void msdu__context_reset(msdu_ctx *ctx);
void msdu__context_free(msdu_ctx *ctx);

/* --- begin.c: the group, met and left --- */
/* Load the backend for as many ranks as there are. */
msdu_status msdu__context_backend(msdu_ctx *ctx);
/* Meet the other ranks, build everything, start the communication thread. A failure is also the
 * context's. */
msdu_status msdu__context_begin(msdu_ctx *ctx);
/* End the communication threads, this rank's and its host's. */
void msdu__context_halt(msdu_ctx *ctx);
/* Last lines of metrics and trace; ERR_IO where a file failed. */
msdu_status msdu__context_files(msdu_ctx *ctx);
/* Leave the group, if there is one: its threads have ended. */
void msdu__context_leave(msdu_ctx *ctx);

/* --- epoch.c: groups that change while they train --- */
/* The first epoch of this process; as msdu__context_begin(). */
msdu_status msdu__epoch_start(msdu_ctx *ctx);
/* What a call of the owner's came to, of which `step` steps were ended: where the group has failed
 * or is over, the next epoch begins here, and the answer is MSDU_REGROUPED. */
msdu_status msdu__epoch_settle(msdu_ctx *ctx, msdu_status status, uint64_t step);
/* Will the owner's next call see to this failure? Then hooks need not know. */
bool msdu__epoch_will_settle(const msdu_ctx *ctx, msdu_status status);
/* Leave the job. */
void msdu__epoch_close(msdu_ctx *ctx);

/* --- inner.c: means of gradients over a host, in every local step --- */
/* Once hosts are known: join its ranks, or say why not. */
msdu_status msdu__inner_open(msdu_ctx *ctx);
/* Its communication thread has ended. */
void msdu__inner_close(msdu_ctx *ctx);

/* --- tensor.c: what was added --- */
void msdu__tensors_free(msdu__model *model);

#endif
