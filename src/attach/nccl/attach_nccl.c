/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Module for NCCL of libmsdu_preload: what needs nccl.h. Keeps for every communicator what was seen
 * on it and, once its gradients are known, their engine. The trainer's NCCL is called by pointers
 * of the library that it calls itself; this module links none.
 *
 * Lock order: tracks_lock alone; a track's lock alone, or those of a group in the order in which it
 * names them. A group holds what it was given by thread.
 */
#include "attach_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "attach/early_end.h"
#include "attach/report.h"
#include "base/cell.h"

static pthread_mutex_t tracks_lock = PTHREAD_MUTEX_INITIALIZER;
static msdu__track *tracks;
static bool is_told_at_exit; /* tracks_lock */
static msdu__cell owner;     /* a child of fork() is not */

/* --- which communicator --- */

static void end_track(msdu__track *track, int how)
{
    (void)pthread_mutex_lock(&track->lock);
    msdu__track_end(track, how);
    (void)pthread_mutex_unlock(&track->lock);
    (void)pthread_mutex_destroy(&track->lock);
    free(track);
}

/* Trainers often end without ending NCCL. */
static void at_exit(void)
{
    if (msdu__cell_get(&owner) != (uint64_t)getpid()) {
        return;
    }
    for (;;) {
        (void)pthread_mutex_lock(&tracks_lock);
        msdu__track *track = tracks;
        tracks = track == NULL ? NULL : track->next;
        (void)pthread_mutex_unlock(&tracks_lock);
        if (track == NULL) {
            return;
        }
        if (pthread_mutex_trylock(&track->lock) == 0) { /* else exit() was called from within */
            (void)pthread_mutex_unlock(&track->lock);
            end_track(track, MSDU__NCCL_ABORTED);
        }
    }
}

static void fill_track(msdu__track *track, const msdu__nccl_call *call)
{
    ncclComm_t comm = (ncclComm_t)call->comm;
    track->library = msdu__nccl_library_of(call);
    track->comm = call->comm;
    track->reduce = call->real;
    track->is_left_alone =
        track->library == NULL || track->library->count(comm, &track->ranks) != ncclSuccess ||
        track->library->rank(comm, &track->rank) != ncclSuccess ||
        track->library->device(comm, &track->device) != ncclSuccess || track->ranks < 2;
    track->part.is_quiet = track->rank != 0;
    track->recognizer.least = (uint32_t)msdu__attach_number("MSDU_ATTACH_LEARN", 32);
    track->recognizer.tensors_wanted = (uint32_t)msdu__attach_number("MSDU_ATTACH_TENSORS", 0);
    track->recognizer.total_steps = msdu__attach_number("total_steps", 0);
    track->recognizer.allows = msdu__attach_engine_allows;
    track->gain.phase = msdu__attach_is_asked() ? MSDU__GAIN_ASKED : MSDU__GAIN_PLAIN;
    track->place = (msdu__attach_comm){.ranks = track->ranks, .is_nameless = true};
    track->recognizer.allows_user = &track->place;
    msdu__tell_bad_list(track->rank, &track->place);
}

static msdu__track *track_new(const msdu__nccl_call *call)
{
    msdu__track *track = calloc(1, sizeof(*track));
    if (track == NULL) {
        return NULL;
    }
    (void)pthread_mutex_init(&track->lock, NULL);
    fill_track(track, call);
    if (!is_told_at_exit) {
        is_told_at_exit = true;
        msdu__cell_set(&owner, (uint64_t)getpid());
        (void)atexit(at_exit);
    }
    track->next = tracks;
    tracks = track;
    return track;
}

/* What the trainer told since its last call: msdu_attach_lr(), msdu_attach_sync_after_step(). */
typedef struct word {
    bool is_meeting, is_lr;
    double lr;
} word;

/* tracks_lock is held, and not the track's: that of a call which waits for other ranks. */
static word take_word(msdu__track *track)
{
    const word told = {track->is_told_meeting, track->is_told_lr, track->told_lr};
    track->is_told_meeting = track->is_told_lr = false;
    return told;
}

/* The track's lock is held. */
static void obey(msdu__track *track, const word *told)
{
    if (told->is_meeting) {
        track->engine.wants_meeting = true;
    }
    if (told->is_lr) {
        char why[256];
        track->part.optimizer.lr = told->lr;
        if (!msdu__attach_engine_tell_lr(&track->engine, told->lr, why, sizeof(why))) {
            msdu__track_fail_with(track, why);
        }
    }
}

