/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of a backend when things go wrong: ranks that differ, lag, die, stop or leave. */
#include "backend_world.h"
#include "pause.h"
#include "suite.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_MS 30000

/* Keep reducing until it fails; the last status. */
static msdu_status reduce_until_failure(struct rank *me, uint64_t first, uint64_t count)
{
    float data[5] = {0};
    return rank_until_failure(me, rank_sum(data, count, first));
}

static bool disagrees(struct rank *me)
{
    msdu_status status = reduce_until_failure(me, 0, me->index == 1 ? 4 : 5);
    return rank_expect(me, status, MSDU_ERR_MISMATCH, "operation 0 of lane 0");
}

/* The data of rank 3 is too long for rank 2, which learns it from MPI before any rank can tell: 3
 * looks away after its start, and 1, whose notice goes to 2, has not come. */
static bool disagrees_unheard(struct rank *me)
{
    float data[1000] = {0};
    msdu_req *req = NULL;
    msdu_op op = rank_sum(data, me->index == 2 ? 500 : 1000, 0);
    if (me->index == 1 || me->index == 2) {
        pause_us(me->index == 1 ? 600000 : 40000);
    }
    msdu_status status = me->backend->start(me->comm, &op, &req);
    if (me->index == 3) {
        pause_us(600000);
    }
    status = status == MSDU_OK ? rank_finish(me, req) : status;
    if (status == MSDU_OK) {
        status = reduce_until_failure(me, 1, 5);
    }
    return rank_expect(me, status, MSDU_ERR_MISMATCH, "operation 0 of lane 0");
}

static bool waits_for_lazy(struct rank *me)
{
    float data[5] = {0};
    msdu_op op = rank_sum(data, 5, 0);
    RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
    if (me->index == 2) {
        pause_us(2000000);
    }
    msdu_status status = reduce_until_failure(me, 1, 5);
    return rank_expect(me, status, MSDU_ERR_TIMEOUT, "rank 2 did not reach operation 1 of lane 0");
}

static bool loses_one(struct rank *me)
{
    char name[16];
    float data[5] = {0};
    msdu_op op = rank_sum(data, 5, 0);
    while (me->index == me->world->victim) {
        RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
        if (++op.sequence == 20) {
            (void)raise(SIGKILL);
        }
    }
    msdu_status status = reduce_until_failure(me, 0, 5);
    (void)snprintf(name, sizeof(name), "rank %" PRId32, me->world->victim);
    return rank_expect(me, status, MSDU_ERR_PEER_LOST, name);
}

static bool loses_in_large_operation(struct rank *me)
{
    size_t count = (size_t)8 << 20;
    float *data = calloc(count, sizeof(*data));
    msdu_op op = rank_sum(data, count, 0);
    msdu_req *req = NULL;
    msdu_status status = me->backend->start(me->comm, &op, &req);
    if (me->index == me->world->victim) {
        pause_us(1500);
        (void)raise(SIGKILL);
    }
    status = status == MSDU_OK ? rank_finish(me, req) : status;
    if (status == MSDU_OK) {
        status = reduce_until_failure(me, 1, 5);
    }
    uint64_t before = world_hash(0, data, count * sizeof(*data));
    pause_us(1900);
    bool is_left_alone = before == world_hash(0, data, count * sizeof(*data));
    free(data);
    RANK_CHECK(me, is_left_alone);
    return rank_expect(me, status, MSDU_ERR_PEER_LOST, "rank 1");
}

static bool waits_for_stopped(struct rank *me)
{
    if (me->index == me->world->victim) {
        (void)raise(SIGSTOP);
    }
    msdu_status status = reduce_until_failure(me, 0, 5);
    return rank_expect(me, status, MSDU_ERR_TIMEOUT, "rank 1 did not reach operation 0");
}

static bool misses_one(struct rank *me)
{
    char name[24];
    msdu_status status = me->backend->open(&me->host, &me->comm);
    (void)snprintf(name, sizeof(name), "rank %" PRId32 " did not join", me->world->absent);
    return rank_expect(me, status, MSDU_ERR_TIMEOUT, name);
}

