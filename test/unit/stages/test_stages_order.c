/* SPDX-License-Identifier: Apache-2.0 */
/* Orders: solved by hand, torch's action by action, and messages under an adversary. */
#include "stages_fixture.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "random.h"
#include "stages/compare.h"
#include "stages/lower.h"
#include "stages/programs.h"
#include "stages/search.h"
#include "suite.h"

#define TOLERANCE 1e-6

typedef struct simulated {
    msdu__stages_memory memory;
    msdu__stages_model model;
    msdu__stages_layout layout;
    msdu__stages_order order;
    msdu__stages_policy policy;
    msdu__stages_run run;
} simulated;

/* Equal layers over all devices. */
static void open_run(simulated *s, const stages_case *c)
{
    memset(s, 0, sizeof(*s));
    ck_assert(msdu__stages_model_make(&c->q, c->q.micro_batches, &s->memory, &s->model));
    ck_assert(msdu__stages_equal(&s->model, &s->layout));
    ck_assert(msdu__stages_order_make(&s->model, s->layout.count, &s->memory, &s->order));
    s->run.actions = msdu__stages_take(
        &s->memory, msdu__stages_order_room(&s->model, s->layout.count), sizeof(*s->run.actions));
    ck_assert_ptr_nonnull(s->run.actions);
}

static void run_with(simulated *s, double eagerness, bool is_forward_first)
{
    s->policy.is_forward_first = is_forward_first;
    ck_assert(msdu__search_holds(&s->model, &s->layout, eagerness, s->policy.holds));
    msdu__stages_order_run(&s->order, &s->layout, &s->policy, &s->run);
}

/* --- torch's schedules --- */

/* The number of a stage's action in the run; fails if it is another one. */
static void expect(const simulated *s, uint32_t stage, uint32_t number, int32_t kind,
                   uint32_t micro_batch)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < s->run.count; i++) {
        const msdu_stages_action *a = &s->run.actions[i];
        if (a->stage == stage && seen++ == number) {
            ck_assert_msg(a->kind == kind && a->micro_batch == micro_batch,
                          "stage %u of %u, M %u, action %u: kind %d of %u, not %d of %u", stage,
                          s->layout.count, s->model.micro_batches, number, a->kind, a->micro_batch,
                          kind, micro_batch);
            return;
        }
    }
    ck_abort_msg("stage %u has no action %u", stage, number);
}

/* As Schedule1F1B has it: warm-up, one each in turn, cool-down. */
static void expect_1f1b(const simulated *s, uint32_t stage)
{
    uint32_t all = s->model.micro_batches;
    uint32_t warm_up = s->layout.count - stage < all ? s->layout.count - stage : all;
    uint32_t forward = 0;
    uint32_t number = 0;
    while (forward < warm_up) {
        expect(s, stage, number++, MSDU_STAGES_FORWARD, forward++);
    }
    for (uint32_t backward = 0; backward < all; backward++) {
        expect(s, stage, number++, MSDU_STAGES_BACKWARD, backward);
        if (forward < all) {
            expect(s, stage, number++, MSDU_STAGES_FORWARD, forward++);
        }
    }
}

static void expect_gpipe(const simulated *s, uint32_t stage)
{
    uint32_t all = s->model.micro_batches;
    for (uint32_t i = 0; i < all; i++) {
        expect(s, stage, i, MSDU_STAGES_FORWARD, i);
        expect(s, stage, all + i, MSDU_STAGES_BACKWARD, i);
    }
}

START_TEST(equal_stages_are_torchs_schedules)
{
    for (uint32_t devices = 1; devices <= DEVICES_MOST; devices++) {
        for (uint32_t m = 1; m <= 12; m++) {
            stages_case c;
            simulated s;
            stages_equal(&c, 2 * devices, devices, m);
            open_run(&s, &c);
            run_with(&s, 0, false);
            for (uint32_t stage = 0; stage < devices; stage++) {
                expect_1f1b(&s, stage);
                ck_assert_uint_eq(s.run.held[stage], devices - stage < m ? devices - stage : m);
            }
            ck_assert_double_eq_tol(s.run.step_ns, 60.0 * (m + devices - 1), TOLERANCE);
            run_with(&s, (double)INFINITY, true);
            for (uint32_t stage = 0; stage < devices; stage++) {
                expect_gpipe(&s, stage);
            }
            ck_assert_double_eq_tol(s.run.step_ns, 60.0 * (m + devices - 1), TOLERANCE);
            msdu__stages_give_back(&s.memory);
        }
    }
}
END_TEST

/* --- by hand --- */

