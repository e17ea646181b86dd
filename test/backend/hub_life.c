/* SPDX-License-Identifier: Apache-2.0 */
/* The hub once ranks were admitted: missing, lost, aborting and lagging ones. */
#include "backend/rendezvous/net.h"
#include "hub_fixture.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

START_TEST(missing_ranks_are_named_to_all_who_came)
{
    struct job job;
    job_make(&job, 5);
    for (int32_t rank = 0; rank < 3; rank++) {
        job.members[rank].host.deadline_ns = rank == 0 ? SECOND_NS / 2 : 20 * SECOND_NS;
        member_open(&job.members[rank]);
    }
    for (int32_t rank = 0; rank < 3; rank++) {
        member_join(&job.members[rank]);
        expect_refused(&job.members[rank], MSDU_ERR_TIMEOUT,
                       "ranks 3, 4 did not join job digits within 500 ms");
    }
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

START_TEST(lost_rank_is_named_to_all_others)
{
    struct job job;
    job_make(&job, 4);
    job_open(&job);
    msdu__hub_close(job.members[_i].hub);
    job.members[_i].hub = NULL;
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        char name[48];
        (void)snprintf(name, sizeof(name), "rank %d was lost (connection closed)", _i);
        if (rank != _i) {
            expect_verdict(&job.members[rank], MSDU_ERR_PEER_LOST, name);
        }
    }
    job_drop(&job);
}
END_TEST

START_TEST(abort_tells_its_cause_to_all)
{
    struct job job;
    job_make(&job, 3);
    job_open(&job);
    msdu__hub_abort(job.members[2].hub, MSDU_ERR_IO, "the disk is full");
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        expect_verdict(&job.members[rank], MSDU_ERR_PEER_LOST,
                       "rank 2 was lost (it aborted: the disk is full)");
    }
    job_drop(&job);
}
END_TEST

/* What a rank says of itself when the hub asks. */
struct state {
    enum { BUSY, STALLED, SLOW } waits; /* SLOW: long, but within the deadline */
    uint64_t started;
    uint32_t print;
};

static bool state_is_stalled(void *user, uint64_t now_ns, uint32_t *lane_out,
                             uint64_t *sequence_out)
{
    const struct state *state = user;
    bool is_asked_ahead = now_ns > msdu__clock_now() + UINT64_C(5000000000);
    *lane_out = 1;
    *sequence_out = 17;
    return state->waits == STALLED || (state->waits == SLOW && is_asked_ahead);
}

static uint64_t state_progress(void *user, uint32_t lane, uint64_t sequence, uint32_t *print_out)
{
    const struct state *state = user;
    *print_out = lane == 1 && sequence == 17 ? state->print : 0;
    return state->started;
}

static void state_failed(void *user)
{
    (void)user;
}

static const struct {
    struct state states[3];
    msdu_status status;
    const char *text;
} stalls[] = {
    {{{STALLED, 18, 5}, {STALLED, 18, 5}, {BUSY, 17, 0}},
     MSDU_ERR_TIMEOUT,
     "rank 2 did not reach operation 17 of lane 1 within 20 s"},
    {{{BUSY, 3, 0}, {STALLED, 18, 5}, {BUSY, 2, 0}},
     MSDU_ERR_TIMEOUT,
     "ranks 0, 2 did not reach operation 17 of lane 1"},
    {{{STALLED, 18, 4}, {STALLED, 20, 6}, {STALLED, 18, 4}},
     MSDU_ERR_MISMATCH,
     /* rank 1 and one of the others, whoever answered first */
     " differ in operation 17 of lane 1 (kind, type or sizes; they may be in different steps)"},
    {{{SLOW, 18, 4}, {BUSY, 17, 0}, {SLOW, 18, 5}},
     MSDU_ERR_MISMATCH,
     "ranks 0 and 2 differ in operation 17 of lane 1: rank 2 ended its steps (msdu_finish, "
     "msdu_synchronize or msdu_join), rank 0 trains on"},
    {{{STALLED, 18, 5}, {STALLED, 20, 0}, {STALLED, 18, 5}},
     MSDU_ERR_TIMEOUT,
     "operation 17 of lane 1 did not end within 20 s although all ranks started it"},
};

static void open_watched(struct job *job, struct state states[3], msdu__hub_watch watches[3])
{
    job_make(job, 3);
    job_open(job);
    for (int rank = 0; rank < 3; rank++) {
        watches[rank] = (msdu__hub_watch){.user = &states[rank],
                                          .is_stalled = state_is_stalled,
                                          .progress = state_progress,
                                          .failed = state_failed};
        msdu__hub_watch_set(job->members[rank].hub, &watches[rank]);
    }
}

/* A rank that is only slow: those who wonder hear nothing until the deadline. */
START_TEST(a_slow_rank_is_waited_for)
{
    struct job job;
    char text[MSDU__HUB_TEXT_BYTES];
    struct state states[3] = {{SLOW, 18, 4}, {BUSY, 17, 0}, {SLOW, 18, 4}};
    msdu__hub_watch watches[3];
    open_watched(&job, states, watches);
    ck_assert_int_eq(msdu__hub_verdict(job.members[0].hub, UINT64_C(2500000000), text), MSDU_OK);
    for (int rank = 0; rank < 3; rank++) {
        msdu__hub_watch_set(job.members[rank].hub, NULL);
    }
    job_close(&job);
}
END_TEST

START_TEST(stall_names_the_ranks_behind)
{
    struct job job;
    struct state states[3];
    msdu__hub_watch watches[3];
    memcpy(states, stalls[_i].states, sizeof(states));
    open_watched(&job, states, watches);
    for (int rank = 0; rank < 3; rank++) {
        expect_verdict(&job.members[rank], stalls[_i].status, stalls[_i].text);
    }
    job_drop(&job);
}
END_TEST

TCase *hub_life(void)
{
    TCase *life = tcase_create("life");
    tcase_set_timeout(life, 60);
    tcase_add_test(life, missing_ranks_are_named_to_all_who_came);
    tcase_add_loop_test(life, lost_rank_is_named_to_all_others, 0, 4);
    tcase_add_test(life, abort_tells_its_cause_to_all);
    tcase_add_test(life, a_slow_rank_is_waited_for);
    suite_table(life, stall_names_the_ranks_behind, stalls);
    return life;
}
