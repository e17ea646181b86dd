/* SPDX-License-Identifier: Apache-2.0 */
/* The bound: cases solved by hand, and against a link that is simulated step after step. */
#include "predict/bound.h"
#include "random.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>

#define LAYERS_MAX 6
#define TOLERANCE  1e-6

typedef struct model {
    uint32_t count;
    msdu__bound_layer layers[LAYERS_MAX];
    msdu__bound_link link;
} model;

static msdu__bound bound_of(const model *m)
{
    return msdu__bound_of(m->layers, m->count, &m->link);
}

static double step_of(const model *m)
{
    msdu__bound bound = bound_of(m);
    return msdu__bound_step_ns(&bound, 1, 0);
}

/* --- by hand; layers are forward, backward, bytes --- */

START_TEST(one_layer_hides_nothing)
{
    /* 10 and 20 of computing, then 300 bytes at 2 a ns, then the next forward pass */
    model m = {1, {{10, 20, 300}}, {2, 0}};
    ck_assert_double_eq_tol(step_of(&m), 180, TOLERANCE);
}
END_TEST

START_TEST(compute_bound)
{
    /* B3 20, B2 20, B1 20: 10 ns of bytes for each layer go under the next one's backward pass or
     * under the forward pass, and those of layer 1 do not: 90 + 10 */
    model m = {3, {{10, 20, 10}, {10, 20, 10}, {10, 20, 10}}, {1, 0}};
    ck_assert_double_eq_tol(step_of(&m), 100, TOLERANCE);
    ck_assert_uint_eq(bound_of(&m).layer, 0);
    m.layers[0].bytes = 0; /* then everything is hidden */
    ck_assert_double_eq_tol(step_of(&m), 90, TOLERANCE);
}
END_TEST

START_TEST(link_bound)
{
    /* 3000 ns of bytes; the link starts after B3 (20) and ends before F3 (10) */
    model m = {3, {{10, 20, 1000}, {10, 20, 1000}, {10, 20, 1000}}, {1, 0}};
    ck_assert_double_eq_tol(step_of(&m), 3030, TOLERANCE);
    ck_assert_uint_eq(bound_of(&m).layer, 2);
    ck_assert_double_eq_tol(bound_of(&m).link_ns, 3000, TOLERANCE);
}
END_TEST

START_TEST(layer_needed_first_is_heavy)
{
    /* What is ready last is needed first (an embedding): 90 + 500 of layer 1 alone, and the 40 of
     * layer 2 go before, under B1, or after, under F1, but layer 3's 10 + 20 are computing */
    model m = {3, {{10, 20, 500}, {10, 20, 20}, {10, 20, 20}}, {1, 0}};
    ck_assert_double_eq_tol(step_of(&m), 590, TOLERANCE);
}
END_TEST

START_TEST(layer_ready_first_is_heavy)
{
    /* VGG: the heavy layer is ready first and needed last. B3 1, then 500 bytes with 60 of
     * computing under them, 20 more bytes that the first two layers put between, F3 1 */
    model m = {3, {{10, 20, 10}, {10, 20, 10}, {1, 1, 500}}, {1, 0}};
    ck_assert_double_eq_tol(step_of(&m), 522, TOLERANCE);
    ck_assert_uint_eq(bound_of(&m).layer, 2);
}
END_TEST

START_TEST(nothing_to_exchange)
{
    model m = {2, {{10, 20, 0}, {30, 40, 0}}, {1, 1000}};
    ck_assert_double_eq_tol(step_of(&m), 100, TOLERANCE); /* no latency either */
    ck_assert_double_eq(bound_of(&m).chain_ns, 0);
    m.count = 0;
    ck_assert_double_eq(step_of(&m), 0);
}
END_TEST

START_TEST(latency_counts_once_behind_the_last_byte)
{
    /* layer 1: 30 + 70 computing, 10 bytes, 50 latency; layer 2: 40 + 30, 20 bytes, 50 */
    model m = {2, {{10, 20, 10}, {30, 40, 10}}, {1, 50}};
    ck_assert_double_eq_tol(step_of(&m), 160, TOLERANCE);
    m.link.bytes_per_ns = (double)INFINITY;
    ck_assert_double_eq_tol(step_of(&m), 150, TOLERANCE);
}
END_TEST

START_TEST(local_steps_share_a_round)
{
    /* C 90, chain 3030 */
    model m = {3, {{10, 20, 1000}, {10, 20, 1000}, {10, 20, 1000}}, {1, 0}};
    msdu__bound bound = bound_of(&m);
    /* at once: 2 steps of 90, and one of 3030 */
    ck_assert_double_eq_tol(msdu__bound_step_ns(&bound, 3, 0), (90 + 90 + 3030) / 3.0, TOLERANCE);
    /* a step late: 90 more of the 3030 are hidden */
    ck_assert_double_eq_tol(msdu__bound_step_ns(&bound, 3, 1), (90 + 3030) / 3.0, TOLERANCE);
    /* the link is busy for 3000 ns of 40 steps, or the computing of 3600 */
    ck_assert_double_eq_tol(msdu__bound_streamed_ns(&bound, 10), 300, TOLERANCE);
    ck_assert_double_eq_tol(msdu__bound_streamed_ns(&bound, 40), 90, TOLERANCE);
    /* 34 steps late is all of it */
    ck_assert_double_eq_tol(msdu__bound_step_ns(&bound, 40, 34), 90, TOLERANCE);
}
END_TEST