/* Two layers of 10 and 20 on two devices, messages of 5 and latency 1. */
static void two_stages(stages_case *c, uint32_t micro_batches)
{
    stages_equal(c, 2, 2, micro_batches);
    c->output[0] = 5;
    c->rate[1] = c->rate[2] = 1e9;
    c->latency[1] = c->latency[2] = 1;
}

START_TEST(two_stages_by_hand)
{
    stages_case c;
    simulated s;
    two_stages(&c, 2);
    open_run(&s, &c);
    /* F0 0-10, F1 10-20 | F0 16-26, B0 26-46, F1 46-56, B1 56-76 | B0 52-72, B1 82-102 */
    run_with(&s, 0, false);
    ck_assert_double_eq_tol(s.run.step_ns, 102, TOLERANCE);
    ck_assert_uint_eq(s.run.held[0], 2);
    ck_assert_uint_eq(s.run.held[1], 1);
    /* forward first, two held: F1 26-36, B0 36-56, B1 56-76 | B0 62-82, B1 82-102 */
    run_with(&s, 1, true);
    ck_assert_double_eq_tol(s.run.step_ns, 102, TOLERANCE);
    ck_assert_uint_eq(s.run.held[1], 2);
    /* one held: F0 0-10 | F0 16-26, B0 26-46 | B0 52-72, F1 72-82 | .. | B1 124-144 */
    s.policy = (msdu__stages_policy){.holds = {1, 1}};
    msdu__stages_order_run(&s.order, &s.layout, &s.policy, &s.run);
    ck_assert_double_eq_tol(s.run.step_ns, 144, TOLERANCE);
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(gradients_of_weights_fill_the_wait)
{
    stages_case c;
    simulated s;
    two_stages(&c, 2);
    open_run(&s, &c);
    s.policy = (msdu__stages_policy){.holds = {2, 2}, .is_split = true};
    msdu__stages_order_run(&s.order, &s.layout, &s.policy, &s.run);
    /* | F0 16-26, I0 26-36, F1 36-46, I1 46-56, W0 56-66, W1 66-76 | B0 42-62, B1 62-82 */
    ck_assert_double_eq_tol(s.run.step_ns, 82, TOLERANCE);
    expect(&s, 1, 1, MSDU_STAGES_INPUT, 0);
    expect(&s, 1, 4, MSDU_STAGES_WEIGHT, 0);
    expect(&s, 0, 2, MSDU_STAGES_BACKWARD, 0); /* the first stage has no gradient of its input */
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(cards_and_links_take_one_message_at_a_time)
{
    stages_case c;
    simulated s;
    stages_equal(&c, 2, 2, 3);
    c.output[0] = 40;
    c.rate[1] = c.rate[2] = 1e9;
    open_run(&s, &c);
    /* F 0-10, 10-20, 20-30; on the link 10-50, 50-90, 90-130; the last F 130-140, B 140-160, then
     * 40 of link and 20 */
    run_with(&s, (double)INFINITY, false);
    ck_assert_double_eq_tol(s.run.step_ns, 220, TOLERANCE);
    msdu__stages_give_back(&s.memory);
    /* a card half as fast as the link: 80 each */
    c.card[1] = 0.5e9;
    open_run(&s, &c);
    run_with(&s, (double)INFINITY, false);
    ck_assert_double_eq_tol(s.run.step_ns, 10 + 3 * 80 + 30 + 80 + 20, TOLERANCE);
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(a_card_in_the_middle_serves_both_sides)
{
    stages_case c;
    simulated s;
    stages_equal(&c, 3, 3, 4);
    c.output[0] = c.output[1] = 40;
    c.card[1] = 1e9;
    open_run(&s, &c);
    /* into the middle: F 10-50, 50-90, 90-130, 130-170; the first gradient, ready at 130, comes
     * 170-210, and then one each 40; the last is computed 330-350 there, and 390-410 in front */
    run_with(&s, (double)INFINITY, false);
    ck_assert_double_eq_tol(s.run.step_ns, 410, TOLERANCE);
    msdu__stages_give_back(&s.memory);
}
END_TEST

/* The same with torch's own schedules, whose sends are waited for. */
START_TEST(torchs_schedules_by_hand)
{
    stages_case c;
    simulated s;
    msdu_stages_torch torch;
    two_stages(&c, 2);
    open_run(&s, &c);
    ck_assert(msdu__stages_compare(&s.model, &s.layout, &torch));
    /* 1F1B: stage 0: F0 0-10, F1 10-20, send 1 posted at 20, moves when stage 1, which works until
     * 46, posts its receive with the send of B0: 46-51; F1 at 52-62, B1 62-82.
     * Stage 0 gets B0 at 52, B0 52-72; B1 82-87, at 88-108 */
    ck_assert_double_eq_tol(torch.equal_1f1b_ns, 108, TOLERANCE);
    ck_assert_double_eq(torch.cuts_1f1b_ns, torch.equal_1f1b_ns);
    /* GPipe: stage 1 wants F1 at 26 only: 26-31, at 32-42; B0 42-62, B1 62-82 | B0 68-88, and wants
     * B1 at 88 only: 88-93, at 94-114 */
    ck_assert_double_eq_tol(torch.equal_gpipe_ns, 114, TOLERANCE);
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(torch_waits_for_its_sends)
{
    stages_case c;
    simulated s;
    msdu_stages_torch torch;
    stages_equal(&c, 2, 2, 3);
    c.output[0] = 40;
    c.rate[1] = 1e9; /* forward only */
    c.backward[0] = 100;
    open_run(&s, &c);
    ck_assert(msdu__stages_compare(&s.model, &s.layout, &torch));
    /* send 1 is posted at 50, moves 80-120 and is waited for: B0 120-220, F2 220-230; send 2 moves
     * 230-270: B1 270-370, B2 370-470 */
    ck_assert_double_eq_tol(torch.equal_1f1b_ns, 470, TOLERANCE);
    run_with(&s, 0, true); /* B0 80-180, F2 180-190, B1 190-290, B2 290-390 */
    ck_assert_double_eq_tol(s.run.step_ns, 390, TOLERANCE);
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(torchs_schedules_need_room)
{
    stages_case c;
    simulated s;
    msdu_stages_torch torch;
    stages_equal(&c, 2, 2, 4);
    c.kept[0] = c.kept[1] = 1;
    c.memory[0] = 3; /* 2 micro-batches for 1F1B, 4 for GPipe */
    open_run(&s, &c);
    ck_assert(msdu__stages_compare(&s.model, &s.layout, &torch));
    ck_assert_double_gt(torch.equal_1f1b_ns, 0);
    ck_assert_double_eq(torch.equal_gpipe_ns, 0);
    msdu__stages_give_back(&s.memory);
}
END_TEST

/* --- holds --- */

START_TEST(holds_follow_eagerness_and_memory)
{
    static const uint32_t wanted[][4] = {{4, 3, 2, 1}, {10, 8, 5, 3}, {16, 16, 16, 16}};
    static const double eagerness[] = {0, 6, (double)INFINITY};
    stages_case c;
    simulated s;
    stages_equal(&c, 4, 4, 16);
    open_run(&s, &c);
    for (int i = 0; i < 3; i++) {
        ck_assert(msdu__search_holds(&s.model, &s.layout, eagerness[i], s.policy.holds));
        ck_assert_mem_eq(s.policy.holds, wanted[i], sizeof(wanted[i]));
    }
    msdu__stages_give_back(&s.memory);
    c.kept[0] = 10;
    c.state[0] = 7;
    c.memory[0] = 37;
    open_run(&s, &c);
    ck_assert(msdu__search_holds(&s.model, &s.layout, 6, s.policy.holds));
    ck_assert_uint_eq(s.policy.holds[0], 3);
    ck_assert_uint_eq(s.policy.holds[1], 8);
    msdu__stages_give_back(&s.memory);
    c.memory[0] = 16;
    open_run(&s, &c);
    ck_assert(!msdu__search_holds(&s.model, &s.layout, 0, s.policy.holds));
    msdu__stages_give_back(&s.memory);
}
END_TEST

/* --- messages under an adversary --- */

typedef struct adversary {
    const msdu_stages *p;
    uint32_t next[DEVICES_MOST];                 /* action of a rank */
    uint32_t posted[DEVICES_MOST][DEVICES_MOST]; /* receives that [to] has posted from [from] */
    uint32_t sent[DEVICES_MOST][DEVICES_MOST];
    bool came[2 * DEVICES_MOST][64][2];
    bool is_posted[2 * DEVICES_MOST][64][2];
} adversary;

static bool is_kind(const msdu_stages_action *a, int forward, int backward)
{
    return a->kind == forward || a->kind == backward;
}

/* The rank at the other end. */
static uint32_t peer_of(const msdu_stages *p, const msdu_stages_action *a)
{
    bool is_up = a->kind == MSDU_STAGES_RECV_FORWARD || a->kind == MSDU_STAGES_SEND_BACKWARD;
    return p->stages[is_up ? a->stage - 1 : a->stage + 1].rank;
}

/* The number-th receive of a rank from another; fails if there is none. */
static const msdu_stages_action *receive_at(const msdu_stages *p, uint32_t rank, uint32_t from,
                                            uint32_t number)
{
    for (uint32_t i = p->lowered_begin[rank]; i < p->lowered_begin[rank + 1]; i++) {
        const msdu_stages_action *a = &p->lowered[i];
        if (is_kind(a, MSDU_STAGES_RECV_FORWARD, MSDU_STAGES_RECV_BACKWARD) &&
            peer_of(p, a) == from && number-- == 0) {
            return a;
        }
    }
    ck_abort_msg("rank %u: too few receives from %u", rank, from);
    return NULL;
}

/* A message is what the receiver's next receive takes it for. */
static void send_message(adversary *v, uint32_t rank, const msdu_stages_action *a)
{
    uint32_t to = peer_of(v->p, a);
    const msdu_stages_action *r = receive_at(v->p, to, rank, v->sent[rank][to]++);
    bool is_forward = a->kind == MSDU_STAGES_SEND_FORWARD;
    ck_assert_uint_eq(r->stage, is_forward ? a->stage + 1 : a->stage - 1);
    ck_assert_uint_eq(r->micro_batch, a->micro_batch);
    ck_assert_int_eq(r->kind, is_forward ? MSDU_STAGES_RECV_FORWARD : MSDU_STAGES_RECV_BACKWARD);
    v->came[r->stage][a->micro_batch][is_forward ? 0 : 1] = true;
}

/* False: the rank waits. blocks: a send waits until its receive has been posted. */
static bool advance(adversary *v, uint32_t rank, bool blocks)
{
    const msdu_stages *p = v->p;
    if (v->next[rank] == p->lowered_begin[rank + 1]) {
        return false;
    }
    const msdu_stages_action *a = &p->lowered[v->next[rank]];
    if (is_kind(a, MSDU_STAGES_RECV_FORWARD, MSDU_STAGES_RECV_BACKWARD)) {
        v->posted[rank][peer_of(p, a)]++;
        v->is_posted[a->stage][a->micro_batch][a->kind == MSDU_STAGES_RECV_FORWARD ? 0 : 1] = true;
    } else if (is_kind(a, MSDU_STAGES_SEND_FORWARD, MSDU_STAGES_SEND_BACKWARD)) {
        uint32_t to = peer_of(p, a);
        if (blocks && v->posted[to][rank] <= v->sent[rank][to]) {
            return false;
        }
        send_message(v, rank, a);
    } else if (a->kind != MSDU_STAGES_WEIGHT) {
        bool is_forward = a->kind == MSDU_STAGES_FORWARD;
        uint32_t from = is_forward ? a->stage - 1 : a->stage + 1;
        bool has_neighbor = is_forward ? a->stage > 0 : from < p->stage_count;
        if (has_neighbor && p->stages[from].rank != rank) {
            ck_assert(v->is_posted[a->stage][a->micro_batch][is_forward ? 0 : 1]);
            if (!v->came[a->stage][a->micro_batch][is_forward ? 0 : 1]) {
                return false;
            }
        }
    }
    v->next[rank]++;
    return true;
}

/* The rank that the adversary likes best goes on until it has to wait; all get to the end. */
static void let_run(const msdu_stages *p, bool blocks, uint64_t *random)
{
    static adversary v;
    memset(&v, 0, sizeof(v));
    v.p = p;
    memcpy(v.next, p->lowered_begin, p->rank_count * sizeof(uint32_t));
    uint32_t waiting = 0;
    uint32_t rank = stages_below(random, p->rank_count);
    while (waiting < p->rank_count) {
        bool has_moved = advance(&v, rank, blocks);
        waiting = has_moved ? 0 : waiting + 1;
        rank = has_moved && stages_below(random, 4) > 0 ? rank : (rank + 1) % p->rank_count;
    }
    for (uint32_t r = 0; r < p->rank_count; r++) {
        ck_assert_msg(v.next[r] == p->lowered_begin[r + 1], "rank %u of %u waits for ever", r,
                      p->rank_count);
    }
}

/* In a V two ranks exchange activations and gradients both ways, and one needs them in another
 * order than the other sends them. */
static void let_vee_run(const stages_case *c, uint64_t *random, uint32_t ahead)
{
    static msdu_stages_stage stages[2 * DEVICES_MOST];
    simulated s;
    msdu_stages plan = {.stages = stages, .micro_batches = c->q.micro_batches};
    uint32_t rank_begin[DEVICES_MOST + 1];
    uint32_t lowered_begin[DEVICES_MOST + 1];
    open_run(&s, c);
    uint32_t ranks = s.layout.count;
    msdu__stages_layout vee = {.count = 2 * ranks, .ranks = ranks};
    for (uint32_t v = 0; v < vee.count; v++) {
        vee.rank[v] = vee.device[v] = v < ranks ? v : vee.count - 1 - v;
        vee.first[v + 1] = v + 1 < vee.count ? v + 1 : c->q.layers;
        stages[v].rank = vee.rank[v];
        s.policy.holds[v] = 1 + stages_below(random, c->q.micro_batches);
    }
    s.policy.is_split = stages_below(random, 2) == 0;
    s.policy.is_forward_first = stages_below(random, 2) == 0;
    ck_assert(msdu__stages_order_make(&s.model, vee.count, &s.memory, &s.order));
    size_t room = msdu__stages_order_room(&s.model, vee.count);
    s.run.actions = msdu__stages_take(&s.memory, room, sizeof(*s.run.actions));
    msdu__stages_order_run(&s.order, &vee, &s.policy, &s.run);
    msdu_stages_action *actions = msdu__stages_take(&s.memory, room, sizeof(*actions));
    rank_begin[0] = 0;
    for (uint32_t r = 0, count = 0; r < ranks; r++) {
        for (uint32_t i = 0; i < s.run.count; i++) {
            if (vee.rank[s.run.actions[i].stage] == r) {
                actions[count++] = s.run.actions[i];
            }
        }
        rank_begin[r + 1] = count;
    }
    msdu__stages_lowering lowering = {.layout = &vee,
                                      .micro_batches = c->q.micro_batches,
                                      .actions = actions,
                                      .rank_begin = rank_begin,
                                      .ahead = ahead};
    msdu_stages_action *lowered =
        msdu__stages_take(&s.memory, msdu__stages_lower_count(&lowering), sizeof(*lowered));
    ck_assert(msdu__stages_lower(&lowering, &s.memory, lowered, lowered_begin));
    plan.stage_count = vee.count;
    plan.rank_count = ranks;
    plan.lowered = lowered;
    plan.lowered_begin = lowered_begin;
    let_run(&plan, ahead == 0, random);
    msdu__stages_give_back(&s.memory);
}

START_TEST(messages_of_a_vee_come_in_order)
{
    uint64_t random = 22;
    for (int i = 0; i < 200; i++) {
        stages_case c;
        uint32_t devices = 2 + stages_below(&random, 4);
        stages_random(&c, &random, 2 * devices, devices, 1 + stages_below(&random, 8));
        memset(c.memory, 0, sizeof(c.memory));
        for (uint32_t at = 0; at < devices * devices; at++) {
            c.rate[at] += 1e7; /* all links are there */
        }
        let_vee_run(&c, &random, stages_below(&random, 4));
    }
}
END_TEST

START_TEST(messages_come_in_order_and_nobody_waits_for_ever)
{
    static const uint32_t aheads[] = {0, 1, 2, 5, 100};
    uint64_t random = 21;
    uint32_t vees = 0;
    for (int i = 0; i < 150; i++) {
        stages_case c;
        msdu_stages *plan = NULL;
        stages_random(&c, &random, 4 + stages_below(&random, 8), 2 + stages_below(&random, 4),
                      1 + stages_below(&random, 8));
        memset(c.memory, 0, sizeof(c.memory));
        c.q.ahead = aheads[i % 5];
        c.q.may = (uint32_t)i % 4;
        ck_assert_int_eq(msdu_stages_plan(&c.q, &plan), MSDU_OK);
        let_run(plan, c.q.ahead == 0, &random);
        vees += plan->stage_count > plan->rank_count ? 1 : 0;
        msdu_stages_free(plan);
    }
    ck_assert_uint_gt(vees, 5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages_order");
    TCase *hand = suite_case(suite, "hand", 0, NULL, NULL);
    tcase_add_test(hand, equal_stages_are_torchs_schedules);
    tcase_add_test(hand, two_stages_by_hand);
    tcase_add_test(hand, gradients_of_weights_fill_the_wait);
    tcase_add_test(hand, cards_and_links_take_one_message_at_a_time);
    tcase_add_test(hand, a_card_in_the_middle_serves_both_sides);
    tcase_add_test(hand, torchs_schedules_by_hand);
    tcase_add_test(hand, torch_waits_for_its_sends);
    tcase_add_test(hand, torchs_schedules_need_room);
    tcase_add_test(hand, holds_follow_eagerness_and_memory);
    TCase *messages = suite_case(suite, "messages", 0, NULL, NULL);
    tcase_add_test(messages, messages_of_a_vee_come_in_order);
    tcase_add_test(messages, messages_come_in_order_and_nobody_waits_for_ever);
    return suite_run(suite);
}
