/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of a backend, named by MSDU_TEST_BACKEND ("local" if not set): data. */
#include "backend_world.h"
#include "suite.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

/* A value in (-1, 1) that depends on operation, rank and element. */
static double sample(uint64_t salt, int32_t rank, uint64_t element)
{
    uint64_t bits = mix(salt * 1000003 + (uint64_t)rank * 7919 + element * 31);
    return (double)(bits >> 11) / (double)(UINT64_C(1) << 52) - 1.0;
}

static unsigned char sample_byte(uint64_t salt, int32_t from, int32_t to, uint64_t element)
{
    return (unsigned char)mix(salt * 131 + (uint64_t)from * 17 + (uint64_t)to * 1031 + element);
}

static void fill_float(void *data, int32_t dtype, uint64_t count, uint64_t salt, int32_t rank)
{
    for (uint64_t i = 0; i < count; i++) {
        if (dtype == MSDU_FLOAT64) {
            ((double *)data)[i] = sample(salt, rank, i);
        } else {
            ((float *)data)[i] = (float)sample(salt, rank, i);
        }
    }
}

/* The largest difference to the sum of all ranks' values. */
static double sum_error(const void *data, int32_t dtype, uint64_t count, uint64_t salt,
                        int32_t ranks)
{
    double worst = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (int32_t rank = 0; rank < ranks; rank++) {
            double one = sample(salt, rank, i);
            sum += dtype == MSDU_FLOAT64 ? one : (double)(float)one;
        }
        double got =
            dtype == MSDU_FLOAT64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
        worst = fmax(worst, fabs(got - sum));
    }
    return worst;
}

static bool allreduce_counts(struct rank *me)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 5, 7, 8, 63, 1024, 1025, 100003, 3000017};
    for (size_t i = 0; i < 2 * sizeof(counts) / sizeof(counts[0]); i++) {
        uint64_t count = counts[i / 2];
        int32_t dtype = i % 2 == 0 ? MSDU_FLOAT32 : MSDU_FLOAT64;
        size_t bytes = count * (dtype == MSDU_FLOAT64 ? 8 : 4);
        void *data = malloc(bytes + 1);
        fill_float(data, dtype, count, i, me->index);
        msdu_op op = rank_sum(data, count, i);
        op.dtype = dtype;
        msdu_status status = rank_do(me, &op);
        double limit = dtype == MSDU_FLOAT64 ? 1e-14 : 2e-6;
        double error = status == MSDU_OK ? sum_error(data, dtype, count, i, me->host.ranks) : 0.0;
        me->report->hash = world_hash(me->report->hash, data, bytes);
        free(data);
        if (status != MSDU_OK || error > limit) {
            return rank_failed(me, "count %" PRIu64 ": status %d (%.200s), error %g", count,
                               (int)status, world_error(), error);
        }
    }
    return true;
}

/* Shares for up to eight ranks, ragged and with zeros. */
static const uint64_t shares_table[][WORLD_RANKS_MAX] = {
    {1, 1, 1, 1, 1, 1, 1, 1},
    {4, 0, 12, 7, 0, 1, 2, 3},
    {0, 0, 5, 0, 9, 0, 0, 1},
    {0, 0, 0, 0, 0, 0, 0, 0},
    {100001, 1, 65536, 0, 3, 4096, 17, 8},
    {1500000, 1499999, 2, 0, 1000000, 5, 6, 7},
};

static uint64_t shares_sum(const uint64_t *shares, int32_t ranks)
{
    uint64_t sum = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        sum += shares[rank];
    }
    return sum;
}

static bool exchange_one(struct rank *me, const uint64_t *shares, uint64_t salt, msdu_op op)
{
    int32_t ranks = me->host.ranks;
    uint64_t own = shares[me->index];
    unsigned char *send = malloc(shares_sum(shares, ranks) + 1);
    unsigned char *recv = malloc(own * (uint64_t)ranks + 1);
    uint64_t at = 0;
    for (int32_t to = 0; to < ranks; to++) {
        for (uint64_t i = 0; i < shares[to]; i++) {
            send[at++] = sample_byte(salt, me->index, to, i);
        }
    }
    op.kind = MSDU_OP_ALLTOALL;
    op.send = send;
    op.recv = recv;
    op.shares = shares;
    bool is_good = rank_do(me, &op) == MSDU_OK;
    for (uint64_t i = 0; is_good && i < own * (uint64_t)ranks; i++) {
        is_good = recv[i] == sample_byte(salt, (int32_t)(i / own), me->index, i % own);
    }
    free(send);
    free(recv);
    return is_good ? true : rank_failed(me, "alltoall %" PRIu64 ": %s", salt, world_error());
}

