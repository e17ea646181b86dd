/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what the author of a collective backend fills in: one struct of functions.
 *
 * A module exports one symbol, MSDU_BACKEND_SYMBOL, a const msdu_backend. It is loaded once with
 * RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE and never unloaded. The table only grows at its end.
 *
 * Rules that hold for every entry:
 *  - No entry throws, prints, exits or aborts. Failure is a negative status after a call of
 *    host->fail() with one line that names cause and, where known, rank.
 *  - open, start, test, wait, abort and close are called from one thread at a time: the owner's
 *    before the communication thread starts, while it has nothing to do, and after its end; else
 *    the communication thread's.
 *  - Within a lane all ranks start the same operations in the same order; between lanes there is
 *    no order, unless the backend sets MSDU_CAP_SINGLE_ORDER.
 *  - Nothing is allocated by start, test and wait.
 */
#ifndef MSDU_BACKEND_H
#define MSDU_BACKEND_H

#include <msdu/device.h>
#include <msdu/msdu.h>
#include <msdu/store.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU_BACKEND_SYMBOL "msdu_backend_v2" /* major in the symbol, minor in size */

typedef struct msdu_comm msdu_comm; /* a joined group; owned by the backend */
typedef struct msdu_req msdu_req;   /* an operation in flight; owned by the backend */

/* What the library gives a backend. Strings are borrowed until close() and may be NULL. */
typedef struct msdu_host {
    size_t size;            /* sizeof(msdu_host) of the library */
    int32_t rank;           /* 0 .. ranks - 1 */
    int32_t ranks;          /* at least 1 */
    const char *job;        /* job name, never NULL */
    const char *secret;     /* shared secret */
    const char *rendezvous; /* URL; NULL: the backend's own default, if it has one */
    const char *interface;  /* network interface */
    const char *tls_key;    /* PEM files */
    const char *tls_cert;
    const char *tls_ca;
    uint64_t deadline_ns; /* longest wait for another rank */
    uint32_t lanes;       /* lanes used: 0 .. lanes - 1 */
    uint32_t requests;    /* most operations in flight at once */
    void *user;           /* first argument of the functions below */
    /* An operation ended, well or not. From any thread; must not be called with a lock held. */
    void (*notify)(void *user);
    /* One line of log. From any thread. */
    void (*log)(void *user, msdu_log_level level, const char *text);
    /* Set the calling thread's error text and return `status`. From any thread. */
    msdu_status (*fail)(msdu_status status, const char *text);
    const msdu_store *store; /* what `rendezvous` store://[HOST] means; NULL: none was given */
    const int32_t *names;    /* what texts call each rank; NULL: by its number */
} msdu_host;

typedef enum msdu_op_kind {
    MSDU_OP_ALLREDUCE = 0, /* in-place sum of count elements at recv, equal bits on all ranks */
    MSDU_OP_ALLTOALL = 1,  /* send: for each rank j in order shares[j] bytes; recv: from each rank
                              in order shares[own rank] bytes */
    MSDU_OP_ALLGATHER = 2, /* send: shares[own rank] bytes; recv: from each rank j in order
                              shares[j] bytes. send may be its own place inside recv */
    MSDU_OP_BROADCAST = 3, /* count bytes at recv, from rank 0 */
} msdu_op_kind;

/*
 * In msdu_op.flags, a wish about memory of a device: test() may say MSDU_OK as soon as the
 * operation was launched. What the library runs, starts or leads after that comes behind it on the
 * device, and send and recv stay borrowed until then. What fails later is the answer of a later
 * call.
 */
#define MSDU_OP_CHAINED 1U
/* In msdu_op.flags: this rank is between steps and meets the others there (msdu_finish() and its
 * like). Tells what ranks that start different operations are about. */
#define MSDU_OP_FINAL 2U

/*
 * In msdu_op.group, which ranks take part. In a group of ranks `ranks`, `shares` and "rank 0" of a
 * kind are those of the group, in the order of the whole job. Lanes are counted for each group
 * anew.
 */
typedef enum msdu_group {
    MSDU_GROUP_WORLD = 0, /* all ranks of the job */
    MSDU_GROUP_HOST = 1,  /* those of one host */
    MSDU_GROUP_INDEX = 2, /* those with the same index on their hosts */
} msdu_group;
#define MSDU_GROUPS 3

/* One collective operation; send, recv and shares stay borrowed until it ended. */
typedef struct msdu_op {
    size_t size;       /* sizeof(msdu_op) of the library */
    int32_t kind;      /* msdu_op_kind */
    int32_t dtype;     /* allreduce only: MSDU_FLOAT32 or MSDU_FLOAT64 */
    uint32_t lane;     /* which ordered channel */
    uint32_t place;    /* msdu_place of send and recv; shares are the host's */
    uint64_t sequence; /* 0, 1, 2, ... within the lane, equal on all ranks */
    uint64_t count;    /* elements (allreduce) or bytes (broadcast) */
    const void *send;  /* alltoall, allgather */
    void *recv;
    const uint64_t *shares; /* alltoall, allgather: bytes by rank; zero is allowed */
    uint32_t flags;         /* MSDU_OP_* */
    uint32_t group;         /* msdu_group */
} msdu_op;

/* test() need not be polled: the backend calls host->notify() whenever an operation ends. */
#define MSDU_CAP_NOTIFY 1U
/* Operations of all lanes must be started in one order on all ranks (NCCL); the library does so. */
#define MSDU_CAP_SINGLE_ORDER 2U
/* An allreduce sums each element in the order of ranks, wherever it lies and however many there
 * are: cut in another way, a gradient has the same bits. */
