/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend module "nccl": collectives between GPUs over NCCL, and the memory and loops of the device
 * (nccl_device.c). The rendezvous is the hub's: it names who is missing, late or lost, which NCCL
 * does not. One communicator on one stream: operations of all channels run in the order of their
 * start, which the library keeps equal on all ranks (MSDU_CAP_SINGLE_ORDER).
 */
#include "nccl_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/local_move.h"
#include "backend/rank_list.h"
#include "nccl_loops.h"

#ifndef MSDU__NCCL_NAME
#define MSDU__NCCL_NAME "nccl" /* the tests build it once more, over a stand-in */
#endif

#define BYE_NS    UINT64_C(700000000) /* close() waits this long for the others */
#define GRACE_NS  UINT64_C(500000000)
#define CHAIN     256 /* operations that may be chained before prints are lost; a guess */
#define ID_KEY    "nccl id"
#define TEXT(x)   #x
#define NUMBER(x) TEXT(x)
#define VERSION   NUMBER(NCCL_MAJOR) "." NUMBER(NCCL_MINOR) "." NUMBER(NCCL_PATCH)

/* --- what the hub asks --- */

static uint64_t print_slots(const msdu_comm *comm)
{
    return (uint64_t)comm->host->requests + CHAIN;
}

static void note_start(msdu_comm *comm, const msdu_op *op)
{
    msdu__nccl_lane *lane = &comm->lanes[op->lane];
    uint64_t slots = print_slots(comm);
    msdu__cell_set(&lane->prints[op->sequence % slots],
                   (op->sequence << 32) | msdu__op_print(op, comm->host->ranks));
    msdu__cell_set(&lane->started, op->sequence + 1);
}

static uint64_t progress(void *user, uint32_t lane, uint64_t sequence, uint32_t *print_out)
{
    msdu_comm *comm = user;
    *print_out = 0;
    if (lane >= comm->host->lanes) {
        return 0;
    }
    uint64_t slots = print_slots(comm);
    uint64_t mark = msdu__cell_get(&comm->lanes[lane].prints[sequence % slots]);
    if (mark != 0 && (mark >> 32) == (sequence & UINT32_MAX)) {
        *print_out = (uint32_t)mark;
    }
    return msdu__cell_get(&comm->lanes[lane].started);
}

static bool is_stalled(void *user, uint64_t now_ns, uint32_t *lane_out, uint64_t *sequence_out)
{
    msdu_comm *comm = user;
    (void)pthread_mutex_lock(&comm->lock);
    const msdu_req *req = comm->oldest;
    bool is_late = req != NULL && now_ns > comm->front_ns + comm->host->deadline_ns &&
                   cudaEventQuery(req->done) == cudaErrorNotReady;
    if (is_late) {
        *lane_out = req->op.lane;
        *sequence_out = req->op.sequence;
    }
    (void)pthread_mutex_unlock(&comm->lock);
    return is_late;
}

void msdu__nccl_notify(void *user)
{
    msdu_comm *comm = user;
    (void)pthread_mutex_lock(&comm->telling);
    if (!comm->is_left && comm->host->notify != NULL) {
        comm->host->notify(comm->host->user);
    }
    (void)pthread_mutex_unlock(&comm->telling);
}

/* From the hub's thread: whoever tests next ends the communicator. */
static void failed(void *user)
{
    msdu_comm *comm = user;
    msdu__flag_set(&comm->is_failing, true);
    msdu__nccl_notify(comm);
}

/* --- joining --- */

