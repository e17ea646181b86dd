/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STAND-IN for NCCL, not NCCL: collectives between processes or threads over a shared file, on the
 * stand-in's streams. It keeps to NCCL's rules and holds its caller to them:
 *  - what ranks start in another order, or with other sizes, never ends;
 *  - calls in a group are launched together at its end, sends and receives side by side;
 *  - a nonblocking communicator answers ncclInProgress, launches nothing until it was asked for its
 *    state often enough, and takes no other call before;
 *  - buffers are device memory.
 */
#include "nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MOST 8
#define TASKS_MOST 64
#define BOX_BYTES  32768
#define POLLS_MOST 3

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
} task;

typedef struct launch {
    ncclComm_t comm;
    cudaStream_t stream;
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
};

static size_t size_of(ncclDataType_t type)
{
    return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 1;
}

static void pause_shortly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* --- moving data --- */

static bool has_ended(ncclComm_t c)
{
    return atomic_load(&c->is_aborted);
}

/* One piece into a box, if it is empty. */
static bool put(ncclComm_t c, int to, const unsigned char *data, size_t bytes, uint64_t print)
{
    box *b = &c->memory->boxes[c->rank][to];
    if (atomic_load(&b->is_full) != 0) {
        return false;
    }
    b->bytes = (uint32_t)bytes;
    b->print = print;
    memcpy(b->data, data, bytes);
    atomic_store(&b->is_full, 1);
    return true;
}

/* One piece out of a box. What was meant for another operation stays there for ever. */
static bool take(ncclComm_t c, int from, unsigned char *data, size_t bytes, uint64_t print)
{
    box *b = &c->memory->boxes[from][c->rank];
    if (atomic_load(&b->is_full) == 0 || b->print != print || b->bytes != bytes) {
        return false;
    }
    memcpy(data, b->data, bytes);
    atomic_store(&b->is_full, 0);
    return true;
}

static size_t piece_of(const task *t)
{
    return t->bytes - t->done < BOX_BYTES ? t->bytes - t->done : BOX_BYTES;
}

static uint64_t print_of(task_kind kind, size_t bytes, uint64_t number)
{
    return (uint64_t)kind << 60 | (number & 0xfffff) << 40 | (bytes & 0xffffffffff);
}

/* Sends and receives of a group, side by side; those with one peer one after the other. */
static bool move_some(ncclComm_t c, launch *l, uint64_t *left)
{
    bool is_busy[2][RANKS_MOST] = {{false}};
    bool did = false;
    *left = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        task *t = &l->tasks[i];
        bool is_send = t->kind == SEND;
        if (t->kind < SEND || t->done == t->bytes) {
            continue;
        }
        *left += 1;
        if (is_busy[is_send][t->peer]) {
            continue;
        }
        is_busy[is_send][t->peer] = true;
        size_t bytes = piece_of(t);
        uint64_t print = print_of(SEND, t->bytes, 0);
        if (is_send ? put(c, t->peer, t->send + t->done, bytes, print)
                    : take(c, t->peer, t->recv + t->done, bytes, print)) {
            t->done += bytes;
            did = true;
        }
    }
    return did;
}

static void sum_into(unsigned char *out, const unsigned char *part, size_t bytes,
                     ncclDataType_t type)
{
    for (size_t i = 0; i < bytes / size_of(type); i++) {
        if (type == ncclFloat64) {
            ((double *)(void *)out)[i] += ((const double *)(const void *)part)[i];
        } else {
            ((float *)(void *)out)[i] += ((const float *)(const void *)part)[i];
        }
    }
}

