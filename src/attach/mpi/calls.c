/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of the trainer: on which communicator it is, of what kind it is, who reduces it.
 *
 * Lock order: stream->lock, then pending_lock. MPI is called by its profiling names only.
 */
#include "attach_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attach/report.h"

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf lock */
static msdu__stream
    *streams; /* streams_lock; only grows in front, so that what was read once stays */
static uint32_t streams_made;               /* streams_lock */
static int stream_key = MPI_KEYVAL_INVALID; /* streams_lock */

/* The trainer freed its communicator: what was seen is kept for the summary. */
static int stream_left(MPI_Comm comm, int key, void *value, void *extra)
{
    msdu__stream *stream = value;
    (void)comm;
    (void)key;
    (void)extra;
    (void)pthread_mutex_lock(&stream->lock);
    msdu__stream_end(stream);
    (void)pthread_mutex_unlock(&stream->lock);
    return MPI_SUCCESS;
}

static void describe_comm(MPI_Comm comm, msdu__attach_comm *place)
{
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    (void)PMPI_Comm_size(comm, &place->ranks);
    (void)PMPI_Comm_get_name(comm, name, &length);
    (void)snprintf(place->name, sizeof(place->name), "%.*s", (int)sizeof(place->name) - 1, name);
}

static msdu__stream *stream_new(MPI_Comm comm)
{
    msdu__stream *stream = calloc(1, sizeof(*stream));
    int ranks = 1;
    int is_inter = 0;
    int process = 0;
    if (stream == NULL) {
        return NULL;
    }
    (void)PMPI_Comm_test_inter(comm, &is_inter);
    (void)PMPI_Comm_size(comm, &ranks);
    (void)PMPI_Comm_rank(comm, &stream->rank);
    (void)PMPI_Comm_rank(MPI_COMM_WORLD, &process);
    stream->order = (uint64_t)process << 32 | ++streams_made;
    (void)pthread_mutex_init(&stream->lock, NULL);
    stream->comm = comm;
    stream->own = MPI_COMM_NULL;
    stream->part.is_quiet = stream->rank != 0;
    stream->ranks = ranks;
    stream->is_left_alone = is_inter || ranks == 1;
    stream->recognizer.least = (uint32_t)msdu__attach_number("MSDU_ATTACH_LEARN", 32);
    stream->recognizer.tensors_wanted = (uint32_t)msdu__attach_number("MSDU_ATTACH_TENSORS", 0);
    stream->recognizer.total_steps = msdu__attach_number("total_steps", 0);
    stream->recognizer.allows = msdu__attach_engine_allows;
    stream->gain.phase = msdu__attach_is_asked() ? MSDU__GAIN_ASKED : MSDU__GAIN_PLAIN;
    describe_comm(comm, &stream->place);
    stream->recognizer.allows_user = &stream->place;
    msdu__tell_bad_list(stream->rank, &stream->place);
    return stream;
}

/* NULL: no memory. */
static msdu__stream *stream_of(MPI_Comm comm)
{
    msdu__stream *stream = NULL;
    int is_found = 0;
    (void)pthread_mutex_lock(&streams_lock);
    if (stream_key == MPI_KEYVAL_INVALID) {
        (void)PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, stream_left, &stream_key, NULL);
    }
    (void)PMPI_Comm_get_attr(comm, stream_key, &stream, &is_found);
    if (!is_found) {
        stream = stream_new(comm);
        if (stream != NULL && PMPI_Comm_set_attr(comm, stream_key, stream) == MPI_SUCCESS) {
            stream->next = streams;
            streams = stream;
        }
    }
    (void)pthread_mutex_unlock(&streams_lock);
    return stream;
}

static int type_kind(MPI_Datatype type)
{
    const MPI_Datatype singles[] = {MPI_FLOAT, MPI_REAL, MPI_REAL4};
    const MPI_Datatype doubles[] = {MPI_DOUBLE, MPI_DOUBLE_PRECISION, MPI_REAL8};
    for (size_t i = 0; i < sizeof(singles) / sizeof(singles[0]); i++) {
        if (type == singles[i] && type != MPI_DATATYPE_NULL) {
            return MSDU__KIND_FLOAT32;
        }
        if (type == doubles[i] && type != MPI_DATATYPE_NULL) {
            return MSDU__KIND_FLOAT64;
        }
    }
    return 0;
}

