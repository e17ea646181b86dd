/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of membership among real processes: deaths, silence, newcomers. */
#include "members_process.h"
#include "processes.h"
#include "suite.h"

#include "backend/rendezvous/net.h"
#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS         UINT64_C(1000000)
#define SOON_MS    5000  /* nothing is waited for; under load */
#define LATE_MS    20000 /* and a silence besides */
#define SILENCE    (400 * MS)
#define NO_SILENCE (60000 * MS) /* who does not answer is not given up on in a test */

static struct process them[PROCESSES_MOST];
static struct launch launches[PROCESSES_MOST];
static char folder[PATH_MAX];
static char url[PATH_MAX + 16];

static void set_up(void)
{
    memset(them, 0, sizeof(them));
    ck_assert(job_make_folder(folder));
    (void)snprintf(url, sizeof(url), "file://%s", folder);
}

static void tear_down(void)
{
    process_kill_all();
    suite_remove(folder); /* with the notice of whoever was killed */
}

static struct launch plan(int32_t rank, int32_t ranks, uint64_t silence_ns)
{
    return (struct launch){.rank = rank,
                           .ranks = ranks,
                           .rendezvous = url,
                           .secret = "open sesame",
                           .deadline_ns = 10000 * MS,
                           .settings = {.silence_ns = silence_ns}};
}

static void start(int32_t i, int32_t rank, int32_t ranks, uint64_t silence_ns)
{
    launches[i] = plan(rank, ranks, silence_ns);
    process_start(&them[i], &launches[i]);
}

/* A launch of so many ranks, all in epoch 1. */
static void begin(int32_t ranks, uint64_t silence_ns)
{
    for (int32_t i = 0; i < ranks; i++) {
        start(i, i, ranks, silence_ns);
    }
    for (int32_t i = 0; i < ranks; i++) {
        struct outcome outcome = process_take(&them[i], LATE_MS);
        ck_assert_msg(outcome.status == MSDU_OK, "rank %d: %s", i, outcome.text);
        ck_assert_uint_eq(outcome.epoch.number, 1);
        ck_assert_int_eq(outcome.epoch.rank, i);
        ck_assert_int_eq(outcome.epoch.ranks, ranks);
        ck_assert(!outcome.epoch.is_newcomer);
    }
}

static struct outcome take_epoch(int32_t i, uint32_t number, int32_t rank, int32_t ranks,
                                 int limit_ms)
{
    struct outcome outcome = process_take(&them[i], limit_ms);
    ck_assert_msg(outcome.status == MSDU_OK, "process %d: %s", i, outcome.text);
    ck_assert_uint_eq(outcome.epoch.number, number);
    ck_assert_int_eq(outcome.epoch.rank, rank);
    ck_assert_int_eq(outcome.epoch.ranks, ranks);
    return outcome;
}

static void take_failure(int32_t i, msdu_status status, const char *part, int limit_ms)
{
    struct outcome outcome = process_take(&them[i], limit_ms);
    ck_assert_int_eq(outcome.status, status);
    ck_assert_msg(strstr(outcome.text, part) != NULL, "\"%s\" has no \"%s\"", outcome.text, part);
}

static void end(const int32_t *which, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        process_close(&them[which[i]]);
    }
    for (size_t i = 0; i < count; i++) {
        process_ended(&them[which[i]]);
    }
}
#define END(...)                                                                                   \
    do {                                                                                           \
        const int32_t which[] = {__VA_ARGS__};                                                     \
        end(which, sizeof(which) / sizeof(which[0]));                                              \
    } while (0)

START_TEST(launch_forms_the_first_epoch_and_shares_values)
{
    begin(4, NO_SILENCE);
    process_get(&them[3]);
    process_set(&them[0], "here");
    (void)process_take(&them[0], SOON_MS);
    struct outcome outcome = process_take(&them[3], SOON_MS);
    ck_assert_str_eq(outcome.text, "here");
    process_get(&them[1]);
    outcome = process_take(&them[1], SOON_MS);
    ck_assert_str_eq(outcome.text, "here");
    END(0, 1, 2, 3);
}
END_TEST

START_TEST(epochs_hub_finds_its_rank_0_by_the_store)
{
    begin(3, NO_SILENCE);
    process_kill(&them[0]);
    process_next(&them[1], 4);
    process_next(&them[2], 4);
    (void)take_epoch(1, 2, 0, 2, SOON_MS);
    (void)take_epoch(2, 2, 1, 2, SOON_MS);
    process_hub(&them[2]);
    process_hub(&them[1]);
    for (int32_t i = 1; i < 3; i++) {
        struct outcome outcome = process_take(&them[i], SOON_MS);
        ck_assert_msg(outcome.status == MSDU_OK, "%s", outcome.text);
    }
    END(1, 2);
}
END_TEST