/* Everybody's piece to everybody (or the root's), into parts by rank. */
static bool share_piece(ncclComm_t c, const task *t, const unsigned char *own, size_t bytes,
                        unsigned char (*parts)[BOX_BYTES], uint64_t print)
{
    bool sent[RANKS_MOST] = {false};
    bool came[RANKS_MOST] = {false};
    int left = 1;
    memcpy(parts[c->rank], own, bytes);
    while (left > 0 && !has_ended(c)) {
        bool did = false;
        left = 0;
        for (int peer = 0; peer < c->ranks; peer++) {
            bool sends = t->kind != BROADCAST || t->peer == c->rank;
            bool takes = t->kind != BROADCAST || t->peer == peer;
            if (peer == c->rank) {
                continue;
            }
            if (sends && !sent[peer]) {
                sent[peer] = put(c, peer, own, bytes, print);
                did = did || sent[peer];
            }
            if (takes && !came[peer]) {
                came[peer] = take(c, peer, parts[peer], bytes, print);
                did = did || came[peer];
            }
            left += (sends && !sent[peer]) + (takes && !came[peer]);
        }
        if (!did && left > 0) {
            pause_shortly();
        }
    }
    return !has_ended(c);
}

static void place_piece(ncclComm_t c, const task *t, size_t bytes,
                        unsigned char (*parts)[BOX_BYTES])
{
    if (t->kind == BROADCAST) {
        memcpy(t->recv + t->done, parts[t->peer], bytes);
    } else if (t->kind == ALLGATHER) {
        for (int rank = 0; rank < c->ranks; rank++) {
            memcpy(t->recv + (size_t)rank * t->bytes + t->done, parts[rank], bytes);
        }
    } else {
        for (int rank = 1; rank < c->ranks; rank++) {
            sum_into(parts[0], parts[rank], bytes, t->type);
        }
        memcpy(t->recv + t->done, parts[0], bytes);
    }
}

static void do_collective(ncclComm_t c, task *t)
{
    unsigned char(*parts)[BOX_BYTES] = malloc(RANKS_MOST * sizeof(*parts));
    uint64_t print = print_of(t->kind, t->bytes, ++c->collectives) ^ (uint64_t)t->type << 58;
    /* an empty one is one all the same: it keeps ranks in step */
    do {
        size_t bytes = piece_of(t);
        if (!share_piece(c, t, t->send + t->done, bytes, parts, print)) {
            break;
        }
        place_piece(c, t, bytes, parts);
        t->done += bytes;
    } while (t->done < t->bytes);
    free(parts);
}

static void run_launch(void *argument)
{
    launch *l = *(launch **)argument;
    ncclComm_t c = l->comm;
    uint64_t left = 1;
    while (left > 0 && !has_ended(c)) {
        if (!move_some(c, l, &left) && left > 0) {
            pause_shortly();
        }
    }
    for (uint32_t i = 0; i < l->count && !has_ended(c); i++) {
        if (l->tasks[i].kind < SEND) {
            do_collective(c, &l->tasks[i]);
        }
    }
    free(l);
    atomic_fetch_sub(&c->active, 1);
}

static ncclResult_t give(launch *l)
{
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer is what is handed over */
    return standin_launch(l->stream, run_launch, &l, sizeof(l)) == cudaSuccess
               ? ncclSuccess
               : ncclUnhandledCudaError;
}

/* --- groups --- */

static _Thread_local int depth;
static _Thread_local launch *pending;

static ncclResult_t launch_now(launch *l)
{
    ncclComm_t c = l->comm;
    atomic_fetch_add(&c->active, 1);
    if (!c->is_nonblocking) {
        return give(l);
    }
    c->held = l;
    c->polls = (int)((uintptr_t)l / 64 % POLLS_MOST);
    c->must_ask = true;
    return ncclInProgress;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0) {
        return ncclInvalidUsage;
    }
    launch *l = --depth == 0 ? pending : NULL;
    pending = depth == 0 ? NULL : pending;
    return l == NULL ? ncclSuccess : launch_now(l);
}