/* With its lock held; NULL: NCCL's own business. */
static msdu__track *enter(const msdu__nccl_call *call)
{
    pid_t pid = (pid_t)msdu__cell_get(&owner);
    if (pid != 0 && pid != getpid()) {
        return NULL;
    }
    (void)pthread_mutex_lock(&tracks_lock);
    msdu__track *track = tracks;
    while (track != NULL && (track->comm != call->comm || track->reduce != call->real)) {
        track = track->next;
    }
    track = track != NULL || call->comm == 0 ? track : track_new(call);
    const word told = track != NULL ? take_word(track) : (word){.is_lr = false};
    (void)pthread_mutex_unlock(&tracks_lock);
    if (track == NULL || track->is_left_alone) {
        return NULL;
    }
    (void)pthread_mutex_lock(&track->lock);
    track->stream = (cudaStream_t)call->stream;
    obey(track, &told);
    return track;
}

/* --- what to do with it --- */

typedef enum deed {
    LEAVE = 0, /* to NCCL */
    TAKE,
    BEGIN, /* to NCCL; then there may be an engine */
    VOTE,  /* to NCCL; then ranks say what a step is */
    BREAK, /* the engine ends before NCCL does it */
    FAIL,
    COMPARE, /* taken, and the last of a step that is guarded */
} deed;

typedef struct choice {
    deed what;
    uint32_t at;     /* TAKE: which tensor */
    bool may_join;   /* NCCL's sum may be one that joins the ranks */
    msdu__call seen; /* what it is */
} choice;

/* Local steps on what is no step cannot be undone. Memory is each rank's own evidence, which the
 * others hear of when this one stays away. */
static bool is_mistaken(msdu__track *track)
{
    const msdu__recognizer *r = &track->recognizer;
    const bool is_local = track->engine.ctx != NULL && track->engine.is_accumulated;
    const bool was_local = is_local || track->part.before_count > 0;
    if (was_local && msdu__recognize_is_exceeded(r)) {
        msdu__track_fail_with(track,
                              "more steps came than MSDU_TOTAL_STEPS: the number is wrong, or "
                              "what was taken for a step is a part of one, and local steps "
                              "made ranks differ; use MSDU_DOMAIN=gradient, or say "
                              "MSDU_ATTACH_TENSORS");
    } else if (is_local &&
               (msdu__attach_engine_is_over(&track->engine) ? msdu__recognize_was_mistaken(r)
                                                            : msdu__recognize_is_mistaken(r))) {
        msdu__track_fail_with(track,
                              "under local steps gradients of one size came in another order, "
                              "or from other memory: ranks have moved apart; use "
                              "MSDU_DOMAIN=gradient");
    }
    return track->has_failed;
}

static deed judge_gradient(msdu__track *track, uint32_t at)
{
    if (at == 0 && is_mistaken(track)) {
        return FAIL;
    }
    bool has_engine = track->engine.ctx != NULL;
    track->is_taking = has_engine && (track->is_taking || at == 0);
    track->step_calls = at == 0 ? track->candidates - 1 : track->step_calls;
    if (track->is_taking) {
        return TAKE;
    }
    track->is_plain =
        track->is_plain || msdu__attach_engine_is_plain() || !msdu__gain_wants_engine(&track->gain);
    bool is_proven =
        !msdu__attach_engine_is_local() || msdu__recognize_is_proven(&track->recognizer);
    if (!is_proven && !track->is_plain && track->rank == 0 && msdu__attach_is_loud()) {
        msdu__tell_doubt(&track->recognizer, &track->is_doubt_told);
    }
    return at == 0 && !track->is_plain && !has_engine && is_proven ? BEGIN : LEAVE;
}

