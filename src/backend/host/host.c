/* SPDX-License-Identifier: Apache-2.0 */
/* Backend "host": ranks that are processes, or threads, of one host and share memory. */
#include "backend/local_move.h"
#include "backend/registry.h"
#include "host_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYE_NS UINT64_C(700000000) /* close() waits this long for the others */

/* --- the thread that listens --- */

static void hear_bell(struct msdu_comm *comm)
{
    uint64_t rings = 0;
    ssize_t got = read(comm->bells[comm->rank], &rings, sizeof(rings));
    (void)got;
    (void)pthread_mutex_lock(&comm->lock);
    comm->bell_count++;
    (void)pthread_cond_broadcast(&comm->heard);
    (void)pthread_mutex_unlock(&comm->lock);
    if (comm->host->notify != NULL) {
        comm->host->notify(comm->host->user);
    }
}

/* A connection carries nothing after the start, so that there is something to read is its end. */
static void hear_end(struct msdu_comm *comm, int32_t rank)
{
    if (msdu__cell_get(&comm->head->left[rank]) == 0) {
        msdu__host_fail(comm, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (its process ended)",
                        msdu__host_name(comm, rank));
    }
    (void)close(comm->peers[rank]);
    comm->peers[rank] = -1;
    hear_bell(comm); /* never blocks; whoever waits here looks again */
}

static bool is_closing(struct msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool is = comm->is_closing;
    (void)pthread_mutex_unlock(&comm->lock);
    return is;
}

static void *listen_main(void *argument)
{
    struct msdu_comm *comm = argument;
    struct pollfd polls[MSDU__HOST_RANKS];
    while (!is_closing(comm)) {
        for (int32_t rank = 0; rank < comm->ranks; rank++) {
            int file = rank == comm->rank ? comm->bells[rank] : comm->peers[rank];
            polls[rank] = (struct pollfd){.fd = file, .events = POLLIN};
        }
        if (poll(polls, (nfds_t)comm->ranks, -1) <= 0) {
            continue;
        }
        for (int32_t rank = 0; rank < comm->ranks; rank++) {
            if (polls[rank].revents != 0 && rank != comm->rank) {
                hear_end(comm, rank);
            }
        }
        if (polls[comm->rank].revents != 0) {
            hear_bell(comm);
        }
    }
    return NULL;
}

/* All signals are left to the trainer's threads. */
static msdu_status start_thread(struct msdu_comm *comm)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    comm->has_thread = pthread_create(&comm->thread, NULL, listen_main, comm) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return comm->has_thread ? MSDU_OK
                            : comm->host->fail(MSDU_ERR_NO_MEMORY, "host: cannot start a thread");
}

static void ring_self(const struct msdu_comm *comm)
{
    const uint64_t one = 1;
    ssize_t written = write(comm->bells[comm->rank], &one, sizeof(one));
    (void)written;
}

static void stop_thread(struct msdu_comm *comm)
{
    if (!comm->has_thread) {
        return;
    }
    (void)pthread_mutex_lock(&comm->lock);
    comm->is_closing = true;
    (void)pthread_mutex_unlock(&comm->lock);
    ring_self(comm);
    (void)pthread_join(comm->thread, NULL);
}

/* --- open and close --- */

static void comm_free(struct msdu_comm *comm)
{
    stop_thread(comm);
    msdu__host_part(comm);
    (void)pthread_cond_destroy(&comm->heard);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm->lanes);
    free(comm->reqs);
    free(comm);
}

static struct msdu_comm *comm_new(const msdu_host *host)
{
    struct msdu_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return NULL;
    }
    comm->host = host;
    comm->rank = host->rank;
    comm->ranks = host->ranks;
    comm->prints = host->requests + 1;
    (void)pthread_mutex_init(&comm->lock, NULL);
    msdu__cond_init(&comm->heard);
    for (int i = 0; i < MSDU__HOST_RANKS; i++) {
        comm->bells[i] = comm->peers[i] = -1;
    }
    comm->lanes = calloc(host->lanes, sizeof(*comm->lanes));
    comm->reqs = calloc((size_t)host->requests + 1, sizeof(*comm->reqs));
    for (uint32_t i = 0; comm->reqs != NULL && i < host->requests; i++) {
        comm->reqs[i].next = comm->free;
        comm->free = &comm->reqs[i];
    }
    if (comm->lanes == NULL || comm->reqs == NULL) {
        comm_free(comm);
        return NULL;
    }
    return comm;
}

static msdu_status host_open(const msdu_host *host, msdu_comm **comm_out)
{
    if (host->ranks < 1 || host->rank < 0 || host->rank >= host->ranks || host->job == NULL ||
        host->lanes == 0 || host->ranks > MSDU__HOST_RANKS) {
        return host->fail(MSDU_ERR_INVALID, "host: rank, ranks, job or lanes is not valid");
    }
    struct msdu_comm *comm = comm_new(host);
    if (comm == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "host: no memory for a group");
    }
    msdu_status status = msdu__host_join(comm);
    status = status == MSDU_OK ? start_thread(comm) : status;
    if (status != MSDU_OK) {
        comm_free(comm);
        return status;
    }
    *comm_out = comm;
    return MSDU_OK;
}

static bool have_all_left(const struct msdu_comm *comm)
{
    int32_t count = 0;
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        count += msdu__cell_get(&comm->head->left[rank]) != 0 ? 1 : 0;
    }
    return count == comm->ranks;
}

