/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations piece by piece. A buffer is written anew when all ranks have read the piece before the
 * last, so two pieces are under way at once. Sums are made in the order of ranks.
 */
#include "backend/local_move.h"
#include "backend/rank_list.h"
#include "host_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SUM_BYTES 4096 /* added up at a time: it stays in the first-level cache */

/* A piece of an operation in a channel. */
struct piece {
    const struct msdu_comm *comm;
    const msdu_op *op;
    uint64_t number; /* in the channel */
    uint64_t at;     /* first byte of every rank's stream */
    uint64_t bytes;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What a rank gives is a stream of bytes: its sum, its share, or its parts for all ranks. */
static uint64_t stream_bytes(const struct msdu_comm *comm, const msdu_op *op, int32_t rank)
{
    return op->kind == MSDU_OP_BROADCAST && rank != 0 ? 0 : msdu__op_reads(op, rank, comm->ranks);
}

static uint64_t longest_stream(const struct msdu_comm *comm, const msdu_op *op)
{
    uint64_t most = 0;
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        uint64_t bytes = stream_bytes(comm, op, rank);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static unsigned char *buffer_of(const struct piece *p, int32_t rank)
{
    return msdu__host_buffer(p->comm, p->op->lane, rank, p->number);
}

/* Copy bytes first .. end of a rank's stream, as far as they are in this piece, to `out`, which is
 * where byte `first` goes. */
static void copy_out(const struct piece *p, int32_t rank, uint64_t first, uint64_t end,
                     unsigned char *out)
{
    uint64_t from = first > p->at ? first : p->at;
    uint64_t until = least(end, p->at + p->bytes);
    if (from < until) {
        memcpy(out + (from - first), buffer_of(p, rank) + (from - p->at), until - from);
    }
}

static void write_piece(const struct piece *p)
{
    const void *in = msdu__op_is_in_place(p->op) ? p->op->recv : p->op->send;
    uint64_t own = stream_bytes(p->comm, p->op, p->comm->rank);
    if (p->at < own) {
        memcpy(buffer_of(p, p->comm->rank), (const unsigned char *)in + p->at,
               least(own - p->at, p->bytes));
    }
}

/* First byte of the share that a rank adds up; rank `ranks` gives the end. */
static uint64_t share_at(const struct piece *p, int32_t rank)
{
    uint64_t ranks = (uint64_t)p->comm->ranks;
    uint64_t each = (p->bytes / 8 + ranks) / ranks * 8;
    return least(p->bytes, each * (uint64_t)rank);
}

static void add(unsigned char *sum, const unsigned char *part, uint64_t bytes, int32_t dtype)
{
    if (dtype == MSDU_FLOAT64) {
        double *restrict to = (double *)(void *)sum;
        const double *restrict from = (const double *)(const void *)part;
        for (uint64_t i = 0; i < bytes / sizeof(double); i++) {
            to[i] += from[i];
        }
    } else {
        float *restrict to = (float *)(void *)sum;
        const float *restrict from = (const float *)(const void *)part;
        for (uint64_t i = 0; i < bytes / sizeof(float); i++) {
            to[i] += from[i];
        }
    }
}

static void sum_piece(const struct piece *p)
{
    _Alignas(MSDU__HOST_ALIGN) unsigned char sum[SUM_BYTES];
    uint64_t end = share_at(p, p->comm->rank + 1);
    for (uint64_t at = share_at(p, p->comm->rank); at < end; at += SUM_BYTES) {
        uint64_t bytes = least(end - at, SUM_BYTES);
        memcpy(sum, buffer_of(p, 0) + at, bytes);
        for (int32_t rank = 1; rank < p->comm->ranks; rank++) {
            add(sum, buffer_of(p, rank) + at, bytes, p->op->dtype);
        }
        memcpy(buffer_of(p, p->comm->rank) + at, sum, bytes);
    }
}

/* The share of each rank lies in its buffer. */
static void read_sum(const struct piece *p)
{
    for (int32_t rank = 0; rank < p->comm->ranks; rank++) {
        uint64_t first = share_at(p, rank);
        if (first < share_at(p, rank + 1)) {
            memcpy((unsigned char *)p->op->recv + p->at + first, buffer_of(p, rank) + first,
                   share_at(p, rank + 1) - first);
        }
    }
}

static void read_shares(const struct piece *p)
{
    const uint64_t *shares = p->op->shares;
    unsigned char *out = p->op->recv;
    uint64_t before = 0; /* of the parts for ranks before this one */
    for (int32_t rank = 0; rank < p->comm->rank; rank++) {
        before += shares[rank];
    }
    for (int32_t rank = 0; rank < p->comm->ranks; rank++) {
        bool is_gather = p->op->kind == MSDU_OP_ALLGATHER;
        uint64_t first = is_gather ? 0 : before;
        uint64_t bytes = shares[is_gather ? rank : p->comm->rank];
        if (bytes > 0) {
            copy_out(p, rank, first, first + bytes, out);
            out += bytes;
        }
    }
}

static void read_piece(const struct piece *p)
{
    if (p->op->kind == MSDU_OP_ALLREDUCE) {
        read_sum(p);
    } else if (p->op->kind == MSDU_OP_BROADCAST) {
        if (p->comm->rank != 0 && p->op->count > 0) {
            copy_out(p, 0, 0, p->op->count, p->op->recv);
        }
    } else {
        read_shares(p);
    }
}

/* Have all ranks come so far? at: offset of the counter in struct host_rank. */
static bool have_all(const struct msdu_comm *comm, uint32_t lane, size_t at, uint64_t wanted)
{
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        const char *counters = (const char *)msdu__host_rank(comm, lane, rank);
        if (msdu__cell_get((const msdu__cell *)(const void *)(counters + at)) < wanted) {
            return false;
        }
    }
    return true;
}

#define HAVE_ALL(comm, lane, counter, wanted)                                                      \
    have_all((comm), (lane), offsetof(struct host_rank, counter), (wanted))

/* All ranks have started this operation; do they mean the same one? */
static bool is_agreed(const struct msdu_comm *comm, const msdu_op *op)
{
    char text[MSDU__TEXT_BYTES];
    uint32_t own = msdu__op_print(op, comm->ranks);
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        uint64_t print = msdu__cell_get(msdu__host_print(comm, op->lane, rank, op->sequence));
        if (print != own) {
            msdu__differ_text((struct msdu__said){msdu__host_name(comm, comm->rank), own},
                              (struct msdu__said){msdu__host_name(comm, rank), (uint32_t)print},
                              op->sequence, op->lane, text, sizeof(text));
            msdu__host_fail(comm, MSDU_ERR_MISMATCH, "%s", text);
            return false;
        }
    }
    return true;
}