static msdu_status make_streams(msdu_comm *comm)
{
    int least = 0;
    int greatest = 0;
    cudaEvent_t *events[] = {&comm->early_end, &comm->late_end};
    MSDU__CUDA(comm, cudaGetDevice(&comm->device));
    MSDU__CUDA(comm, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    MSDU__CUDA(comm, cudaStreamCreateWithPriority(&comm->early, cudaStreamNonBlocking, greatest));
    MSDU__CUDA(comm, cudaStreamCreateWithPriority(&comm->late, cudaStreamNonBlocking, greatest));
    MSDU__CUDA(comm, cudaStreamCreateWithPriority(&comm->wire, cudaStreamNonBlocking, greatest));
    MSDU__CUDA(comm, cudaStreamCreateWithPriority(&comm->notice, cudaStreamNonBlocking, greatest));
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        MSDU__CUDA(comm, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));
    }
    for (uint32_t i = 0; i < MSDU__NCCL_MARKS; i++) {
        MSDU__CUDA(comm, cudaEventCreateWithFlags(&comm->marks[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < 2; i++) {
        MSDU__CUDA(comm, cudaMalloc(&comm->scratch[i], MSDU__LOOPS_SCRATCH));
    }
    return MSDU_OK;
}

static msdu_status prepare_request(msdu_comm *comm, msdu_req *req)
{
    req->shares = calloc((size_t)comm->host->ranks, sizeof(*req->shares));
    if (req->shares == NULL) {
        return comm->host->fail(MSDU_ERR_NO_MEMORY, "nccl: out of memory");
    }
    MSDU__CUDA(comm, cudaEventCreateWithFlags(&req->done, cudaEventDisableTiming));
    return MSDU_OK;
}

static msdu_status make_requests(msdu_comm *comm)
{
    const msdu_host *host = comm->host;
    msdu_status status = MSDU_OK;
    comm->reqs = calloc(host->requests, sizeof(*comm->reqs));
    comm->lanes = calloc(host->lanes, sizeof(*comm->lanes));
    if (comm->reqs == NULL || comm->lanes == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "nccl: out of memory");
    }
    for (uint32_t i = 0; i < host->requests; i++) {
        msdu_req *req = &comm->reqs[i];
        status = prepare_request(comm, req);
        if (status != MSDU_OK) {
            return status;
        }
        req->next = comm->free;
        comm->free = req;
    }
    for (uint32_t i = 0; i < host->lanes; i++) {
        comm->lanes[i].prints = calloc(print_slots(comm), sizeof(msdu__cell));
        if (comm->lanes[i].prints == NULL) {
            return host->fail(MSDU_ERR_NO_MEMORY, "nccl: out of memory");
        }
    }
    return MSDU_OK;
}

/* Rank 0's id, by the hub. */
static msdu_status share_id(msdu_comm *comm, ncclUniqueId *id)
{
    void *data = NULL;
    size_t bytes = 0;
    if (comm->host->rank == 0) {
        ncclResult_t result = ncclGetUniqueId(id);
        if (result != ncclSuccess) {
            return msdu__nccl_fail(comm, "ncclGetUniqueId", ncclGetErrorString(result));
        }
        return comm->hub == NULL ? MSDU_OK : msdu__hub_set(comm->hub, ID_KEY, id, sizeof(*id));
    }
    msdu_status status = msdu__hub_get(comm->hub, ID_KEY, &data, &bytes);
    if (status == MSDU_OK && bytes != sizeof(*id)) {
        status = comm->host->fail(MSDU_ERR_BACKEND, "nccl: the id of rank 0 has another size");
    }
    if (status == MSDU_OK) {
        memcpy(id, data, sizeof(*id));
    }
    free(data);
    return status;
}

static msdu_status join(msdu_comm *comm)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    msdu_status status = comm->host->ranks > 1 ? msdu__hub_open(comm->host, &comm->hub) : MSDU_OK;
    if (status == MSDU_OK) {
        status = share_id(comm, &id);
    }
    if (status != MSDU_OK) {
        return status;
    }
    if (comm->hub != NULL) {
        msdu__hub_watch_set(comm->hub, &comm->watch);
    }
    ncclResult_t result =
        ncclCommInitRankConfig(&comm->nccl, comm->host->ranks, id, comm->host->rank, &config);
    comm->grace_ns = GRACE_NS;
    status = msdu__nccl_settle(comm, result, "ncclCommInitRankConfig");
    comm->grace_ns = 0;
    return status;
}

static void tell(const msdu_comm *comm)
{
    char text[160];
    int version = 0;
    (void)ncclGetVersion(&version);
    (void)snprintf(text, sizeof(text), "nccl %d: %d ranks, one communicator, device %d", version,
                   (int)comm->host->ranks, comm->device);
    if (comm->host->log != NULL) {
        comm->host->log(comm->host->user, MSDU_LOG_INFO, text);
    }
}

