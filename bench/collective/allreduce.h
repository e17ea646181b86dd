/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `msdu bench allreduce` share: parent, rank processes, link. */
#ifndef MSDU_BENCH_ALLREDUCE_H
#define MSDU_BENCH_ALLREDUCE_H

#include <pthread.h>
#include <sys/types.h>

#include "harness/bench.h"

#define MSDU__ALLREDUCE_RANKS 2
#define MSDU__ALLREDUCE_SIZES 8
#define MSDU__ALLREDUCE_RUNS  64

enum { MSDU__SLICED = 0, MSDU__WHOLE, MSDU__PATHS };

/* In memory that parent and rank processes share. */
typedef struct msdu__allreduce {
    pthread_barrier_t barrier; /* of the rank processes */
    const char *backend;       /* set before the processes are made, as all up to interface */
    const char *wire;          /* of the sliced path */
    char folder[64];           /* where ranks meet */
    char interface[16];
    uint64_t bytes[MSDU__ALLREDUCE_SIZES];
    uint32_t sizes;
    uint32_t runs;
    uint32_t iterations[MSDU__ALLREDUCE_SIZES]; /* per run */
    double run_ns[MSDU__ALLREDUCE_SIZES][MSDU__PATHS][MSDU__ALLREDUCE_RUNS][MSDU__ALLREDUCE_RANKS];
    double cpu_ns[MSDU__ALLREDUCE_SIZES][MSDU__PATHS][MSDU__ALLREDUCE_RANKS]; /* of all runs */
    uint64_t wrong[MSDU__ALLREDUCE_SIZES][MSDU__PATHS][MSDU__ALLREDUCE_RANKS];
    uint64_t allocations[MSDU__ALLREDUCE_SIZES]; /* rank 0, in the timed runs of the sliced path */
    char error[MSDU__ALLREDUCE_RANKS][512];
} msdu__allreduce;

/* allreduce_rank.c: all of a rank process; false with error[rank] set. */
bool msdu__allreduce_rank(msdu__allreduce *shared, int rank);

/*
 * link.c: two network namespaces joined by a pair of virtual interfaces, each shaped to a rate. The
 * namespaces belong to the processes that made them: nothing of the machine's own network is
 * touched, and all of it is gone when they end.
 */
#define MSDU__LINK_INTERFACE "link0" /* its name in both namespaces */

typedef struct msdu__link {
    uint32_t rate_mbit;
    uint32_t mtu;
    int to_peer[2]; /* pipes: a byte each way at every hand-over */
    int to_near[2];
} msdu__link;

/* This process moves into a namespace of its own; errors are printed. Before the fork of rank 1. */
bool msdu__link_open(msdu__link *link);
/* In rank 1's process: a second namespace with the far end. */
bool msdu__link_far(msdu__link *link);
/* In the first process, with rank 1's process id: make the pair, give the far end away. */
bool msdu__link_near(msdu__link *link, pid_t peer);
/* Largest share of the rate that is left for data by TCP, IP and Ethernet headers. */
double msdu__link_payload_share(const msdu__link *link);

#endif
