/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other beside the data: that an operation does not end, and that the group
 * has failed, and why. MPI itself has neither deadlines nor words for this.
 *
 * All of it is nonblocking: one receive is always open, and sends have memory of their own.
 */
#include "backend/local_move.h"
#include "backend/rank_list.h"
#include "mpi_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTICE_TAG 1
#define STALL_NS   UINT64_C(100000000)  /* an operation that takes longer is spoken of */
#define FLUSH_NS   UINT64_C(400000000)  /* the last words of a group get that long to leave */
#define VERDICT_NS UINT64_C(1500000000) /* who hits an error of MPI waits so long for its cause */

static int receive_next(struct msdu_comm *comm)
{
    return PMPI_Irecv(&comm->arriving, (int)sizeof(comm->arriving), MPI_BYTE, MPI_ANY_SOURCE,
                      NOTICE_TAG, comm->control, &comm->receive);
}

msdu_status mpi__watch_begin(struct msdu_comm *comm)
{
    int code = receive_next(comm);
    return code == MPI_SUCCESS ? MSDU_OK : mpi__error(comm->host, "MPI_Irecv", code);
}

void mpi__watch_end(struct msdu_comm *comm)
{
    int is_final = 0;
    (void)PMPI_Finalized(&is_final);
    if (comm->receive != MPI_REQUEST_NULL && !is_final) {
        (void)PMPI_Cancel(&comm->receive);
        (void)PMPI_Wait(&comm->receive, MPI_STATUS_IGNORE);
    }
}

/* --- sending --- */

static uint32_t channels(const struct msdu_comm *comm)
{
    uint32_t all = MSDU_GROUPS * comm->host->lanes;
    return all < MPI__LANES ? all : MPI__LANES;
}

static bool is_member(const mpi__group *group, int32_t rank)
{
    for (int32_t i = 0; i < group->ranks; i++) {
        if (group->members[i] == rank) {
            return true;
        }
    }
    return false;
}

static bool is_sent(const struct msdu_comm *comm, mpi__sending *sending)
{
    for (int32_t rank = 0; rank < comm->host->ranks; rank++) {
        int is_done = 0;
        int code = PMPI_Test(&sending->requests[rank], &is_done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !is_done) {
            return false;
        }
    }
    return true;
}

static mpi__sending *free_sending(struct msdu_comm *comm)
{
    for (size_t i = 0; i < MPI__NOTICES; i++) {
        mpi__sending *sending = &comm->sendings[i];
        if (!sending->is_used || is_sent(comm, sending)) {
            sending->is_used = true;
            return sending;
        }
    }
    return NULL;
}

/* To one rank, or to all others (-1); false if too many notices are under way already. */
static bool tell(struct msdu_comm *comm, const mpi__notice *notice, int32_t to)
{
    mpi__sending *sending = free_sending(comm);
    size_t bytes = sizeof(*notice);
    if (notice->kind != MPI__LEFT) {
        bytes = offsetof(mpi__notice, text) + strlen(notice->text) + 1;
    }
    if (sending == NULL) {
        return false;
    }
    sending->notice = *notice;
    for (int32_t rank = 0; rank < comm->host->ranks; rank++) {
        sending->requests[rank] = MPI_REQUEST_NULL;
        if (rank != comm->host->rank && (to < 0 || rank == to)) {
            (void)PMPI_Isend(&sending->notice, (int)bytes, MPI_BYTE, rank, NOTICE_TAG,
                             comm->control, &sending->requests[rank]);
        }
    }
    return true;
}

static void flush(struct msdu_comm *comm)
{
    uint64_t until_ns = msdu__clock_now() + FLUSH_NS;
    uint64_t pause_ns = 0;
    bool is_done = false;
    while (!is_done && msdu__clock_now() < until_ns) {
        is_done = true;
        for (size_t i = 0; i < MPI__NOTICES; i++) {
            mpi__sending *sending = &comm->sendings[i];
            is_done = is_done && (!sending->is_used || is_sent(comm, sending));
        }
        if (!is_done) {
            msdu__clock_pause(&pause_ns);
        }
    }
}

/* --- failing --- */

