/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that are threads of this process: joining, failing and leaving. */
#ifndef MSDU_LOCAL_GROUP_H
#define MSDU_LOCAL_GROUP_H

#include "base/base.h"

#include <pthread.h>

#include "base/clock.h"

#define MSDU__LOCAL_NAMES_BYTES 128 /* longest list of ranks inside an error text */

/* One operation, from the first rank that started it until the last one was told its end. */
struct slot {
    struct slot *next;
    int32_t posted; /* ranks that started it */
    int32_t ranks;  /* that take part */
    uint32_t group; /* msdu_group */
    int32_t color;
    int32_t held;   /* ranks that hold a request on it */
    bool is_moving; /* its data is being moved, with no lock held */
    bool is_done;
    msdu_status status;
    uint32_t lane;
    uint64_t sequence;
    const msdu_op **ops;   /* by rank; NULL: not started yet */
    const msdu_op **moved; /* by rank of the group; once all have started */
};

struct msdu_req {
    struct msdu_req *next_free;
    struct slot *slot;
    uint64_t start_ns;
    msdu_op op;
};

/*
 * The ranks of one job. It is in the list `forming` until the last one joined.
 * Lock order: forming_lock, then group->lock. Neither is held across a call of the host.
 */
struct group {
    struct group *next;
    char *job;
    int32_t ranks;
    int32_t joined;
    int32_t members;    /* joined and not closed */
    msdu_status status; /* negative once the group is of no use */
    char text[MSDU__TEXT_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct msdu_comm **comms; /* by rank; NULL: not joined or closed */
    bool *has_joined;
    bool *has_left;
    struct slot *active;
    struct slot *free;
    struct slot *slots;
    const msdu_op **ops;
    int32_t *colors[MSDU_GROUPS]; /* by rank; NULL: there is no such group */
};

struct msdu_comm {
    const msdu_host *host;
    struct group *group;
    int32_t rank;
    uint32_t notifying;      /* calls of host->notify() under way */
    bool is_in[MSDU_GROUPS]; /* the groups that this rank has called split() for */
    struct msdu_req *free;
    struct msdu_req *reqs;
};

/* Does a rank take part in an operation? Lock held. */
bool msdu__local_takes_part(const struct group *group, const struct slot *slot, int32_t rank);

/* What split() is to do. Writes the cause of a failure. */
msdu_status msdu__local_split(struct group *group, uint32_t number, const int32_t *colors,
                              char text[MSDU__TEXT_BYTES]);

/* Wait for a change of the group; false if it did not come before until_ns. Lock held. */
bool msdu__local_wait_change(struct group *group, uint64_t until_ns);

/* End everything that waits for another rank; the first cause stays. Lock held. */
void msdu__local_fail(struct group *group, msdu_status status, const char *format, ...)
    MSDU_PRINTF(3, 4);

/* Call notify of every rank. No lock held; leaving waits for calls under way. */
void msdu__local_notify(struct group *group);

/* Join the group of comm->host->job; blocks until it is complete. Writes the cause of a failure. */
msdu_status msdu__local_join(struct msdu_comm *comm, char text[MSDU__TEXT_BYTES]);

/* Leave the group, if it was joined, and free the rank; the last rank frees the group. */
void msdu__local_leave(struct msdu_comm *comm);

#endif
