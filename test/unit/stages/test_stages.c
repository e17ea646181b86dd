/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts and devices: dynamic programming against all subsets, permutations and cuts. */
#include "stages_fixture.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "random.h"
#include "stages/split.h"
#include "stages/vee.h"
#include "suite.h"

#define CASES     400
#define TOLERANCE 1e-9

/* --- all plans, from the arrays of the question alone --- */

typedef struct stage {
    uint32_t device, first, end;
} stage;

typedef struct brute {
    const stages_case *c;
    bool is_frugal;
    msdu__split_way way;
    double limit; /* of the bottleneck, where the smallest fill is looked for */
    stage stages[DEVICES_MOST];
    double least_beta;
    double least_fill;
    double least_step; /* that no order can beat */
} brute;

static double rate_of(const stages_case *c, uint32_t from, uint32_t to)
{
    double rate = c->rate[from * c->q.devices + to];
    rate = c->card[from] > 0 ? fmin(rate, c->card[from]) : rate;
    return (c->card[to] > 0 ? fmin(rate, c->card[to]) : rate) / 1e9;
}

static double bytes_into(const stages_case *c, uint32_t layer)
{
    return layer == 0 || layer == c->q.layers ? 0 : c->output[layer - 1];
}

/* False: it does not fit. Gradients of weights are half of backward passes. */
static bool judge_stage(const brute *b, const stage *s, uint32_t holds, double *beta, double *fill)
{
    const stages_case *c = b->c;
    double t = 0;
    double forward = 0;
    double memory = 0;
    double passing = bytes_into(c, s->first) + bytes_into(c, s->end);
    for (uint32_t l = s->first; l < s->end; l++) {
        double f = c->forward[s->device * c->q.layers + l];
        double back = c->backward[s->device * c->q.layers + l];
        t += f + (b->way == MSDU__SPLIT_INPUTS ? back / 2 : back);
        forward += f;
        memory += c->state[l] + holds * c->kept[l];
    }
    memory += c->q.micro_batches * passing;
    double card = c->card[s->device] > 0 ? passing / c->card[s->device] * 1e9 : 0;
    *beta = fmax(*beta, fmax(t, card));
    *fill += b->way == MSDU__SPLIT_THERE ? forward : t;
    return c->memory[s->device] == 0 || memory <= c->memory[s->device];
}

static bool judge_link(const brute *b, uint32_t from, uint32_t to, double bytes, double *beta,
                       double *fill)
{
    const stages_case *c = b->c;
    double there = rate_of(c, from, to);
    double back = rate_of(c, to, from);
    if (there == 0 || back == 0) {
        return false;
    }
    *beta = fmax(*beta, bytes / fmin(there, back));
    *fill += bytes / there + c->latency[from * c->q.devices + to];
    *fill += b->way == MSDU__SPLIT_THERE ? 0 : bytes / back + c->latency[to * c->q.devices + from];
    return true;
}

static void judge(brute *b, uint32_t count)
{
    double beta = 0;
    double fill = 0;
    double step = 0;
    for (uint32_t s = 0; s < count; s++) {
        double before = fill; /* there and back, all that is in front */
        double own = 0;
        double link = 0;
        uint32_t holds = b->is_frugal ? 1 : count - s;
        holds = holds < b->c->q.micro_batches ? holds : b->c->q.micro_batches;
        if (s > 0 && !judge_link(b, b->stages[s - 1].device, b->stages[s].device,
                                 bytes_into(b->c, b->stages[s].first), &link, &fill)) {
            return;
        }
        step = fmax(step, before + b->c->q.micro_batches * link);
        before = fill;
        if (!judge_stage(b, &b->stages[s], holds, &own, &fill)) {
            return;
        }
        step = fmax(step, before + b->c->q.micro_batches * own);
        beta = fmax(beta, fmax(own, link));
    }
    b->least_beta = fmin(b->least_beta, beta);
    b->least_step = fmin(b->least_step, step);
    if (beta <= b->limit * (1 + 1e-12)) {
        b->least_fill = fmin(b->least_fill, fill);
    }
}

