/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one host that share memory: what the files of this folder have in common.
 *
 * A segment without a name (memfd) holds counters and two buffers for each rank and channel. An
 * operation goes through the buffers in pieces: a rank writes its part, adds up its share of all
 * parts, and reads all shares. Who got on rings the others' bells (eventfd). The operations are
 * carried out in start(), test() and wait(), on the caller's thread; a thread of the backend's own
 * only hears the bell, and the end of another process.
 */
#ifndef MSDU_HOST_IMPL_H
#define MSDU_HOST_IMPL_H

#include "base/base.h"
#include "base/cell.h"

#include <pthread.h>

#define MSDU__HOST_PIECE 262144 /* bytes that a rank writes at a time */
#define MSDU__HOST_RANKS 128    /* their bells fit into one message */
#define MSDU__HOST_ALIGN 64

/* How far one rank has come in one channel. Pieces are counted over all operations of the channel.
 */
struct host_rank {
    msdu__cell posted;  /* operations started */
    msdu__cell written; /* pieces that lie in its buffer */
    msdu__cell summed;  /* of which it has added up its share */
    msdu__cell read;    /* and read all shares */
};

/* The begin of the segment. */
struct host_head {
    msdu__cell failure; /* 0: none; 1: being written; 2: status and text are there */
    int32_t status;
    char text[MSDU__TEXT_BYTES];
    msdu__cell left[MSDU__HOST_RANKS]; /* 1: it has closed the group, with nothing in flight */
};

enum host_phase { HOST_WRITE, HOST_COMPARE, HOST_SUM, HOST_READ };

struct msdu_req {
    msdu_op op;
    struct msdu_req *next; /* free, or behind it in its channel */
    uint64_t since_ns;     /* it waits for others */
    bool is_done;
    msdu_status status;
};

/* One channel, as this rank sees it. */
struct host_lane {
    struct msdu_req *first;
    struct msdu_req *last;
    enum host_phase phase; /* of the first */
    uint64_t at;           /* bytes of it behind us */
    uint64_t pieces;       /* in the channel */
};

struct msdu_comm {
    const msdu_host *host;
    int32_t rank;
    int32_t ranks;
    uint32_t prints; /* kept of a channel's operations, by sequence */
    struct msdu_req *reqs;
    struct msdu_req *free;
    struct host_lane *lanes;
    uint32_t in_flight;
    struct host_head *head; /* the segment; NULL: there is none */
    size_t bytes;
    char why[MSDU__TEXT_BYTES];  /* it could not be joined */
    int bells[MSDU__HOST_RANKS]; /* by rank; -1: none */
    int peers[MSDU__HOST_RANKS]; /* connections: rank 0 has one to each, the others to rank 0 */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock; /* a leaf; guards the rest */
    pthread_cond_t heard;
    uint64_t bell_count;
    bool is_closing;
};

/* --- host_join.c: who is there --- */
/* Meet, and share the segment and the bells. Sets the error text. */
msdu_status msdu__host_join(struct msdu_comm *comm);
/* Close all that join() opened. */
void msdu__host_part(struct msdu_comm *comm);

/* --- host_segment.c: what lies where, and how it ends --- */
size_t msdu__host_bytes(const struct msdu_comm *comm);
struct host_rank *msdu__host_rank(const struct msdu_comm *comm, uint32_t lane, int32_t rank);
/* Fingerprint of the operation of this number, as that rank started it. */
msdu__cell *msdu__host_print(const struct msdu_comm *comm, uint32_t lane, int32_t rank,
                             uint64_t sequence);
/* Its buffer for the piece of this number. */
unsigned char *msdu__host_buffer(const struct msdu_comm *comm, uint32_t lane, int32_t rank,
                                 uint64_t piece);
/* Wake all others. */
void msdu__host_ring(const struct msdu_comm *comm);
/* End the group for all ranks; the first cause stays. */
void msdu__host_fail(const struct msdu_comm *comm, msdu_status status, const char *format, ...)
    MSDU_PRINTF(3, 4);
/* The group's status; its text is head->text. */
msdu_status msdu__host_status(const struct msdu_comm *comm);

/* What texts call a rank. */
int32_t msdu__host_name(const struct msdu_comm *comm, int32_t rank);
/* The ranks with marks, as a text. Returns how many there are. */
int32_t msdu__host_list(const struct msdu_comm *comm, const bool *marks, char *text, size_t bytes);

/* --- host_move.c: operations --- */
/* Get on with the first operations of all channels, as far as the others let us. */
void msdu__host_advance(struct msdu_comm *comm);

#endif
