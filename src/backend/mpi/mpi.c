/* SPDX-License-Identifier: Apache-2.0 */
/* Backend modules "openmpi" and "mpich": collectives of MPI, one build for each family. */
#include "backend/local_move.h"
#include "mpi_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MSDU_MPI_FAMILY
#error "MSDU_MPI_FAMILY names the family that this module is built for"
#endif

#if defined(OPEN_MPI) && OPEN_MPI
#define TEXT(x)   #x
#define NUMBER(x) TEXT(x)
#define VERSION_TEXT                                                                               \
    "Open MPI " NUMBER(OMPI_MAJOR_VERSION) "." NUMBER(OMPI_MINOR_VERSION) "." NUMBER(              \
        OMPI_RELEASE_VERSION)
#else
#define VERSION_TEXT "MPICH " MPICH_VERSION
#endif

/* Groups that failed or were left alone. */
static struct msdu_comm *left_behind;

/* --- memory --- */

static void comm_free(struct msdu_comm *comm)
{
    for (uint32_t i = 0; comm->reqs != NULL && i < comm->host->requests; i++) {
        mpi__move_free(&comm->reqs[i]);
    }
    for (uint32_t i = 0; comm->lanes != NULL && i < MSDU_GROUPS * comm->host->lanes; i++) {
        free(comm->lanes[i].heard);
    }
    for (uint32_t i = 0; i < MSDU_GROUPS; i++) {
        free(comm->groups[i].members);
    }
    for (size_t i = 0; i < MPI__NOTICES; i++) {
        free(comm->sendings[i].requests);
    }
    free(comm->reqs);
    free(comm->lanes);
    free(comm->marks);
    free(comm);
}

static bool reqs_new(struct msdu_comm *comm)
{
    size_t ranks = (size_t)comm->host->ranks;
    comm->reqs = calloc((size_t)comm->host->requests + 1, sizeof(*comm->reqs));
    for (uint32_t i = 0; comm->reqs != NULL && i < comm->host->requests; i++) {
        struct msdu_req *req = &comm->reqs[i];
        req->counts = calloc(4 * ranks, sizeof(*req->counts));
        req->types = calloc(2 * ranks, sizeof(MPI_Datatype));
        if (req->counts == NULL || req->types == NULL) {
            return false;
        }
        req->next_free = comm->free;
        comm->free = req;
    }
    return comm->reqs != NULL;
}

static bool parts_new(struct msdu_comm *comm)
{
    size_t ranks = (size_t)comm->host->ranks;
    bool is_good = true;
    comm->lanes = calloc((size_t)MSDU_GROUPS * comm->host->lanes, sizeof(*comm->lanes));
    comm->marks = calloc(ranks, sizeof(*comm->marks));
    for (uint32_t i = 0; comm->lanes != NULL && i < MSDU_GROUPS * comm->host->lanes; i++) {
        mpi__lane *lane = &comm->lanes[i];
        lane->comm = MPI_COMM_NULL;
        lane->group = &comm->groups[i / comm->host->lanes];
        lane->number = i % comm->host->lanes;
        lane->heard = calloc(ranks, sizeof(mpi__heard));
        lane->end = UINT64_MAX;
        is_good = is_good && lane->heard != NULL;
    }
    for (uint32_t i = 0; i < MSDU_GROUPS; i++) {
        comm->groups[i].rank = -1;
        comm->groups[i].members = calloc(ranks, sizeof(int32_t));
        is_good = is_good && comm->groups[i].members != NULL;
    }
    for (size_t i = 0; i < MPI__NOTICES; i++) {
        comm->sendings[i].requests = calloc(ranks, sizeof(MPI_Request));
        is_good = is_good && comm->sendings[i].requests != NULL;
    }
    return is_good && comm->lanes != NULL && comm->marks != NULL && reqs_new(comm);
}

/* colors NULL: all ranks. */
static void fill_group(struct msdu_comm *comm, uint32_t number, const int32_t *colors,
                       uint32_t lanes)
{
    mpi__group *group = &comm->groups[number];
    const int32_t own = comm->host->rank;
    group->lanes = lanes;
    for (int32_t rank = 0; rank < comm->host->ranks; rank++) {
        if (colors == NULL || (colors[own] >= 0 && colors[rank] == colors[own])) {
            group->rank = rank == own ? group->ranks : group->rank;
            group->members[group->ranks++] = rank;
        }
    }
}

