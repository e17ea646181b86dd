/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one function on every rank of a job: threads for "local", processes under mpirun for MPI
 * (MSDU_TEST_MPIRUN names it), forked processes for others. */
#ifndef BACKEND_WORLD_H
#define BACKEND_WORLD_H

#include "backend/registry.h"

#include <check.h>
#include <pthread.h>

#define WORLD_RANKS_MAX  8
#define WORLD_TEXT_BYTES 512

struct rank;
typedef bool (*rank_body)(struct rank *me); /* false: failed, and said why by rank_failed() */

/* What a rank leaves behind; lies in memory shared with processes. */
struct report {
    bool is_good;
    char text[WORLD_TEXT_BYTES]; /* why not */
    uint64_t hash;               /* of results that must be equal on all ranks */
};

struct world {
    const char *what; /* the case, for messages */
    int32_t ranks;
    int32_t absent; /* a rank that never comes, or -1 */
    int32_t victim; /* a rank that is expected to be killed or stopped, or -1 */
    uint32_t lanes;
    uint32_t requests;
    uint64_t deadline_ms;
    rank_body body;
    /* filled by world_run() */
    const msdu_backend *backend;
    bool is_threads;
    char job[64];
    char rendezvous[128];
    struct report *reports;
};

struct rank {
    struct world *world;
    int32_t index;
    msdu_host host;
    const msdu_backend *backend;
    msdu_comm *comm; /* open()ed by world_run(), unless the world has an absent rank */
    struct report *report;
    pthread_mutex_t lock;
    pthread_cond_t notified;
    uint64_t notices;
};

/* A job of so many ranks with usual settings. */
struct world world_make(const char *what, rank_body body, int32_t ranks);

/* Run it and assert that no rank but the victim failed. */
void world_run(struct world *world);

/* Go on with a hash of bytes. */
uint64_t world_hash(uint64_t hash, const void *data, size_t bytes);

/* Sleep for up to two milliseconds. */
void world_nap(uint64_t random);

/* backend_faults.c: the cases where something goes wrong. */
TCase *backend_faults(void);

/* backend_groups.c: groups of ranks. */
TCase *backend_groups(void);

/* Is the backend under test "local"? */
bool world_is_local(void);

/* Is it one of MPI, where a lost process ends the job by way of mpirun? */
bool world_is_mpi(void);

/* Was this process started by mpirun, to be a rank? Then it is one, and `code_out` is its status.
 */
bool world_is_rank(int *code_out);

/* The thread's latest error text, as host->fail got it. */
const char *world_error(void);

/* Note a failure; returns false. */
bool rank_failed(struct rank *me, const char *format, ...) MSDU_PRINTF(2, 3);

/* The usual operation: a sum of float32 in channel 0. */
msdu_op rank_sum(float *data, uint64_t count, uint64_t sequence);

/* Start, and finish with wait() until the operation ended. */
msdu_status rank_finish(struct rank *me, msdu_req *req);
msdu_status rank_do(struct rank *me, const msdu_op *op);
/* The operation again and again, with sequence numbers that go on; the first status that is bad. */
msdu_status rank_until_failure(struct rank *me, msdu_op op);

/* Does the error text hold `part`? Notes a failure if not, or if status is not as wanted. */
bool rank_expect(struct rank *me, msdu_status status, msdu_status wanted, const char *part);

#define RANK_CHECK(me, condition)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return rank_failed((me), "line %d: %s", __LINE__, #condition);                         \
        }                                                                                          \
    } while (0)

#endif
