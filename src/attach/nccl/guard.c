/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MSDU_ATTACH_GUARD: were all ranks given the same? What a gradient became is copied to the host
 * behind its mean, on the trainer's stream, and added up there. Nothing waits for that but the call
 * that ends a step in which ranks compare. Host functions of several streams come one after the
 * other, as in join.c.
 */
#include "attach_nccl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "attach/given.h"

#define STAGED_BYTES ((size_t)1 << 20)
#define END_MS       1000 /* for what is still on a stream */
#define DIGITS       8    /* of a number, in base 256 */

struct msdu__guard {
    void *staged;      /* pinned */
    cudaEvent_t added; /* the latest piece was */
    uint64_t number;   /* on the stream: of the present gradient */
    uint64_t given;    /* on the stream: of all */
};

/* Part of a gradient, when the stream has come to it. */
typedef struct piece {
    struct msdu__guard *guard;
    uint64_t bytes;
    uint32_t at;
    bool is_first, is_last;
} piece;

bool msdu__guard_open(msdu__track *track)
{
    if (track->guard != NULL || track->engine.guard_steps == 0) {
        return true;
    }
    struct msdu__guard *guard = calloc(1, sizeof(*guard));
    if (guard == NULL) {
        return false;
    }
    track->guard = guard;
    return cudaHostAlloc(&guard->staged, STAGED_BYTES, cudaHostAllocPortable) == cudaSuccess &&
           cudaEventCreateWithFlags(&guard->added, cudaEventDisableTiming) == cudaSuccess;
}

void msdu__guard_close(msdu__track *track)
{
    struct msdu__guard *guard = track->guard;
    /* else it may still be used, and is left behind */
    if (guard == NULL || (guard->added != NULL && !msdu__talk_reached(guard->added, END_MS))) {
        return;
    }
    if (guard->added != NULL) {
        (void)cudaEventDestroy(guard->added);
    }
    (void)cudaFreeHost(guard->staged);
    free(guard);
    track->guard = NULL;
}

/* --- what was given out --- */

static void add_piece(void *argument)
{
    piece *one = argument;
    struct msdu__guard *guard = one->guard;
    guard->number = one->is_first ? msdu__given_begin(one->at) : guard->number;
    guard->number = msdu__given_add(guard->number, guard->staged, one->bytes);
    guard->given += one->is_last ? msdu__given_end(guard->number) : 0;
    free(one);
}

static bool enqueue(const piece *what, const void *data, cudaStream_t stream)
{
    piece *one = malloc(sizeof(*one));
    if (one == NULL) {
        return false;
    }
    *one = *what;
    bool is_good = cudaMemcpyAsync(one->guard->staged, data, one->bytes, cudaMemcpyDeviceToHost,
                                   stream) == cudaSuccess &&
                   cudaLaunchHostFunc(stream, add_piece, one) == cudaSuccess;
    if (!is_good) {
        free(one);
    }
    return is_good;
}

static bool add_given(struct msdu__guard *guard, const msdu__nccl_call *call, uint32_t at)
{
    const uint64_t bytes = msdu__nccl_bytes(call);
    cudaStream_t stream = (cudaStream_t)call->stream;
    bool is_good = cudaStreamWaitEvent(stream, guard->added, 0) == cudaSuccess;
    for (uint64_t from = 0; from < bytes && is_good; from += STAGED_BYTES) {
        const uint64_t left = bytes - from;
        const piece one = {
            .guard = guard,
            .bytes = left < STAGED_BYTES ? left : STAGED_BYTES,
            .at = at,
            .is_first = from == 0,
            .is_last = left <= STAGED_BYTES,
        };
        is_good = enqueue(&one, (const char *)call->recv + from, stream);
    }
    return cudaEventRecord(guard->added, stream) == cudaSuccess && is_good;
}

bool msdu__guard_add(msdu__track *track, const msdu__nccl_call *call, uint32_t at)
{
    const msdu__attach_engine *engine = &track->engine;
    if (track->guard == NULL || track->has_failed) {
        return false;
    }
    if (!engine->is_accumulated && !add_given(track->guard, call, at)) {
        msdu__track_fail_with(track, "MSDU_ATTACH_GUARD: a gradient could not be copied from the "
                                     "device");
        return false;
    }
    const bool has_ended = engine->steps > 0 && engine->announced == 0;
    return has_ended &&
           (engine->is_accumulated ? engine->has_promised : msdu__attach_engine_is_guarded(engine));
}

/* --- comparing --- */

/* Digits of a number, their squares, and whether this rank has a complaint of its own. */
static void write_down(msdu__track *track, double *values)
{
    const bool is_local = track->engine.is_accumulated;
    bool is_good = is_local ? msdu__attach_engine_has_met(&track->engine)
                            : msdu__talk_reached(track->guard->added,
                                                 msdu__attach_number("deadline_ms", 60000));
    const uint64_t number = is_good && !is_local ? track->guard->given : 0;
    for (int i = 0; i < DIGITS; i++) {
        const double digit = (double)(number >> (8 * i) & 0xffU);
        values[i] = digit;
        values[DIGITS + i] = digit * digit;
    }
    values[2 * DIGITS] = is_good ? 0 : 1;
}

/* Equal numbers, and no others, have a sum whose square is N times that of the squares. All of it
 * is below 2^53 up to 370,000 ranks. */
static bool is_equal(const double *sums, int ranks)
{
    bool is = sums[2 * DIGITS] == 0;
    for (int i = 0; i < DIGITS; i++) {
        is = is && sums[i] * sums[i] == sums[DIGITS + i] * ranks;
    }
    return is;
}

static void judge(msdu__track *track, const double *sums, bool has_met)
{
    char text[160];
    const char *what = !has_met ? "ranks did not compare what they were given within "
                                  "MSDU_DEADLINE_MS,"
                       : track->engine.is_accumulated ? "ranks differ behind a synchronization"
                                                      : "ranks were given different sums";
    if (!has_met || !is_equal(sums, track->ranks)) {
        (void)snprintf(text, sizeof(text), "MSDU_ATTACH_GUARD: %s before step %" PRIu64, what,
                       msdu__attach_engine_steps(&track->engine) + 1);
        msdu__track_fail_with(track, text);
    }
}

void msdu__track_compare(msdu__track *const *tracks, size_t track_count)
{
    double(*values)[MSDU__SUM_ROOM] = calloc(track_count, sizeof(*values));
    if (values == NULL) {
        return; /* the others tell that this rank did not come */
    }
    for (size_t i = 0; i < track_count; i++) {
        write_down(tracks[i], values[i]);
    }
    const bool has_met =
        msdu__talk_sum(tracks, track_count, values, msdu__attach_number("deadline_ms", 60000));
    for (size_t i = 0; i < track_count; i++) {
        judge(tracks[i], values[i], has_met);
    }
    free(values);
}
