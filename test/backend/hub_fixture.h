/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose ranks are threads that share a hub, with its log, and connections that do not belong.
 */
#ifndef HUB_FIXTURE_H
#define HUB_FIXTURE_H

#include "backend/rendezvous/hub.h"

#include <check.h>
#include <pthread.h>

#define JOB_RANKS_MAX 8
#define JOB_LOG_BYTES 16384

/* One rank, or a process that takes itself for one. */
struct member {
    msdu_host host;
    msdu__hub *hub;
    msdu_status status; /* of msdu__hub_open() */
    char text[MSDU__HUB_TEXT_BYTES];
    pthread_t thread;
};

struct job {
    int32_t ranks;
    char folder[112];
    char url[160];
    struct member members[JOB_RANKS_MAX];
};

/* A job of so many ranks over a new folder, deadline 20 s. */
void job_make(struct job *job, int32_t ranks);

/* Open a member in a thread of its own; wait for the end of it. */
void member_open(struct member *member);
void member_join(struct member *member);
/* The same, and assert that it is there. */
void member_admitted(struct member *member);

/* A member with this rank that is not one of the job's own. */
struct member stranger(const struct job *job, int32_t rank);

/* Open all ranks and assert that all are there. */
void job_open(struct job *job);

/* All say bye and close; the folder must be empty then. */
void job_close(struct job *job);
/* The same without bye. */
void job_drop(struct job *job);

/* Assert that open() failed like this (the second opens first), or that the group did. */
void expect_refused(const struct member *member, msdu_status status, const char *part);
void member_refused(struct member *member, msdu_status status, const char *part);
void expect_verdict(const struct member *member, msdu_status wanted, const char *part);

/* hub_life.c: the cases after admission; hub_redis.c, hub_store.c: where rank 0 tells its address.
 */
TCase *hub_life(void);
TCase *hub_redis(void);
TCase *hub_store(void);

/* Lines logged since job_make() that hold `part`; all lines with "". */
int log_count(const char *part);
/* Wait until that many are there, at most 20 s; returns the number. */
int log_wait(const char *part, int wanted);

/* The hub's port, as rank 0 published it; waits for it. */
int job_port(const struct job *job);

/* A plain connection to a port on loopback. */
int connect_raw(int port);

/* A port on loopback where nothing listens. */
int free_port(void);

#endif
