/* SPDX-License-Identifier: Apache-2.0 */
/* Backend "local": ranks as threads of one process; always built, the oracle for all others. */
#include "backend/local_move.h"
#include "backend/rank_list.h"
#include "backend/registry.h"
#include "local_group.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct msdu_comm *comm_new(const msdu_host *host)
{
    struct msdu_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return NULL;
    }
    comm->host = host;
    comm->rank = host->rank;
    comm->is_in[MSDU_GROUP_WORLD] = true;
    comm->reqs = calloc((size_t)host->requests + 1, sizeof(*comm->reqs));
    if (comm->reqs == NULL) {
        free(comm);
        return NULL;
    }
    for (uint32_t i = 0; i < host->requests; i++) {
        comm->reqs[i].next_free = comm->free;
        comm->free = &comm->reqs[i];
    }
    return comm;
}

static msdu_status local_open(const msdu_host *host, msdu_comm **comm_out)
{
    char text[MSDU__TEXT_BYTES];
    if (host->ranks < 1 || host->rank < 0 || host->rank >= host->ranks || host->job == NULL) {
        return host->fail(MSDU_ERR_INVALID, "local: rank, ranks or job is not valid");
    }
    struct msdu_comm *comm = comm_new(host);
    if (comm == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "local: no memory for requests");
    }
    msdu_status status = msdu__local_join(comm, text);
    if (status != MSDU_OK) {
        msdu__local_leave(comm);
        return host->fail(status, text);
    }
    *comm_out = comm;
    return MSDU_OK;
}

/* The slot of an operation, new if this rank is the first. NULL cannot happen. Lock held. */
static struct slot *slot_find(struct group *group, const msdu_op *op, int32_t rank)
{
    int32_t color = op->group == MSDU_GROUP_WORLD ? 0 : group->colors[op->group][rank];
    for (struct slot *slot = group->active; slot != NULL; slot = slot->next) {
        if (slot->group == op->group && slot->color == color && slot->lane == op->lane &&
            slot->sequence == op->sequence) {
            return slot;
        }
    }
    struct slot *slot = group->free;
    assert(slot != NULL); /* there are as many slots as requests */
    group->free = slot->next;
    slot->next = group->active;
    group->active = slot;
    slot->posted = 0;
    slot->held = 0;
    slot->is_moving = false;
    slot->is_done = false;
    slot->status = MSDU_OK;
    slot->group = op->group;
    slot->color = color;
    slot->lane = op->lane;
    slot->sequence = op->sequence;
    memset(slot->ops, 0, (size_t)group->ranks * sizeof(const msdu_op *));
    slot->ranks = 0;
    for (int32_t i = 0; i < group->ranks; i++) {
        slot->ranks += msdu__local_takes_part(group, slot, i) ? 1 : 0;
    }
    return slot;
}

/* Release a request; the last one releases the slot. Lock held. */
static void req_release(struct msdu_comm *comm, struct msdu_req *req)
{
    struct group *group = comm->group;
    struct slot *slot = req->slot;
    req->slot = NULL;
    req->next_free = comm->free;
    comm->free = req;
    if (--slot->held > 0) {
        return;
    }
    for (struct slot **at = &group->active; *at != NULL; at = &(*at)->next) {
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    }
    slot->next = group->free;
    group->free = slot;
}

/* Fail the group if ranks do not mean the same operation, or a rank it needs has left. */
static void check_peers(struct group *group, const struct slot *slot, const msdu_req *req,
                        int32_t rank)
{
    for (int32_t other = 0; other < group->ranks; other++) {
        const msdu_op *op = slot->ops[other];
        if (!msdu__local_takes_part(group, slot, other)) {
            continue;
        }
        if (op != NULL && !msdu__op_is_equal(op, &req->op, slot->ranks)) {
            msdu__local_fail(group, MSDU_ERR_MISMATCH,
                             "ranks %" PRId32 " and %" PRId32 " differ in operation %" PRIu64
                             " of lane %" PRIu32 ": kind %" PRId32 " count %" PRIu64
                             ", kind %" PRId32 " count %" PRIu64,
                             other, rank, op->sequence, op->lane, op->kind, op->count, req->op.kind,
                             req->op.count);
            return;
        }
        if (op == NULL && group->has_left[other]) {
            msdu__local_fail(group, MSDU_ERR_PEER_LOST,
                             "rank %" PRId32 " was lost (it left the group)", other);
            return;
        }
    }
}