/* Called with the lock held. */
static choice judge(msdu__track *track, const msdu__nccl_call *call)
{
    int reason = -1;
    choice c = {.what = LEAVE, .seen = msdu__nccl_describe(track, call, &reason)};
    msdu__verdict verdict = msdu__recognize(&track->recognizer, &c.seen, &c.at);
    bool is_gradient = verdict == MSDU__CALL_GRADIENT;
    if (!track->has_failed && track->engine.ctx == NULL) {
        (void)is_mistaken(track);
    }
    track->candidates += c.seen.is_candidate ? 1 : 0;
    if (track->has_failed) {
        c.what = FAIL;
        return c;
    }
    if (verdict == MSDU__CALL_STRAYS && track->engine.ctx != NULL) {
        msdu__track_stray(track, &c.seen);
    } else if (verdict == MSDU__CALL_VOTES) {
        c.what = VOTE;
    } else if (verdict == MSDU__CALL_BREAKS) {
        track->is_breaking = track->engine.ctx != NULL && track->engine.is_accumulated;
        track->seen = c.seen;
        c.what = BREAK;
    } else if (is_gradient) {
        c.what = judge_gradient(track, c.at);
    }
    bool is_propagated = c.seen.is_candidate && c.what != TAKE;
    c.may_join = is_propagated && (track->part.apart != NULL || track->is_breaking);
    if (c.what == TAKE) {
        track->ledger.taken++;
        track->ledger.taken_bytes += msdu__call_bytes(&c.seen);
    } else if (!c.may_join) {
        reason = verdict == MSDU__CALL_DENIED ? MSDU__PASSED_DENIED
                 : reason >= 0                ? reason
                 : !is_gradient               ? MSDU__PASSED_UNKNOWN
                 : track->is_plain            ? MSDU__PASSED_PLAIN
                                              : MSDU__PASSED_WATCHED;
        msdu__ledger_pass(&track->ledger, reason, msdu__call_bytes(&c.seen));
    }
    return c;
}

static int pass(const msdu__nccl_call *call)
{
    return call->real(call->send, call->recv, call->count, call->type, call->op, call->comm,
                      call->stream);
}

/* The sum shall be in `recv`; the trainer's own values are there already, or come from `send`. */
static msdu_status start(msdu__track *track, const msdu__nccl_call *call, uint32_t at)
{
    cudaStream_t stream = (cudaStream_t)call->stream;
    if (call->send != call->recv &&
        cudaMemcpyAsync(call->recv, call->send, msdu__nccl_bytes(call), cudaMemcpyDeviceToDevice,
                        stream) != cudaSuccess) {
        return MSDU_ERR_BACKEND;
    }
    return msdu__device_start(&track->engine, at, call->recv, stream);
}

/* --- groups --- */

/* What a thread's group holds back until it ends. */
typedef struct held {
    msdu__track *track;
    msdu__nccl_call call;
    choice choice;
} held;

static _Thread_local held *held_list;
static _Thread_local size_t held_count;
static _Thread_local size_t held_room;

static bool hold(msdu__track *track, const msdu__nccl_call *call, const choice *c)
{
    if (held_count == held_room) {
        size_t room = held_room == 0 ? 16 : 2 * held_room;
        held *larger = realloc(held_list, room * sizeof(*held_list));
        if (larger == NULL) {
            return false;
        }
        held_list = larger;
        held_room = room;
    }
    held_list[held_count++] = (held){track, *call, *c};
    return true;
}

static bool is_first_of(size_t index, const void *library)
{
    for (size_t i = 0; i < index; i++) {
        if (held_list[i].call.library == library &&
            held_list[i].call.stream == held_list[index].call.stream) {
            return false;
        }
    }
    return held_list[index].call.library == library;
}

/* NCCL carries out a group as if it were on all of its streams: each waits for the others. */
static void join_streams(const void *library)
{
    cudaEvent_t event = NULL;
    size_t streams = 0;
    for (size_t i = 0; i < held_count; i++) {
        streams += is_first_of(i, library) ? 1 : 0;
    }
    if (streams < 2 || cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
        return;
    }
    for (size_t i = 0; i < held_count; i++) {
        for (size_t k = 0; k < held_count && is_first_of(i, library); k++) {
            if (k != i && is_first_of(k, library)) {
                (void)cudaEventRecord(event, (cudaStream_t)held_list[k].call.stream);
                (void)cudaStreamWaitEvent((cudaStream_t)held_list[i].call.stream, event, 0);
            }
        }
    }
    (void)cudaEventDestroy(event);
}