static bool gather_one(struct rank *me, const uint64_t *shares, uint64_t salt, msdu_op op,
                       bool is_in_place)
{
    int32_t ranks = me->host.ranks;
    unsigned char *recv = malloc(shares_sum(shares, ranks) + 1);
    unsigned char *apart = malloc(shares[me->index] + 1);
    unsigned char *send = is_in_place ? recv + shares_sum(shares, me->index) : apart;
    for (uint64_t i = 0; i < shares[me->index]; i++) {
        send[i] = sample_byte(salt, me->index, 0, i);
    }
    op.kind = MSDU_OP_ALLGATHER;
    op.send = send;
    op.recv = recv;
    op.shares = shares;
    bool is_good = rank_do(me, &op) == MSDU_OK;
    uint64_t at = 0;
    for (int32_t from = 0; is_good && from < ranks; from++) {
        for (uint64_t i = 0; i < shares[from]; i++) {
            is_good = is_good && recv[at++] == sample_byte(salt, from, 0, i);
        }
    }
    free(recv);
    free(apart);
    return is_good ? true : rank_failed(me, "allgather %" PRIu64 ": %s", salt, world_error());
}

static bool broadcast_one(struct rank *me, uint64_t count, uint64_t salt, msdu_op op)
{
    unsigned char *data = malloc(count + 1);
    for (uint64_t i = 0; i < count; i++) {
        data[i] = sample_byte(salt, me->index, 0, i);
    }
    op.kind = MSDU_OP_BROADCAST;
    op.count = count;
    op.recv = data;
    bool is_good = rank_do(me, &op) == MSDU_OK;
    for (uint64_t i = 0; is_good && i < count; i++) {
        is_good = data[i] == sample_byte(salt, 0, 0, i);
    }
    free(data);
    return is_good ? true : rank_failed(me, "broadcast %" PRIu64 ": %s", count, world_error());
}

static bool exchange_shares(struct rank *me)
{
    msdu_op op = {.size = sizeof(op), .lane = 1};
    for (size_t i = 0; i < sizeof(shares_table) / sizeof(shares_table[0]); i++) {
        RANK_CHECK(me, exchange_one(me, shares_table[i], i, op));
        op.sequence++;
        RANK_CHECK(me, gather_one(me, shares_table[i], i, op, false));
        op.sequence++;
        RANK_CHECK(me, gather_one(me, shares_table[i], i + 100, op, true));
        op.sequence++;
        RANK_CHECK(me, broadcast_one(me, shares_table[i][0], i, op));
        op.sequence++;
    }
    return true;
}

/* Many operations in flight. */

#define MANY_LANES     3
#define MANY_PER_LANE  400
#define MANY_ALL       (MANY_LANES * MANY_PER_LANE)
#define MANY_IN_FLIGHT 6 /* of a channel */
#define MANY_COUNT_MAX 3000

struct flight {
    msdu_req *req;
    uint64_t sequence;
    float data[MANY_COUNT_MAX];
};

struct many {
    uint64_t next[MANY_LANES];  /* to be started */
    uint64_t ended[MANY_LANES]; /* finished in order */
    struct flight flights[MANY_LANES][MANY_IN_FLIGHT];
};

static uint64_t many_count(uint32_t lane, uint64_t sequence)
{
    uint64_t random = mix(lane * 77777 + sequence);
    return random % (random % 5 == 0 ? MANY_COUNT_MAX : 40);
}

static bool many_start(struct rank *me, struct many *many, uint32_t lane)
{
    uint64_t sequence = many->next[lane]++;
    struct flight *flight = &many->flights[lane][sequence % MANY_IN_FLIGHT];
    msdu_op op = rank_sum(flight->data, many_count(lane, sequence), sequence);
    op.lane = lane;
    flight->sequence = sequence;
    fill_float(flight->data, MSDU_FLOAT32, op.count, sequence * MANY_LANES + lane, me->index);
    if (me->backend->start(me->comm, &op, &flight->req) != MSDU_OK) {
        return rank_failed(me, "start: %s", world_error());
    }
    return true;
}

