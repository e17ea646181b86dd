/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the module nccl. */
#ifndef MSDU_NCCL_IMPL_H
#define MSDU_NCCL_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <msdu/backend.h>

#include "backend/rendezvous/hub.h"
#include "base/cell.h"
#include "base/clock.h"

#define MSDU__NCCL_MARKS 64 /* marks whose events are kept; older ones were reached */

struct msdu_req {
    msdu_op op;
    cudaEvent_t done;
    uint64_t began_ns;
    /* operations on the host's memory go through these; grown when needed */
    unsigned char *pinned;
    unsigned char *staging;
    uint64_t staged_bytes;
    uint64_t *shares;      /* copy of op.shares */
    bool is_let_go;        /* the library has its answer already (MSDU_OP_CHAINED) */
    struct msdu_req *next; /* free, or in flight behind this one */
    struct msdu_req *next_more;
};

/* What a channel was given, for the hub. */
typedef struct msdu__nccl_lane {
    msdu__cell started;
    msdu__cell *prints; /* by sequence; see nccl.c */
} msdu__nccl_lane;

/*
 * Streams: `early` reads what the trainer announced, `late` works on what arrived, so that nothing
 * that arrived waits for a gradient that is not computed yet; early waits for late, never the other
 * way round. `wire` is NCCL's. `notice` tells the host, so that no stream waits for that.
 *
 * Lock order: `launch` (whatever is given to streams, any thread) before `lock` (requests,
 * failure), a leaf that is not held across a call of the hub or the host. The hub's thread takes
 * only `lock` and `telling`.
 */
struct msdu_comm {
    const msdu_host *host;
    msdu__hub *hub; /* NULL: a single rank */
    msdu__hub_watch watch;
    int device;
    ncclComm_t nccl; /* NULL: not there, or aborted */
    cudaStream_t early;
    cudaStream_t late;
    cudaStream_t wire;
    cudaStream_t notice;
    cudaEvent_t early_end; /* latest records */
    cudaEvent_t late_end;
    cudaEvent_t *announced; /* by index; NULL: not yet */
    uint32_t announced_count;
    void *scratch[2];        /* sums of kernels under way, by stream */
    void *exchange;          /* registered memory, freed when NCCL has let go of it; NULL: none */
    void *exchange_handle;   /* NULL: not registered, or not any more */
    bool has_ended;          /* the communicator: NCCL let go of everything */
    bool is_stuck;           /* streams did not end within the deadline */
    pthread_mutex_t telling; /* while the host is told */
    bool is_left;            /* the host is not there any more */
    pthread_mutex_t launch;
    cudaEvent_t marks[MSDU__NCCL_MARKS];
    uint64_t mark_count;
    msdu__nccl_lane *lanes;
    uint64_t grace_ns;     /* while joining: a rank that is in already may end the group at once */
    msdu__flag is_failing; /* the hub said so, or a call failed */
    pthread_mutex_t lock;
    msdu_req *reqs;
    msdu_req *more; /* made since, for what is chained */
    msdu_req *free;
    msdu_req *oldest; /* in flight, in order of starting */
    msdu_req *newest;
    uint64_t front_ns; /* since when the oldest is the oldest */
    msdu_status status;
    char text[MSDU__HUB_TEXT_BYTES];
};

/* nccl_fault.c: a call failed; say so, and end the communicator. Returns the group's status, whose
 * cause may be another rank. */
msdu_status msdu__nccl_fail(msdu_comm *comm, const char *what, const char *why);
/* MSDU_OK, or the failure noted before, after ending the communicator. */
msdu_status msdu__nccl_check(msdu_comm *comm);
void msdu__nccl_note(msdu_comm *comm, msdu_status status, const char *text);
/* End the communicator, within a second; what it was doing ends, too. */
void msdu__nccl_end(msdu_comm *comm);
/* Have the streams done all that they were given? Waits for it once, within the deadline. A stream
 * may stand behind one of the trainer's, which may stand behind a rank that is not there. */
bool msdu__nccl_drain(msdu_comm *comm);
/* Take registered memory back, within a second, while the other ranks are still there. */
void msdu__nccl_unregister(msdu_comm *comm);

/* nccl.c: what NCCL or the group have to say that no operation's event tells. */
msdu_status msdu__nccl_look(msdu_comm *comm);
/* Tell the host that something ended; user is the msdu_comm. */
void msdu__nccl_notify(void *user);
/* Is a chained operation under way? */
bool msdu__nccl_has_chain(msdu_comm *comm);

/* A call of CUDA or NCCL inside a function that returns a status. */
#define MSDU__CUDA(comm, call)                                                                     \
    do {                                                                                           \
        cudaError_t cuda_error = (call);                                                           \
        if (cuda_error != cudaSuccess) {                                                           \
            return msdu__nccl_fail((comm), #call, cudaGetErrorString(cuda_error));                 \
        }                                                                                          \
    } while (0)
/* Of a nonblocking communicator: until it has done what was asked for. */
#define MSDU__NCCL(comm, call)                                                                     \
    do {                                                                                           \
        msdu_status nccl_status = msdu__nccl_settle((comm), (call), #call);                        \
        if (nccl_status != MSDU_OK) {                                                              \
            return nccl_status;                                                                    \
        }                                                                                          \
    } while (0)
msdu_status msdu__nccl_settle(msdu_comm *comm, ncclResult_t result, const char *what);

/* nccl_move.c: put what an operation does on the wire's stream. */
msdu_status msdu__nccl_move(msdu_comm *comm, msdu_req *req);
/* An operation on the host's memory is done: put there what it received. */
void msdu__nccl_unstage(const msdu_comm *comm, const msdu_req *req);

/* nccl_register.c: memory for what all ranks send and receive; msdu_device.exchange. */
msdu_status msdu__nccl_exchange(msdu_comm *comm, uint64_t bytes, void **memory_out);
void msdu__nccl_exchange_end(msdu_comm *comm);
void msdu__nccl_deregister(ncclComm_t nccl, void *handle);

/* nccl_device.c */
extern const msdu_device msdu__nccl_device;

#endif
