/* SPDX-License-Identifier: Apache-2.0 */
/* The council: every way in which it can go, and what the record of an epoch holds. */
#include "council_model.h"
#include "suite.h"

#include "members/council.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATES_MOST (UINT64_C(1) << 22)
#define LONG_MOST   (UINT64_C(1) << 25)
#define ROUNDS                                                                                     \
    {                                                                                              \
        7, 7, 8, 7                                                                                 \
    }

/* Seconds, all of them together. */
static const struct scenario scenarios[] = {
    {.name = "2 ranks, one dies, one false silence, in any order",
     .ranks = 2,
     .epochs = 1,
     .deaths = 1,
     .silences = 1,
     .rounds = ROUNDS,
     .is_unordered = true,
     .is_whole = true},
    {.name = "2 ranks, two false silences, in any order",
     .ranks = 2,
     .epochs = 1,
     .silences = 2,
     .rounds = ROUNDS,
     .is_unordered = true,
     .is_whole = true},
    {.name = "3 ranks, two die",
     .ranks = 3,
     .epochs = 1,
     .deaths = 2,
     .rounds = ROUNDS,
     .is_whole = true},
    {.name = "3 ranks, two die, messages overtake each other",
     .ranks = 3,
     .epochs = 1,
     .deaths = 2,
     .rounds = ROUNDS,
     .is_unordered = true},
    {.name = "3 ranks, one dies, one false silence",
     .ranks = 3,
     .epochs = 1,
     .deaths = 1,
     .silences = 1,
     .rounds = ROUNDS,
     .is_prompt = true},
    {.name = "3 ranks, two false silences",
     .ranks = 3,
     .epochs = 1,
     .silences = 2,
     .rounds = ROUNDS,
     .is_prompt = true},
    {.name = "4 ranks, the last is dead, another dies",
     .ranks = 4,
     .epochs = 1,
     .deaths = 1,
     .dead = 8,
     .rounds = ROUNDS},
    {.name = "4 ranks, the first is dead, two more die",
     .ranks = 4,
     .epochs = 1,
     .deaths = 2,
     .dead = 1,
     .rounds = ROUNDS},
    {.name = "4 ranks, one is dead, one false silence",
     .ranks = 4,
     .epochs = 1,
     .silences = 1,
     .dead = 8,
     .rounds = ROUNDS},
    {.name = "2 ranks and a newcomer, one dies, one false silence",
     .ranks = 2,
     .newcomers = 1,
     .epochs = 1,
     .deaths = 1,
     .silences = 1,
     .rounds = {7, 8}},
    {.name = "2 ranks and a newcomer, two epochs, one dies",
     .ranks = 2,
     .newcomers = 1,
     .epochs = 2,
     .deaths = 1,
     .rounds = {7, 8}},
    {.name = "3 ranks and a newcomer, the first dies",
     .ranks = 3,
     .newcomers = 1,
     .epochs = 1,
     .deaths = 1,
     .mortal = 1,
     .rounds = {7, 7, 8},
     .is_prompt = true},
    {.name = "3 ranks, the first holds no state, one dies",
     .ranks = 3,
     .epochs = 1,
     .deaths = 1,
     .stateless = 1,
     .rounds = ROUNDS},
    {.name = "3 ranks, at least two, two die",
     .ranks = 3,
     .epochs = 1,
     .deaths = 2,
     .least = 2,
     .rounds = ROUNDS},
    {.name = "a majority puts out a stopped rank and dies, a newcomer is left",
     .ranks = 3,
     .newcomers = 1,
     .epochs = 2,
     .deaths = 2,
     .silences = 1,
     .mortal = 3,
     .quiet = 4,
     .stopped = 4,
     .rounds = {7, 7, 8},
     .is_prompt = true},
};

