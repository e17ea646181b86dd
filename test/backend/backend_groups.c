/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of a backend that forms groups of ranks: data, and what goes wrong in one. */
#include "backend_world.h"
#include "pause.h"
#include "suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define GROUP_LANES 2

/* Hosts of two and three ranks in mixed order; the index on its host, where both have it. */
static const int32_t colors[MSDU_GROUPS][5] = {
    {0, 0, 0, 0, 0},
    {7, 2, 7, 2, 7},
    {0, 0, 1, 1, -1},
};

static bool splits(struct rank *me)
{
    for (uint32_t group = MSDU_GROUP_HOST; group < MSDU_GROUPS; group++) {
        if (me->backend->split(me->comm, group, colors[group], GROUP_LANES) != MSDU_OK) {
            return rank_failed(me, "split: %s", world_error());
        }
    }
    return true;
}

/* Of the ranks of one color, those below `bound`. */
static int32_t members(uint32_t group, int32_t color, int32_t bound)
{
    int32_t count = 0;
    for (int32_t rank = 0; rank < bound; rank++) {
        count += colors[group][rank] == color ? 1 : 0;
    }
    return count;
}

/* Sums, exchange, all-gather and broadcast of what tells ranks and operations apart. */
static bool moves_all(struct rank *me, uint32_t group, uint32_t lane, uint64_t salt)
{
    int32_t color = colors[group][me->index];
    int32_t ranks = members(group, color, 5);
    int32_t own = members(group, color, me->index);
    uint64_t first = 4 * salt;
    uint64_t shares[5] = {4, 0, 8, 12, 4};
    uint64_t own_units = shares[own] / 4;
    msdu_op op = {.size = sizeof(op), .lane = lane, .group = group, .sequence = first};
    float sum[301];
    int32_t send[7];
    int32_t recv[32] = {0};
    float wanted = 0;
    for (int32_t rank = 0; rank < 5; rank++) {
        wanted += colors[group][rank] == color ? (float)(1 << rank) : 0.0F;
    }
    for (int i = 0; i < 301; i++) {
        sum[i] = (float)(1 << me->index) + (float)salt;
    }
    op.count = 301;
    op.recv = sum;
    if (rank_do(me, &op) != MSDU_OK) {
        return rank_failed(me, "sum: %s", world_error());
    }
    for (int i = 0; i < 301; i++) {
        RANK_CHECK(me, sum[i] == wanted + (float)(salt * (uint64_t)ranks));
    }
    for (int i = 0; i < 7; i++) {
        send[i] = 100 * own + i;
    }
    op.kind = MSDU_OP_ALLTOALL;
    op.sequence++;
    op.shares = shares;
    op.send = send;
    op.recv = recv;
    RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    int32_t at = 0;
    for (int32_t rank = 0; rank < own; rank++) {
        at += (int32_t)(shares[rank] / 4);
    }
    for (int32_t i = 0; i < ranks * (int32_t)own_units; i++) {
        RANK_CHECK(me, recv[i] == 100 * (i / (int32_t)own_units) + at + i % (int32_t)own_units);
    }
    op.kind = MSDU_OP_ALLGATHER;
    op.sequence++;
    RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    at = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        for (int32_t i = 0; i < (int32_t)(shares[rank] / 4); i++) {
            RANK_CHECK(me, recv[at++] == 100 * rank + i);
        }
    }
    op.kind = MSDU_OP_BROADCAST;
    op.sequence++;
    op.count = sizeof(send);
    op.recv = send;
    RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    RANK_CHECK(me, send[3] == 3);
    return true;
}

static bool moves_in_groups(struct rank *me)
{
    RANK_CHECK(me, splits(me));
    for (uint64_t salt = 0; salt < 20; salt++) {
        for (uint32_t group = 0; group < MSDU_GROUPS; group++) {
            for (uint32_t lane = 0; lane < GROUP_LANES; lane++) {
                bool is_in = colors[group][me->index] >= 0;
                if (is_in && !moves_all(me, group, lane, salt)) {
                    return false;
                }
            }
        }
    }
    return true;
}