static void free_request(msdu_req *req)
{
    if (req->done != NULL) {
        (void)cudaEventDestroy(req->done);
    }
    (void)cudaFreeHost(req->pinned);
    (void)cudaFree(req->staging);
    free(req->shares);
}

static void free_comm(msdu_comm *comm)
{
    cudaStream_t streams[] = {comm->early, comm->late, comm->wire, comm->notice};
    cudaEvent_t events[] = {comm->early_end, comm->late_end};
    if (!msdu__nccl_drain(comm)) { /* its notices name this struct */
        (void)pthread_mutex_lock(&comm->telling);
        comm->is_left = true;
        (void)pthread_mutex_unlock(&comm->telling);
        return;
    }
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        if (streams[i] != NULL) {
            (void)cudaStreamDestroy(streams[i]);
        }
    }
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        (void)(events[i] != NULL && cudaEventDestroy(events[i]) != cudaSuccess);
    }
    for (uint32_t i = 0; i < comm->announced_count; i++) {
        (void)(comm->announced[i] != NULL && cudaEventDestroy(comm->announced[i]) != cudaSuccess);
    }
    free(comm->announced);
    for (uint32_t i = 0; i < MSDU__NCCL_MARKS && comm->marks[i] != NULL; i++) {
        (void)cudaEventDestroy(comm->marks[i]);
    }
    for (uint32_t i = 0; comm->reqs != NULL && i < comm->host->requests; i++) {
        free_request(&comm->reqs[i]);
    }
    while (comm->more != NULL) {
        msdu_req *req = comm->more;
        comm->more = req->next_more;
        free_request(req);
        free(req);
    }
    for (uint32_t i = 0; comm->lanes != NULL && i < comm->host->lanes; i++) {
        free(comm->lanes[i].prints);
    }
    msdu__nccl_exchange_end(comm);
    (void)cudaFree(comm->scratch[0]);
    (void)cudaFree(comm->scratch[1]);
    free(comm->reqs);
    free(comm->lanes);
    (void)pthread_mutex_destroy(&comm->lock);
    (void)pthread_mutex_destroy(&comm->launch);
    (void)pthread_mutex_destroy(&comm->telling);
    free(comm);
}

/* The hub goes last: it tells the others why the communicator ends. An abort is right in peace,
 * too: all ranks have said goodbye, or will not. */
static void leave(msdu_comm *comm)
{
    if (comm->hub != NULL) {
        msdu__hub_watch_set(comm->hub, NULL);
    }
    msdu__nccl_end(comm);
    msdu__hub_close(comm->hub);
    free_comm(comm);
}

static msdu_status nccl_open(const msdu_host *host, msdu_comm **comm_out)
{
    if (host->ranks < 1 || host->rank < 0 || host->rank >= host->ranks || host->job == NULL ||
        host->lanes == 0 || host->requests == 0) {
        return host->fail(MSDU_ERR_INVALID,
                          "nccl: rank, ranks, job, lanes or requests is not valid");
    }
    msdu_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "nccl: out of memory");
    }
    comm->host = host;
    comm->watch = (msdu__hub_watch){comm, is_stalled, progress, failed};
    (void)pthread_mutex_init(&comm->lock, NULL);
    (void)pthread_mutex_init(&comm->launch, NULL);
    (void)pthread_mutex_init(&comm->telling, NULL);
    msdu_status status = make_streams(comm);
    if (status == MSDU_OK) {
        status = make_requests(comm);
    }
    if (status == MSDU_OK) {
        status = join(comm);
    }
    if (status != MSDU_OK) {
        leave(comm);
        return status;
    }
    tell(comm);
    *comm_out = comm;
    return MSDU_OK;
}

/* Chained operations at the front that have ended are free again. Under `lock`. */
static void reap(msdu_comm *comm)
{
    while (comm->oldest != NULL && comm->oldest->is_let_go &&
           cudaEventQuery(comm->oldest->done) == cudaSuccess) {
        msdu_req *req = comm->oldest;
        comm->oldest = req->next;
        comm->newest = comm->oldest == NULL ? NULL : comm->newest;
        comm->front_ns = msdu__clock_now();
        req->next = comm->free;
        comm->free = req;
    }
}