static struct msdu_comm *comm_new(const msdu_host *host)
{
    struct msdu_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return NULL;
    }
    comm->host = host;
    comm->control = MPI_COMM_NULL;
    comm->receive = MPI_REQUEST_NULL;
    if (!parts_new(comm)) {
        comm_free(comm);
        return NULL;
    }
    fill_group(comm, MSDU_GROUP_WORLD, NULL, host->lanes);
    return comm;
}

/* MPI may still read and write the memory of what is in flight. */
static void comm_keep(struct msdu_comm *comm)
{
    mpi__watch_end(comm);
    comm->next_left = left_behind;
    left_behind = comm;
    comm->host = NULL; /* its lender goes */
}

/* --- entries --- */

static msdu_status connect_all(struct msdu_comm *comm)
{
    const msdu_host *host = comm->host;
    char text[MPI__TEXT_BYTES];
    msdu_status status = mpi__life_begin(host);
    if (status == MSDU_OK) {
        status = mpi__join(comm);
    }
    if (status == MSDU_OK) {
        status = mpi__watch_begin(comm);
    }
    if (status == MSDU_OK && host->log != NULL) {
        (void)snprintf(text, sizeof(text), VERSION_TEXT ": %" PRId32 " ranks, %" PRIu32 " lanes",
                       host->ranks, host->lanes);
        host->log(host->user, MSDU_LOG_INFO, text);
    }
    return status;
}

static msdu_status mpi_open(const msdu_host *host, msdu_comm **comm_out)
{
    if (host->ranks < 1 || host->rank < 0 || host->rank >= host->ranks || host->job == NULL ||
        host->lanes == 0) {
        return host->fail(MSDU_ERR_INVALID, "mpi: rank, ranks, job or lanes is not valid");
    }
    struct msdu_comm *comm = comm_new(host);
    if (comm == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "mpi: no memory for a group");
    }
    msdu_status status = host->ranks > 1 ? connect_all(comm) : MSDU_OK;
    if (status != MSDU_OK) {
        mpi__broken();
        comm_keep(comm); /* a duplication may be under way */
        return status;
    }
    *comm_out = comm;
    return MSDU_OK;
}

/* A group of one moves its own data. */
static void start_alone(struct msdu_req *req)
{
    const msdu_op *ops[] = {&req->op};
    msdu__op_move(ops, 1);
    req->is_local = true;
}

static mpi__lane *lane_of(const struct msdu_comm *comm, const msdu_op *op)
{
    return &comm->lanes[op->group * comm->host->lanes + op->lane];
}

static msdu_status check_start(struct msdu_comm *comm, const msdu_op *op)
{
    char text[MPI__TEXT_BYTES];
    if (!msdu__op_is_valid(op, text, sizeof(text))) {
        return comm->host->fail(MSDU_ERR_INVALID, text);
    }
    const mpi__group *group = &comm->groups[op->group < MSDU_GROUPS ? op->group : 0];
    if (op->group >= MSDU_GROUPS || group->ranks == 0) {
        return comm->host->fail(MSDU_ERR_INVALID, "mpi: this rank is in no such group");
    }
    if (op->lane >= group->lanes) {
        (void)snprintf(text, sizeof(text), "mpi: there is no lane %" PRIu32, op->lane);
        return comm->host->fail(MSDU_ERR_INVALID, text);
    }
    if (comm->host->ranks > 1 && mpi__watch_poll(comm) != MSDU_OK) {
        return comm->host->fail(comm->status, comm->text);
    }
    if (group->ranks > 1 &&
        mpi__watch_reachable(comm, lane_of(comm, op), op->sequence) != MSDU_OK) {
        return comm->host->fail(comm->status, comm->text);
    }
    if (comm->free == NULL) {
        return comm->host->fail(MSDU_ERR_STATE, "mpi: more operations in flight than agreed");
    }
    return MSDU_OK;
}