static bool refuses_strangers(struct rank *me)
{
    float data[2] = {0};
    msdu_req *req = NULL;
    msdu_op op = rank_sum(data, 2, 0);
    op.group = MSDU_GROUP_INDEX;
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    RANK_CHECK(me, splits(me));
    if (me->index == 4) {
        RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    } else {
        RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    }
    op.group = MSDU_GROUPS;
    RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_ERR_INVALID);
    op.group = MSDU_GROUP_WORLD;
    return rank_do(me, &op) == MSDU_OK;
}

/* Sums in the group of this index until it fails. Who is not of `color` looks on. */
static msdu_status sum_until_failure(struct rank *me, int32_t color, uint64_t count)
{
    float data[5] = {0};
    bool is_in = colors[MSDU_GROUP_INDEX][me->index] == color;
    msdu_op op = rank_sum(data, count, 0);
    op.group = is_in ? MSDU_GROUP_INDEX : MSDU_GROUP_WORLD;
    if (!is_in) {
        pause_us(4000000);
    }
    return rank_until_failure(me, op);
}

static bool disagrees(struct rank *me)
{
    RANK_CHECK(me, splits(me));
    msdu_status status = sum_until_failure(me, 1, me->index == 3 ? 4 : 5);
    return rank_expect(me, status, MSDU_ERR_MISMATCH, "differ in operation 0 of lane");
}

static bool waits_for_lazy(struct rank *me)
{
    RANK_CHECK(me, splits(me));
    msdu_status status = sum_until_failure(me, me->index == 3 ? 9 : 1, 5);
    return rank_expect(me, status, MSDU_ERR_TIMEOUT, "rank 3 did not reach");
}

/* Connections that a process may not open are counted before, and the others are told. */
static bool runs_out_of_descriptors(struct rank *me)
{
    static const int32_t together[WORLD_RANKS_MAX] = {0};
    struct rlimit limit;
    if (strcmp(me->backend->name, "gloo") != 0) {
        return true;
    }
    RANK_CHECK(me, getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (me->index == 1) {
        limit.rlim_cur = (rlim_t)dup(0) + 10;
        RANK_CHECK(me, setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    msdu_status status = me->backend->split(me->comm, MSDU_GROUP_HOST, together, GROUP_LANES);
    return me->index == 1 ? rank_expect(me, status, MSDU_ERR_UNSUPPORTED, "ulimit -n")
                          : rank_expect(me, status, MSDU_ERR_PEER_LOST, "rank 1");
}

static bool loses_one(struct rank *me)
{
    char name[16];
    RANK_CHECK(me, splits(me));
    if (me->index == me->world->victim) {
        (void)raise(SIGKILL);
    }
    (void)snprintf(name, sizeof(name), "rank %d", (int)me->world->victim);
    return rank_expect(me, sum_until_failure(me, 1, 5), MSDU_ERR_PEER_LOST, name);
}

static const struct group_case {
    const char *what;
    rank_body body;
    int32_t victim;
    uint64_t deadline_ms;
} cases[] = {
    {"operations of groups of unequal size stay apart", moves_in_groups, -1, 30000},
    {"who is in no group starts nothing there", refuses_strangers, -1, 30000},
    {"ranks of a group that mean different operations are named", disagrees, -1, 2500},
    {"the deadline names the rank of a group that is late", waits_for_lazy, -1, 1000},
    {"connections that a process may not open are counted", runs_out_of_descriptors, -1, 20000},
    {"a rank of a group that is killed is named", loses_one, 3, 20000},
};

START_TEST(groups_are_worlds_of_their_own)
{
    const struct group_case *one = &cases[_i];
    const msdu_backend *backend = NULL;
    const char *name = getenv("MSDU_TEST_BACKEND");
    if (msdu__backend_find(name == NULL ? "local" : name, &backend) != MSDU_OK ||
        !MSDU_BACKEND_HAS(backend, split) ||
        (one->victim >= 0 && (world_is_local() || world_is_mpi()))) {
        (void)printf("skipped: %s\n", one->what);
        return;
    }
    struct world world = world_make(one->what, one->body, 5);
    world.lanes = GROUP_LANES;
    world.requests = 4;
    world.victim = one->victim;
    world.deadline_ms = one->deadline_ms;
    world_run(&world);
}
END_TEST

TCase *backend_groups(void)
{
    TCase *tcase = tcase_create("groups");
    tcase_set_timeout(tcase, 120);
    suite_table(tcase, groups_are_worlds_of_their_own, cases);
    return tcase;
}
