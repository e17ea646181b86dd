/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does not change once ranks have met: settings, backend, this rank's place, and what follows
 * from them. Both threads read it; only msdu_create() and msdu_start() write.
 */
#ifndef MSDU_JOB_H
#define MSDU_JOB_H

#include "base/base.h"
#include "config/config.h"
#include "correct/correct.h"
#include "interval/interval.h"
#include "wire/cost.h"

/* Hosts of a job, see core/levels.h. */
typedef struct msdu__levels {
    bool is_on;                /* local steps are exchanged over two levels */
    int32_t hosts;             /* 0: not known */
    int32_t host;              /* of this rank */
    int32_t size;              /* ranks of this host */
    int32_t index;             /* of this rank among them */
    int32_t carriers;          /* first ranks of every host, as many as the smallest has */
    int32_t most;              /* ranks of the largest host */
    const msdu_backend *inner; /* for ranks that share memory; NULL: there is none */
    msdu_comm *inner_comm;     /* NULL: the job's backend serves this group too */
    msdu_host inner_host;
    int32_t *names; /* numbers in the job, of this host's ranks */
    char job[40];
} msdu__levels;

/* Ranks that may run on the same cores. */
typedef struct msdu__crowd {
    int32_t ranks; /* 0: not known */
    int32_t processes;
    double cores; /* that they have together */
} msdu__crowd;

typedef struct msdu__job {
    msdu__settings settings;
    msdu__log log;
    msdu__clock_fn clock;
    const msdu__wire_costs *(*measure_costs)(void); /* of this process; another one's in tests */
    msdu__wire_costs costs;                         /* of the slowest rank */
    const msdu_backend *backend;
    msdu_host host;
    msdu_comm *comm;           /* NULL: the group was not joined */
    const msdu_device *device; /* where tensors are; NULL: host memory */
    int32_t rank;
    int32_t ranks;
    long cores;        /* of this host */
    double core_share; /* cores of this host for each process where ranks outnumber them, else 0 */
    msdu__crowd crowd; /* of this rank */
    bool is_accumulated;   /* domain accumulated */
    bool starts_gradients; /* the first step is in the gradient domain */
    bool starts_local;     /* or in the parameter domain */
    bool may_clock;        /* rounds by the clock, from the start or later; see core/tick.h */
    bool is_later;         /* an epoch after the first: its ranks trained before (startup/heal.c) */
    msdu__levels levels;
    msdu__chain chain;
    msdu__chain mean_chain; /* of rounds that are exact */
    const msdu__policy *policy;
    msdu__interval_args interval_args;
} msdu__job;

uint64_t msdu__job_now(const msdu__job *job);
/* What texts call a rank: where this is the group of a host, its number in the whole job. */
static inline int32_t msdu__job_name(const msdu__job *job, int32_t rank)
{
    return job->host.names != NULL ? job->host.names[rank] : rank;
}
/* End the group of this host, if there is one. */
void msdu__levels_close(msdu__job *job);

/* --- derive.c --- */
/* Policy, correction and their arguments from the settings; fields that depend on tensors are set
 * at the start. */
msdu_status msdu__derive(msdu__job *job, msdu__correct_args *correct_out);
/* Formats, and which of them wire auto may choose. round_bytes: by format, sent in a round as
 * slices are cut, so that only those count that send less; NULL: nothing is cut. */
void msdu__derive_wires(msdu__job *job, const uint64_t *round_bytes);
/* What choices cost a processor, from job->costs. */
void msdu__derive_costs(msdu__job *job);

#endif
