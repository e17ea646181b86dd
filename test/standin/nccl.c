/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STAND-IN for NCCL, not NCCL: collectives between processes or threads over a shared file, on the
 * stand-in's streams. It keeps to NCCL's rules and holds its caller to them:
 *  - what ranks start in another order, or with other sizes, never ends;
 *  - calls in a group are launched together at its end, sends and receives side by side, and as if
 *    on all of the group's streams; those of a communicator come one after another on any stream;
 *  - a nonblocking communicator answers ncclInProgress, launches nothing until it was asked for its
 *    state often enough, and takes no other call before;
 *  - buffers are device memory; an operation by registered memory on some ranks only never ends.
 */
#include "nccl_impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../kit/half.h"

#define WORN_PIECES 16 /* an all-to-all and an all-gather of a few ranks, at least */

static size_t size_of(ncclDataType_t type)
{
    bool is_single = type == ncclFloat32 || type == ncclInt32;
    return type == ncclFloat64 ? 8 : is_single ? 4 : type == ncclInt8 ? 1 : 2;
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

static uint64_t print_of(const task *t, task_kind kind, uint64_t number)
{
    return (uint64_t)kind << 60 | (number & 0xfffff) << 40 |
           ((uint64_t)t->bytes << 1 & 0xffffffffff) | (t->is_registered ? 1U : 0U);
}

/* A faulty network (STANDIN_FLIP=N): from the Nth on, some pieces that rank 1 receives have a wrong
 * bit, and no error tells of it. */
static void wear(ncclComm_t c, unsigned char *data, size_t bytes)
{
    static atomic_long pieces;
    const char *text = getenv("STANDIN_FLIP");
    if (text != NULL && c->rank == 1 && bytes > 0) {
        const long since = atomic_fetch_add(&pieces, 1) - strtol(text, NULL, 10);
        data[bytes / 2] ^= since >= 0 && since < WORN_PIECES ? 1U : 0U;
    }
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
        uint64_t print = print_of(t, SEND, 0);
        if (is_send ? put(c, t->peer, t->send + t->done, bytes, print)
                    : take(c, t->peer, t->recv + t->done, bytes, print)) {
            wear(c, t->recv + t->done, is_send ? 0 : bytes);
            t->done += bytes;
            did = true;
        }
    }
    return did;
}

#define SUM(name, kind)                                                                            \
    static void name(kind *out, const kind *part, size_t count, ncclRedOp_t op)                    \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            out[i] = op == ncclMax ? (part[i] > out[i] ? part[i] : out[i]) : out[i] + part[i];     \
        }                                                                                          \
    }
SUM(sum_double, double)
SUM(sum_float, float)
SUM(sum_int, int)

/* Each sum of two is rounded, as on a ring. */
static void sum_half(uint16_t *out, const uint16_t *part, size_t count, const task *t)
{
    bool is_bfloat = t->type == ncclBfloat16;
    for (size_t i = 0; i < count; i++) {
        double x = half_get(is_bfloat, out[i]);
        double y = half_get(is_bfloat, part[i]);
        out[i] = half_put(is_bfloat, t->op == ncclMax ? (x > y ? x : y) : x + y);
    }
}

static void sum_into(unsigned char *out, const unsigned char *part, size_t bytes, const task *t)
{
    size_t count = bytes / size_of(t->type);
    if (t->type == ncclFloat64) {
        sum_double((double *)(void *)out, (const double *)(const void *)part, count, t->op);
    } else if (t->type == ncclFloat32) {
        sum_float((float *)(void *)out, (const float *)(const void *)part, count, t->op);
    } else if (t->type == ncclFloat16 || t->type == ncclBfloat16) {
        sum_half((uint16_t *)(void *)out, (const uint16_t *)(const void *)part, count, t);
    } else {
        sum_int((int *)(void *)out, (const int *)(const void *)part, count, t->op);
    }
}

static void divide(unsigned char *out, size_t bytes, const task *t, int ranks)
{
    for (size_t i = 0; i < bytes / size_of(t->type) && t->op == ncclAvg; i++) {
        if (t->type == ncclFloat64) {
            ((double *)(void *)out)[i] /= ranks;
        } else if (t->type != ncclFloat32) {
            uint16_t *half = (uint16_t *)(void *)out + i;
            bool is_bfloat = t->type == ncclBfloat16;
            *half = half_put(is_bfloat, half_get(is_bfloat, *half) / ranks);
        } else {
            ((float *)(void *)out)[i] /= (float)ranks;
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
            standin_pause();
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
            sum_into(parts[0], parts[rank], bytes, t);
        }
        divide(parts[0], bytes, t, c->ranks);
        memcpy(t->recv + t->done, parts[0], bytes);
    }
}

static void do_collective(ncclComm_t c, task *t)
{
    unsigned char(*parts)[BOX_BYTES] = malloc(RANKS_MOST * sizeof(*parts));
    uint64_t print = print_of(t, t->kind, ++c->collectives) ^ (uint64_t)t->type << 58;
    while (t->done < t->bytes) {
        size_t bytes = piece_of(t);
        if (!share_piece(c, t, t->send + t->done, bytes, parts, print)) {
            break;
        }
        place_piece(c, t, bytes, parts);
        t->done += bytes;
    }
    free(parts);
}