bool msdu__nccl_has_chain(msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    reap(comm);
    bool has = comm->oldest != NULL && comm->oldest->is_let_go;
    (void)pthread_mutex_unlock(&comm->lock);
    return has;
}

static bool is_idle(msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    reap(comm);
    bool is = comm->oldest == NULL;
    (void)pthread_mutex_unlock(&comm->lock);
    return is;
}

/* Leave in peace if nothing is in flight. */
static void nccl_close(msdu_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    (void)cudaSetDevice(comm->device);
    if (comm->hub != NULL && !msdu__flag_get(&comm->is_failing)) {
        if (is_idle(comm)) {
            msdu__nccl_unregister(comm);
            msdu__hub_bye(comm->hub, BYE_NS);
        } else {
            msdu__hub_abort(comm->hub, MSDU_ERR_PEER_LOST,
                            "it left the group with operations in flight");
        }
    }
    leave(comm);
}

/* --- operations --- */

static msdu_status run_op(msdu_comm *comm, msdu_req *req)
{
    msdu_status status = msdu__nccl_move(comm, req);
    if (status != MSDU_OK) {
        return status;
    }
    MSDU__CUDA(comm, cudaEventRecord(req->done, comm->wire));
    MSDU__CUDA(comm, cudaStreamWaitEvent(comm->notice, req->done, 0));
    MSDU__CUDA(comm, cudaLaunchHostFunc(comm->notice, msdu__nccl_notify, comm));
    return MSDU_OK;
}

/* What is chained may be more than was agreed, up to what a step has: made when first needed. */
static msdu_req *make_more(msdu_comm *comm)
{
    msdu_req *req = calloc(1, sizeof(*req));
    if (req == NULL || prepare_request(comm, req) != MSDU_OK) {
        (void)(req != NULL && (free_request(req), true));
        free(req);
        return NULL;
    }
    (void)pthread_mutex_lock(&comm->lock);
    req->next_more = comm->more;
    comm->more = req;
    (void)pthread_mutex_unlock(&comm->lock);
    return req;
}

static msdu_req *take_request(msdu_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    reap(comm);
    msdu_req *req = comm->free;
    bool may_make = comm->oldest != NULL && comm->oldest->is_let_go;
    if (req != NULL) {
        comm->free = req->next;
        req->next = NULL;
    }
    (void)pthread_mutex_unlock(&comm->lock);
    return req == NULL && may_make ? make_more(comm) : req;
}

static void append(msdu_comm *comm, msdu_req *req)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->oldest == NULL) {
        comm->oldest = req;
        comm->front_ns = req->began_ns;
    } else {
        comm->newest->next = req;
    }
    comm->newest = req;
    (void)pthread_mutex_unlock(&comm->lock);
}

/* Out of the line, and free again. */
static void remove_request(msdu_comm *comm, msdu_req *req)
{
    msdu_req *before = NULL;
    assert(req != NULL);
    (void)pthread_mutex_lock(&comm->lock);
    for (msdu_req *at = comm->oldest; at != NULL && at != req; at = at->next) {
        before = at;
    }
    if (before == NULL && comm->oldest == req) {
        comm->oldest = req->next;
        comm->front_ns = msdu__clock_now();
    } else if (before != NULL) {
        before->next = req->next;
    }
    comm->newest = comm->newest == req ? before : comm->newest;
    req->next = comm->free;
    comm->free = req;
    (void)pthread_mutex_unlock(&comm->lock);
}

static msdu_status check_op(msdu_comm *comm, const msdu_op *op)
{
    char text[MSDU__HUB_TEXT_BYTES];
    if (!msdu__op_is_valid(op, text, sizeof(text))) {
        return comm->host->fail(MSDU_ERR_INVALID, text);
    }
    if (op->lane >= comm->host->lanes) {
        return comm->host->fail(MSDU_ERR_INVALID, "nccl: there is no such lane");
    }
    return msdu__nccl_check(comm);
}