/* Every next stage on every device that is left. The recursion is as deep as there are devices. */
static void try_all(brute *b, uint32_t count, uint32_t first, uint32_t used)
{
    if (first == b->c->q.layers) {
        judge(b, count);
        return;
    }
    for (uint32_t d = 0; d < b->c->q.devices; d++) {
        for (uint32_t end = first + 1; end <= b->c->q.layers && (used & 1U << d) == 0; end++) {
            b->stages[count] = (stage){d, first, end};
            try_all(b, count + 1, end, used | 1U << d);
        }
    }
}

static brute all_plans(const stages_case *c, bool is_frugal, msdu__split_way way, double limit)
{
    brute b = {.c = c,
               .is_frugal = is_frugal,
               .way = way,
               .limit = limit,
               .least_beta = (double)INFINITY,
               .least_fill = (double)INFINITY,
               .least_step = (double)INFINITY};
    try_all(&b, 0, 0, 0);
    return b;
}

/* --- dynamic programming --- */

typedef struct searched {
    msdu__stages_memory memory;
    msdu__stages_model model;
    msdu__split split;
} searched;

static void open_search(searched *s, const stages_case *c, bool has_classes, bool is_frugal)
{
    memset(s, 0, sizeof(*s));
    ck_assert(msdu__stages_model_make(&c->q, c->q.micro_batches, &s->memory, &s->model));
    ck_assert_int_eq(msdu__split_make(&s->model, has_classes, &s->memory, &s->split),
                     MSDU__SPLIT_OK);
    s->split.is_frugal = is_frugal;
}

static double least_beta(const stages_case *c)
{
    searched s;
    open_search(&s, c, true, true);
    double beta = msdu__split_bottleneck(&s.split, NULL);
    msdu__stages_give_back(&s.memory);
    return beta;
}

static bool near(double a, double b)
{
    return a == b || fabs(a - b) <= TOLERANCE * fmax(fabs(a), fabs(b));
}

/* What a layout costs is what the search said of it. */
static void check_layout(const stages_case *c, const msdu__stages_layout *layout, double beta,
                         double fill, bool is_frugal)
{
    brute b = {.c = c,
               .is_frugal = is_frugal,
               .limit = (double)INFINITY,
               .least_beta = (double)INFINITY,
               .least_fill = (double)INFINITY,
               .least_step = (double)INFINITY};
    uint32_t used = 0;
    for (uint32_t s = 0; s < layout->count; s++) {
        b.stages[s] = (stage){layout->device[s], layout->first[s], layout->first[s + 1]};
        ck_assert_uint_eq(used & 1U << layout->device[s], 0);
        used |= 1U << layout->device[s];
    }
    judge(&b, layout->count);
    ck_assert(beta < 0 || near(b.least_beta, beta));
    ck_assert(fill < 0 || near(b.least_fill, fill));
}

static void compare(const stages_case *c, bool has_classes, bool is_frugal, double slack)
{
    searched s;
    msdu__stages_layout layout;
    brute best = all_plans(c, is_frugal, MSDU__SPLIT_WHOLE, (double)INFINITY);
    open_search(&s, c, has_classes, is_frugal);
    double beta = msdu__split_bottleneck(&s.split, &layout);
    ck_assert_msg(near(beta, best.least_beta), "bottleneck %g, not %g", beta, best.least_beta);
    if (beta < (double)INFINITY) {
        check_layout(c, &layout, beta, -1, is_frugal);
        brute filled = all_plans(c, is_frugal, MSDU__SPLIT_WHOLE, slack * beta);
        double fill = msdu__split_fill(&s.split, slack * beta, &layout);
        ck_assert_msg(near(fill, filled.least_fill), "fill %g, not %g", fill, filled.least_fill);
        check_layout(c, &layout, -1, fill, is_frugal);
        for (int way = MSDU__SPLIT_WHOLE; way <= MSDU__SPLIT_INPUTS; way++) {
            best = all_plans(c, is_frugal, (msdu__split_way)way, (double)INFINITY);
            double step = msdu__split_step(&s.split, (msdu__split_way)way, &layout);
            ck_assert_msg(near(step, best.least_step), "way %d: step %g, not %g", way, step,
                          best.least_step);
        }
    }
    msdu__stages_give_back(&s.memory);
}