/* Which of four die, and the ranks that the others have then; -1: dead. */
static const struct {
    int32_t ranks[4];
    int32_t left;
} deaths[] = {
    {{0, 1, -1, 2}, 3},  /* one */
    {{-1, 0, 1, 2}, 3},  /* rank 0 */
    {{-1, 0, -1, 1}, 2}, /* two, the one that would gather among them */
    {{-1, -1, 0, 1}, 2}, /* and its successor */
    {{-1, -1, -1, 0}, 1},
};

START_TEST(those_who_are_left_form_the_next_epoch)
{
    begin(4, NO_SILENCE);
    for (int32_t i = 0; i < 4; i++) {
        if (deaths[_i].ranks[i] < 0) {
            process_kill(&them[i]);
        }
    }
    uint64_t start_ns = msdu__clock_now();
    for (int32_t i = 0; i < 4; i++) {
        if (them[i].pid != 0) {
            process_next(&them[i], 7);
        }
    }
    for (int32_t i = 0; i < 4; i++) {
        if (them[i].pid != 0) {
            struct outcome outcome =
                take_epoch(i, 2, deaths[_i].ranks[i], deaths[_i].left, SOON_MS);
            ck_assert_uint_eq(outcome.epoch.lost, (uint32_t)(4 - deaths[_i].left));
            ck_assert_uint_eq(outcome.epoch.round, 7);
            ck_assert_uint_eq(outcome.epoch.behind, 0);
        }
    }
    printf("case %d: %.1f ms\n", _i, (double)(msdu__clock_now() - start_ns) / 1e6);
    for (int32_t i = 0; i < 4; i++) {
        if (them[i].pid != 0) {
            END(i);
        }
    }
}
END_TEST

START_TEST(children_of_a_dead_member_do_not_make_it_look_silent)
{
    begin(2, NO_SILENCE);
    process_fork(&them[_i]);
    pid_t child = (pid_t)strtol(process_take(&them[_i], SOON_MS).text, NULL, 10);
    process_kill(&them[_i]);
    process_next(&them[1 - _i], 7);
    struct outcome outcome = process_take(&them[1 - _i], SOON_MS);
    (void)kill(child, SIGKILL);
    ck_assert_msg(outcome.status == MSDU_OK, "%s", outcome.text);
    ck_assert_int_eq(outcome.epoch.ranks, 1);
    END(1 - _i);
}
END_TEST

START_TEST(gatherer_that_dies_while_it_gathers_is_replaced)
{
    begin(4, NO_SILENCE);
    process_kill(&them[3]);
    process_next(&them[0], 7);
    process_next(&them[1], 7);
    ck_assert(process_is_quiet(&them[1], 200)); /* rank 2 trains on */
    process_kill(&them[0]);
    process_next(&them[2], 7);
    (void)take_epoch(1, 2, 0, 2, SOON_MS);
    (void)take_epoch(2, 2, 1, 2, SOON_MS);
    END(1, 2);
}
END_TEST

START_TEST(a_trainer_that_takes_its_time_is_waited_for)
{
    begin(3, SILENCE);
    process_next(&them[0], 7);
    process_next(&them[1], 7);
    ck_assert(process_is_quiet(&them[0], 1500));
    process_ask(&them[2]);
    ck_assert(process_take(&them[2], SOON_MS).is_awaited);
    process_next(&them[2], 8);
    (void)take_epoch(2, 2, 0, 3, SOON_MS); /* the donor has the highest round */
    (void)take_epoch(0, 2, 1, 3, SOON_MS);
    struct outcome outcome = take_epoch(1, 2, 2, 3, SOON_MS);
    ck_assert_uint_eq(outcome.epoch.round, 8);
    ck_assert_uint_eq(outcome.epoch.step, 80);
    ck_assert_uint_eq(outcome.epoch.behind, 2);
    ck_assert_uint_eq(outcome.epoch.lost, 0);
    END(0, 1, 2);
}
END_TEST

