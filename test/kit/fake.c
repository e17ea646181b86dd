/* SPDX-License-Identifier: Apache-2.0 */
/* The fake backend, its clock, and the recorder; see fake.h. */
#include "fake.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "backend/registry.h"
#include "pause.h"
#include "ranks_place.h"

#define LANES_MOST    32
#define REQUESTS_MOST 256

fake_state fake;

void fake_reset(void)
{
    memset(&fake, 0, sizeof(fake)); /* nobody is inside */
    fake.random = 0x2545f4914f6cdd1dU;
    fake.fail_status = MSDU_ERR_BACKEND;
    atomic_store(&fake.now_ns, 1000000000U);
}

uint64_t fake_clock(void *user)
{
    (void)user;
    return atomic_fetch_add(&fake.now_ns, 1000U);
}

/* --- fake --- */

struct msdu_req {
    bool is_used;
    uint64_t polls_left;
    msdu_op op;
};

typedef struct fake_comm {
    const msdu_host *host;
    uint64_t sequence[LANES_MOST];
    struct msdu_req requests[REQUESTS_MOST];
} fake_comm;

static fake_comm *fake_of(msdu_comm *comm)
{
    return (fake_comm *)(void *)comm;
}

static msdu_status fake_open(const msdu_host *host, msdu_comm **comm_out)
{
    fake_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL || host->lanes > LANES_MOST) {
        free(comm);
        return host->fail(MSDU_ERR_NO_MEMORY, "fake: no memory");
    }
    comm->host = host;
    *comm_out = (msdu_comm *)(void *)comm;
    return MSDU_OK;
}

static void fake_close(msdu_comm *comm)
{
    fake.closes++;
    free(comm);
}

/* One thread at a time is inside a backend. */
static void enter(void)
{
    if (atomic_fetch_add(&fake.inside, 1) != 0) {
        atomic_fetch_add(&fake.overlaps, 1);
    }
}

static void leave(void)
{
    atomic_fetch_sub(&fake.inside, 1);
}

static msdu_status fail_at(const fake_comm *comm, const char *what, uint64_t count)
{
    char text[64];
    snprintf(text, sizeof(text), "fake: %s %llu failed", what, (unsigned long long)count);
    return comm->host->fail(fake.fail_status, text);
}

static msdu_status start_op(msdu_comm *handle, const msdu_op *op, msdu_req **req_out)
{
    fake_comm *comm = fake_of(handle);
    uint32_t at = 0;
    if (++fake.starts == fake.fail_start) {
        return fail_at(comm, "start", fake.starts);
    }
    fake.disorders += op->lane >= comm->host->lanes || op->sequence != comm->sequence[op->lane]++;
    while (comm->requests[at].is_used) {
        at++;
    }
    comm->requests[at] = (struct msdu_req){.is_used = true, .op = *op};
    if (fake.polls_most > 0) {
        comm->requests[at].polls_left = random_next(&fake.random) % fake.polls_most;
    }
    fake.in_flight++;
    fake.in_flight_most =
        fake.in_flight > fake.in_flight_most ? fake.in_flight : fake.in_flight_most;
    *req_out = &comm->requests[at];
    return MSDU_OK;
}

static msdu_status fake_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out)
{
    enter();
    msdu_status status = start_op(comm, op, req_out);
    leave();
    return status;
}

static void sum(const msdu_op *op, int32_t ranks)
{
    for (uint64_t i = 0; i < op->count; i++) {
        if (op->dtype == MSDU_FLOAT64) {
            double *x = op->recv;
            x[i] = ranks * x[i] + 1.0;
        } else {
            float *x = op->recv;
            x[i] = (float)ranks * x[i] + 1.0F;
        }
    }
}

static uint64_t offset_of(const msdu_op *op, int32_t rank)
{
    uint64_t offset = 0;
    for (int32_t i = 0; i < rank; i++) {
        offset += op->shares[i];
    }
    return offset;
}

/* What this rank sent comes back from everybody. */
static void move(const fake_comm *comm, const msdu_op *op)
{
    int32_t own = comm->host->rank;
    char *recv = op->recv;
    if (op->kind == MSDU_OP_ALLREDUCE) {
        sum(op, comm->host->ranks);
    }
    for (int32_t i = 0; i < comm->host->ranks && op->kind == MSDU_OP_ALLTOALL; i++) {
        const char *send = (const char *)op->send + offset_of(op, own);
        memcpy(recv + (uint64_t)i * op->shares[own], send, op->shares[own]);
    }
    for (int32_t i = 0; i < comm->host->ranks && op->kind == MSDU_OP_ALLGATHER; i++) {
        if (op->shares[i] == op->shares[own]) {
            memmove(recv + offset_of(op, i), op->send, op->shares[own]);
        }
        if (i != own && op->shares[i] == sizeof(msdu__control)) {
            /* its values were others, as its sums are */
            msdu__control *said = (msdu__control *)(void *)(recv + offset_of(op, i));
            said->hash[0] += 1;
        }
    }
}

