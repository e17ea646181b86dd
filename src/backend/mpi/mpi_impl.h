/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the MPI backend share. Compiled once per MPI family. */
#ifndef MSDU_MPI_IMPL_H
#define MSDU_MPI_IMPL_H

#include <mpi.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/backend.h>

#include "base/clock.h"

#if defined(__GNUC__)
#define MSDU_MPI_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define MSDU_MPI_PRINTF(format_at, args_at)
#endif

#define MPI__TEXT_BYTES 512

/* MPI counts in int: more elements or bytes go in several calls, or as derived types. Smaller in
 * the tests' own build of the module. */
#ifndef MSDU_MPI_PIECE
#define MSDU_MPI_PIECE 0x40000000
#endif
#define MPI__PIECES 64 /* of one allreduce or broadcast */

#define MPI__NOTICES 16 /* messages under way to all others */
#define MPI__LANES   64 /* channels that fit into a notice */
#define MPI__PRINTS  64 /* latest operations of a channel whose fingerprints are known */

typedef enum mpi__notice_kind {
    MPI__STARTED = 1, /* "I have started this operation" */
    MPI__FAILED = 2,  /* the group has failed: status and text */
    MPI__LEFT =
        3, /* "I have left": in place of a text how many operations of each channel I started
            */
} mpi__notice_kind;

/* What ranks tell each other beside the data; of the text, what there is. */
typedef struct mpi__notice {
    int32_t kind;
    int32_t rank;
    int32_t status;
    uint32_t channel; /* in msdu_comm.lanes */
    uint32_t print;   /* fingerprint of the operation */
    uint32_t reserved;
    uint64_t sequence;
    union {
        char text[MPI__TEXT_BYTES];
        uint64_t started[MPI__LANES];
    };
} mpi__notice;

/* A notice on its way to all other ranks. */
typedef struct mpi__sending {
    mpi__notice notice;
    MPI_Request *requests; /* ranks */
    bool is_used;
} mpi__sending;

/* What a rank said last about a channel. */
typedef struct mpi__heard {
    uint64_t sequence;
    bool is_any;
} mpi__heard;

/* An operation that another rank has started before this one. */
typedef struct mpi__ahead {
    uint64_t sequence;
    uint32_t print;
    int32_t rank;
    bool is_any;
} mpi__ahead;

/* Who takes part; msdu_group. */
typedef struct mpi__group {
    int32_t rank;     /* of this process in it; -1: in none, or not formed */
    int32_t ranks;    /* 0: not formed */
    int32_t *members; /* their ranks in the world */
    uint32_t lanes;
} mpi__group;

/* A channel: a lane of a group. */
typedef struct mpi__lane {
    MPI_Comm comm;
    const mpi__group *group;
    uint32_t number;               /* among the group's lanes */
    uint64_t started;              /* operations */
    uint32_t prints[MPI__PRINTS];  /* by sequence */
    mpi__ahead ahead[MPI__PRINTS]; /* by sequence */
    mpi__heard *heard;             /* ranks of the world */
    uint64_t end; /* operations from this one on never end: a rank has left before; or UINT64_MAX */
    int32_t end_rank;
} mpi__lane;

/*
 * One operation in flight. MPI works on the request's own memory, never on the caller's: a pending
 * collective cannot be taken back, and after a failure it would write where it likes.
 */
struct msdu_req {
    msdu_op op;
    uint64_t start_ns;
    uint64_t told_ns; /* when the others were told last that it stalls; 0: not yet */
    unsigned char *send;
    unsigned char *recv;
    size_t send_room;
    size_t recv_room;
    int pieces;
    MPI_Request requests[MPI__PIECES];
    int *counts;         /* 4 ranks: send counts, send places, receive counts, receive places */
    MPI_Datatype *types; /* 2 ranks */
    bool is_used;
    bool is_local; /* a group of one: ended when it started */
    mpi__lane *lane;
    struct msdu_req *next_free;
};

struct msdu_comm {
    const msdu_host *host;
    MPI_Comm control;
    mpi__group groups[MSDU_GROUPS];
    mpi__lane *lanes; /* MSDU_GROUPS times host->lanes */
    struct msdu_req *reqs;
    struct msdu_req *free;
    uint32_t in_flight;
    mpi__sending sendings[MPI__NOTICES];
    mpi__notice arriving;
    MPI_Request receive;
    bool *marks; /* ranks; scratch for texts */
    msdu_status status;
    char text[MPI__TEXT_BYTES];
    struct msdu_comm *next_left; /* groups that failed are kept: MPI may still use their memory */
};

/* mpi_life.c: MPI itself, and the group's communicators. */
msdu_status mpi__life_begin(const msdu_host *host);
msdu_status mpi__join(struct msdu_comm *comm);
/* Communicators of a group whose members are known; color: this rank's, negative: it is in none. */
msdu_status mpi__join_group(struct msdu_comm *comm, uint32_t group, int32_t color, uint64_t print);
/* All ranks leave together, or within the given time; false: communicators must be kept. */
bool mpi__leave(struct msdu_comm *comm);
/* MPI_Test() of a collective whose error is returned, not handled. */
int mpi__test(MPI_Request *request, int *is_done);

/* mpi_move.c: operations and their memory. */
msdu_status mpi__move_start(struct msdu_comm *comm, struct msdu_req *req);
/* MSDU_OK: ended and copied; MSDU_IN_PROGRESS; or the text of a failure in comm->text. */
msdu_status mpi__move_test(struct msdu_comm *comm, struct msdu_req *req);
void mpi__move_free(struct msdu_req *req);

/* mpi_watch.c: what ranks tell each other. */
msdu_status mpi__watch_begin(struct msdu_comm *comm);
void mpi__watch_end(struct msdu_comm *comm);
/* Hear what arrived; returns the group's status. */
msdu_status mpi__watch_poll(struct msdu_comm *comm);
/* This rank leaves while others, as it seems, do not: they must not wait for it. */
void mpi__watch_leave(struct msdu_comm *comm);
/* Fails if a rank has left before this operation of a channel; else MSDU_OK. */
msdu_status mpi__watch_reachable(struct msdu_comm *comm, const mpi__lane *lane, uint64_t sequence);
/* The first cause stays; told to all others. */
msdu_status mpi__watch_fail(struct msdu_comm *comm, msdu_status status, const char *format, ...)
    MSDU_MPI_PRINTF(3, 4);
/* Look at an operation that has not ended: deadline, and whether the others should be told. */
msdu_status mpi__watch_late(struct msdu_comm *comm, struct msdu_req *req);
/* MPI itself reported an error: another rank may know why. */
msdu_status mpi__watch_blame(struct msdu_comm *comm, struct msdu_req *req, const char *what);
/* An operation is about to start: remember it, and tell a neighbor. */
void mpi__watch_note(struct msdu_comm *comm, const struct msdu_req *req);

/* mpi_base.c */
msdu_status mpi__error(const msdu_host *host, const char *call, int code);
/* Give up MPI_Finalize() at the end of the process: a rank will not come to it. */
void mpi__broken(void);
bool mpi__is_broken(void);

#endif