/* Who waits for a death after rank 0 has gone would not hear of it: ranks go together. */
static void say_goodbye(struct msdu_comm *comm)
{
    struct timespec until = msdu__clock_spec(msdu__clock_now() + BYE_NS);
    int code = 0;
    msdu__cell_set(&comm->head->left[comm->rank], 1);
    msdu__host_ring(comm);
    (void)pthread_mutex_lock(&comm->lock);
    while (code == 0 && !have_all_left(comm) && msdu__host_status(comm) == MSDU_OK) {
        code = pthread_cond_timedwait(&comm->heard, &comm->lock, &until);
    }
    (void)pthread_mutex_unlock(&comm->lock);
}

static void host_close(msdu_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    if (comm->in_flight > 0) {
        msdu__host_fail(comm, MSDU_ERR_PEER_LOST,
                        "rank %" PRId32 " was lost (it left the group with operations in flight)",
                        msdu__host_name(comm, comm->rank));
    }
    say_goodbye(comm);
    comm_free(comm);
}

/* --- operations --- */

static msdu_status fail_as_group(const struct msdu_comm *comm)
{
    return comm->host->fail(msdu__host_status(comm), comm->head->text);
}

static msdu_status check_start(const struct msdu_comm *comm, const msdu_op *op)
{
    char text[MSDU__TEXT_BYTES];
    if (!msdu__op_is_valid(op, text, sizeof(text))) {
        return comm->host->fail(MSDU_ERR_INVALID, text);
    }
    if (op->lane >= comm->host->lanes || op->group != MSDU_GROUP_WORLD) {
        return comm->host->fail(MSDU_ERR_INVALID, "host: there is no such lane or group");
    }
    if (op->place != MSDU_PLACE_HOST) {
        return comm->host->fail(MSDU_ERR_UNSUPPORTED, "host: only memory of the host is shared");
    }
    if (msdu__host_status(comm) != MSDU_OK) {
        return fail_as_group(comm);
    }
    return comm->free != NULL
               ? MSDU_OK
               : comm->host->fail(MSDU_ERR_STATE, "host: more operations in flight than agreed");
}

static msdu_status host_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out)
{
    msdu_status status = check_start(comm, op);
    if (status != MSDU_OK) {
        return status;
    }
    struct msdu_req *req = comm->free;
    struct host_lane *lane = &comm->lanes[op->lane];
    comm->free = req->next;
    comm->in_flight++;
    *req = (struct msdu_req){.op = *op, .since_ns = msdu__clock_now()};
    if (lane->last == NULL) {
        lane->first = req;
    } else {
        lane->last->next = req;
    }
    lane->last = req;
    msdu__cell_set(msdu__host_print(comm, op->lane, comm->rank, op->sequence),
                   msdu__op_print(op, comm->ranks));
    msdu__cell_set(&msdu__host_rank(comm, op->lane, comm->rank)->posted, op->sequence + 1);
    msdu__host_ring(comm);
    msdu__host_advance(comm);
    if (req->is_done && comm->host->notify != NULL) {
        comm->host->notify(comm->host->user);
    }
    *req_out = req;
    return MSDU_OK;
}

static msdu_status host_test(msdu_comm *comm, msdu_req *req)
{
    if (!req->is_done) {
        msdu__host_advance(comm);
    }
    if (!req->is_done) {
        return MSDU_IN_PROGRESS;
    }
    msdu_status status = req->status;
    req->next = comm->free;
    comm->free = req;
    comm->in_flight--;
    return status == MSDU_OK ? MSDU_OK : fail_as_group(comm);
}

static msdu_status host_wait(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns)
{
    uint64_t now = msdu__clock_now();
    uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    uint64_t late = req->since_ns + comm->host->deadline_ns;
    struct timespec until = msdu__clock_spec(end < late ? end : late);
    msdu_status status = MSDU_IN_PROGRESS;
    int code = 0;
    while (status == MSDU_IN_PROGRESS && code != ETIMEDOUT) {
        (void)pthread_mutex_lock(&comm->lock);
        uint64_t heard = comm->bell_count;
        (void)pthread_mutex_unlock(&comm->lock);
        status = host_test(comm, req);
        (void)pthread_mutex_lock(&comm->lock);
        while (status == MSDU_IN_PROGRESS && comm->bell_count == heard && code == 0) {
            code = pthread_cond_timedwait(&comm->heard, &comm->lock, &until);
        }
        (void)pthread_mutex_unlock(&comm->lock);
    }
    return status == MSDU_IN_PROGRESS ? host_test(comm, req) : status;
}

static void host_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    const char *said = why == NULL ? "no cause given" : why;
    if (status == MSDU_ERR_NOT_FINITE || status == MSDU_ERR_MISMATCH) {
        msdu__host_fail(comm, status, "%s", said);
    } else {
        msdu__host_fail(comm, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (it aborted: %s)",
                        msdu__host_name(comm, comm->rank), said);
    }
    ring_self(comm);
}

const msdu_backend msdu__backend_host = {
    .size = sizeof(msdu_backend),
    .name = "host",
    .version = "shared memory",
    .caps = MSDU_CAP_NOTIFY | MSDU_CAP_RANK_ORDER,
    .open = host_open,
    .close = host_close,
    .start = host_start,
    .test = host_test,
    .wait = host_wait,
    .abort = host_abort,
};
