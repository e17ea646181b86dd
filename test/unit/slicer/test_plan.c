/* SPDX-License-Identifier: Apache-2.0 */
/* Plan: the simulated queue against an event simulation, and that no rank blocks another. */
#include "slicer/plan.h"
#include "suite.h"

#include <check.h>
#include <string.h>

#define ITEMS_MAX 64
#define RANKS_MAX 6
#define LANES_MAX 4

static uint64_t seed_now = 7;

static uint32_t draw(uint32_t below)
{
    seed_now = seed_now * 6364136223846793005U + 1442695040888963407U;
    return below > 0 ? (uint32_t)((seed_now >> 33) % below) : 0;
}

static uint32_t draw_items(msdu__plan_item *items)
{
    uint32_t count = draw(ITEMS_MAX + 1);
    uint32_t span = 1 + draw(2000);

    for (uint32_t i = 0; i < count; i++) {
        items[i].ready_ns = draw(span);
        items[i].cost_ns = draw(4) ? 1 + draw(100) : 0;
        items[i].priority = (int32_t)draw(10) - 5;
    }
    return count;
}

static void shuffle(uint32_t *order, uint32_t count)
{
    msdu__plan_initial(count, order);
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = draw(i);
        uint32_t swapped = order[i - 1];

        order[i - 1] = order[j];
        order[j] = swapped;
    }
}

START_TEST(plan_is_a_permutation_and_the_same_for_the_same_input)
{
    for (int i = 0; i < 1000; i++) {
        msdu__plan_item items[ITEMS_MAX];
        uint32_t first[ITEMS_MAX];
        uint32_t again[ITEMS_MAX];
        uint32_t scratch[ITEMS_MAX];
        uint32_t count = draw_items(items);
        uint32_t window = draw(6);
        uint64_t end = msdu__plan_simulate(items, count, window, first, scratch);

        memset(scratch, 0xff, sizeof scratch);
        ck_assert(msdu__plan_is_valid(first, count, scratch));
        ck_assert_uint_eq(msdu__plan_simulate(items, count, window, again, scratch), end);
        ck_assert_mem_eq(first, again, count * sizeof *first);
        ck_assert_uint_eq(msdu__plan_hash(first, count), msdu__plan_hash(again, count));
    }
}
END_TEST

START_TEST(cost_of_the_simulated_order_is_its_end_and_no_order_ends_sooner)
{
    for (int i = 0; i < 1000; i++) {
        msdu__plan_item items[ITEMS_MAX];
        uint32_t order[ITEMS_MAX];
        uint32_t scratch[ITEMS_MAX];
        uint32_t count = draw_items(items);
        uint32_t window = 1 + draw(5);
        uint64_t end = msdu__plan_simulate(items, count, window, order, scratch);

        ck_assert_uint_eq(msdu__plan_cost(items, count, order), end);
        shuffle(order, count);
        ck_assert_uint_ge(msdu__plan_cost(items, count, order), end);
    }
}
END_TEST

/* --- a naive simulation that advances one nanosecond at a time --- */

typedef struct naive {
    const msdu__plan_item *items;
    uint32_t count;
    uint32_t window;
    uint32_t order[ITEMS_MAX]; /* as started */
    uint32_t started;
    uint32_t served; /* slices that left the link */
    uint64_t left;   /* of the slice on the link */
    bool is_started[ITEMS_MAX];
    uint64_t idle_with_work; /* times at which the link stood while a slice was ready */
} naive;

static uint32_t naive_best(const naive *n, uint64_t now)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < n->count; i++) {
        if (!n->is_started[i] && n->items[i].ready_ns <= now &&
            (best == UINT32_MAX || n->items[i].priority < n->items[best].priority)) {
            best = i;
        }
    }
    return best;
}

