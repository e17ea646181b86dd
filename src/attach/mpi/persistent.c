/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Persistent reductions. A trainer's request has to be known to every call of MPI, to be pending
 * until the engine is done, and to be started again; a generalized request cannot be. So it is a
 * persistent receive from this process itself, on a communicator of our own: started with the
 * reduction, and completed by an empty message when that is done. MPI's own request is behind it,
 * for calls that are passed through.
 */
#include "attach_mpi.h"

#include <stdlib.h>

#define TAG_MOST 32767 /* any MPI allows as many */

typedef struct persistent {
    MPI_Request request; /* the trainer's */
    MPI_Request inner;   /* MPI's */
    msdu__reduction call;
    int tag;
    struct persistent *next;
} persistent;

static pthread_mutex_t persistent_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf lock */
static persistent *list;
static MPI_Comm self = MPI_COMM_NULL;
static int last_tag;

static persistent *find(MPI_Request request)
{
    persistent *found = NULL;
    (void)pthread_mutex_lock(&persistent_lock);
    for (persistent *at = list; at != NULL && found == NULL; at = at->next) {
        found = at->request == request ? at : NULL;
    }
    (void)pthread_mutex_unlock(&persistent_lock);
    return found;
}

static int make_request(persistent *p)
{
    (void)pthread_mutex_lock(&persistent_lock);
    int code = self == MPI_COMM_NULL ? PMPI_Comm_dup(MPI_COMM_SELF, &self) : MPI_SUCCESS;
    last_tag = last_tag % TAG_MOST + 1;
    p->tag = last_tag;
    if (code == MPI_SUCCESS) {
        code = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, p->tag, self, &p->request);
    }
    if (code == MPI_SUCCESS) {
        p->next = list;
        list = p;
    }
    (void)pthread_mutex_unlock(&persistent_lock);
    return code;
}

bool msdu__persistent_prepare(const msdu__reduction *call, uintptr_t info, msdu__init_call real,
                              void *request_out, int *code_out)
{
    msdu__stream *stream = msdu__stream_enter(call);
    persistent *p = stream == NULL ? NULL : calloc(1, sizeof(*p));
    if (stream != NULL) {
        (void)pthread_mutex_unlock(&stream->lock);
    }
    if (p == NULL) {
        return false;
    }
    p->call = *call;
    *code_out = real(call->send, call->recv, call->count, call->type, call->op, call->comm, info,
                     &p->inner);
    if (*code_out == MPI_SUCCESS) {
        *code_out = make_request(p);
    }
    if (*code_out != MPI_SUCCESS) {
        free(p);
        return true;
    }
    *(MPI_Request *)request_out = p->request;
    return true;
}

/* The reduction that was started is done: so shall the request be. */
static void complete(int tag)
{
    (void)PMPI_Send(NULL, 0, MPI_BYTE, 0, tag, self);
}

/* Called with the stream's lock held. */
static int start(msdu__stream *stream, persistent *p)
{
    const msdu__choice choice = msdu__stream_choose(stream, &p->call);
    msdu__pending pending = {.request = p->request,
                             .stream = stream,
                             .at = choice.at,
                             .inner = choice.is_engine ? MPI_REQUEST_NULL : p->inner,
                             .apart = choice.apart,
                             .recv = p->call.recv,
                             .tag = p->tag,
                             .complete = complete};
    if (stream->has_failed) {
        return msdu__stream_fail(stream, MSDU_OK);
    }
    int code =
        choice.is_engine ? msdu__stream_start(stream, &p->call, choice.at) : PMPI_Start(&p->inner);
    if (code == MPI_SUCCESS && choice.apart != NULL) {
        choice.apart->is_busy = true;
    }
    code = code == MPI_SUCCESS ? PMPI_Start(&p->request) : code;
    return code == MPI_SUCCESS ? msdu__pending_add(&pending, &pending.request) : code;
}

bool msdu__persistent_start(void *request, int *code_out)
{
    persistent *p = find(*(MPI_Request *)request);
    msdu__stream *stream = p == NULL ? NULL : msdu__stream_enter(&p->call);
    if (p == NULL) {
        return false;
    }
    if (stream == NULL) { /* left alone since: its communicator is gone */
        *code_out = MPI_ERR_COMM;
        return true;
    }
    *code_out = start(stream, p);
    (void)pthread_mutex_unlock(&stream->lock);
    return true;
}

bool msdu__persistent_release(void *request, int *code_out)
{
    persistent *p = find(*(MPI_Request *)request);
    msdu__pending pending;
    if (p == NULL) {
        return false;
    }
    if (msdu__pending_find(p->request, &pending)) { /* still active, which MPI allows */
        (void)pthread_mutex_lock(&pending.stream->lock);
        (void)msdu__stream_settle(&pending, true);
        (void)pthread_mutex_unlock(&pending.stream->lock);
    }
    (void)pthread_mutex_lock(&persistent_lock);
    persistent **at = &list;
    while (*at != p) {
        at = &(*at)->next;
    }
    *at = p->next;
    (void)pthread_mutex_unlock(&persistent_lock);
    (void)PMPI_Request_free(&p->inner);
    *code_out = PMPI_Request_free(request);
    free(p);
    return true;
}

void msdu__persistent_end(void)
{
    (void)pthread_mutex_lock(&persistent_lock);
    while (list != NULL) { /* not freed by the trainer, whose affair it is */
        persistent *next = list->next;
        free(list);
        list = next;
    }
    if (self != MPI_COMM_NULL) {
        (void)PMPI_Comm_free(&self);
    }
    (void)pthread_mutex_unlock(&persistent_lock);
}