/* All streams of the group come behind this gradient. */
static msdu_status wait_everywhere(const held *one)
{
    msdu_status status = MSDU_OK;
    msdu__attach_engine *engine = &one->track->engine;
    const uint32_t at = one->choice.at;
    for (size_t i = 0; i < held_count && status == MSDU_OK; i++) {
        uintptr_t stream = held_list[i].call.stream;
        if (is_first_of(i, one->call.library) && stream != one->call.stream) {
            status = msdu__device_wait_too(engine, at, (void *)stream);
        }
    }
    return status == MSDU_OK ? msdu__device_wait(engine, at, (void *)one->call.stream) : status;
}

/* Those of a step that begins behind one that ends in the same group wait for its end. */
static msdu_status carry_out(size_t first, size_t end)
{
    msdu_status status = MSDU_OK;
    for (size_t i = first; i < end && status == MSDU_OK; i++) {
        if (held_list[i].choice.what == TAKE) {
            status = start(held_list[i].track, &held_list[i].call, held_list[i].choice.at);
        }
    }
    for (size_t i = first; i < end && status == MSDU_OK; i++) {
        if (held_list[i].choice.what == TAKE) {
            status = wait_everywhere(&held_list[i]);
        }
        if (held_list[i].choice.what == TAKE && status == MSDU_OK &&
            msdu__guard_add(held_list[i].track, &held_list[i].call, held_list[i].choice.at)) {
            held_list[i].choice.what = COMPARE;
        }
    }
    return status;
}

/* From `first` on what is one communicator's and of one step. */
static size_t stretch(size_t first, const void *library)
{
    size_t end = first + 1;
    while (end < held_count && held_list[end].call.library == library &&
           held_list[end].track == held_list[first].track && held_list[end].choice.what == TAKE &&
           held_list[end].choice.at != 0) {
        end++;
    }
    return end;
}

/* What the group's communicators do together behind it: all that want the same. */
static void together(const void *library, deed what,
                     void (*act)(msdu__track *const *tracks, size_t track_count))
{
    msdu__track *wanted[MSDU__TRACKS_MOST];
    size_t count = 0;
    for (size_t i = 0; i < held_count && count < MSDU__TRACKS_MOST; i++) {
        bool is_new = held_list[i].choice.what == what && held_list[i].call.library == library;
        for (size_t k = 0; k < count; k++) {
            is_new = is_new && wanted[k] != held_list[i].track;
        }
        if (is_new) {
            wanted[count++] = held_list[i].track;
        }
    }
    for (size_t i = 0; i < count; i++) {
        (void)pthread_mutex_lock(&wanted[i]->lock);
    }
    if (count > 0) {
        act(wanted, count);
    }
    for (size_t i = 0; i < count; i++) {
        (void)pthread_mutex_unlock(&wanted[i]->lock);
    }
}

static int end_group(const void *library)
{
    int code = MSDU__NCCL_SUCCESS;
    join_streams(library);
    for (size_t i = 0; i < held_count;) {
        msdu__track *track = held_list[i].track;
        size_t end = i + 1;
        const choice *c = &held_list[i].choice;
        if (held_list[i].call.library == library && c->what <= BREAK) {
            (void)pthread_mutex_lock(&track->lock);
            (void)cudaSetDevice(track->device);
            if (c->what == BREAK) {
                msdu__track_break(track, &track->seen);
            } else if (c->what == TAKE && !track->has_failed) {
                end = stretch(i, library);
                (void)msdu__track_fail(track, carry_out(i, end));
            }
            if (c->may_join) {
                msdu__track_join(track, &held_list[i].call, &c->seen);
            }
            code = track->has_failed ? MSDU__NCCL_REMOTE_ERROR : code;
            (void)pthread_mutex_unlock(&track->lock);
        }
        i = end;
    }
    together(library, COMPARE, msdu__track_compare);
    together(library, VOTE, msdu__track_vote);
    together(library, BEGIN, msdu__track_begin);
    return code;
}

static void forget(const void *library)
{
    size_t kept = 0;
    for (size_t i = 0; i < held_count; i++) {
        if (held_list[i].call.library != library) {
            held_list[kept++] = held_list[i];
        }
    }
    held_count = kept;
    if (kept == 0) {
        free(held_list);
        held_list = NULL;
        held_room = 0;
    }
}

/* --- the table --- */

