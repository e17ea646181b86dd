/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that took local steps are joined by additions to sums of NCCL's own: each is copied to the
 * host behind its reduction, on the trainer's stream, and back before anything else that the stream
 * is given. Nothing waits; a stream that joins comes behind the one that did so before.
 */
#include "attach_nccl.h"

#include <stdio.h>
#include <stdlib.h>

#define STAGED_BYTES ((size_t)1 << 22)
#define END_MS       1000 /* for what is still on a stream */

/* Part of a sum, when the stream has come to it. */
typedef struct piece {
    msdu__optimizer optimizer;
    msdu__apart *apart;
    uint64_t first;
    uint64_t count;
    void *sum;
    bool is_last; /* of the last sum that this gradient needs */
} piece;

static void join_piece(void *argument)
{
    piece *one = argument;
    msdu__rejoin_add(&one->optimizer, one->apart, one->first, one->count, one->sum);
    if (one->is_last) {
        msdu__apart_free(one->apart);
    }
    free(one);
}

static bool make_room(msdu__track *track)
{
    if (track->joined == NULL &&
        (cudaHostAlloc(&track->joining, STAGED_BYTES, cudaHostAllocPortable) != cudaSuccess ||
         cudaEventCreateWithFlags(&track->joined, cudaEventDisableTiming) != cudaSuccess)) {
        return false;
    }
    return track->joining != NULL;
}

static bool enqueue_piece(const msdu__track *track, const piece *what, void *data, size_t bytes,
                          cudaStream_t stream)
{
    piece *one = malloc(sizeof(*one));
    if (one == NULL) {
        return false;
    }
    *one = *what;
    bool is_good = cudaMemcpyAsync(track->joining, data, bytes, cudaMemcpyDeviceToHost, stream) ==
                       cudaSuccess &&
                   cudaLaunchHostFunc(stream, join_piece, one) == cudaSuccess;
    if (!is_good) {
        free(one);
    }
    return is_good && cudaMemcpyAsync(data, track->joining, bytes, cudaMemcpyHostToDevice,
                                      stream) == cudaSuccess;
}

static bool enqueue(const msdu__track *track, const msdu__nccl_call *call, msdu__apart *apart,
                    bool is_joined)
{
    cudaStream_t stream = (cudaStream_t)call->stream;
    const size_t width = msdu__apart_is_double(apart) ? sizeof(double) : sizeof(float);
    const uint64_t most = STAGED_BYTES / width;
    bool is_good = cudaStreamWaitEvent(stream, track->joined, 0) == cudaSuccess;
    for (uint64_t at = 0; at < call->count && is_good; at += most) {
        const uint64_t left = call->count - at;
        const piece one = {
            .optimizer = track->part.optimizer,
            .apart = apart,
            .first = at,
            .count = left < most ? left : most,
            .sum = track->joining,
            .is_last = is_joined && left <= most,
        };
        is_good =
            enqueue_piece(track, &one, (char *)call->recv + at * width, one.count * width, stream);
    }
    return cudaEventRecord(track->joined, stream) == cudaSuccess && is_good;
}

bool msdu__join_add(msdu__track *track, const msdu__nccl_call *call, const msdu__call *seen)
{
    msdu__apart *apart = msdu__part_find(&track->part, seen);
    msdu__ledger_pass(&track->ledger, apart != NULL ? MSDU__PASSED_JOINING : MSDU__PASSED_UNKNOWN,
                      msdu__call_bytes(seen));
    if (apart == NULL) {
        return true;
    }
    /* a nonblocking communicator may not have launched it yet */
    if (!msdu__talk_settle(track) || !make_room(track)) {
        return false;
    }
    bool is_joined = msdu__rejoin_call(&track->part.optimizer, apart);
    if (is_joined) {
        msdu__part_joined(&track->part, apart); /* it is the last piece's now */
    }
    return enqueue(track, call, apart, is_joined);
}

/* The device has made what it was given, so what ranks are apart by is up to date. */
static bool is_known(const msdu__track *track)
{
    return track->joined == NULL || msdu__talk_reached(track->joined, END_MS);
}

void msdu__join_tell(msdu__track *track)
{
    if (is_known(track)) {
        msdu__part_tell(&track->part);
    }
}

bool msdu__join_differs(const msdu__track *track)
{
    return is_known(track) ? msdu__part_differs(&track->part) : track->part.apart != NULL;
}

void msdu__join_close(msdu__track *track)
{
    /* else it may still be used, and is left behind */
    if (track->joined != NULL && !msdu__talk_reached(track->joined, END_MS)) {
        return;
    }
    msdu__part_free(&track->part);
    if (track->joined != NULL) {
        (void)cudaEventDestroy(track->joined);
    }
    (void)cudaFreeHost(track->joining);
    track->joined = NULL;
    track->joining = NULL;
}