static msdu_status mpi_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out)
{
    msdu_status status = check_start(comm, op);
    if (status != MSDU_OK) {
        return status;
    }
    struct msdu_req *req = comm->free;
    req->op = *op;
    req->start_ns = msdu__clock_now();
    req->told_ns = 0;
    req->is_local = false;
    req->lane = lane_of(comm, op);
    if (req->lane->group->ranks == 1) {
        start_alone(req);
    } else {
        mpi__watch_note(comm, req);
        status = mpi__move_start(comm, req);
    }
    if (status == MSDU_OK) {
        comm->free = req->next_free;
        comm->in_flight++;
        *req_out = req;
    }
    return status;
}

static msdu_status test_moving(struct msdu_comm *comm, struct msdu_req *req)
{
    msdu_status status = mpi__watch_poll(comm);
    if (status == MSDU_OK) {
        status = mpi__move_test(comm, req);
    }
    return status == MSDU_IN_PROGRESS ? mpi__watch_late(comm, req) : status;
}

static msdu_status mpi_test(msdu_comm *comm, msdu_req *req)
{
    msdu_status status = req->is_local ? MSDU_OK : test_moving(comm, req);
    if (status == MSDU_IN_PROGRESS) {
        return status;
    }
    comm->in_flight--;
    if (status == MSDU_OK) {
        req->next_free = comm->free;
        comm->free = req;
        return MSDU_OK;
    }
    /* Not reused: MPI has not let go of its memory. */
    return comm->host->fail(comm->status, comm->text);
}

static msdu_status mpi_wait(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns)
{
    uint64_t began_ns = msdu__clock_now();
    uint64_t pause_ns = 0;
    msdu_status status = mpi_test(comm, req);
    while (status == MSDU_IN_PROGRESS && msdu__clock_now() - began_ns < timeout_ns) {
        msdu__clock_pause(&pause_ns);
        status = mpi_test(comm, req);
    }
    return status;
}

static void mpi_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    const char *cause = why == NULL ? "no cause given" : why;
    if (comm->host->ranks == 1) {
        return;
    }
    if (status == MSDU_ERR_NOT_FINITE || status == MSDU_ERR_MISMATCH) {
        (void)mpi__watch_fail(comm, status, "%s", cause);
        return;
    }
    (void)mpi__watch_fail(comm, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (it aborted: %s)",
                          comm->host->rank, cause);
}

static msdu_status mpi_split(msdu_comm *comm, uint32_t group, const int32_t *colors, uint32_t lanes)
{
    const msdu_host *host = comm->host;
    uint64_t print = (uint64_t)group << 32 | lanes;
    if (group == MSDU_GROUP_WORLD || group >= MSDU_GROUPS || lanes > host->lanes ||
        comm->groups[group].lanes > 0) {
        return host->fail(MSDU_ERR_INVALID, "mpi: no such group, or it is there already");
    }
    for (int32_t rank = 0; rank < host->ranks; rank++) {
        print = (print ^ (uint32_t)colors[rank]) * UINT64_C(0x100000001b3);
    }
    fill_group(comm, group, colors, lanes);
    msdu_status status =
        host->ranks > 1 ? mpi__join_group(comm, group, colors[host->rank], print) : MSDU_OK;
    if (status != MSDU_OK) {
        (void)mpi__watch_fail(comm, status, "rank %" PRId32 " could not form a group", host->rank);
    }
    return status;
}

static void mpi_close(msdu_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    if (comm->host->ranks > 1 && comm->status == MSDU_OK && comm->in_flight > 0) {
        (void)mpi__watch_fail(comm, MSDU_ERR_PEER_LOST,
                              "rank %" PRId32
                              " was lost (it left the group with operations in flight)",
                              comm->host->rank);
    }
    bool may_free = comm->host->ranks == 1 || (comm->status == MSDU_OK && mpi__leave(comm));
    if (may_free) {
        comm_free(comm);
    } else {
        comm_keep(comm);
    }
}

MSDU_API extern const msdu_backend msdu_backend_v2;
const msdu_backend msdu_backend_v2 = {
    .size = sizeof(msdu_backend),
    .name = MSDU_MPI_FAMILY,
    .version = VERSION_TEXT,
    .caps = 0,
    .open = mpi_open,
    .close = mpi_close,
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .abort = mpi_abort,
    .split = mpi_split,
};