static msdu_status keep_cause(struct msdu_comm *comm, msdu_status status, const char *text)
{
    if (comm->status == MSDU_OK) {
        comm->status = status;
        (void)snprintf(comm->text, sizeof(comm->text), "%s", text);
        mpi__broken();
    }
    return comm->status;
}

msdu_status mpi__watch_fail(struct msdu_comm *comm, msdu_status status, const char *format, ...)
{
    mpi__notice notice = {.kind = MPI__FAILED, .rank = comm->host->rank, .status = status};
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it has just been started */
    (void)vsnprintf(notice.text, sizeof(notice.text), format, args);
    va_end(args);
    if (comm->status != MSDU_OK) {
        return comm->status;
    }
    (void)keep_cause(comm, status, notice.text);
    (void)tell(comm, &notice, -1);
    flush(comm);
    return comm->status;
}

/* --- leaving --- */

void mpi__watch_leave(struct msdu_comm *comm)
{
    mpi__notice notice = {.kind = MPI__LEFT, .rank = comm->host->rank};
    for (uint32_t i = 0; i < channels(comm); i++) {
        notice.started[i] = comm->lanes[i].started;
    }
    (void)tell(comm, &notice, -1);
}

static void hear_of_leaving(struct msdu_comm *comm, const mpi__notice *notice)
{
    for (uint32_t i = 0; i < channels(comm); i++) {
        mpi__lane *lane = &comm->lanes[i];
        if (is_member(lane->group, notice->rank) && notice->started[i] < lane->end) {
            lane->end = notice->started[i];
            lane->end_rank = notice->rank;
        }
    }
}

msdu_status mpi__watch_reachable(struct msdu_comm *comm, const mpi__lane *lane, uint64_t sequence)
{
    if (sequence < lane->end) {
        return MSDU_OK;
    }
    return mpi__watch_fail(comm, MSDU_ERR_PEER_LOST,
                           "rank %" PRId32
                           " was lost (it finished and left the group, which goes on: operation "
                           "%" PRIu64 " of lane %" PRIu32 ")",
                           lane->end_rank, sequence, lane->number);
}

/* --- hearing --- */

static void compare(struct msdu_comm *comm, const mpi__lane *lane, uint64_t sequence,
                    uint32_t print, int32_t rank)
{
    uint32_t own = lane->prints[sequence % MPI__PRINTS];
    char text[MPI__TEXT_BYTES];
    if (own == print) {
        return;
    }
    msdu__differ_text((struct msdu__said){comm->host->rank, own}, (struct msdu__said){rank, print},
                      sequence, lane->number, text, sizeof(text));
    (void)mpi__watch_fail(comm, MSDU_ERR_MISMATCH, "%s", text);
}

static void hear_of_operation(struct msdu_comm *comm, const mpi__notice *notice)
{
    if (notice->channel >= MSDU_GROUPS * comm->host->lanes ||
        !is_member(comm->lanes[notice->channel].group, notice->rank)) {
        return;
    }
    mpi__lane *lane = &comm->lanes[notice->channel];
    mpi__heard *heard = &lane->heard[notice->rank];
    if (!heard->is_any || heard->sequence < notice->sequence) {
        heard->is_any = true;
        heard->sequence = notice->sequence;
    }
    if (notice->sequence >= lane->started) {
        lane->ahead[notice->sequence % MPI__PRINTS] = (mpi__ahead){
            .sequence = notice->sequence,
            .print = notice->print,
            .rank = notice->rank,
            .is_any = true,
        };
    } else if (notice->sequence + MPI__PRINTS >= lane->started) {
        compare(comm, lane, notice->sequence, notice->print, notice->rank);
    }
}

msdu_status mpi__watch_poll(struct msdu_comm *comm)
{
    int has_come = 0;
    while (comm->status == MSDU_OK &&
           PMPI_Test(&comm->receive, &has_come, MPI_STATUS_IGNORE) == MPI_SUCCESS && has_come) {
        mpi__notice notice = comm->arriving;
        (void)receive_next(comm);
        if (notice.kind == MPI__LEFT) {
            hear_of_leaving(comm, &notice);
        } else if (notice.kind == MPI__FAILED) {
            notice.text[sizeof(notice.text) - 1] = '\0';
            (void)keep_cause(comm, (msdu_status)notice.status, notice.text);
        } else {
            hear_of_operation(comm, &notice);
        }
    }
    return comm->status;
}