/* Start what may start, then let ended slices leave, until nothing changes at this time. */
static void naive_settle(naive *n, uint64_t now)
{
    bool is_moving = true;

    while (is_moving) {
        uint32_t best = naive_best(n, now);

        is_moving = false;
        if (best != UINT32_MAX && n->started - n->served < n->window) {
            n->is_started[best] = true;
            n->order[n->started++] = best;
            if (n->started - n->served == 1) {
                n->left = n->items[best].cost_ns;
            }
            is_moving = true;
        } else if (n->started > n->served && n->left == 0) {
            n->served++;
            n->left = n->started > n->served ? n->items[n->order[n->served]].cost_ns : 0;
            is_moving = true;
        }
    }
    if (n->started == n->served && naive_best(n, now) != UINT32_MAX) {
        n->idle_with_work++;
    }
}

static uint64_t naive_run(naive *n)
{
    uint64_t now = 0;

    naive_settle(n, now);
    while (n->served < n->count) {
        now++;
        n->left -= n->left > 0 ? 1 : 0;
        naive_settle(n, now);
    }
    return now;
}

START_TEST(plan_equals_an_event_simulation_and_conserves_work)
{
    for (int i = 0; i < 400; i++) {
        msdu__plan_item items[ITEMS_MAX];
        uint32_t order[ITEMS_MAX];
        uint32_t scratch[ITEMS_MAX];
        naive n = {.items = items, .count = draw_items(items), .window = 1 + draw(5)};
        uint64_t end = 0;

        /* A slice without cost leaves in the instant it starts: order at one instant differs. */
        for (uint32_t k = 0; k < n.count; k++) {
            items[k].cost_ns += items[k].cost_ns == 0;
        }
        end = msdu__plan_simulate(items, n.count, n.window, order, scratch);
        ck_assert_uint_eq(naive_run(&n), end);
        ck_assert_mem_eq(n.order, order, n.count * sizeof *order);
        ck_assert_uint_eq(n.idle_with_work, 0);
    }
}
END_TEST

START_TEST(with_all_ready_at_once_the_order_is_by_priority_then_index)
{
    for (int i = 0; i < 300; i++) {
        msdu__plan_item items[ITEMS_MAX];
        uint32_t order[ITEMS_MAX];
        uint32_t scratch[ITEMS_MAX];
        uint32_t count = draw_items(items);

        for (uint32_t k = 0; k < count; k++) {
            items[k].ready_ns = 55;
        }
        msdu__plan_simulate(items, count, 1 + draw(5), order, scratch);
        for (uint32_t k = 1; k < count; k++) {
            const msdu__plan_item *before = &items[order[k - 1]];
            const msdu__plan_item *after = &items[order[k]];

            ck_assert(before->priority < after->priority ||
                      (before->priority == after->priority && order[k - 1] < order[k]));
        }
    }
}
END_TEST

START_TEST(late_urgent_slice_overtakes_queued_ones_but_not_those_in_flight)
{
    msdu__plan_item items[10];
    uint32_t order[10];
    uint32_t scratch[10];

    for (uint32_t i = 0; i < 9; i++) {
        items[i] = (msdu__plan_item){.ready_ns = 0, .cost_ns = 100, .priority = 5};
    }
    items[9] = (msdu__plan_item){.ready_ns = 250, .cost_ns = 100, .priority = 0};
    msdu__plan_simulate(items, 10, 1, order, scratch);
    ck_assert_uint_eq(order[3], 9);
    msdu__plan_simulate(items, 10, 3, order, scratch);
    ck_assert_uint_eq(order[5], 9);
}
END_TEST

START_TEST(nothing_ready_starts_what_becomes_ready_first)
{
    const msdu__plan_item items[3] = {{300, 10, 0}, {100, 10, 9}, {200, 10, 5}};
    uint32_t order[3];
    uint32_t scratch[3];

    ck_assert_uint_eq(msdu__plan_simulate(items, 3, 4, order, scratch), 310);
    ck_assert_uint_eq(order[0], 1);
    ck_assert_uint_eq(order[1], 2);
    ck_assert_uint_eq(order[2], 0);
    ck_assert_uint_eq(msdu__plan_simulate(items, 0, 4, order, scratch), 0);
}
END_TEST