/* Hours; by MSDU_TEST_COUNCIL=long. */
static const struct scenario long_scenarios[] = {
    {.name = "3 ranks, two die, one false silence",
     .ranks = 3,
     .epochs = 1,
     .deaths = 2,
     .silences = 1,
     .rounds = ROUNDS},
    {.name = "3 ranks and a newcomer, one dies",
     .ranks = 3,
     .newcomers = 1,
     .epochs = 1,
     .deaths = 1,
     .rounds = {7, 7, 8}},
    {.name = "4 ranks, one dies", .ranks = 4, .epochs = 1, .deaths = 1, .rounds = ROUNDS},
    {.name = "4 ranks, one is dead, two false silences",
     .ranks = 4,
     .epochs = 1,
     .silences = 2,
     .dead = 8,
     .rounds = ROUNDS,
     .is_prompt = true},
    {.name = "4 ranks, two die", .ranks = 4, .epochs = 1, .deaths = 2, .rounds = ROUNDS},
    {.name = "a majority puts one out and dies, a newcomer is left",
     .ranks = 3,
     .newcomers = 1,
     .epochs = 2,
     .deaths = 2,
     .silences = 1,
     .mortal = 3,
     .quiet = 4,
     .rounds = {7, 7, 8},
     .is_prompt = true},
    {.name = "4 ranks, two halves",
     .ranks = 4,
     .epochs = 1,
     .silences = 4,
     .rounds = ROUNDS,
     .is_prompt = true},
    {.name = "5 ranks, two are dead, another dies",
     .ranks = 5,
     .epochs = 1,
     .deaths = 1,
     .dead = 9,
     .rounds = ROUNDS},
    {.name = "5 ranks, one is dead, another dies",
     .ranks = 5,
     .epochs = 1,
     .deaths = 1,
     .dead = 16,
     .rounds = ROUNDS},
    {.name = "5 ranks, the first dies",
     .ranks = 5,
     .epochs = 1,
     .deaths = 1,
     .mortal = 1,
     .rounds = ROUNDS,
     .is_prompt = true},
};

static void run(const struct scenario *scenario, uint64_t most)
{
    struct verdict verdict;
    model_run(scenario, most, &verdict);
    printf("%s: %llu states, %llu ends (%llu decided, %llu stopped), depth %zu\n", scenario->name,
           (unsigned long long)verdict.states, (unsigned long long)verdict.ends,
           (unsigned long long)verdict.decided, (unsigned long long)verdict.stopped, verdict.depth);
    (void)fflush(stdout);
    ck_assert_msg(verdict.fault[0] == '\0', "%s: %s", scenario->name, verdict.fault);
    ck_assert_uint_gt(verdict.ends, 0);
    ck_assert_uint_gt(verdict.decided, 0);
}

START_TEST(every_way_is_safe_and_comes_to_an_end)
{
    run(&scenarios[_i], STATES_MOST);
}
END_TEST

START_TEST(every_way_of_larger_jobs_is_safe_and_comes_to_an_end)
{
    run(&long_scenarios[_i], LONG_MOST);
}
END_TEST

/* --- a council by hand --- */

static void send_nothing(void *user, const struct msdu__member *to,
                         const struct msdu__letter *letter)
{
    (void)user;
    (void)to;
    (void)letter;
}

/* Member 1 of a record with so many members, the last of which is a newcomer. */
static void make_council(struct msdu__council *council, uint32_t rank, uint32_t ranks)
{
    const struct msdu__post post = {.send = send_nothing};
    const struct msdu__rules rules = {.least = 1, .most = MSDU__MEMBERS_MOST};
    struct msdu__letter commit;
    memset(&commit, 0, sizeof(commit));
    commit.kind = MSDU__SAY_COMMIT;
    commit.record.number = 2;
    commit.record.count = ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        struct msdu__member *member = &commit.record.members[i];
        member->id.bytes[0] = (uint8_t)(i + 1);
        member->place[0] = 'a';
        member->since = i + 1 == ranks ? 2 : 1;
    }
    commit.record.fence = 1;
    struct msdu__letter reply;
    msdu__council_init(council, &post, &rules, &commit.record.members[rank], 0, 1);
    ck_assert(msdu__council_answer(council, &commit, &reply));
    ck_assert_uint_eq(reply.kind, MSDU__SAY_KNOWN);
    ck_assert_uint_eq(council->phase, MSDU__PHASE_TRAINING);
}

/* Those of epoch 1 put somebody out and are dead: whoever was put out may go on, so a newcomer of
 * epoch 2 may not; unless that is long ago. */