/* Numbers that are equal on all ranks: a handle may be an address. */
static int other_kind(MPI_Datatype type, bool is_sum)
{
    int bytes = 0;
    (void)PMPI_Type_size(type, &bytes);
    return MSDU__KIND_OTHER + 2 * bytes + (is_sum ? 1 : 0);
}

/* Why it cannot be a gradient; -1: it may be one. */
static int describe(const msdu__stream *stream, const msdu__reduction *call, msdu__call *seen_out)
{
    MPI_Datatype type = MSDU__HANDLE(MPI_Datatype, call->type);
    bool is_sum = MSDU__HANDLE(MPI_Op, call->op) == MPI_SUM;
    int kind = type_kind(type);
    uint64_t count = call->count > 0 ? (uint64_t)call->count : 0;
    *seen_out = (msdu__call){.count = count,
                             .kind = kind,
                             .is_sum = kind != 0 && is_sum,
                             .memory = (uint64_t)(uintptr_t)call->recv};
    if (kind == 0 || !is_sum) {
        seen_out->kind = other_kind(type, is_sum);
        return MSDU__PASSED_TYPE;
    }
    if (msdu__call_bytes(seen_out) < msdu__attach_number("MSDU_ATTACH_MIN_BYTES", 1024)) {
        return MSDU__PASSED_SMALL;
    }
    if (!msdu__attach_engine_allows(&stream->place, seen_out, MSDU__ANYWHERE)) {
        return MSDU__PASSED_DENIED;
    }
    seen_out->is_candidate = true;
    return -1;
}

static int reason_of(const msdu__stream *stream, bool is_gradient, const msdu__apart *apart)
{
    if (apart != NULL || !is_gradient) {
        return apart != NULL ? MSDU__PASSED_JOINING : MSDU__PASSED_UNKNOWN;
    }
    return stream->is_plain ? MSDU__PASSED_PLAIN : MSDU__PASSED_WATCHED;
}

/* The recognizer hears of what other communicators had between. */
static void hear_marks(msdu__stream *stream, bool is_candidate)
{
    const uint64_t all = msdu__stream_marks();
    if (all != stream->marks) {
        msdu__recognize_mark(&stream->recognizer);
        stream->marks = all;
    }
    if (!is_candidate) {
        msdu__stream_mark();
        stream->marks++; /* but not of its own, which it judges itself */
    }
}

/* Called with the stream's lock held. */
msdu__call_choice msdu__stream_choose(msdu__stream *stream, const msdu__reduction *call)
{
    msdu__call_choice choice = {.is_engine = false};
    msdu__call seen;
    int reason = describe(stream, call, &seen);
    if (seen.is_sum && !stream->is_met) { /* a sum on all ranks, whatever their settings */
        msdu__stream_meet(stream);
    }
    hear_marks(stream, seen.is_candidate);
    msdu__verdict verdict = msdu__recognize(&stream->recognizer, &seen, &choice.at);
    stream->candidates += seen.is_candidate ? 1 : 0;
    if (verdict == MSDU__CALL_VOTES) {
        msdu__stream_vote(stream);
    }
    if (verdict == MSDU__CALL_BREAKS) {
        msdu__stream_break(stream, &seen);
    } else if (verdict == MSDU__CALL_STRAYS && stream->engine.ctx != NULL) {
        msdu__stream_stray(stream, &seen);
    } else if (verdict == MSDU__CALL_DENIED) {
        reason = MSDU__PASSED_DENIED;
    }
    if (seen.is_candidate && stream->engine.ctx == NULL) {
        (void)msdu__stream_has_too_many(stream);
    }
    bool is_gradient = verdict == MSDU__CALL_GRADIENT && !stream->has_failed;
    if (is_gradient && choice.at == 0) {
        stream->step_calls = stream->candidates - 1;
        msdu__stream_step(stream);
    }
    choice.is_engine = is_gradient && stream->engine.ctx != NULL;
    choice.apart = choice.is_engine ? NULL : msdu__part_find(&stream->part, &seen);
    if (choice.is_engine) {
        stream->ledger.taken++;
        stream->ledger.taken_bytes += msdu__call_bytes(&seen);
    } else {
        msdu__ledger_pass(&stream->ledger,
                          reason < 0 ? reason_of(stream, is_gradient, choice.apart) : reason,
                          msdu__call_bytes(&seen));
    }
    return choice;
}

