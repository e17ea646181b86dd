/* SPDX-License-Identifier: Apache-2.0 */
/* The segment that the ranks of a host share: what lies where, and how the group ends. */
#include "host_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static size_t aligned(size_t bytes)
{
    return (bytes + MSDU__HOST_ALIGN - 1) / MSDU__HOST_ALIGN * MSDU__HOST_ALIGN;
}

static size_t counters_bytes(const struct msdu_comm *comm)
{
    return aligned(sizeof(struct host_rank) + comm->prints * sizeof(msdu__cell));
}

static size_t index_of(const struct msdu_comm *comm, uint32_t lane, int32_t rank)
{
    return (size_t)lane * (size_t)comm->ranks + (size_t)rank;
}

static size_t buffers_at(const struct msdu_comm *comm)
{
    size_t at = aligned(sizeof(struct host_head)) +
                counters_bytes(comm) * index_of(comm, comm->host->lanes, 0);
    return (at + 4095) / 4096 * 4096;
}

size_t msdu__host_bytes(const struct msdu_comm *comm)
{
    return buffers_at(comm) + 2 * (size_t)MSDU__HOST_PIECE * index_of(comm, comm->host->lanes, 0);
}

struct host_rank *msdu__host_rank(const struct msdu_comm *comm, uint32_t lane, int32_t rank)
{
    char *first = (char *)comm->head + aligned(sizeof(struct host_head));
    return (struct host_rank *)(void *)(first + counters_bytes(comm) * index_of(comm, lane, rank));
}

msdu__cell *msdu__host_print(const struct msdu_comm *comm, uint32_t lane, int32_t rank,
                             uint64_t sequence)
{
    msdu__cell *first = (msdu__cell *)(void *)(msdu__host_rank(comm, lane, rank) + 1);
    return first + sequence % comm->prints;
}

unsigned char *msdu__host_buffer(const struct msdu_comm *comm, uint32_t lane, int32_t rank,
                                 uint64_t piece)
{
    size_t number = 2 * index_of(comm, lane, rank) + (size_t)(piece & 1);
    return (unsigned char *)comm->head + buffers_at(comm) + number * MSDU__HOST_PIECE;
}

int32_t msdu__host_name(const struct msdu_comm *comm, int32_t rank)
{
    return comm->host->names == NULL ? rank : comm->host->names[rank];
}

int32_t msdu__host_list(const struct msdu_comm *comm, const bool *marks, char *text, size_t bytes)
{
    int32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        count += marks[rank] ? 1 : 0;
    }
    for (int32_t rank = 0; rank < comm->ranks && used + 16 < bytes; rank++) {
        if (marks[rank]) {
            const char *before = used > 0 ? ", " : count == 1 ? "rank " : "ranks ";
            used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId32, before,
                                     msdu__host_name(comm, rank));
        }
    }
    return count;
}

void msdu__host_ring(const struct msdu_comm *comm)
{
    const uint64_t one = 1;
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        if (rank != comm->rank) {
            ssize_t written = write(comm->bells[rank], &one, sizeof(one));
            (void)written; /* it can only be that the bell rings already */
        }
    }
}

void msdu__host_fail(const struct msdu_comm *comm, msdu_status status, const char *format, ...)
{
    va_list args;
    if (!msdu__cell_change(&comm->head->failure, 0, 1)) {
        return;
    }
    comm->head->status = status;
    va_start(args, format);
    (void)vsnprintf(comm->head->text, sizeof(comm->head->text), format, args);
    va_end(args);
    msdu__cell_set(&comm->head->failure, 2);
    msdu__host_ring(comm);
}

msdu_status msdu__host_status(const struct msdu_comm *comm)
{
    return msdu__cell_get(&comm->head->failure) == 2 ? (msdu_status)comm->head->status : MSDU_OK;
}