START_TEST(newcomer_alone_does_not_go_on_behind_a_fence)
{
    const struct msdu__report report = {.round = 3, .has_state = true};
    struct msdu__council council;
    make_council(&council, 1, 2);
    const struct msdu__member_id first = council.record.members[0].id;
    if (_i == 1) {
        msdu__council_fence_is_old(&council);
    }
    msdu__council_leave(&council, &report);
    msdu__council_dead(&council, &first);
    if (_i == 1) {
        ck_assert_uint_eq(council.phase, MSDU__PHASE_TRAINING);
        ck_assert_uint_eq(council.record.number, 3);
        ck_assert_uint_eq(council.record.fence, 0);
    } else {
        ck_assert_uint_eq(council.phase, MSDU__PHASE_STOPPED);
        ck_assert_uint_eq(council.stop, MSDU__STOP_FENCED);
    }
}
END_TEST

START_TEST(founder_goes_on_behind_a_fence_and_keeps_it)
{
    const struct msdu__report report = {.round = 3, .has_state = true};
    struct msdu__council council;
    make_council(&council, 0, 2);
    const struct msdu__member_id last = council.record.members[1].id;
    msdu__council_leave(&council, &report);
    msdu__council_dead(&council, &last);
    ck_assert_uint_eq(council.record.number, 3);
    ck_assert_uint_eq(council.record.count, 1);
    ck_assert_uint_eq(council.record.fence, 1);
}
END_TEST

START_TEST(record_is_in_the_order_of_ranks_behind_its_donor)
{
    static const struct msdu__report reports[] = {{.round = 4, .has_state = true},
                                                  {.round = 9},
                                                  {.round = 6, .step = 60, .has_state = true},
                                                  {.round = 6, .step = 61, .has_state = true}};
    struct msdu__record last = {.number = 7, .count = 4};
    struct msdu__member newcomer = {.id.bytes = {9}};
    struct msdu__candidate candidates[5] = {{&newcomer, NULL}};
    struct msdu__record next;
    for (uint32_t i = 0; i < 4; i++) {
        last.members[i].id.bytes[0] = (uint8_t)(i + 1);
        candidates[i] = (struct msdu__candidate){&last.members[i], &reports[i]};
    }
    candidates[4] = (struct msdu__candidate){&newcomer, NULL};
    ck_assert(msdu__record_make(&last, candidates, 5, 5, &next));
    const uint8_t order[] = {3, 1, 2, 4, 9};
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(next.members[i].id.bytes[0], order[i]);
    }
    ck_assert_uint_eq(next.round, 6);
    ck_assert_uint_eq(next.step, 60);
    ck_assert_uint_eq(next.number, 8);
    ck_assert_uint_eq(next.members[4].since, 8);
    ck_assert_uint_eq(next.behind, 3);
    ck_assert_uint_eq(next.joined, 1);
    ck_assert_uint_eq(next.lost, 0);
    ck_assert(msdu__record_make(&last, candidates, 5, 4, &next)); /* no room for a newcomer */
    ck_assert_uint_eq(next.count, 4);
    ck_assert(!msdu__record_make(&last, candidates + 4, 1, 5, &next));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("council");
    TCase *rules = suite_case(suite, "rules", 0, NULL, NULL);
    tcase_add_loop_test(rules, newcomer_alone_does_not_go_on_behind_a_fence, 0, 2);
    tcase_add_test(rules, founder_goes_on_behind_a_fence_and_keeps_it);
    tcase_add_test(rules, record_is_in_the_order_of_ranks_behind_its_donor);
    TCase *ways = suite_case(suite, "ways", 240, NULL, NULL);
    suite_table(ways, every_way_is_safe_and_comes_to_an_end, scenarios);
    const char *wish = getenv("MSDU_TEST_COUNCIL");
    if (wish != NULL && strcmp(wish, "long") == 0) {
        TCase *larger = suite_case(suite, "larger", 36000, NULL, NULL);
        suite_table(larger, every_way_of_larger_jobs_is_safe_and_comes_to_an_end, long_scenarios);
    }
    return suite_run(suite);
}