/* Enter the operation in its slot. Returns the slot if this rank is to move the data. */
static struct slot *post(struct msdu_comm *comm, struct msdu_req *req)
{
    struct group *group = comm->group;
    struct slot *slot = slot_find(group, &req->op, comm->rank);
    req->slot = slot;
    slot->held++;
    check_peers(group, slot, req, comm->rank);
    slot->ops[comm->rank] = &req->op;
    slot->posted++;
    if (group->status < 0) {
        slot->is_done = true;
        slot->status = group->status;
        return NULL;
    }
    slot->is_moving = slot->posted == slot->ranks;
    return slot->is_moving ? slot : NULL;
}

static void move_and_tell(struct group *group, struct slot *slot)
{
    int32_t count = 0;
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        if (slot->ops[rank] != NULL) {
            slot->moved[count++] = slot->ops[rank];
        }
    }
    msdu__op_move(slot->moved, count);
    (void)pthread_mutex_lock(&group->lock);
    slot->is_moving = false;
    slot->is_done = true;
    (void)pthread_cond_broadcast(&group->changed);
    (void)pthread_mutex_unlock(&group->lock);
    msdu__local_notify(group);
}

static msdu_status local_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out)
{
    struct group *group = comm->group;
    char text[MSDU__TEXT_BYTES];
    if (!msdu__op_is_valid(op, text, sizeof(text))) {
        return comm->host->fail(MSDU_ERR_INVALID, text);
    }
    if (op->group >= MSDU_GROUPS || !comm->is_in[op->group]) {
        return comm->host->fail(MSDU_ERR_INVALID, "local: this rank is in no such group");
    }
    (void)pthread_mutex_lock(&group->lock);
    struct msdu_req *req = comm->free;
    msdu_status status = req == NULL ? MSDU_ERR_STATE : group->status;
    if (status != MSDU_OK) {
        (void)snprintf(text, sizeof(text), "%s",
                       req == NULL ? "more operations in flight than agreed" : group->text);
        (void)pthread_mutex_unlock(&group->lock);
        return comm->host->fail(status, text);
    }
    comm->free = req->next_free;
    req->op = *op;
    req->start_ns = msdu__clock_now();
    struct slot *slot = post(comm, req);
    bool has_failed = group->status < 0;
    (void)pthread_mutex_unlock(&group->lock);
    *req_out = req;
    if (slot != NULL) {
        move_and_tell(group, slot);
    } else if (has_failed) {
        msdu__local_notify(group);
    }
    return MSDU_OK;
}

/* Fail the group if this request has waited longer than allowed. Lock held. */
static bool check_deadline(struct msdu_comm *comm, const struct msdu_req *req)
{
    struct group *group = comm->group;
    struct slot *slot = req->slot;
    if (slot->is_done || slot->is_moving ||
        msdu__clock_now() < req->start_ns + comm->host->deadline_ns) {
        return false;
    }
    char names[MSDU__LOCAL_NAMES_BYTES] = "";
    char span[32];
    size_t used = 0;
    int32_t missing = slot->ranks - slot->posted;
    for (int32_t rank = 0; rank < group->ranks && used + 16 < sizeof(names); rank++) {
        if (slot->ops[rank] == NULL && msdu__local_takes_part(group, slot, rank)) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%" PRId32,
                                     used > 0 ? ", " : "", rank);
        }
    }
    msdu__span_text(comm->host->deadline_ns, span, sizeof(span));
    msdu__local_fail(group, MSDU_ERR_TIMEOUT,
                     "%s %s did not reach operation %" PRIu64 " of lane %" PRIu32 " within %s",
                     missing == 1 ? "rank" : "ranks", names, slot->sequence, slot->lane, span);
    return true;
}