START_TEST(majority_goes_on_without_a_silent_member_which_then_stops)
{
    begin(4, SILENCE);
    ck_assert_int_eq(kill(them[_i].pid, SIGSTOP), 0);
    for (int32_t i = 0; i < 4; i++) {
        process_next(&them[i], 7);
    }
    int32_t rank = 0;
    for (int32_t i = 0; i < 4; i++) {
        if (i != _i) {
            (void)take_epoch(i, 2, rank++, 3, LATE_MS);
        }
    }
    ck_assert_int_eq(kill(them[_i].pid, SIGCONT), 0);
    take_failure(_i, MSDU_ERR_PEER_LOST, "went on without this rank", LATE_MS);
    for (int32_t i = 0; i < 4; i++) { /* and disturbs nobody */
        if (i != _i) {
            process_next(&them[i], 8);
        }
    }
    rank = 0;
    for (int32_t i = 0; i < 4; i++) {
        if (i != _i) {
            (void)take_epoch(i, 3, rank++, 3, LATE_MS);
        }
    }
    END(0, 1, 2, 3);
}
END_TEST

/* xorshift: a seed gives the same plan, not the same timing. */
static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state % below;
}

static int32_t count_living(void)
{
    int32_t count = 0;
    for (int32_t i = 0; i < PROCESSES_MOST; i++) {
        count += them[i].pid != 0;
    }
    return count;
}

/* The epoch that all that live are in now; 0: they are in different ones. */
static uint32_t take_all(int32_t *ranks_out)
{
    uint32_t number = 0;
    bool is_one = true;
    for (int32_t i = 0; i < PROCESSES_MOST; i++) {
        if (them[i].pid != 0) {
            struct outcome outcome = process_take(&them[i], LATE_MS);
            ck_assert_msg(outcome.status == MSDU_OK, "process %d: %s", i, outcome.text);
            is_one = is_one && (number == 0 || number == outcome.epoch.number);
            number = outcome.epoch.number;
            *ranks_out = outcome.epoch.ranks;
        }
    }
    return is_one ? number : 0;
}

/* All that live leave their epochs until they are in one that is theirs alone. */
static void settle(void)
{
    int32_t ranks = 0;
    for (int tries = 0; tries < 4; tries++) {
        if (take_all(&ranks) != 0 && ranks == count_living()) {
            return;
        }
        for (int32_t i = 0; i < PROCESSES_MOST; i++) {
            if (them[i].pid != 0) {
                process_next(&them[i], 9);
            }
        }
    }
    ck_abort_msg("the members do not come to rest");
}

START_TEST(deaths_at_any_moment_of_a_gathering_leave_one_group)
{
    uint32_t state = (uint32_t)_i * 2654435761U + 1;
    begin(4, NO_SILENCE);
    int32_t first = (int32_t)draw(&state, 4);
    int32_t second = (first + 1 + (int32_t)draw(&state, 3)) % 4;
    process_kill(&them[first]);
    for (int32_t i = 0; i < 4; i++) {
        if (i != first) {
            process_next(&them[i], 7);
            msdu__net_sleep(draw(&state, 400) * MS / 1000);
        }
    }
    msdu__net_sleep(draw(&state, 1200) * MS / 1000);
    process_kill(&them[second]);
    settle();
    for (int32_t i = 0; i < 4; i++) {
        if (them[i].pid != 0) {
            END(i);
        }
    }
}
END_TEST

START_TEST(half_is_no_majority)
{
    begin(4, SILENCE);
    ck_assert_int_eq(kill(them[1].pid, SIGSTOP), 0);
    ck_assert_int_eq(kill(them[3].pid, SIGSTOP), 0);
    process_next(&them[0], 7);
    process_next(&them[2], 7);
    take_failure(0, MSDU_ERR_PEER_LOST,
                 "ranks 1, 3 did not answer within 400 ms, and only 2 of 4 members", LATE_MS);
    struct outcome outcome = process_take(&them[2], LATE_MS);
    ck_assert_int_eq(outcome.status, MSDU_ERR_PEER_LOST);
    END(0, 2);
}
END_TEST

START_TEST(newcomer_waits_until_the_members_end_their_epoch)
{
    begin(2, NO_SILENCE);
    start(2, 1, 2, NO_SILENCE);
    do {
        process_ask(&them[0]);
    } while (!process_take(&them[0], SOON_MS).has_newcomer);
    ck_assert(process_is_quiet(&them[2], 200));
    process_ask(&them[1]);
    ck_assert(!process_take(&them[1], SOON_MS).has_newcomer);
    process_next(&them[1], 9);
    process_next(&them[0], 9);
    (void)take_epoch(0, 2, 0, 3, SOON_MS);
    (void)take_epoch(1, 2, 1, 3, SOON_MS);
    struct outcome outcome = take_epoch(2, 2, 2, 3, SOON_MS);
    ck_assert(outcome.epoch.is_newcomer);
    ck_assert_uint_eq(outcome.epoch.joined, 1);
    ck_assert_uint_eq(outcome.epoch.behind, 1);
    ck_assert_uint_eq(outcome.epoch.round, 9);
    END(0, 1, 2);
}
END_TEST