/* The trainer's current device is as it was. */
static int device_now(void)
{
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

static void device_back(int device)
{
    if (device >= 0 && device != device_now()) {
        (void)cudaSetDevice(device);
    }
}

static int attach_group_end(const void *library, int code)
{
    if (held_count == 0) {
        return code;
    }
    int device = device_now();
    int ours = end_group(library);
    forget(library);
    device_back(device);
    return ours != MSDU__NCCL_SUCCESS ? ours : code;
}

/* In its turn, with the lock held. */
static int carry_out_now(msdu__track *track, const msdu__nccl_call *call, const choice *c)
{
    msdu_status status = MSDU_OK;
    int code = MSDU__NCCL_SUCCESS;
    if (c->what == TAKE) {
        status = start(track, call, c->at);
        status = status == MSDU_OK ? msdu__device_wait(&track->engine, c->at, (void *)call->stream)
                                   : status;
        if (status == MSDU_OK && msdu__guard_add(track, call, c->at)) {
            msdu__track_compare(&track, 1);
        }
        return msdu__track_fail(track, status);
    }
    if (c->what == BREAK) {
        msdu__track_break(track, &track->seen);
        if (track->has_failed) {
            return MSDU__NCCL_REMOTE_ERROR;
        }
    }
    code = pass(call);
    if (c->may_join && (code == (int)ncclSuccess || code == (int)ncclInProgress)) {
        msdu__track_join(track, call, &c->seen);
    }
    if (c->what == BEGIN) {
        msdu__track_begin(&track, 1);
    } else if (c->what == VOTE) {
        msdu__track_vote(&track, 1);
    }
    return track->has_failed ? MSDU__NCCL_REMOTE_ERROR : code;
}

static int attach_all_reduce(const msdu__nccl_call *call)
{
    msdu__track *track = enter(call);
    if (track == NULL) {
        return pass(call);
    }
    if (msdu__nccl_is_captured(call)) {
        msdu__ledger_pass(&track->ledger, MSDU__PASSED_CAPTURED, 0);
        (void)pthread_mutex_unlock(&track->lock);
        return pass(call);
    }
    const choice c = judge(track, call);
    bool is_left = c.what == LEAVE && !c.may_join;
    int code = MSDU__NCCL_SUCCESS;
    if (c.what == FAIL) {
        code = MSDU__NCCL_REMOTE_ERROR;
    } else if (is_left || call->is_in_group) {
        bool is_held = is_left || hold(track, call, &c);
        (void)pthread_mutex_unlock(&track->lock);
        return !is_held ? MSDU__NCCL_SYSTEM_ERROR : c.what == TAKE ? code : pass(call);
    } else {
        int device = device_now();
        (void)cudaSetDevice(track->device);
        code = carry_out_now(track, call, &c);
        device_back(device);
    }
    (void)pthread_mutex_unlock(&track->lock);
    return code;
}

static void attach_comm_end(uintptr_t comm, const void *library, int how)
{
    if (msdu__cell_get(&owner) != (uint64_t)getpid()) {
        return;
    }
    (void)pthread_mutex_lock(&tracks_lock);
    msdu__track **at = &tracks;
    while (*at != NULL &&
           ((*at)->comm != comm || (*at)->library == NULL || (*at)->library->base != library)) {
        at = &(*at)->next;
    }
    msdu__track *track = *at;
    if (track != NULL) {
        *at = track->next;
    }
    (void)pthread_mutex_unlock(&tracks_lock);
    if (track != NULL) {
        int device = device_now();
        (void)cudaSetDevice(track->device);
        end_track(track, how);
        device_back(device);
    }
}

static void attach_meet(void)
{
    (void)pthread_mutex_lock(&tracks_lock);
    for (msdu__track *track = tracks; track != NULL; track = track->next) {
        track->is_told_meeting = true;
    }
    (void)pthread_mutex_unlock(&tracks_lock);
}

static void attach_set_lr(double lr)
{
    (void)pthread_mutex_lock(&tracks_lock);
    for (msdu__track *track = tracks; track != NULL; track = track->next) {
        track->is_told_lr = true;
        track->told_lr = lr;
    }
    (void)pthread_mutex_unlock(&tracks_lock);
}

MSDU_API extern const msdu__attach_nccl msdu_attach_nccl_v1;
const msdu__attach_nccl msdu_attach_nccl_v1 = {
    .size = sizeof(msdu__attach_nccl),
    .all_reduce = attach_all_reduce,
    .group_end = attach_group_end,
    .comm_end = attach_comm_end,
    .meet = attach_meet,
    .set_lr = attach_set_lr,
    .status = msdu__early_status,
};