static msdu_status test_op(msdu_comm *handle, msdu_req *req)
{
    fake_comm *comm = fake_of(handle);
    atomic_fetch_add(&fake.now_ns, fake.test_ns);
    fake.disorders += !req->is_used;
    if (++fake.tests == fake.fail_test) {
        fake.in_flight--;
        req->is_used = false;
        return fail_at(comm, "test", fake.tests);
    }
    if (fake.is_stuck[req->op.kind] || req->polls_left > 0) {
        req->polls_left -= req->polls_left > 0;
        return MSDU_IN_PROGRESS;
    }
    move(comm, &req->op);
    req->is_used = false;
    fake.in_flight--;
    return MSDU_OK;
}

static msdu_status fake_test(msdu_comm *comm, msdu_req *req)
{
    enter();
    msdu_status status = test_op(comm, req);
    while (atomic_load(&fake.dwells)) {
        pause_us(100);
    }
    leave();
    return status;
}

static void fake_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    (void)comm;
    (void)why;
    enter();
    fake.abort_status = status;
    fake.aborts++;
    leave();
}

const msdu_backend fake_backend = {
    .size = sizeof(msdu_backend),
    .name = "fake",
    .version = "1",
    .open = fake_open,
    .close = fake_close,
    .start = fake_start,
    .test = fake_test,
    .abort = fake_abort,
};

/* --- recorder --- */

typedef struct recorder_comm {
    msdu_comm *inner;
    uint64_t random;
    uint64_t count;
    uint64_t hash[LANES_MOST];
    uint64_t order; /* over all channels */
} recorder_comm;

static recorder_comm *recorder_of(msdu_comm *comm)
{
    return (recorder_comm *)(void *)comm;
}

static msdu_status recorder_open(const msdu_host *host, msdu_comm **comm_out)
{
    recorder_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "recorder: no memory");
    }
    comm->random = 88172645463325252U + (uint64_t)host->rank;
    msdu_status status = msdu__backend_local.open(host, &comm->inner);
    if (status != MSDU_OK) {
        free(comm);
        return status;
    }
    *comm_out = (msdu_comm *)(void *)comm;
    return MSDU_OK;
}

static void recorder_close(msdu_comm *comm)
{
    msdu__backend_local.close(recorder_of(comm)->inner);
    free(comm);
}

static void add_to_hash(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * 0x100000001b3U + 1;
}

static msdu_status recorder_start(msdu_comm *handle, const msdu_op *op, msdu_req **req_out)
{
    recorder_comm *comm = recorder_of(handle);
    uint64_t *hash = &comm->hash[op->lane % LANES_MOST];
    add_to_hash(hash, (uint64_t)op->kind);
    add_to_hash(hash, (uint64_t)op->dtype);
    add_to_hash(hash, op->lane);
    add_to_hash(hash, op->sequence);
    add_to_hash(hash, op->count);
    comm->count++;
    add_to_hash(&comm->order, op->lane);
    add_to_hash(&comm->order, *hash);
    if (random_next(&comm->random) % 16 == 0) {
        pause_us((long)(random_next(&comm->random) % 200));
    }
    return msdu__backend_local.start(comm->inner, op, req_out);
}

/* Looks away at times, so that operations end out of order; it never notifies. */
static msdu_status recorder_test(msdu_comm *comm, msdu_req *req)
{
    if (random_next(&recorder_of(comm)->random) % 4 == 0) {
        return MSDU_IN_PROGRESS;
    }
    return msdu__backend_local.test(recorder_of(comm)->inner, req);
}

static msdu_status recorder_wait(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns)
{
    return msdu__backend_local.wait(recorder_of(comm)->inner, req, timeout_ns);
}

static void recorder_abort(msdu_comm *comm, msdu_status status, const char *why)
{
    msdu__backend_local.abort(recorder_of(comm)->inner, status, why);
}

#define RECORDER(flags)                                                                            \
    {                                                                                              \
        .size = sizeof(msdu_backend), .name = "recorder", .version = "1", .caps = (flags),         \
        .open = recorder_open, .close = recorder_close, .start = recorder_start,                   \
        .test = recorder_test, .wait = recorder_wait, .abort = recorder_abort                      \
    }
const msdu_backend fake_recorder = RECORDER(0);
const msdu_backend fake_recorder_single = RECORDER(MSDU_CAP_SINGLE_ORDER);

uint64_t fake_recorder_order(const msdu_comm *comm)
{
    return ((const recorder_comm *)(const void *)comm)->order;
}

uint64_t fake_recorder_hash(const msdu_comm *comm)
{
    const recorder_comm *recorder = (const recorder_comm *)(const void *)comm;
    uint64_t hash = 0;
    for (uint32_t lane = 0; lane < LANES_MOST; lane++) {
        add_to_hash(&hash, recorder->hash[lane]);
    }
    return hash;
}

uint64_t fake_recorder_count(const msdu_comm *comm)
{
    const recorder_comm *recorder = (const recorder_comm *)(const void *)comm;
    return recorder->count;
}

void fake_delay(ranks_self *self)
{
    if (ranks_place() == MSDU_PLACE_HOST) {
        self->ctx->job.backend = &fake_recorder;
    }
}