START_TEST(hash_differs_for_swapped_orders)
{
    uint32_t order[ITEMS_MAX];

    msdu__plan_initial(ITEMS_MAX, order);
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        for (uint32_t j = i + 1; j < ITEMS_MAX; j++) {
            uint64_t hash = msdu__plan_hash(order, ITEMS_MAX);

            order[i] = j;
            order[j] = i;
            ck_assert_uint_ne(msdu__plan_hash(order, ITEMS_MAX), hash);
            order[i] = i;
            order[j] = j;
        }
    }
    ck_assert_uint_ne(msdu__plan_hash(order, 3), msdu__plan_hash(order, 4));
    /* FNV-1a of four zero bytes, from the published constants. */
    ck_assert_uint_eq(msdu__plan_hash(order, 1), 0x4d25767f9dce13f5U);
}
END_TEST

START_TEST(invalid_orders_are_seen)
{
    const uint32_t good[4] = {2, 0, 3, 1};
    const uint32_t twice[4] = {2, 0, 2, 1};
    const uint32_t beyond[4] = {2, 0, 4, 1};
    uint32_t scratch[4];

    ck_assert(msdu__plan_is_valid(good, 4, scratch));
    ck_assert(!msdu__plan_is_valid(twice, 4, scratch));
    ck_assert(!msdu__plan_is_valid(beyond, 4, scratch));
}
END_TEST

START_TEST(plan_is_stale_past_both_bounds_only)
{
    ck_assert(!msdu__plan_is_stale(1000, 1000, 0));
    ck_assert(!msdu__plan_is_stale(900, 1000, 0));
    ck_assert(!msdu__plan_is_stale(1050, 1000, 0));
    ck_assert(msdu__plan_is_stale(1051, 1000, 0));
    ck_assert(!msdu__plan_is_stale(1051, 1000, 51));
    ck_assert(msdu__plan_is_stale(1051, 1000, 50));
    ck_assert(msdu__plan_is_stale(1, 0, 0));
}
END_TEST

/* --- many ranks: does every slice complete, whatever becomes ready when? --- */

/* How often a rank has come to an operation of a slice. Phases: 0 waiting, 1 in phase 1, 2 phase 1
 * over, 3 in phase 2, 4 complete. One-phase slices go from 1 to 4. */
typedef struct group {
    uint32_t ranks;
    uint32_t slices;
    uint32_t window;
    uint32_t lanes;
    bool is_two_phase;
    uint32_t order[RANKS_MAX][ITEMS_MAX];       /* the plan; equal on all ranks if all is well */
    uint32_t ready_at[RANKS_MAX][ITEMS_MAX];    /* turn in which a rank's slice becomes ready */
    uint8_t phase[RANKS_MAX][ITEMS_MAX];        /* by slice */
    uint32_t next[RANKS_MAX];                   /* plan position not yet released */
    uint32_t next_second[RANKS_MAX][LANES_MAX]; /* next position of phase 2, by channel */
    uint32_t lane_log[RANKS_MAX][2 * LANES_MAX][ITEMS_MAX]; /* slices in order of start */
    uint32_t lane_started[RANKS_MAX][2 * LANES_MAX];
    uint32_t lane_ended[2 * LANES_MAX];
} group;

static void lane_start(group *g, uint32_t rank, uint32_t lane, uint32_t slice)
{
    g->lane_log[rank][lane][g->lane_started[rank][lane]++] = slice;
}

static uint32_t in_flight(const group *g, uint32_t rank)
{
    uint32_t count = 0;

    for (uint32_t s = 0; s < g->slices; s++) {
        count += g->phase[rank][s] != 0 && g->phase[rank][s] != 4;
    }
    return count;
}