/* --- late operations --- */

static bool tell_operation(struct msdu_comm *comm, const struct msdu_req *req, int32_t to)
{
    const mpi__notice notice = {.kind = MPI__STARTED,
                                .rank = comm->host->rank,
                                .channel = (uint32_t)(req->lane - comm->lanes),
                                .sequence = req->op.sequence,
                                .print = msdu__op_print(&req->op, req->lane->group->ranks)};
    return tell(comm, &notice, to);
}

/*
 * The next rank compares every operation with its own: MPI may take different counts without a
 * word and mix the data. Around the ring no difference stays unseen.
 */
void mpi__watch_note(struct msdu_comm *comm, const struct msdu_req *req)
{
    mpi__lane *lane = req->lane;
    const mpi__group *group = lane->group;
    lane->prints[req->op.sequence % MPI__PRINTS] = msdu__op_print(&req->op, group->ranks);
    lane->started = req->op.sequence + 1;
    (void)tell_operation(comm, req, group->members[(group->rank + 1) % group->ranks]);
    const mpi__ahead *ahead = &lane->ahead[req->op.sequence % MPI__PRINTS];
    if (ahead->is_any && ahead->sequence == req->op.sequence) {
        compare(comm, lane, ahead->sequence, ahead->print, ahead->rank);
    }
}

/* All who said nothing of this operation, or of a later one, are missing. */
static msdu_status name_missing(struct msdu_comm *comm, const struct msdu_req *req)
{
    const mpi__lane *lane = req->lane;
    char names[128] = "a rank";
    char span[32];
    bool is_any = false;
    for (int32_t rank = 0; rank < comm->host->ranks; rank++) {
        const mpi__heard *heard = &lane->heard[rank];
        comm->marks[rank] = rank == comm->host->rank || !is_member(lane->group, rank) ||
                            (heard->is_any && heard->sequence >= req->op.sequence);
        is_any = is_any || !comm->marks[rank];
    }
    msdu__span_text(comm->host->deadline_ns, span, sizeof(span));
    if (!is_any) {
        return mpi__watch_fail(comm, MSDU_ERR_TIMEOUT,
                               "operation %" PRIu64 " of lane %" PRIu32
                               " did not end within %s, though all ranks reached it",
                               req->op.sequence, req->op.lane, span);
    }
    (void)msdu__rank_list(comm->marks, false, comm->host->ranks, names, sizeof(names));
    return mpi__watch_fail(comm, MSDU_ERR_TIMEOUT,
                           "%s did not reach operation %" PRIu64 " of lane %" PRIu32 " within %s",
                           names, req->op.sequence, req->op.lane, span);
}

msdu_status mpi__watch_late(struct msdu_comm *comm, struct msdu_req *req)
{
    uint64_t now_ns = msdu__clock_now();
    uint64_t waited_ns = now_ns - req->start_ns;
    msdu_status status = mpi__watch_reachable(comm, req->lane, req->op.sequence);
    if (status != MSDU_OK) {
        return status;
    }
    uint64_t stall_ns =
        comm->host->deadline_ns / 4 < STALL_NS ? comm->host->deadline_ns / 4 : STALL_NS;
    if (waited_ns >= stall_ns && req->told_ns == 0 && tell_operation(comm, req, -1)) {
        req->told_ns = now_ns;
    }
    return waited_ns < comm->host->deadline_ns ? MSDU_IN_PROGRESS : name_missing(comm, req);
}

msdu_status mpi__watch_blame(struct msdu_comm *comm, struct msdu_req *req, const char *what)
{
    uint64_t until_ns = msdu__clock_now() + VERDICT_NS;
    uint64_t pause_ns = 0;
    (void)tell_operation(comm, req, -1); /* the others compare it with what they do */
    while (msdu__clock_now() < until_ns && mpi__watch_poll(comm) == MSDU_OK) {
        msdu__clock_pause(&pause_ns);
    }
    return mpi__watch_fail(comm, MSDU_ERR_BACKEND,
                           "mpi: rank %" PRId32 ": operation %" PRIu64 " of lane %" PRIu32
                           " failed: %.300s",
                           comm->host->rank, req->op.sequence, req->op.lane, what);
}
