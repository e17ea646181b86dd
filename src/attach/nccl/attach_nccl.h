/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of NCCL's attach module share. */
#ifndef MSDU_ATTACH_NCCL_H
#define MSDU_ATTACH_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <pthread.h>

#include <msdu/store.h>

#include "attach/gain.h"
#include "attach/ledger.h"
#include "attach/nccl_table.h"
#include "attach/part.h"
#include "attach/recognize.h"
#include "attach/settings.h"
#include "engine_device.h"

enum {
    MSDU__KIND_OTHER = 16, /* from here on no gradients, see engine_device.h */
};

/* Why a reduction was left to NCCL. */
enum {
    MSDU__PASSED_TYPE = 0,
    MSDU__PASSED_SMALL = 1,
    MSDU__PASSED_DENIED = 2,
    MSDU__PASSED_UNKNOWN = 3,
    MSDU__PASSED_PLAIN = 4,
    MSDU__PASSED_CAPTURED = 5,
    MSDU__PASSED_JOINING = 6, /* a gradient, on the way back from local steps */
    MSDU__PASSED_HALF = 7,
    MSDU__PASSED_WATCHED = 8, /* a gradient, before there is an engine */
};

/* An NCCL of the trainer's; its communicators are known to no other. */
typedef struct msdu__nccl_library {
    const void *base;
    ncclResult_t (*count)(ncclComm_t comm, int *count);
    ncclResult_t (*rank)(ncclComm_t comm, int *rank);
    ncclResult_t (*device)(ncclComm_t comm, int *device);
    ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t *result);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
} msdu__nccl_library;

/* library.c: that of a call; one thread at a time. NULL: functions are missing, or there are
 * too many libraries. */
const msdu__nccl_library *msdu__nccl_library_of(const msdu__nccl_call *call);

#define MSDU__SUM_ROOM    96 /* numbers that ranks may add up at once */
#define MSDU__TRACKS_MOST 64 /* communicators in a group that agree at once */
#define MSDU__PLACE_BYTES 64

/* One communicator. */
typedef struct msdu__track {
    pthread_mutex_t lock; /* of all below */
    uintptr_t comm;
    const msdu__nccl_library *library;
    msdu__nccl_reduce_fn reduce; /* the real one */
    int rank;
    int ranks;
    msdu__attach_comm place;
    int device;
    cudaStream_t stream; /* where the trainer reduced last */
    bool is_left_alone;  /* one rank, or not to be asked who it is */
    bool is_plain;       /* passed through on purpose, or because there is no engine */
    bool is_taking;      /* the present step began after the engine */
    bool has_strayed;
    bool has_failed;
    msdu__call seen; /* what broke the pattern last */
    char why[256];   /* has_failed */
    msdu__recognizer recognizer;
    msdu__attach_engine engine; /* ctx NULL: none */
    msdu__part part;            /* of ranks after local steps */
    bool is_breaking;           /* the engine ends when the group does */
    void *joining;              /* where sums are joined, on the host */
    cudaEvent_t joined;         /* the latest was; NULL: none ever */
    double *pinned;             /* `room` numbers, or NULL */
    double *staging;
    size_t room;
    cudaEvent_t summed;
    bool is_stuck; /* a sum did not end: its memory is still NCCL's */
    uint64_t candidates;
    uint64_t step_calls;  /* candidates before the latest step that was recognized */
    uint64_t ended_calls; /* candidates before the step in which the last engine ended, and ... */
    uint64_t ended_steps; /* ... the trainer's steps before it */
    msdu__gain gain;      /* asked for, or not: nothing is measured on a device */
    msdu__ledger ledger;
    struct msdu__guard *guard; /* guard.c; NULL: not asked for */
    bool is_doubt_told;        /* that a pattern is not enough for local steps */
    bool unmet_told;           /* that MSDU_ATTACH_TENSORS is something else */
    /* tracks_lock: */
    struct msdu__track *next;
    bool is_told_meeting, is_told_lr; /* by the trainer, before its next call */
    double told_lr;
} msdu__track;