/* Release the head of the line, if it is ready and the window has room. */
static bool release_first(group *g, uint32_t rank, uint32_t turn)
{
    uint32_t position = g->next[rank];
    uint32_t slice = position < g->slices ? g->order[rank][position] : 0;

    if (position == g->slices || g->ready_at[rank][slice] > turn ||
        in_flight(g, rank) >= g->window) {
        return false;
    }
    lane_start(g, rank, position % g->lanes, slice);
    g->phase[rank][slice] = 1;
    g->next[rank]++;
    return true;
}

/* Start phase 2 of the next position of a channel, if its phase 1 is over here. */
static bool release_second(group *g, uint32_t rank, uint32_t lane)
{
    uint32_t position = g->next_second[rank][lane] * g->lanes + lane;
    uint32_t slice = position < g->slices ? g->order[rank][position] : 0;

    if (position >= g->slices || g->phase[rank][slice] != 2) {
        return false;
    }
    lane_start(g, rank, g->lanes + lane, slice);
    g->phase[rank][slice] = 3;
    g->next_second[rank][lane]++;
    return true;
}

static bool all_started(const group *g, uint32_t lane, uint32_t operation)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        if (g->lane_started[r][lane] <= operation) {
            return false;
        }
    }
    return true;
}

/* End the next operation of a channel once every rank has started it. A backend matches operations
 * by their place in the channel, so that ranks which name different slices there have mixed data.
 */
static bool end_operation(group *g, uint32_t lane, bool *is_mixed)
{
    uint32_t operation = g->lane_ended[lane];

    if (!all_started(g, lane, operation)) {
        return false;
    }
    g->lane_ended[lane]++;
    for (uint32_t r = 0; r < g->ranks; r++) {
        uint32_t slice = g->lane_log[r][lane][operation];

        *is_mixed = *is_mixed || slice != g->lane_log[0][lane][operation];
        g->phase[r][slice] = g->is_two_phase && lane < g->lanes ? 2 : 4;
    }
    return true;
}

static bool rank_turn(group *g, uint32_t rank, uint32_t turn)
{
    bool is_moving = release_first(g, rank, turn);

    for (uint32_t lane = 0; g->is_two_phase && lane < g->lanes; lane++) {
        is_moving = release_second(g, rank, lane) || is_moving;
    }
    return is_moving;
}

static uint32_t slices_complete(const group *g)
{
    uint32_t complete = 0;

    for (uint32_t r = 0; r < g->ranks; r++) {
        for (uint32_t s = 0; s < g->slices; s++) {
            complete += g->phase[r][s] == 4;
        }
    }
    return complete;
}

/* Random ranks and channels move; after the last ready time all move until nothing does. */
static bool group_runs_to_the_end(group *g, bool *is_mixed)
{
    const uint32_t last_ready = 200;
    bool is_moving = true;

    for (uint32_t turn = 0; turn < last_ready; turn++) {
        rank_turn(g, draw(g->ranks), turn);
        end_operation(g, draw(2 * g->lanes), is_mixed);
    }
    while (is_moving) {
        is_moving = false;
        for (uint32_t r = 0; r < g->ranks; r++) {
            is_moving = rank_turn(g, r, last_ready) || is_moving;
        }
        for (uint32_t lane = 0; lane < 2 * g->lanes; lane++) {
            is_moving = end_operation(g, lane, is_mixed) || is_moving;
        }
    }
    return slices_complete(g) == g->ranks * g->slices;
}

static void draw_group(group *g, bool is_two_phase)
{
    memset(g, 0, sizeof *g);
    g->ranks = 2 + draw(RANKS_MAX - 1);
    g->slices = 1 + draw(ITEMS_MAX / 2);
    g->window = 1 + draw(6);
    g->lanes = 1 + draw(LANES_MAX);
    g->is_two_phase = is_two_phase;
    shuffle(g->order[0], g->slices);
    for (uint32_t r = 0; r < g->ranks; r++) {
        memcpy(g->order[r], g->order[0], sizeof g->order[0]);
        for (uint32_t s = 0; s < g->slices; s++) {
            g->ready_at[r][s] = draw(200);
        }
    }
}