START_TEST(is_as_good_as_all_plans)
{
    static const double slacks[] = {1, 1.15, 2, 1e9};
    uint64_t random = 11;
    uint32_t found = 0;
    for (int i = 0; i < CASES; i++) {
        stages_case c;
        stages_random(&c, &random, 1 + stages_below(&random, 7), 1 + stages_below(&random, 4),
                      1 + stages_below(&random, 5));
        compare(&c, i % 2 == 0, i % 3 == 0, slacks[i % 4]);
        found += least_beta(&c) < (double)INFINITY ? 1 : 0;
    }
    ck_assert_uint_gt(found, CASES / 2); /* most have a plan, some have none */
    ck_assert_uint_lt(found, CASES);
}
END_TEST

START_TEST(classes_leave_the_answer_as_it_is)
{
    uint64_t random = 12;
    for (int i = 0; i < 60; i++) {
        stages_case c;
        searched alone;
        searched joined;
        stages_random(&c, &random, 8, 6, 4);
        open_search(&alone, &c, false, true);
        open_search(&joined, &c, true, true);
        ck_assert_uint_le(joined.split.sets, alone.split.sets);
        ck_assert_double_eq(msdu__split_bottleneck(&alone.split, NULL),
                            msdu__split_bottleneck(&joined.split, NULL));
        msdu__stages_give_back(&alone.memory);
        msdu__stages_give_back(&joined.memory);
    }
}
END_TEST

START_TEST(many_equal_machines_are_few_sets)
{
    enum { DEVICES = 64, LAYERS = 24 };
    static double times[DEVICES * LAYERS];
    static double links[DEVICES * DEVICES];
    static double output[LAYERS];
    for (int d = 0; d < DEVICES; d++) {
        for (int l = 0; l < LAYERS; l++) {
            times[d * LAYERS + l] = d < 32 ? 8 : 16;
        }
    }
    for (int i = 0; i < DEVICES * DEVICES; i++) {
        links[i] = 1e9;
    }
    msdu_stages_question q = {.size = sizeof(q),
                              .layers = LAYERS,
                              .devices = DEVICES,
                              .micro_batches = 8,
                              .forward_ns = times,
                              .backward_ns = times,
                              .output_bytes = output,
                              .link_rate = links};
    searched s = {.memory = {.count = 0}};
    ck_assert(msdu__stages_model_make(&q, 8, &s.memory, &s.model));
    ck_assert_int_eq(msdu__split_make(&s.model, true, &s.memory, &s.split), MSDU__SPLIT_OK);
    ck_assert_uint_eq(s.split.sets, 33 * 33);
    ck_assert_double_eq(msdu__split_bottleneck(&s.split, NULL),
                        16); /* a layer each, the fast ones */
    ck_assert_int_eq(msdu__split_make(&s.model, false, &s.memory, &s.split), MSDU__SPLIT_TOO_MANY);
    msdu__stages_give_back(&s.memory);
}
END_TEST

START_TEST(faster_devices_and_links_never_hurt)
{
    uint64_t random = 13;
    for (int i = 0; i < CASES; i++) {
        stages_case c;
        stages_random(&c, &random, 7, 4, 3);
        double before = least_beta(&c);
        uint32_t d = stages_below(&random, 4);
        uint32_t link = stages_below(&random, 16);
        if (i % 2 == 0) {
            for (uint32_t l = 0; l < 7; l++) {
                c.forward[d * 7 + l] *= 0.75;
                c.backward[d * 7 + l] *= 0.75;
            }
        } else {
            c.rate[link] = c.rate[link] * 2 + 1e8;
        }
        ck_assert_double_le(least_beta(&c), before * (1 + TOLERANCE));
    }
}
END_TEST

/* --- V --- */