/* call.c: reason_out: why it cannot be a gradient; -1: it may be one. */
msdu__call msdu__nccl_describe(const msdu__track *track, const msdu__nccl_call *call,
                               int *reason_out);
uint64_t msdu__nccl_bytes(const msdu__nccl_call *call);
/* A graph replays what is captured without asking anybody. */
bool msdu__nccl_is_captured(const msdu__nccl_call *call);

/* comm.c: ranks vote on what a step is, likewise for all of a group at once. */
void msdu__track_vote(msdu__track *const *tracks, size_t track_count);
/* Engines begin, for all communicators of a group at once; break; end. */
void msdu__track_begin(msdu__track *const *tracks, size_t track_count);
void msdu__track_break(msdu__track *track, const msdu__call *seen);
void msdu__track_stray(msdu__track *track, const msdu__call *seen);
/* NCCL has its sum on its stream: if it is a gradient that joins the ranks, let it. */
void msdu__track_join(msdu__track *track, const msdu__nccl_call *call, const msdu__call *seen);
/* Finish, and tell what happened; once. how: msdu__nccl_end */
void msdu__track_end(msdu__track *track, int how);
/* From now on every call fails, for this reason. */
void msdu__track_fail_with(msdu__track *track, const char *text);
/* A failure of the engine: said once; NCCL's code for it. */
int msdu__track_fail(msdu__track *track, msdu_status status);

/* consensus.c: what ranks agree upon under way, over the trainer's own communicators. Each adds
 * `count` numbers of its own to those of the others; false: not within limit_ms. All at once in a
 * group, because one thread may be several ranks. */
bool msdu__talk_sum(msdu__track *const *tracks, size_t track_count,
                    double (*values)[MSDU__SUM_ROOM], uint64_t limit_ms);
/* Rank 0 tells the others a secret, a text of MSDU__PLACE_BYTES. */
bool msdu__talk_secret(msdu__track *track, char *secret);

/* The communicator as the store by which an engine's ranks find rank 0. Stays where it is. */
typedef struct msdu__meeting {
    msdu__track *track;
    msdu_store store;
    bool has_met;
    char url[MSDU__PLACE_BYTES];
    char text[MSDU_STORE_VALUE_BYTES + 1]; /* what rank 0 said */
} msdu__meeting;

/* hosts: the sum of what msdu__talk_host() says. */
void msdu__meeting_begin(msdu__meeting *meeting, msdu__track *track, double hosts);
/* Where this rank has not come to it, the others wait for its part of the sum. */
void msdu__meeting_end(msdu__meeting *meeting);

/* What is equal on ranks that share a machine and its files. */
double msdu__talk_host(void);
/* values <- their sum over ranks: more of them, on one communicator. */
bool msdu__talk_add(msdu__track *track, double *values, size_t count, uint64_t limit_ms);
/* All that the communicator was given is on its streams. */
bool msdu__talk_settle(const msdu__track *track);
/* Wait for an event. */
bool msdu__talk_reached(cudaEvent_t event, uint64_t limit_ms);
void msdu__talk_close(msdu__track *track);

/* join.c: behind a sum, on its stream: what joins the ranks, if it is a gradient that does.
 * False: it could not be given to the device. */
bool msdu__join_add(msdu__track *track, const msdu__nccl_call *call, const msdu__call *seen);
/* What did not come again. */
void msdu__join_tell(msdu__track *track);
/* At the end: what did not come again leaves parameters apart, as far as this rank knows. */
bool msdu__join_differs(const msdu__track *track);
void msdu__join_close(msdu__track *track);

/* guard.c: for an engine that has begun; false: no memory. */
bool msdu__guard_open(msdu__track *track);
void msdu__guard_close(msdu__track *track);
/* Gradient `at` is behind its mean on the call's stream. True: a step has ended in which ranks
 * compare, which all of a group do at once; a difference fails. */
bool msdu__guard_add(msdu__track *track, const msdu__nccl_call *call, uint32_t at);
void msdu__track_compare(msdu__track *const *tracks, size_t track_count);

#endif