static void next_piece(struct host_lane *lane, uint64_t total)
{
    struct msdu_req *req = lane->first;
    lane->pieces++;
    lane->at += MSDU__HOST_PIECE;
    lane->phase = HOST_WRITE;
    if (lane->at >= total) {
        lane->at = 0;
        lane->first = req->next;
        lane->last = lane->first == NULL ? NULL : lane->last;
        req->is_done = true;
        if (lane->first != NULL) {
            lane->first->since_ns = msdu__clock_now();
        }
    }
}

/* One phase of the first operation; false: it waits for others. */
static bool advance_phase(struct msdu_comm *comm, struct host_lane *lane)
{
    const msdu_op *op = &lane->first->op;
    struct host_rank *own = msdu__host_rank(comm, op->lane, comm->rank);
    uint64_t total = longest_stream(comm, op);
    uint64_t next = lane->pieces + 1;
    struct piece p = {comm, op, lane->pieces, lane->at,
                      least(total - least(lane->at, total), MSDU__HOST_PIECE)};
    switch (lane->phase) {
    case HOST_WRITE:
        if (lane->pieces >= 2 && !HAVE_ALL(comm, op->lane, read, lane->pieces - 1)) {
            return false;
        }
        write_piece(&p);
        msdu__cell_set(&own->written, next);
        lane->phase = HOST_COMPARE;
        return true;
    case HOST_COMPARE:
        if (!HAVE_ALL(comm, op->lane, posted, op->sequence + 1) || !is_agreed(comm, op) ||
            !HAVE_ALL(comm, op->lane, written, next)) {
            return false;
        }
        lane->phase = op->kind == MSDU_OP_ALLREDUCE ? HOST_SUM : HOST_READ;
        return true;
    case HOST_SUM:
        sum_piece(&p);
        msdu__cell_set(&own->summed, next);
        lane->phase = HOST_READ;
        return true;
    case HOST_READ:
    default:
        if (op->kind == MSDU_OP_ALLREDUCE && !HAVE_ALL(comm, op->lane, summed, next)) {
            return false;
        }
        read_piece(&p);
        msdu__cell_set(&own->read, next);
        next_piece(lane, total);
        return true;
    }
}

