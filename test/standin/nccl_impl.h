/* SPDX-License-Identifier: Apache-2.0 */
/* STAND-IN for NCCL, not NCCL: what its files share. */
#ifndef STANDIN_NCCL_IMPL_H
#define STANDIN_NCCL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl.h"

#define RANKS_MOST   8
#define TASKS_MOST   64
#define BOX_BYTES    32768
#define POLLS_MOST   3
#define STREAMS_MOST 8

/* What one rank has for another, a piece at a time. */
typedef struct box {
    _Atomic uint32_t is_full;
    uint32_t bytes;
    uint64_t print; /* which operation, as the sender sees it */
    unsigned char data[BOX_BYTES];
} box;

typedef struct shared {
    _Atomic uint32_t joined;
    box boxes[RANKS_MOST][RANKS_MOST]; /* [from][to] */
} shared;

typedef enum task_kind { ALLREDUCE = 1, ALLGATHER, BROADCAST, SEND, RECV } task_kind;

typedef struct task {
    task_kind kind;
    const unsigned char *send;
    unsigned char *recv;
    size_t bytes;
    size_t done;
    ncclDataType_t type;
    int peer; /* or root */
    ncclRedOp_t op;
    bool is_registered; /* its memory */
} task;

typedef struct launch {
    struct launch *next; /* of the same group, another communicator */
    ncclComm_t comm;
    cudaStream_t stream;
    cudaStream_t others[STREAMS_MOST]; /* streams of the group besides */
    uint32_t other_count;
    bool is_kept; /* captured: done as often as the graph is launched */
    uint32_t count;
    task tasks[TASKS_MOST];
} launch;

struct ncclComm {
    char name[NCCL_UNIQUE_ID_BYTES];
    int rank;
    int ranks;
    bool is_nonblocking;
    shared *memory;
    pthread_t joiner;
    _Atomic bool is_joined;
    _Atomic bool is_aborted;
    _Atomic int active;   /* launches not over */
    _Atomic int error;    /* ncclResult_t */
    uint64_t collectives; /* by the streams' work, in order */
    bool must_ask;        /* the caller was told ncclInProgress */
    int polls;            /* until what is held back is launched */
    launch *held;
    cudaEvent_t last; /* behind the latest launch, whatever its stream */
};

void standin_pause(void);
/* What was launched, in its turn on its stream. */
ncclResult_t standin_give(launch *l);

/* nccl_register.c: is the memory registered with the communicator? It ends. */
bool standin_is_registered(ncclComm_t comm, const void *memory, size_t bytes);
void standin_end_registered(ncclComm_t comm, bool is_abort);

#endif
