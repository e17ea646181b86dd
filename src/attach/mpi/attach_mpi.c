/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Module of an MPI family for libmsdu_preload: its table of functions. What was seen on every
 * communicator is kept in calls.c and, once its gradients are known, their engine in comm.c.
 */
#include "attach_mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attach/early_end.h"
#include "attach/report.h"

#ifndef MSDU_MPI_FAMILY
#error "MSDU_MPI_FAMILY names the family that this module is built for"
#endif

/* By the engine: MPI's code. */
static int reduce(msdu__stream *stream, const msdu__reduction *call, uint32_t at, void *request_out)
{
    const msdu__pending pending = {.stream = stream, .at = at, .inner = MPI_REQUEST_NULL};
    int code = msdu__stream_start(stream, call, at);
    if (code != MPI_SUCCESS || request_out != NULL) {
        return code != MPI_SUCCESS ? code : msdu__pending_add(&pending, request_out);
    }
    msdu_status status = msdu__attach_engine_wait(&stream->engine, at, true);
    return status == MSDU_OK ? MPI_SUCCESS : msdu__stream_fail(stream, status);
}

/* By MPI, to join the ranks. */
static int reduce_apart(msdu__stream *stream, const msdu__reduction *call, msdu__apart *apart,
                        void *request_out)
{
    MPI_Datatype type = MSDU__HANDLE(MPI_Datatype, call->type);
    MPI_Op op = MSDU__HANDLE(MPI_Op, call->op);
    msdu__pending pending = {.stream = stream, .apart = apart, .recv = call->recv};
    int code = MPI_SUCCESS;
    if (request_out == NULL) {
        code = PMPI_Allreduce(call->send, call->recv, call->count, type, op, stream->comm);
        if (code == MPI_SUCCESS) {
            msdu__stream_join(stream, apart, call->recv);
        }
        return code;
    }
    code = PMPI_Iallreduce(call->send, call->recv, call->count, type, op, stream->comm,
                           &pending.inner);
    apart->is_busy = code == MPI_SUCCESS;
    return code == MPI_SUCCESS ? msdu__pending_add(&pending, request_out) : code;
}

/* request_out: NULL, or of a reduction that is waited for later. */
static bool attach_reduce(const msdu__reduction *call, void *request_out, int *code_out)
{
    msdu__stream *stream = msdu__stream_enter(call);
    if (stream == NULL) {
        return false;
    }
    const msdu__call_choice choice = msdu__stream_choose(stream, call);
    bool is_ours = choice.is_engine || stream->has_failed || choice.apart != NULL;
    if (stream->has_failed) {
        *code_out = msdu__stream_fail(stream, MSDU_OK);
    } else if (choice.is_engine) {
        *code_out = reduce(stream, call, choice.at, request_out);
    } else if (choice.apart != NULL) {
        *code_out = reduce_apart(stream, call, choice.apart, request_out);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    return is_ours;
}

static int attach_settle(int count, void *requests, bool may_block)
{
    msdu__pending pending;
    int code = MPI_SUCCESS;
    for (int i = 0; i < count && code == MPI_SUCCESS; i++) {
        MPI_Request request = ((MPI_Request *)requests)[i];
        if (request != MPI_REQUEST_NULL && msdu__pending_find(request, &pending)) {
            (void)pthread_mutex_lock(&pending.stream->lock);
            code = msdu__stream_settle(&pending, may_block);
            (void)pthread_mutex_unlock(&pending.stream->lock);
        }
    }
    return code;
}

static void attach_meet(void)
{
    for (msdu__stream *stream = msdu__stream_first(); stream != NULL; stream = stream->next) {
        (void)pthread_mutex_lock(&stream->lock);
        stream->engine.wants_meeting = true;
        (void)pthread_mutex_unlock(&stream->lock);
    }
}

static void attach_set_lr(double lr)
{
    for (msdu__stream *stream = msdu__stream_first(); stream != NULL; stream = stream->next) {
        (void)pthread_mutex_lock(&stream->lock);
        stream->part.optimizer.lr = lr;
        if (!stream->has_failed &&
            !msdu__attach_engine_tell_lr(&stream->engine, lr, stream->why, sizeof(stream->why))) {
            stream->has_failed = true; /* told at the next reduction */
        }
        (void)pthread_mutex_unlock(&stream->lock);
    }
}

/* Of those that are left the first, as all ranks order them. */
static msdu__stream *next_to_end(void)
{
    msdu__stream *found = NULL;
    for (msdu__stream *stream = msdu__stream_first(); stream != NULL; stream = stream->next) {
        (void)pthread_mutex_lock(&stream->lock);
        const bool is_next =
            !stream->is_left_alone && (found == NULL || stream->order < found->order);
        (void)pthread_mutex_unlock(&stream->lock);
        found = is_next ? stream : found;
    }
    return found;
}

static void attach_finish(void)
{
    for (msdu__stream *stream = next_to_end(); stream != NULL; stream = next_to_end()) {
        (void)pthread_mutex_lock(&stream->lock);
        msdu__stream_end(stream);
        (void)pthread_mutex_unlock(&stream->lock);
    }
}

static uintptr_t attach_comm_of(int handle)
{
    return MSDU__INTEGER(PMPI_Comm_f2c((MPI_Fint)handle));
}

static uintptr_t attach_type_of(int handle)
{
    return MSDU__INTEGER(PMPI_Type_f2c((MPI_Fint)handle));
}

static uintptr_t attach_op_of(int handle)
{
    return MSDU__INTEGER(PMPI_Op_f2c((MPI_Fint)handle));
}

static const void *attach_in_place(void)
{
    return MPI_IN_PLACE;
}

MSDU_API extern const msdu__attach msdu_attach_v1;
const msdu__attach msdu_attach_v1 = {
    .size = sizeof(msdu__attach),
    .family = MSDU_MPI_FAMILY,
    .reduce = attach_reduce,
    .observe = msdu__stream_observe,
    .mark = msdu__stream_mark,
    .is_timing = msdu__stream_is_timing,
    .waited = msdu__stream_waited,
    .has_pending = msdu__pending_is_any,
    .settle = attach_settle,
    .meet = attach_meet,
    .set_lr = attach_set_lr,
    .finish = attach_finish,
    .comm_of = attach_comm_of,
    .type_of = attach_type_of,
    .op_of = attach_op_of,
    .in_place = attach_in_place,
    .status = msdu__early_status,
    .broadcast = msdu__stream_broadcast,
};