START_TEST(ring_bytes_of_ranks)
{
    ck_assert_double_eq(msdu__bound_ring_bytes(100, 1), 0);
    ck_assert_double_eq(msdu__bound_ring_bytes(100, 2), 100);
    ck_assert_double_eq(msdu__bound_ring_bytes(100, 4), 150);
}
END_TEST

/* --- simulated: computing and a link, event by event --- */

typedef struct simulation {
    const model *m;
    const double *priority; /* smaller is served first; NULL: layers by index */
    double now;
    double left[LAYERS_MAX];     /* bytes to send */
    double complete[LAYERS_MAX]; /* when the reduction was or will be; INFINITY: under way */
} simulation;

static int pick(const simulation *s)
{
    int best = -1;
    for (int l = 0; l < (int)s->m->count; l++) {
        bool is_sooner = best < 0 || (s->priority != NULL && s->priority[l] < s->priority[best]);
        if (s->left[l] > 0 && is_sooner) {
            best = l;
        }
    }
    return best;
}

/* Let the link send one layer's bytes, but not beyond `until`. */
static void send(simulation *s, int l, double until)
{
    double end = s->now + s->left[l] / s->m->link.bytes_per_ns;
    if (end <= until) {
        s->left[l] = 0;
        s->now = end;
        s->complete[l] = end + s->m->link.latency_ns;
    } else {
        s->left[l] -= (until - s->now) * s->m->link.bytes_per_ns;
        s->now = until;
    }
}

static void serve(simulation *s, double until)
{
    while (s->now < until) {
        int l = pick(s);
        if (l < 0) {
            s->now = until;
            return;
        }
        send(s, l, until);
    }
}

/* F_l waits for its reduction while the link goes on. */
static void wait_for(simulation *s, uint32_t l)
{
    while (isinf(s->complete[l])) {
        send(s, pick(s), (double)INFINITY);
    }
    serve(s, s->complete[l]);
}

/* One step; returns when its forward pass ended. */
static double simulate_step(simulation *s)
{
    const model *m = s->m;
    for (uint32_t l = 0; l < m->count; l++) {
        wait_for(s, l);
        serve(s, s->now + m->layers[l].forward_ns);
    }
    double end = s->now;
    for (uint32_t l = m->count; l-- > 0;) {
        serve(s, s->now + m->layers[l].backward_ns);
        s->left[l] = m->layers[l].bytes;
        s->complete[l] = m->layers[l].bytes > 0 ? (double)INFINITY : s->now;
    }
    return end;
}

static double simulate(const model *m, const double *priority)
{
    simulation s = {.m = m, .priority = priority};
    double ends[9];
    for (int i = 0; i < 9; i++) {
        ends[i] = simulate_step(&s);
    }
    return (ends[8] - ends[4]) / 4;
}

static double draw(uint64_t *state, double most)
{
    return (random_signed(state) + 1) / 2 * most;
}

static void draw_model(uint64_t *state, model *m)
{
    m->count = 1 + (uint32_t)(random_next(state) % LAYERS_MAX);
    m->link = (msdu__bound_link){0.5 + draw(state, 2), draw(state, 1) < 0.5 ? 0 : draw(state, 20)};
    for (uint32_t l = 0; l < m->count; l++) {
        m->layers[l] = (msdu__bound_layer){draw(state, 20), draw(state, 40),
                                           draw(state, 1) < 0.2 ? 0 : draw(state, 100)};
    }
}

START_TEST(priority_reaches_it_and_no_other_order_beats_it)
{
    uint64_t state = 11;
    uint32_t worse = 0;
    for (int i = 0; i < 3000; i++) {
        model m;
        double priority[LAYERS_MAX];
        draw_model(&state, &m);
        double bound = step_of(&m);
        double reached = simulate(&m, NULL);
        ck_assert_msg(fabs(reached - bound) < TOLERANCE, "case %d: %.9g, bound %.9g", i, reached,
                      bound);
        for (uint32_t l = 0; l < m.count; l++) {
            priority[l] = random_signed(&state);
        }
        double other = simulate(&m, priority);
        ck_assert_msg(other > bound - TOLERANCE, "case %d: %.9g, bound %.9g", i, other, bound);
        worse += other > bound + TOLERANCE ? 1 : 0;
    }
    ck_assert_uint_gt(worse, 500); /* orders do matter here */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bound");
    TCase *hand = suite_case(suite, "by hand", 30, NULL, NULL);
    tcase_add_test(hand, one_layer_hides_nothing);
    tcase_add_test(hand, compute_bound);
    tcase_add_test(hand, link_bound);
    tcase_add_test(hand, layer_needed_first_is_heavy);
    tcase_add_test(hand, layer_ready_first_is_heavy);
    tcase_add_test(hand, nothing_to_exchange);
    tcase_add_test(hand, latency_counts_once_behind_the_last_byte);
    tcase_add_test(hand, local_steps_share_a_round);
    tcase_add_test(hand, ring_bytes_of_ranks);
    TCase *simulated = suite_case(suite, "simulated", 60, NULL, NULL);
    tcase_add_test(simulated, priority_reaches_it_and_no_other_order_beats_it);
    return suite_run(suite);
}