/* Who has closed its side can start nothing any more. */
static void check_left(const struct msdu_comm *comm, const msdu_op *op)
{
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        if (msdu__cell_get(&comm->head->left[rank]) != 0 &&
            msdu__cell_get(&msdu__host_rank(comm, op->lane, rank)->posted) <= op->sequence) {
            msdu__host_fail(comm, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (it left)",
                            msdu__host_name(comm, rank));
        }
    }
}

static void check_deadline(const struct msdu_comm *comm, const struct msdu_req *req)
{
    char names[128];
    char span[32];
    bool is_behind[MSDU__HOST_RANKS] = {false};
    const msdu_op *op = &req->op;
    if (msdu__clock_now() < req->since_ns + comm->host->deadline_ns) {
        return;
    }
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        is_behind[rank] =
            msdu__cell_get(&msdu__host_rank(comm, op->lane, rank)->posted) <= op->sequence;
    }
    /* a rank that was killed while it wrote a cause will not end its text */
    (void)msdu__cell_change(&comm->head->failure, 1, 0);
    msdu__span_text(comm->host->deadline_ns, span, sizeof(span));
    if (msdu__host_list(comm, is_behind, names, sizeof(names)) > 0) {
        msdu__host_fail(comm, MSDU_ERR_TIMEOUT,
                        "%s did not reach operation %" PRIu64 " of lane %" PRIu32 " within %s",
                        names, op->sequence, op->lane, span);
    } else {
        msdu__host_fail(comm, MSDU_ERR_TIMEOUT,
                        "operation %" PRIu64 " of lane %" PRIu32
                        " did not end within %s although all ranks of the host started it",
                        op->sequence, op->lane, span);
    }
}

/* The group failed: nothing touches the caller's memory any more. */
static void end_all(struct host_lane *lane, msdu_status status)
{
    for (; lane->first != NULL; lane->first = lane->first->next) {
        lane->first->is_done = true;
        lane->first->status = status;
    }
    lane->last = NULL;
}

void msdu__host_advance(struct msdu_comm *comm)
{
    bool did = false;
    for (uint32_t i = 0; i < comm->host->lanes; i++) {
        struct host_lane *lane = &comm->lanes[i];
        bool does = true;
        while (lane->first != NULL && does && msdu__host_status(comm) == MSDU_OK) {
            does = advance_phase(comm, lane);
            did = did || does;
        }
        if (lane->first != NULL) {
            check_left(comm, &lane->first->op);
            check_deadline(comm, lane->first);
        }
        msdu_status status = msdu__host_status(comm);
        if (status != MSDU_OK) {
            end_all(lane, status);
        }
    }
    if (did) {
        msdu__host_ring(comm);
    }
}