static bool aborts(struct rank *me)
{
    float data[5] = {0};
    msdu_op op = rank_sum(data, 5, 0);
    if (me->index == 1) {
        RANK_CHECK(me, rank_do(me, &op) == MSDU_OK);
        me->backend->abort(me->comm, MSDU_ERR_IO, "the disk is full");
        return true;
    }
    msdu_status status = reduce_until_failure(me, 0, 5);
    return rank_expect(me, status, MSDU_ERR_PEER_LOST, "rank 1") &&
           rank_expect(me, status, MSDU_ERR_PEER_LOST, "the disk is full");
}

static bool aborts_for_all(struct rank *me)
{
    if (me->index == 1) {
        me->backend->abort(me->comm, MSDU_ERR_NOT_FINITE, "tensor w2: element 7 is NaN");
        return true;
    }
    msdu_status status = reduce_until_failure(me, 0, 5);
    return rank_expect(me, status, MSDU_ERR_NOT_FINITE, "tensor w2: element 7 is NaN");
}

static bool leaves_early(struct rank *me)
{
    float data[5] = {0};
    msdu_op op = rank_sum(data, 5, 0);
    msdu_req *req = NULL;
    if (me->index == 1) {
        RANK_CHECK(me, me->backend->start(me->comm, &op, &req) == MSDU_OK);
        me->backend->close(me->comm);
        me->comm = NULL;
        return true;
    }
    if (me->index == 2) { /* late, so that the operation cannot be complete when rank 1 leaves */
        pause_us(300000);
    }
    msdu_status status = reduce_until_failure(me, 0, 5);
    return rank_expect(me, status, MSDU_ERR_PEER_LOST, "rank 1");
}

static const struct fault {
    const char *what;
    rank_body body;
    int32_t ranks;
    int32_t victim;
    int32_t absent;
    uint64_t deadline_ms;
} faults[] = {
    {"rank 0, killed, is named to all others", loses_one, 4, 0, -1, 20000},
    {"rank 1, killed, is named to all others", loses_one, 4, 1, -1, 20000},
    {"rank 2, killed, is named to all others", loses_one, 4, 2, -1, 20000},
    {"rank 3, killed, is named to all others", loses_one, 4, 3, -1, 20000},
    {"memory is left alone after a failure", loses_in_large_operation, 3, 1, -1, USUAL_MS},
    {"a stopped rank is named at the deadline", waits_for_stopped, 3, 1, -1, 500},
    {"open names the rank that never came", misses_one, 3, -1, 2, 500},
    {"ranks that mean different operations are told", disagrees, 3, -1, -1, 500},
    {"a difference that breaks a collective is told", disagrees_unheard, 4, -1, -1, USUAL_MS},
    {"the deadline names the rank that did not start", waits_for_lazy, 3, -1, -1, 500},
    {"abort passes on what all ranks find by themselves", aborts_for_all, 3, -1, -1, USUAL_MS},
    {"abort ends operations of all ranks with its cause", aborts, 3, -1, -1, USUAL_MS},
    {"who leaves with operations in flight is named", leaves_early, 3, -1, -1, USUAL_MS},
};

/* Under MPI a lost process is mpirun's affair: it ends the job, survivors and all, and before a
 * group was joined nobody can say who is missing. A thread cannot be killed alone. */
START_TEST(a_fault_is_named)
{
    const struct fault *fault = &faults[_i];
    bool is_lost = fault->victim >= 0;
    if (world_is_mpi() ? is_lost || fault->absent >= 0 : world_is_local() && is_lost) {
        (void)printf("skipped under %s: %s\n", world_is_mpi() ? "MPI" : "local", fault->what);
        return;
    }
    struct world world = world_make(fault->what, fault->body, fault->ranks);
    world.victim = fault->victim;
    world.absent = fault->absent;
    world.deadline_ms = fault->deadline_ms;
    world_run(&world);
}
END_TEST

TCase *backend_faults(void)
{
    TCase *tcase = tcase_create("faults");
    tcase_set_timeout(tcase, 120);
    suite_table(tcase, a_fault_is_named, faults);
    return tcase;
}