/* The rank that is killed and comes back. */
START_TEST(killed_rank_comes_back_as_a_newcomer)
{
    static char place[64];
    if (_i % 2 == 1) {
        (void)snprintf(place, sizeof(place), "tcp://127.0.0.1:%d", job_free_port());
        (void)snprintf(url, sizeof(url), "%s", place);
    }
    int32_t lost = _i / 2;
    int32_t left = 1 - lost;
    begin(2, NO_SILENCE);
    process_kill(&them[lost]);
    process_next(&them[left], 5);
    (void)take_epoch(left, 2, 0, 1, SOON_MS);
    start(2, lost, 2, NO_SILENCE);
    uint64_t until_ns = msdu__clock_now() + LATE_MS * MS;
    do {
        process_ask(&them[left]);
        ck_assert(msdu__clock_now() < until_ns);
    } while (!process_take(&them[left], SOON_MS).has_newcomer);
    process_next(&them[left], 6);
    (void)take_epoch(left, 3, 0, 2, SOON_MS);
    ck_assert(take_epoch(2, 3, 1, 2, SOON_MS).epoch.is_newcomer);
    END(left, 2);
}
END_TEST

/* Rank 0 comes back before anybody has noticed that it was gone, and takes itself for the first. */
START_TEST(launch_that_came_too_early_finds_the_job_that_runs)
{
    begin(2, NO_SILENCE);
    process_kill(&them[0]);
    start(2, 0, 2, NO_SILENCE);
    ck_assert(process_is_quiet(&them[2], 500));
    process_next(&them[1], 5);
    (void)take_epoch(1, 2, 0, 1, SOON_MS);
    uint64_t until_ns = msdu__clock_now() + LATE_MS * MS;
    do {
        process_ask(&them[1]);
        ck_assert(msdu__clock_now() < until_ns);
    } while (!process_take(&them[1], SOON_MS).has_newcomer);
    process_next(&them[1], 6);
    (void)take_epoch(1, 3, 0, 2, SOON_MS);
    ck_assert(take_epoch(2, 3, 1, 2, SOON_MS).epoch.is_newcomer);
    END(1, 2);
}
END_TEST

START_TEST(newcomer_that_dies_is_forgotten)
{
    begin(2, NO_SILENCE);
    start(2, 1, 2, NO_SILENCE);
    do {
        process_ask(&them[0]);
    } while (!process_take(&them[0], SOON_MS).has_newcomer);
    process_kill(&them[2]);
    do {
        process_ask(&them[0]);
    } while (process_take(&them[0], SOON_MS).has_newcomer);
    process_next(&them[0], 9);
    process_next(&them[1], 9);
    (void)take_epoch(0, 2, 0, 2, SOON_MS);
    (void)take_epoch(1, 2, 1, 2, SOON_MS);
    END(0, 1);
}
END_TEST

START_TEST(a_newcomer_without_state_is_not_made_rank_0)
{
    const msdu__report empty = {.round = 0};
    begin(1, NO_SILENCE);
    start(1, 0, 1, NO_SILENCE);
    do {
        process_ask(&them[0]);
    } while (!process_take(&them[0], SOON_MS).has_newcomer);
    process_next(&them[0], 3);
    (void)take_epoch(0, 2, 0, 2, SOON_MS);
    (void)take_epoch(1, 2, 1, 2, SOON_MS);
    process_kill(&them[0]);
    process_next_report(&them[1], &empty);
    take_failure(1, MSDU_ERR_PEER_LOST, "no member that holds the parameters is left", SOON_MS);
    END(1);
}
END_TEST