/* The smallest bottleneck of computing, over all cuts of 2 R stages on devices in a V. */
static double best_vee(const stages_case *c, const uint32_t *cuts, uint32_t count, uint32_t ranks)
{
    double best = (double)INFINITY;
    uint32_t next[2 * DEVICES_MOST + 1];
    if (count == 2 * ranks) {
        double of[DEVICES_MOST] = {0};
        double slowest = 0;
        for (uint32_t s = 0; s < count; s++) {
            uint32_t d = s < ranks ? s : count - 1 - s;
            uint32_t end = s + 1 < count ? cuts[s + 1] : c->q.layers;
            for (uint32_t l = cuts[s]; l < end; l++) {
                of[d] += c->forward[d * c->q.layers + l] + c->backward[d * c->q.layers + l];
            }
            slowest = fmax(slowest, of[d]);
        }
        return slowest;
    }
    memcpy(next, cuts, count * sizeof(*cuts));
    for (uint32_t at = count == 0 ? 0 : cuts[count - 1] + 1; at < (count == 0 ? 1 : c->q.layers);
         at++) {
        next[count] = at;
        best = fmin(best, best_vee(c, next, count + 1, ranks));
    }
    return best;
}

START_TEST(vees_are_balanced)
{
    uint64_t random = 14;
    for (int i = 0; i < 100; i++) {
        stages_case c;
        searched s;
        uint32_t ranks = 1 + stages_below(&random, 3);
        uint32_t layers = 2 * ranks + stages_below(&random, 9 - 2 * ranks);
        stages_random(&c, &random, layers, ranks, 2);
        memset(c.card, 0, sizeof(c.card));
        open_search(&s, &c, true, true);
        msdu__stages_layout plain = {.count = ranks, .ranks = ranks};
        msdu__stages_layout vee;
        for (uint32_t r = 0; r < ranks; r++) {
            plain.device[r] = r;
        }
        uint32_t *work =
            msdu__stages_take(&s.memory, msdu__stages_vee_room(&s.model, ranks), sizeof(*work));
        ck_assert(msdu__stages_vee(&s.model, &plain, work, &vee));
        ck_assert_uint_eq(vee.count, 2 * ranks);
        double slowest = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            double sum = 0;
            for (uint32_t v = 0; v < vee.count; v++) {
                ck_assert_uint_lt(vee.first[v], vee.first[v + 1]);
                ck_assert_uint_eq(vee.device[v], v < ranks ? v : vee.count - 1 - v);
                sum += vee.rank[v] == r ? msdu__stages_own(&s.model, vee.device[v], vee.first[v],
                                                           vee.first[v + 1])
                                        : 0;
            }
            slowest = fmax(slowest, sum);
        }
        ck_assert_double_le(slowest, best_vee(&c, plain.first, 0, ranks) * (1 + 1e-6));
        msdu__stages_give_back(&s.memory);
    }
}
END_TEST

START_TEST(a_vee_needs_two_layers_a_device)
{
    stages_case c;
    searched s;
    uint32_t work[200];
    msdu__stages_layout plain = {.count = 2, .ranks = 2, .device = {0, 1}};
    msdu__stages_layout vee;
    stages_equal(&c, 3, 2, 2);
    open_search(&s, &c, true, true);
    ck_assert_uint_le(msdu__stages_vee_room(&s.model, 2), 200);
    ck_assert(!msdu__stages_vee(&s.model, &plain, work, &vee));
    msdu__stages_give_back(&s.memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages");
    TCase *split = suite_case(suite, "split", 0, NULL, NULL);
    tcase_add_test(split, is_as_good_as_all_plans);
    tcase_add_test(split, classes_leave_the_answer_as_it_is);
    tcase_add_test(split, many_equal_machines_are_few_sets);
    tcase_add_test(split, faster_devices_and_links_never_hurt);
    TCase *vee = suite_case(suite, "vee", 0, NULL, NULL);
    tcase_add_test(vee, vees_are_balanced);
    tcase_add_test(vee, a_vee_needs_two_layers_a_device);
    return suite_run(suite);
}