static msdu_status nccl_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out)
{
    msdu_status status = check_op(comm, op);
    if (status != MSDU_OK) {
        return status;
    }
    msdu_req *req = take_request(comm);
    if (req == NULL) {
        return comm->host->fail(MSDU_ERR_STATE, "nccl: more operations in flight than agreed");
    }
    req->op = *op;
    req->is_let_go = false;
    if (op->shares != NULL) {
        memcpy(req->shares, op->shares, (size_t)comm->host->ranks * sizeof(*req->shares));
        req->op.shares = req->shares;
    }
    req->began_ns = msdu__clock_now();
    note_start(comm, op);
    (void)cudaSetDevice(comm->device);
    (void)pthread_mutex_lock(&comm->launch);
    status = run_op(comm, req);
    (void)pthread_mutex_unlock(&comm->launch);
    append(comm, req);
    if (status != MSDU_OK) {
        remove_request(comm, req);
        return status;
    }
    *req_out = req;
    return MSDU_OK;
}

/* An error of NCCL's own, such as a connection that broke. */
msdu_status msdu__nccl_look(msdu_comm *comm)
{
    ncclResult_t result = ncclSuccess;
    (void)pthread_mutex_lock(&comm->lock); /* nobody ends the communicator meanwhile */
    bool is_well = comm->nccl != NULL &&
                   ncclCommGetAsyncError(comm->nccl, &result) == ncclSuccess &&
                   (result == ncclSuccess || result == ncclInProgress);
    (void)pthread_mutex_unlock(&comm->lock);
    return is_well ? msdu__nccl_check(comm)
                   : msdu__nccl_fail(comm, "an operation", ncclGetErrorString(result));
}

static msdu_status lead_late(msdu_comm *comm, const msdu_req *req)
{
    MSDU__CUDA(comm, cudaStreamWaitEvent(comm->late, req->done, 0));
    MSDU__CUDA(comm, cudaEventRecord(comm->late_end, comm->late));
    return MSDU_OK;
}

/* Whatever comes now waits for late kernels, and these for the operation: nothing else has to. The
 * request stays in line, for the hub to see whether it ends. */
static msdu_status let_go(msdu_comm *comm, msdu_req *req)
{
    (void)cudaSetDevice(comm->device);
    (void)pthread_mutex_lock(&comm->launch);
    msdu_status status = lead_late(comm, req);
    (void)pthread_mutex_unlock(&comm->launch);
    (void)pthread_mutex_lock(&comm->lock);
    req->is_let_go = true;
    (void)pthread_mutex_unlock(&comm->lock);
    return status;
}

static msdu_status nccl_test(msdu_comm *comm, msdu_req *req)
{
    /* before the event: what ends because the communicator was aborted has not ended well */
    msdu_status status = msdu__nccl_look(comm);
    if (status == MSDU_OK && (req->op.flags & MSDU_OP_CHAINED) != 0 &&
        req->op.place == MSDU_PLACE_DEVICE) {
        return let_go(comm, req);
    }
    cudaError_t error = status == MSDU_OK ? cudaEventQuery(req->done) : cudaSuccess;
    if (error == cudaErrorNotReady) {
        return MSDU_IN_PROGRESS;
    }
    if (error != cudaSuccess) {
        status = msdu__nccl_fail(comm, "an operation", cudaGetErrorString(error));
    }
    if (status == MSDU_OK && req->op.place == MSDU_PLACE_HOST) {
        msdu__nccl_unstage(comm, req);
    }
    remove_request(comm, req);
    return status;
}

static void nccl_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    const char *text = why == NULL ? "no cause given" : why;
    msdu__nccl_note(comm, status, text);
    if (comm->hub != NULL) {
        msdu__hub_abort(comm->hub, status, text);
    }
}

MSDU_API extern const msdu_backend msdu_backend_v2; /* declared nowhere else */
const msdu_backend msdu_backend_v2 = {
    .size = sizeof(msdu_backend),
    .name = MSDU__NCCL_NAME,
    .version = VERSION,
    .caps = MSDU_CAP_NOTIFY | MSDU_CAP_SINGLE_ORDER,
    .open = nccl_open,
    .close = nccl_close,
    .start = nccl_start,
    .test = nccl_test,
    .abort = nccl_abort,
    .device = &msdu__nccl_device,
};