/* The default handler ends the job. */
int msdu__stream_fail(msdu__stream *stream, msdu_status status)
{
    msdu__stream_tell_failure(stream, status == MSDU_OK ? stream->why : msdu_last_error());
    (void)PMPI_Comm_call_errhandler(stream->comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}

msdu__stream *msdu__stream_enter(const msdu__reduction *call)
{
    int is_init = 0;
    (void)PMPI_Initialized(&is_init);
    MPI_Comm comm = MSDU__HANDLE(MPI_Comm, call->comm);
    msdu__stream *stream = is_init && comm != MPI_COMM_NULL ? stream_of(comm) : NULL;
    if (stream == NULL) {
        return NULL; /* MPI itself knows best what is wrong with the call */
    }
    (void)pthread_mutex_lock(&stream->lock);
    if (stream->is_left_alone) {
        (void)pthread_mutex_unlock(&stream->lock);
        return NULL;
    }
    return stream;
}

/* The sum shall be in `recv`; the trainer's own values are there already, or come from `send`. */
int msdu__stream_start(msdu__stream *stream, const msdu__reduction *call, uint32_t at)
{
    size_t bytes = (size_t)call->count * (stream->engine.grads[at].is_double ? 8 : 4);
    if (call->send != MPI_IN_PLACE) {
        memmove(call->recv, call->send, bytes);
    }
    msdu_status status = msdu__attach_engine_start(&stream->engine, at, call->recv);
    return status == MSDU_OK ? MPI_SUCCESS : msdu__stream_fail(stream, status);
}

/* MPI's own reduction, which may join the ranks. */
static int settle_inner(const msdu__pending *pending, bool may_block)
{
    MPI_Request inner = pending->inner;
    int is_done = 1;
    int code = may_block ? PMPI_Wait(&inner, MPI_STATUS_IGNORE)
                         : PMPI_Test(&inner, &is_done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && is_done) {
        if (pending->apart != NULL) {
            pending->apart->is_busy = false;
            msdu__stream_join(pending->stream, pending->apart, pending->recv);
        }
        msdu__pending_complete(pending->request);
    }
    return code;
}

int msdu__stream_settle(const msdu__pending *pending, bool may_block)
{
    if (pending->inner != MPI_REQUEST_NULL) {
        return settle_inner(pending, may_block);
    }
    msdu_status status = msdu__attach_engine_wait(&pending->stream->engine, pending->at, may_block);
    if (status == MSDU_OK) {
        msdu__pending_complete(pending->request);
    }
    bool is_good = status == MSDU_OK || status == MSDU_IN_PROGRESS;
    return is_good ? MPI_SUCCESS : msdu__stream_fail(pending->stream, status);
}

/* The list as it is: whoever walks it takes each stream's own lock, and not this one. */
msdu__stream *msdu__stream_first(void)
{
    (void)pthread_mutex_lock(&streams_lock);
    msdu__stream *first = streams;
    (void)pthread_mutex_unlock(&streams_lock);
    return first;
}

/* Who is within a reduction has a thread of its own for it, and is not waited for. */
void msdu__stream_broadcast(int64_t count, uintptr_t type)
{
    const int kind = type_kind(MSDU__HANDLE(MPI_Datatype, type));
    msdu__stream *stream = kind != 0 && count > 0 ? msdu__stream_first() : NULL;
    for (; stream != NULL; stream = stream->next) {
        if (pthread_mutex_trylock(&stream->lock) == 0) {
            msdu__stream_suspect(stream, (uint64_t)count, kind);
            (void)pthread_mutex_unlock(&stream->lock);
        }
    }
}

/* It is no part of a pattern, but comes between. */
void msdu__stream_observe(const msdu__reduction *call)
{
    uint32_t position = 0;
    msdu__call seen;
    msdu__stream *stream = msdu__stream_enter(call);
    if (stream != NULL) {
        (void)describe(stream, call, &seen);
        seen.is_candidate = false;
        hear_marks(stream, false);
        (void)msdu__recognize(&stream->recognizer, &seen, &position);
        msdu__ledger_pass(&stream->ledger, MSDU__PASSED_FORM, msdu__call_bytes(&seen));
        (void)pthread_mutex_unlock(&stream->lock);
    }
}