static ncclResult_t check(ncclComm_t c, const task *t)
{
    bool has_send = t->kind != RECV && !(t->kind == BROADCAST && c->rank != t->peer);
    size_t recv_bytes = t->kind == ALLGATHER ? t->bytes * (size_t)c->ranks : t->bytes;
    if (c->must_ask || !atomic_load(&c->is_joined) || has_ended(c)) {
        return ncclInvalidUsage;
    }
    if (t->peer < 0 || t->peer >= c->ranks || (has_send && !standin_is_device(t->send, t->bytes)) ||
        (t->kind != SEND && !standin_is_device(t->recv, recv_bytes))) {
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

static ncclResult_t add(ncclComm_t c, cudaStream_t stream, task t)
{
    ncclResult_t result = check(c, &t);
    if (result != ncclSuccess) {
        return result;
    }
    if (pending == NULL) {
        pending = calloc(1, sizeof(*pending));
        if (pending == NULL) {
            return ncclSystemError;
        }
        pending->comm = c;
        pending->stream = stream;
    }
    if (pending->comm != c || pending->stream != stream || pending->count == TASKS_MOST) {
        return ncclInvalidUsage; /* several communicators in a group: more than this one does */
    }
    pending->tasks[pending->count++] = t;
    if (depth > 0) {
        return ncclSuccess;
    }
    launch *l = pending;
    pending = NULL;
    return launch_now(l);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    (void)op;
    return add(comm, stream, (task){ALLREDUCE, send, recv, count * size_of(type), 0, type, 0});
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream, (task){ALLGATHER, send, recv, count * size_of(type), 0, type, 0});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream, (task){BROADCAST, send, recv, count * size_of(type), 0, type, root});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream, (task){SEND, send, NULL, count * size_of(type), 0, type, peer});
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(comm, stream, (task){RECV, NULL, recv, count * size_of(type), 0, type, peer});
}

/* --- communicators --- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static _Atomic unsigned count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "/msdu-standin-%ld-%u-%ld", (long)getpid(),
             atomic_fetch_add(&count, 1), now.tv_nsec);
    int file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, sizeof(shared)) != 0) {
        return ncclSystemError;
    }
    close(file);
    return ncclSuccess;
}

static void *join_main(void *argument)
{
    ncclComm_t c = argument;
    atomic_fetch_add(&c->memory->joined, 1);
    while (atomic_load(&c->memory->joined) < (uint32_t)c->ranks && !has_ended(c)) {
        pause_shortly();
    }
    if (c->rank == 0) {
        shm_unlink(c->name);
    }
    atomic_store(&c->is_joined, true);
    return NULL;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t c = calloc(1, sizeof(*c));
    int file = shm_open(id.internal, O_RDWR, 0600);
    if (c == NULL || file < 0 || ranks > RANKS_MOST) {
        free(c);
        return ncclSystemError;
    }
    c->memory = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    memcpy(c->name, id.internal, sizeof(c->name));
    c->rank = rank;
    c->ranks = ranks;
    c->is_nonblocking = config != NULL && config->blocking == 0;
    c->must_ask = c->is_nonblocking;
    if (c->memory == MAP_FAILED || pthread_create(&c->joiner, NULL, join_main, c) != 0) {
        free(c);
        return ncclSystemError;
    }
    *comm = c;
    while (!c->is_nonblocking && !atomic_load(&c->is_joined)) {
        pause_shortly();
    }
    return c->is_nonblocking ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = (ncclResult_t)atomic_load(&comm->error);
    if (*result != ncclSuccess || !comm->must_ask) {
        return ncclSuccess;
    }
    *result = ncclInProgress;
    if (!atomic_load(&comm->is_joined) || comm->polls-- > 0) {
        return ncclSuccess;
    }
    if (comm->held != NULL) {
        launch *l = comm->held;
        comm->held = NULL;
        *result = give(l);
    } else {
        *result = ncclSuccess;
    }
    comm->must_ask = false;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    atomic_store(&comm->is_aborted, true);
    if (comm->held != NULL) {
        free(comm->held);
        atomic_fetch_sub(&comm->active, 1);
    }
    pthread_join(comm->joiner, NULL);
    while (atomic_load(&comm->active) > 0) {
        pause_shortly();
    }
    munmap(comm->memory, sizeof(shared));
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->must_ask) {
        return ncclInvalidUsage;
    }
    comm->must_ask = comm->is_nonblocking;
    comm->polls = 1;
    return comm->is_nonblocking ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->must_ask) {
        return ncclInvalidUsage;
    }
    pthread_join(comm->joiner, NULL);
    while (atomic_load(&comm->active) > 0) {
        pause_shortly();
    }
    munmap(comm->memory, sizeof(shared));
    free(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process error",   "in progress"};
    return result >= ncclSuccess && result <= ncclInProgress ? texts[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