/* Polls: a rank that blocked in one channel could keep others waiting in another. */
static bool many_finish(struct rank *me, struct many *many, uint32_t lane)
{
    uint64_t sequence = many->ended[lane];
    struct flight *flight = &many->flights[lane][sequence % MANY_IN_FLIGHT];
    uint64_t count = many_count(lane, sequence);
    msdu_status status = me->backend->test(me->comm, flight->req);
    if (status != MSDU_OK) {
        world_nap(100000);
        return status == MSDU_IN_PROGRESS ? true : rank_failed(me, "test: %s", world_error());
    }
    many->ended[lane]++;
    double error =
        sum_error(flight->data, MSDU_FLOAT32, count, sequence * MANY_LANES + lane, me->host.ranks);
    RANK_CHECK(me, error < 2e-6);
    me->report->hash += world_hash(sequence + lane, flight->data, count * sizeof(float));
    return true;
}

/* A channel that has something in flight. */
static bool many_finish_any(struct rank *me, struct many *many)
{
    for (uint32_t lane = 0; lane < MANY_LANES; lane++) {
        if (many->ended[lane] < many->next[lane]) {
            return many_finish(me, many, lane);
        }
    }
    return true;
}

/* Each rank starts in an order of its own over the channels, with naps of its own. */
static bool many_in_flight(struct rank *me)
{
    struct many *many = calloc(1, sizeof(*many));
    uint64_t random = (uint64_t)me->index + 1;
    bool is_good = true;
    while (is_good && many->ended[0] + many->ended[1] + many->ended[2] < MANY_ALL) {
        random = mix(random);
        uint32_t lane = (uint32_t)(random % MANY_LANES);
        if ((me->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0) {
            /* the library starts operations in one order on all ranks, this one channel by channel
             */
            lane = (uint32_t)((many->next[0] + many->next[1] + many->next[2]) % MANY_LANES);
        }
        uint64_t in_flight = many->next[lane] - many->ended[lane];
        bool has_more = many->next[lane] < MANY_PER_LANE;
        bool wants_start = has_more && in_flight < MANY_IN_FLIGHT && (random >> 20) % 3 != 0;
        if (wants_start) {
            is_good = many_start(me, many, lane);
        } else if (in_flight > 0) {
            is_good = many_finish(me, many, lane);
        } else if (!has_more) {
            is_good = many_finish_any(me, many);
        }
        if ((random >> 40) % 64 == 0) {
            world_nap(random >> 8);
        }
    }
    free(many);
    return is_good;
}

/* Rank 0 has the next operation of the channel under way; the others begin it only when rank 0
 * says, on another channel, that its first has ended. */
static bool ends_before_the_next(struct rank *me)
{
    float values[3] = {1.0F, 1.0F, 1.0F};
    msdu_op first = rank_sum(&values[0], 1, 0);
    msdu_op next = rank_sum(&values[1], 1, 1);
    msdu_op word = rank_sum(&values[2], 1, 0);
    msdu_req *reqs[2] = {NULL};
    word.lane = 1;
    if ((me->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0) {
        return true; /* channels are one order there, and these are two */
    }
    RANK_CHECK(me, me->backend->start(me->comm, &first, &reqs[0]) == MSDU_OK);
    if (me->index == 0) {
        RANK_CHECK(me, me->backend->start(me->comm, &next, &reqs[1]) == MSDU_OK);
    }
    RANK_CHECK(me, rank_finish(me, reqs[0]) == MSDU_OK);
    RANK_CHECK(me, rank_do(me, &word) == MSDU_OK);
    if (me->index != 0) {
        RANK_CHECK(me, me->backend->start(me->comm, &next, &reqs[1]) == MSDU_OK);
    }
    RANK_CHECK(me, rank_finish(me, reqs[1]) == MSDU_OK);
    return values[0] == (float)me->host.ranks && values[1] == values[0];
}

static bool is_notified(struct rank *me)
{
    float one = 1.0F;
    if (world_is_mpi()) {
        return true; /* MPI tells nothing by itself: the backend has no MSDU_CAP_NOTIFY */
    }
    msdu_op op = rank_sum(&one, 1, 0);
    msdu_req *req = NULL;
    world_nap(mix((uint64_t)me->index));
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_OK);
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int code = 0;
    (void)pthread_mutex_lock(&me->lock);
    while (me->notices == 0 && code == 0) {
        code = pthread_cond_timedwait(&me->notified, &me->lock, &until);
    }
    (void)pthread_mutex_unlock(&me->lock);
    RANK_CHECK(me, code == 0);
    RANK_CHECK(me, rank_finish(me, req) == MSDU_OK);
    return one == (float)me->host.ranks;
}

static bool starts_too_many(struct rank *me)
{
    float data[3] = {0};
    msdu_req *reqs[3] = {NULL};
    if (me->index == 0) {
        for (uint64_t i = 0; i < 3; i++) {
            msdu_op op = rank_sum(&data[i], 1, i);
            msdu_status status = me->backend->start(me->comm, &op, &reqs[i]);
            RANK_CHECK(me, status == (i < 2 ? MSDU_OK : MSDU_ERR_STATE));
        }
        return rank_finish(me, reqs[0]) == MSDU_OK && rank_finish(me, reqs[1]) == MSDU_OK;
    }
    world_nap(1900000);
    for (uint64_t i = 0; i < 2; i++) {
        msdu_op op = rank_sum(&data[i], 1, i);
        RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    }
    return true;
}

static bool refuses_bad(struct rank *me)
{
    float data[2] = {0};
    msdu_req *req = NULL;
    msdu_op op = rank_sum(data, 2, 0);
    op.dtype = MSDU_BFLOAT16;
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    op.dtype = MSDU_FLOAT32;
    op.kind = 99;
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    op.kind = MSDU_OP_ALLGATHER;
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    op.kind = MSDU_OP_ALLREDUCE;
    return rank_do(me, &op) == MSDU_OK;
}

static const struct {
    const char *what;
    rank_body body;
    int32_t ranks;
    uint32_t lanes;
    uint32_t requests;
} cases[] = {
    {"many operations over lanes in any start order", many_in_flight, 4, MANY_LANES,
     MANY_LANES *MANY_IN_FLIGHT},
    {"an operation ends before the next has begun everywhere", ends_before_the_next, 3, 2, 16},
    {"notify tells that an operation ended", is_notified, 3, 2, 16},
    {"more operations than agreed are refused", starts_too_many, 2, 2, 2},
    {"invalid operations are refused and harm nothing", refuses_bad, 2, 2, 16},
};

START_TEST(operations_are_carried_out_and_told)
{
    struct world world = world_make(cases[_i].what, cases[_i].body, cases[_i].ranks);
    world.lanes = cases[_i].lanes;
    world.requests = cases[_i].requests;
    world_run(&world);
}
END_TEST

START_TEST(all_counts_and_shares_move_with_equal_bits)
{
    struct world sums = world_make("allreduce sums all counts", allreduce_counts, _i);
    struct world shares = world_make("ragged shares", exchange_shares, _i);
    world_run(&sums);
    world_run(&shares);
}
END_TEST

int main(void)
{
    const msdu_backend *backend = NULL;
    const char *name = getenv("MSDU_TEST_BACKEND");
    int code = 0;
    if (world_is_rank(&code)) {
        return code;
    }
    if (!world_is_local() && msdu__backend_find(name, &backend) == MSDU_ERR_NOT_FOUND) {
        (void)printf("skipped: %s\n", msdu_last_error());
        return 77;
    }
    if (name != NULL && strcmp(name, "nccl") == 0 && access("/dev/nvidiactl", F_OK) != 0) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    Suite *suite = suite_create("backend");
    TCase *data = suite_case(suite, "data", 120, NULL, NULL);
    tcase_add_loop_test(data, all_counts_and_shares_move_with_equal_bits, 1, 6);
    suite_table(data, operations_are_carried_out_and_told, cases);
    suite_add_tcase(suite, backend_faults());
    suite_add_tcase(suite, backend_groups());
    return suite_run(suite);
}