#define MSDU_CAP_RANK_ORDER 4U

/* A process's part in a job whose ranks come and go; owned by the backend. */
typedef struct msdu_members msdu_members;

/* An epoch: ranks that train together until one is lost or another one joins. */
typedef struct msdu_epoch {
    size_t size;         /* sizeof(msdu_epoch) of the library */
    uint64_t number;     /* 1, 2, ... within the job, equal on all its ranks */
    int32_t rank;        /* of this process in it */
    int32_t ranks;       /* at least 1 */
    int32_t lost;        /* ranks of the epoch before that are not in this one */
    int32_t joined;      /* and ranks of this one that were not in that; 0 in the first */
    int32_t is_newcomer; /* 1: this process has trained in no epoch, others have */
    msdu_store store;    /* by which its ranks find each other, until the next one */
} msdu_epoch;

/*
 * Groups of ranks that change while they train (setting ranks_least). The backend decides who is in
 * an epoch, the same on all its ranks, and never forms two of one number. The library joins each by
 * open() with the rank, the ranks and the store that it was told. All functions but has_newcomer
 * are called by the owner's thread.
 */
typedef struct msdu_membership {
    size_t size; /* sizeof(msdu_membership) when the backend was built */
    /*
     * The first epoch of this process: that of all host->ranks, or the next one of a job that
     * trains already, of which it becomes a new rank. least, most: ranks of an epoch; most 0: any.
     * wait_ns: for new ranks, where fewer than `least` are left. host is borrowed until close.
     * Blocks up to host->deadline_ns. Errors are those of msdu_backend.open.
     */
    msdu_status (*open)(const msdu_host *host, int32_t least, int32_t most, uint64_t wait_ns,
                        msdu_members **members_out, msdu_epoch *epoch_out);
    /*
     * The present epoch is over for this process: a rank of it was lost, or all its ranks end it to
     * let others in. step: steps that it has ended. has_state: 1, or 0 of a newcomer that has not
     * yet been given parameters. Rank 0 of the next epoch has them, and none has ended more steps.
     * Blocks while a rank that is there has not left the epoch. Errors, after which the process
     * belongs to the job no longer: ERR_PEER_LOST (fewer than `least` are left, or too few answer
     * to be sure that no others train on), ERR_TIMEOUT, ERR_IO.
     */
    msdu_status (*next)(msdu_members *members, uint64_t step, int32_t has_state,
                        msdu_epoch *epoch_out);
    /* Rank 0: does a process wait to be let in? Else 0. Never blocks. */
    int32_t (*has_newcomer)(msdu_members *members);
    /* Leave the job. NULL is allowed. Never fails; bounded by 1 s. */
    void (*close)(msdu_members *members);
} msdu_membership;

typedef struct msdu_backend {
    size_t size;         /* sizeof(msdu_backend) when the backend was built */
    const char *name;    /* static, lower case */
    const char *version; /* static; version of the library beneath, for `msdu info` */
    uint64_t caps;       /* MSDU_CAP_* */
    /*
     * Join the group. Blocks until all ranks joined or host->deadline_ns passed. host is borrowed
     * until close(). Errors: ERR_TIMEOUT (text names the missing ranks), ERR_DENIED, ERR_INVALID,
     * ERR_UNSUPPORTED, ERR_BACKEND.
     */
    msdu_status (*open)(const msdu_host *host, msdu_comm **comm_out);
    /* Leave the group. Operations in flight are abandoned first. Never fails; bounded by 1 s. */
    void (*close)(msdu_comm *comm);
    /* Start an operation. op is copied. Never blocks. */
    msdu_status (*start)(msdu_comm *comm, const msdu_op *op, msdu_req **req_out);
    /*
     * MSDU_OK: done, req is released. MSDU_IN_PROGRESS: call again. Negative: failed, req is
     * released; ERR_PEER_LOST and ERR_TIMEOUT name the rank where it is known. Never blocks.
     */
    msdu_status (*test)(msdu_comm *comm, msdu_req *req);
    /* Optional from here on: NULL or beyond size means "not provided". */
    /* As test(), but blocks up to timeout_ns. */
    msdu_status (*wait)(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns);
    /* Make everything in flight end soon, here and, as far as can be, on the other ranks. These
     * see ERR_PEER_LOST with this rank and `why`; but where `status` is one that all ranks find by
     * themselves from equal values, ERR_NOT_FINITE or ERR_MISMATCH, they see just that status and
     * text, whoever was first. The group is of no use afterwards. */
    void (*abort)(msdu_comm *comm, msdu_status status, const char *why);
    /* Memory of a device and loops over it; without it tensors are the host's. */
    const msdu_device *device;
    /*
     * Form a group besides the world. colors: of every rank; those of one color are a group, and a
     * rank of a negative one is in none. Equal on all ranks, which call it in the same order, each
     * group once, while nothing is in flight. lanes: used in it, from 0. Blocks until the group is
     * there or the deadline has passed; errors are those of open. After one the world is of no use
     * either. Without this entry a job has one level.
     */
    msdu_status (*split)(msdu_comm *comm, uint32_t group, const int32_t *colors, uint32_t lanes);
    /* Groups that change while they train; without it a lost rank ends the job. */
    const msdu_membership *membership;
} msdu_backend;

#define MSDU_BACKEND_HAS(be, op)                                                                   \
    ((be)->size >= offsetof(msdu_backend, op) + sizeof(void *) && (be)->op != NULL)

#ifdef __cplusplus
}
#endif

#endif
