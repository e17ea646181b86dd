/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network of a what-if: what the exchange of one slice costs a rank, by topology. Pure: no I/O,
 * locks, clock, allocation, globals.
 *
 * Ranks are spread evenly over nodes. A rank has a link of its own inside its node; all ranks of a
 * node share the node's link to the others. Links are full duplex and latency is that of one
 * message, software included. A mean of m bytes over N ranks, on M nodes of g ranks:
 *
 *   direct        what the module gloo does: every rank sends each owner its share of the slice,
 *                 the owner adds and sends the sum to all. 2 messages deep, 2 m (N - 1) / N bytes a
 *                 rank; g (N - g) / N of them pass a node's link, twice.
 *   ring          reduce-scatter and all-gather around a ring: 2 (N - 1) messages deep, as many
 *                 bytes; a node's link carries those of one rank.
 *   tree          two pipelined binary trees that carry half each (Sanders, Speck, Traeff 2009):
 *                 2 ceil(log2 N) messages deep, 2 m bytes (m for two ranks, 1.5 m for three).
 *   hierarchical  direct reduce-scatter inside the node, halving and doubling between nodes
 *                 (2 ceil(log2 M) messages deep, 2 m (M - 1) / M bytes a node), all-gather inside.
 *
 * A compressed slice is an all-to-all to the owners, always direct, and an all-gather by the
 * topology; hierarchical: float32 inside the node, narrow between nodes.
 */
#ifndef MSDU_WHATIF_NETWORK_H
#define MSDU_WHATIF_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

enum { MSDU__WHATIF_INSIDE, MSDU__WHATIF_BETWEEN, MSDU__WHATIF_LINKS };

typedef enum msdu__whatif_topology {
    MSDU__WHATIF_DIRECT,
    MSDU__WHATIF_RING,
    MSDU__WHATIF_TREE,
    MSDU__WHATIF_HIERARCHICAL,
    MSDU__WHATIF_TOPOLOGIES
} msdu__whatif_topology;

typedef struct msdu__whatif_link {
    double bytes_per_ns; /* above 0; INFINITY: free */
    double latency_ns;
} msdu__whatif_link;

typedef struct msdu__whatif_network {
    msdu__whatif_topology topology;
    uint32_t ranks; /* a multiple of nodes */
    uint32_t nodes;
    msdu__whatif_link links[MSDU__WHATIF_LINKS];
} msdu__whatif_network;

/* A part of an exchange: takes its link for work_ns, then its last message is on its way. */
typedef struct msdu__whatif_phase {
    uint32_t link;
    double work_ns; /* if alone on the link */
    double latency_ns;
} msdu__whatif_phase;

#define MSDU__WHATIF_PHASES 4

typedef struct msdu__whatif_exchange {
    msdu__whatif_phase phases[MSDU__WHATIF_PHASES];
    uint32_t count; /* 0: one rank, nothing to do */
    uint32_t first; /* of them, until the rank holds sums of its share */
    double bytes;   /* that a rank sends, all links together */
} msdu__whatif_exchange;

/* A slice: elements, of 4 bytes, and its bytes in the wire's format (narrow if fewer than 4 each).
 * share_bytes: the largest owner's share of a compressed slice. */
typedef struct msdu__whatif_load {
    double bytes; /* in float32 */
    double wire_bytes;
    double share_bytes;
    bool is_compressed;
} msdu__whatif_load;

const char *msdu__whatif_topology_name(int topology); /* NULL past the last */
msdu__whatif_exchange msdu__whatif_exchange_of(const msdu__whatif_network *network,
                                               const msdu__whatif_load *load);
/* An almost empty all-gather: what a round's statistics message takes. */
double msdu__whatif_message_ns(const msdu__whatif_network *network);

#endif