static msdu_status finish(struct msdu_comm *comm, struct msdu_req *req, uint64_t until_ns)
{
    struct group *group = comm->group;
    struct slot *slot = req->slot;
    char text[MSDU__TEXT_BYTES];
    uint64_t late_ns = req->start_ns + comm->host->deadline_ns;
    (void)pthread_mutex_lock(&group->lock);
    while (!slot->is_done && msdu__clock_now() < until_ns &&
           (slot->is_moving || msdu__clock_now() < late_ns)) {
        (void)msdu__local_wait_change(group,
                                      late_ns < until_ns && !slot->is_moving ? late_ns : until_ns);
    }
    bool has_failed = check_deadline(comm, req);
    msdu_status status = slot->is_done ? slot->status : MSDU_IN_PROGRESS;
    (void)snprintf(text, sizeof(text), "%s", status < 0 ? group->text : "");
    if (status != MSDU_IN_PROGRESS) {
        req_release(comm, req);
    }
    (void)pthread_mutex_unlock(&group->lock);
    if (has_failed) {
        msdu__local_notify(group);
    }
    return status < 0 ? comm->host->fail(status, text) : status;
}

static msdu_status local_test(msdu_comm *comm, msdu_req *req)
{
    return finish(comm, req, 0);
}

static msdu_status local_wait(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns)
{
    uint64_t start_ns = msdu__clock_now();
    return finish(comm, req,
                  timeout_ns > UINT64_MAX - start_ns ? UINT64_MAX : start_ns + timeout_ns);
}

static void local_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    struct group *group = comm->group;
    (void)pthread_mutex_lock(&group->lock);
    const char *said = why == NULL ? "no cause given" : why;
    if (status == MSDU_ERR_NOT_FINITE || status == MSDU_ERR_MISMATCH) {
        msdu__local_fail(group, status, "%s", said);
    } else {
        msdu__local_fail(group, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (it aborted: %s)",
                         comm->rank, said);
    }
    (void)pthread_mutex_unlock(&group->lock);
    msdu__local_notify(group);
}

static void local_close(msdu_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    struct group *group = comm->group;
    (void)pthread_mutex_lock(&group->lock);
    for (struct slot *slot = group->active; slot != NULL; slot = slot->next) {
        if (!slot->is_done && !slot->is_moving && msdu__local_takes_part(group, slot, comm->rank)) {
            msdu__local_fail(group, MSDU_ERR_PEER_LOST,
                             "rank %" PRId32
                             " was lost (it left the group with operations in flight)",
                             comm->rank);
        }
    }
    bool has_failed = group->status < 0;
    for (uint32_t i = 0; i < comm->host->requests; i++) {
        struct msdu_req *req = &comm->reqs[i];
        while (req->slot != NULL && req->slot->is_moving) {
            (void)pthread_cond_wait(&group->changed, &group->lock);
        }
        if (req->slot != NULL) {
            req_release(comm, req);
        }
    }
    (void)pthread_mutex_unlock(&group->lock);
    if (has_failed) {
        msdu__local_notify(group);
    }
    msdu__local_leave(comm);
}

static msdu_status local_split(msdu_comm *comm, uint32_t group, const int32_t *colors,
                               uint32_t lanes)
{
    char text[MSDU__TEXT_BYTES];
    (void)lanes;
    if (group == MSDU_GROUP_WORLD || group >= MSDU_GROUPS) {
        return comm->host->fail(MSDU_ERR_INVALID, "local: there is no such group");
    }
    msdu_status status = msdu__local_split(comm->group, group, colors, text);
    comm->is_in[group] = status == MSDU_OK && colors[comm->rank] >= 0;
    return status == MSDU_OK ? MSDU_OK : comm->host->fail(status, text);
}

const msdu_backend msdu__backend_local = {
    .size = sizeof(msdu_backend),
    .name = "local",
    .version = "threads of one process",
    .caps = MSDU_CAP_NOTIFY | MSDU_CAP_RANK_ORDER,
    .open = local_open,
    .close = local_close,
    .start = local_start,
    .test = local_test,
    .wait = local_wait,
    .abort = local_abort,
    .split = local_split,
};
