/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of MPI_Iallreduce that an engine carries out: generalized requests, so that every call
 * of MPI knows them. They are completed when the trainer waits or tests, on its own thread.
 */
#include "attach_mpi.h"

#include <stdlib.h>

#include "base/cell.h"

static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf lock */
static msdu__pending *list;
static uint32_t list_room;
static msdu__cell list_count;

static uint32_t lists(void)
{
    return (uint32_t)msdu__cell_get(&list_count);
}

bool msdu__pending_is_any(void)
{
    return msdu__cell_get(&list_count) > 0;
}

static int query(void *extra, MPI_Status *status)
{
    (void)extra;
    (void)PMPI_Status_set_elements(status, MPI_BYTE, 0);
    (void)PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int release(void *extra)
{
    (void)extra;
    return MPI_SUCCESS;
}

static int cancel(void *extra, int is_complete)
{
    (void)extra;
    (void)is_complete;
    return MPI_SUCCESS; /* a collective cannot be canceled */
}

static bool make_room(void)
{
    if (lists() < list_room) {
        return true;
    }
    uint32_t room = list_room == 0 ? 64 : 2 * list_room;
    msdu__pending *larger = realloc(list, room * sizeof(*list));
    if (larger != NULL) {
        list = larger;
        list_room = room;
    }
    return larger != NULL;
}

int msdu__pending_add(const msdu__pending *pending, void *request_out)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Grequest_start(query, release, cancel, NULL, &request);
    if (code != MPI_SUCCESS) {
        return code;
    }
    (void)pthread_mutex_lock(&pending_lock);
    bool has_room = make_room();
    if (has_room) {
        list[lists()] = *pending;
        list[lists()].request = request;
        (void)msdu__cell_add(&list_count, 1);
        *(MPI_Request *)request_out = request;
    }
    (void)pthread_mutex_unlock(&pending_lock);
    return has_room ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

bool msdu__pending_find(MPI_Request request, msdu__pending *pending_out)
{
    bool is_found = false;
    (void)pthread_mutex_lock(&pending_lock);
    for (uint32_t i = 0; i < lists() && !is_found; i++) {
        is_found = list[i].request == request;
        *pending_out = is_found ? list[i] : *pending_out;
    }
    (void)pthread_mutex_unlock(&pending_lock);
    return is_found;
}

void msdu__pending_complete(MPI_Request request)
{
    (void)pthread_mutex_lock(&pending_lock);
    for (uint32_t i = 0; i < lists(); i++) {
        if (list[i].request == request) {
            list[i] = list[lists() - 1];
            (void)msdu__cell_add(&list_count, (uint64_t)-1);
            break;
        }
    }
    (void)pthread_mutex_unlock(&pending_lock);
    (void)PMPI_Grequest_complete(request);
}