START_TEST(too_few_wait_for_newcomers_as_long_as_they_may)
{
    for (int32_t i = 0; i < 3; i++) {
        launches[i] = plan(i < 2 ? i : 1, 2, NO_SILENCE);
        launches[i].settings.ranks_least = 2;
        launches[i].settings.join_wait_ns = _i == 0 ? 0 : 3000 * MS;
    }
    process_start(&them[0], &launches[0]);
    process_start(&them[1], &launches[1]);
    (void)take_epoch(0, 1, 0, 2, LATE_MS);
    (void)take_epoch(1, 1, 1, 2, LATE_MS);
    process_kill(&them[1]);
    process_next(&them[0], 5);
    if (_i == 2) {
        process_start(&them[2], &launches[2]);
        (void)take_epoch(0, 2, 0, 2, SOON_MS);
        (void)take_epoch(2, 2, 1, 2, SOON_MS);
        END(0, 2);
    } else {
        take_failure(0, MSDU_ERR_PEER_LOST,
                     "1 members are left after epoch 1, fewer than ranks_least 2", LATE_MS);
        END(0);
    }
}
END_TEST

START_TEST(wrong_secret_is_refused)
{
    begin(2, NO_SILENCE);
    launches[2] = plan(1, 2, NO_SILENCE);
    launches[2].secret = "open barley";
    process_start(&them[2], &launches[2]);
    take_failure(2, MSDU_ERR_DENIED, "wrong secret", SOON_MS);
    process_ask(&them[0]);
    ck_assert(!process_take(&them[0], SOON_MS).has_newcomer);
    END(0, 1, 2);
}
END_TEST

START_TEST(launch_that_is_not_complete_names_who_is_missing)
{
    for (int32_t i = 0; i < 2; i++) {
        launches[i] = plan(i, 4, NO_SILENCE);
        launches[i].deadline_ns = 1000 * MS;
        process_start(&them[i], &launches[i]);
    }
    take_failure(0, MSDU_ERR_TIMEOUT, "ranks 2, 3 did not join job comers within 1 s", LATE_MS);
    take_failure(1, MSDU_ERR_TIMEOUT, "nobody there answered for 1 s", LATE_MS);
    END(0, 1);
}
END_TEST

START_TEST(one_who_leaves_in_peace_is_missed_at_the_next_gathering_only)
{
    const msdu__report leaving = {.round = 5, .has_state = true, .is_leaving = true};
    begin(3, NO_SILENCE);
    process_next_report(&them[0], &leaving);
    ck_assert_int_eq(process_take(&them[0], SOON_MS).epoch.rank, -1);
    process_ask(&them[1]);
    ck_assert(!process_take(&them[1], SOON_MS).is_awaited);
    process_next(&them[1], 5);
    process_next(&them[2], 5);
    (void)take_epoch(1, 2, 0, 2, SOON_MS);
    (void)take_epoch(2, 2, 1, 2, SOON_MS);
    END(0, 1, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("members");
    TCase *life = suite_case(suite, "life", 120, set_up, tear_down);
    tcase_add_test(life, launch_forms_the_first_epoch_and_shares_values);
    tcase_add_test(life, epochs_hub_finds_its_rank_0_by_the_store);
    tcase_add_test(life, launch_that_is_not_complete_names_who_is_missing);
    tcase_add_test(life, one_who_leaves_in_peace_is_missed_at_the_next_gathering_only);
    tcase_add_test(life, a_trainer_that_takes_its_time_is_waited_for);
    TCase *loss = suite_case(suite, "loss", 120, set_up, tear_down);
    suite_table(loss, those_who_are_left_form_the_next_epoch, deaths);
    tcase_add_loop_test(loss, children_of_a_dead_member_do_not_make_it_look_silent, 0, 2);
    tcase_add_test(loss, gatherer_that_dies_while_it_gathers_is_replaced);
    tcase_add_loop_test(loss, majority_goes_on_without_a_silent_member_which_then_stops, 0, 4);
    const char *more = getenv("MSDU_TEST_SEEDS");
    tcase_add_loop_test(loss, deaths_at_any_moment_of_a_gathering_leave_one_group, 0,
                        more == NULL ? 20 : (int)strtol(more, NULL, 10));
    tcase_add_test(loss, half_is_no_majority);
    TCase *join = suite_case(suite, "join", 120, set_up, tear_down);
    tcase_add_test(join, newcomer_waits_until_the_members_end_their_epoch);
    tcase_add_loop_test(join, killed_rank_comes_back_as_a_newcomer, 0, 4);
    tcase_add_test(join, launch_that_came_too_early_finds_the_job_that_runs);
    tcase_add_test(join, newcomer_that_dies_is_forgotten);
    tcase_add_test(join, a_newcomer_without_state_is_not_made_rank_0);
    tcase_add_loop_test(join, too_few_wait_for_newcomers_as_long_as_they_may, 0, 3);
    tcase_add_test(join, wrong_secret_is_refused);
    return suite_run(suite);
}