static void check_many_groups(bool is_two_phase)
{
    static group g;

    for (int i = 0; i < 5000; i++) {
        bool is_mixed = false;
        bool is_complete = false;

        draw_group(&g, is_two_phase);
        is_complete = group_runs_to_the_end(&g, &is_mixed);
        ck_assert_msg(is_complete && !is_mixed, "case %d: ranks %u slices %u window %u lanes %u", i,
                      g.ranks, g.slices, g.window, g.lanes);
    }
}

START_TEST(no_rank_blocks_another_in_any_ready_order)
{
    check_many_groups(false);
}
END_TEST

START_TEST(no_rank_blocks_another_with_slices_in_two_phases)
{
    check_many_groups(true);
}
END_TEST

/* The check above can fail: orders that differ between ranks are caught. */
START_TEST(orders_of_local_timing_mix_data_or_block)
{
    static group g;
    uint32_t wrong = 0;

    for (int i = 0; i < 200; i++) {
        bool is_mixed = false;
        bool is_complete = false;

        draw_group(&g, true);
        g.slices = 16;
        for (uint32_t r = 0; r < g.ranks; r++) {
            shuffle(g.order[r], g.slices);
        }
        is_complete = group_runs_to_the_end(&g, &is_mixed);
        wrong += is_mixed || !is_complete;
    }
    ck_assert_uint_eq(wrong, 200);
}
END_TEST

START_TEST(need_sees_what_the_end_does_not)
{
    /* in the slicer's order: needed last first. All ready but the last, which is needed first */
    const msdu__plan_item items[] = {{0, 10, 3}, {0, 10, 2}, {5, 10, 1}, {15, 10, 0}};
    const uint32_t in_order[] = {0, 1, 2, 3};
    uint32_t best[4];
    uint32_t marks[4];
    uint64_t ends[4];

    /* one after another: 10, 20, 30, 40, and the first layer has to wait for the very end */
    ck_assert_uint_eq(msdu__plan_need(items, 4, in_order, ends), 40);
    msdu__plan_simulate(items, 4, 1, best, marks);
    ck_assert_uint_eq(msdu__plan_cost(items, 4, best), msdu__plan_cost(items, 4, in_order));
    /* the second (ready first of equals: 1, 2, 3, 0): 3 at 30, 2 at 30, 1 at 30, 0 at 40 */
    ck_assert_uint_eq(msdu__plan_need(items, 4, best, ends), (30 + 30 + 30 + 40) / 4);
    ck_assert_uint_eq(msdu__plan_need(items, 0, best, ends), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tcase = suite_case(suite, "plan", 120, NULL, NULL);

    tcase_add_test(tcase, plan_is_a_permutation_and_the_same_for_the_same_input);
    tcase_add_test(tcase, need_sees_what_the_end_does_not);
    tcase_add_test(tcase, cost_of_the_simulated_order_is_its_end_and_no_order_ends_sooner);
    tcase_add_test(tcase, plan_equals_an_event_simulation_and_conserves_work);
    tcase_add_test(tcase, with_all_ready_at_once_the_order_is_by_priority_then_index);
    tcase_add_test(tcase, late_urgent_slice_overtakes_queued_ones_but_not_those_in_flight);
    tcase_add_test(tcase, nothing_ready_starts_what_becomes_ready_first);
    tcase_add_test(tcase, hash_differs_for_swapped_orders);
    tcase_add_test(tcase, invalid_orders_are_seen);
    tcase_add_test(tcase, plan_is_stale_past_both_bounds_only);
    tcase_add_test(tcase, no_rank_blocks_another_in_any_ready_order);
    tcase_add_test(tcase, no_rank_blocks_another_with_slices_in_two_phases);
    tcase_add_test(tcase, orders_of_local_timing_mix_data_or_block);
    return suite_run(suite);
}