static void run_launch(void *argument)
{
    launch *l = *(launch **)argument;
    ncclComm_t c = l->comm;
    uint64_t left = 1;
    while (left > 0 && !has_ended(c)) {
        if (!move_some(c, l, &left) && left > 0) {
            standin_pause();
        }
    }
    for (uint32_t i = 0; i < l->count && !has_ended(c); i++) {
        if (l->tasks[i].kind < SEND) {
            do_collective(c, &l->tasks[i]);
        }
    }
    if (l->is_kept) {
        for (uint32_t i = 0; i < l->count; i++) {
            l->tasks[i].done = 0;
        }
        return;
    }
    free(l);
    atomic_fetch_sub(&c->active, 1);
}

/* The stream comes behind an event's latest record on another. */
static void follow(cudaStream_t stream, cudaStream_t other, cudaEvent_t event)
{
    (void)cudaEventRecord(event, other);
    (void)cudaStreamWaitEvent(stream, event, 0);
}

ncclResult_t standin_give(launch *l)
{
    ncclComm_t c = l->comm;
    const uint32_t other_count = l->other_count;
    cudaStream_t others[STREAMS_MOST];
    cudaStream_t stream = l->stream;
    memcpy(others, l->others, sizeof(others));
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &status);
    l->is_kept = status != cudaStreamCaptureStatusNone; /* and is never freed */
    atomic_fetch_sub(&c->active, l->is_kept ? 1 : 0);
    if (!l->is_kept) {
        (void)cudaStreamWaitEvent(stream, c->last, 0);
    }
    for (uint32_t i = 0; i < other_count; i++) {
        follow(stream, others[i], c->last);
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer is what is handed over */
    cudaError_t error = standin_launch(stream, run_launch, &l, sizeof(l));
    if (status == cudaStreamCaptureStatusNone) {
        (void)cudaEventRecord(c->last, stream);
    }
    for (uint32_t i = 0; i < other_count; i++) {
        (void)cudaStreamWaitEvent(others[i], c->last, 0);
    }
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* --- groups --- */

static _Thread_local int depth;
static _Thread_local launch *pending; /* one for each communicator */

static ncclResult_t launch_now(launch *l)
{
    ncclComm_t c = l->comm;
    atomic_fetch_add(&c->active, 1);
    if (!c->is_nonblocking) {
        return standin_give(l);
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
    if (--depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t worst = ncclSuccess;
    while (pending != NULL) {
        launch *l = pending;
        pending = l->next;
        ncclResult_t result = launch_now(l);
        worst = result != ncclSuccess ? result : worst;
    }
    return worst;
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

/* The stream is one of the launch's. */
static bool note_stream(launch *l, cudaStream_t stream)
{
    bool is_known = l->stream == stream;
    for (uint32_t i = 0; i < l->other_count; i++) {
        is_known = is_known || l->others[i] == stream;
    }
    if (!is_known && l->other_count < STREAMS_MOST) {
        l->others[l->other_count++] = stream;
        is_known = true;
    }
    return is_known;
}

static launch *pending_of(ncclComm_t c, cudaStream_t stream)
{
    launch **at = &pending;
    while (*at != NULL && (*at)->comm != c) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        *at = calloc(1, sizeof(**at));
        if (*at != NULL) {
            (*at)->comm = c;
            (*at)->stream = stream;
        }
    }
    return *at;
}

static ncclResult_t add(ncclComm_t c, cudaStream_t stream, task t)
{
    ncclResult_t result = check(c, &t);
    if (result != ncclSuccess) {
        return result;
    }
    if (t.bytes == 0 && t.kind < SEND) {
        return ncclSuccess; /* NCCL discards empty collectives: they keep nobody in step */
    }
    launch *l = pending_of(c, stream);
    if (l == NULL) {
        return ncclSystemError;
    }
    if (!note_stream(l, stream) || l->count == TASKS_MOST) {
        return ncclInvalidUsage; /* more than this one does */
    }
    size_t recv_bytes = t.kind == ALLGATHER ? t.bytes * (size_t)c->ranks : t.bytes;
    t.is_registered = (t.kind == RECV || standin_is_registered(c, t.send, t.bytes)) &&
                      (t.kind == SEND || standin_is_registered(c, t.recv, recv_bytes));
    l->tasks[l->count++] = t;
    if (depth > 0) {
        return ncclSuccess;
    }
    pending = NULL;
    return launch_now(l);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    task t = {ALLREDUCE, send, recv, count * size_of(type), 0, type, 0, op, false};
    return add(comm, stream, t);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream,
               (task){ALLGATHER, send, recv, count * size_of(type), 0, type, 0, ncclSum, false});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream,
               (task){BROADCAST, send, recv, count * size_of(type), 0, type, root, ncclSum, false});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream,
               (task){SEND, send, NULL, count * size_of(type), 0, type, peer, ncclSum, false});
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(comm, stream,
               (task){RECV, NULL, recv, count * size_of(type), 0, type, peer, ncclSum, false});
}
