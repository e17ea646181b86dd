/* SPDX-License-Identifier: Apache-2.0 */
/* What `msdu plan` simulates with: exchanges by topology, and the pipeline on cases solved by hand.
 * Times are in ns. */
#include "predict/simulate.h"

#include "suite.h"

#include <check.h>

#define LAYERS_MOST 16
#define EPSILON     1e-6

/* --- exchanges --- */

static msdu__whatif_network network_of(int topology, uint32_t ranks, uint32_t nodes)
{
    return (msdu__whatif_network){
        .topology = (msdu__whatif_topology)topology,
        .ranks = ranks,
        .nodes = nodes,
        .links = {{.bytes_per_ns = 8, .latency_ns = 3}, {.bytes_per_ns = 2, .latency_ns = 100}},
    };
}

static double work_on(const msdu__whatif_exchange *x, uint32_t link)
{
    double sum = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        sum += x->phases[i].link == link ? x->phases[i].work_ns : 0;
    }
    return sum;
}

static double latency(const msdu__whatif_exchange *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        sum += x->phases[i].latency_ns;
    }
    return sum;
}

/* 4800 bytes, by the formulas of network.h. */
static const struct exchange_case {
    int topology;
    uint32_t ranks;
    uint32_t nodes;
    double bytes;
    double inside_ns;
    double between_ns;
    double latency_ns;
} exchanges[] = {
    {MSDU__WHATIF_DIRECT, 1, 1, 0, 0, 0, 0},
    {MSDU__WHATIF_DIRECT, 4, 4, 7200, 0, 3600, 200},
    {MSDU__WHATIF_DIRECT, 4, 1, 7200, 900, 0, 6},
    /* each of 2 ranks of a node sends 1200 bytes to each of 2 others, twice */
    {MSDU__WHATIF_DIRECT, 4, 2, 7200, 0, 4800, 200},
    {MSDU__WHATIF_RING, 4, 4, 7200, 0, 3600, 600},
    {MSDU__WHATIF_RING, 4, 2, 7200, 0, 3600, 600},
    {MSDU__WHATIF_TREE, 2, 2, 4800, 0, 2400, 200},
    {MSDU__WHATIF_TREE, 8, 8, 9600, 0, 4800, 600},
    /* 2400 sent inside twice; between two nodes 2400 a node twice, shared by its two ranks */
    {MSDU__WHATIF_HIERARCHICAL, 4, 2, 7200, 600, 2400, 206},
    {MSDU__WHATIF_HIERARCHICAL, 4, 1, 7200, 900, 0, 6},
};

START_TEST(exchanges_cost_what_the_formulas_say)
{
    const struct exchange_case *c = &exchanges[_i];
    msdu__whatif_network net = network_of(c->topology, c->ranks, c->nodes);
    msdu__whatif_load load = {.bytes = 4800, .wire_bytes = 4800, .share_bytes = 1200};
    msdu__whatif_exchange x = msdu__whatif_exchange_of(&net, &load);
    ck_assert_double_eq_tol(x.bytes, c->bytes, EPSILON);
    ck_assert_double_eq_tol(work_on(&x, MSDU__WHATIF_INSIDE), c->inside_ns, EPSILON);
    ck_assert_double_eq_tol(work_on(&x, MSDU__WHATIF_BETWEEN), c->between_ns, EPSILON);
    ck_assert_double_eq_tol(latency(&x), c->latency_ns, EPSILON);
}
END_TEST

START_TEST(more_ranks_never_send_fewer_bytes)
{
    msdu__whatif_load load = {.bytes = 4800};
    double before = 0;
    for (uint32_t ranks = 1; ranks <= 4096; ranks++) {
        msdu__whatif_network net = network_of(_i, ranks, ranks);
        msdu__whatif_exchange x = msdu__whatif_exchange_of(&net, &load);
        ck_assert_double_ge(x.bytes, before);
        before = x.bytes;
    }
}
END_TEST

/* --- the pipeline by hand --- */

/* One slice for each layer, in two phases of half its work; all layers alike. */
typedef struct hand {
    uint32_t layers;
    double forward;
    double backward;
    double work; /* of a slice */
    double latency;
    uint32_t parts;
    uint32_t interval;
    uint32_t delay;
    bool is_gated;
    bool is_compressed;
    bool commits_slices;
    msdu__sim_wait wait;
    double message;
    double step; /* solved by hand */
} hand;

static msdu__sim_result run_hand(const hand *h, uint32_t window, uint32_t lanes)
{
    msdu__sim_layer layers[LAYERS_MOST] = {{0}};
    msdu__sim_slice slices[LAYERS_MOST] = {{0}};
    msdu__sim_slice_state states[LAYERS_MOST];
    uint32_t by_layer[LAYERS_MOST];
    uint32_t order[LAYERS_MOST];
    uint32_t queue[2 * LAYERS_MOST + 1];
    uint32_t announced[2 * LAYERS_MOST + 1];
    for (uint32_t i = 0; i < h->layers; i++) {
        msdu__whatif_phase half = {MSDU__WHATIF_BETWEEN, h->work / 2, h->latency};
        layers[i] = (msdu__sim_layer){h->forward, h->backward, i, 1};
        slices[i].part = i % (h->parts > 0 ? h->parts : 1);
        slices[i].exchange =
            (msdu__whatif_exchange){.phases = {half, half}, .count = 2, .first = 1};
        by_layer[i] = i;
        order[i] = h->layers - 1 - i;
    }
    msdu__sim_job job = {.layers = layers,
                         .layer_count = h->layers,
                         .slices = slices,
                         .slice_count = h->layers,
                         .by_layer = by_layer,
                         .order = order,
                         .parts = h->parts > 0 ? h->parts : 1,
                         .interval = h->interval > 0 ? h->interval : 1,
                         .delay = h->delay,
                         .window = window,
                         .lanes = lanes,
                         .is_gated = h->is_gated,
                         .is_compressed = h->is_compressed,
                         .commits_slices = h->commits_slices,
                         .wait = h->wait,
                         .message_ns = h->message,
                         .rounds = 8};
    msdu__sim_memory memory = {states, queue, announced};
    return msdu__sim_run(&job, &memory, NULL);
}

static const hand hands[] = {
    /* nothing to exchange */
    {.layers = 0, .step = 0},
    /* one layer: nothing can hide */
    {.layers = 1, .forward = 1, .backward = 2, .work = 6, .step = 9},
    {.layers = 1, .forward = 1, .backward = 2, .work = 6, .latency = 2, .step = 13},
    {.layers = 1, .forward = 1, .backward = 2, .work = 6, .is_compressed = true, .step = 9},
    /* the statistics message outlasts the slice */
    {.layers = 1, .forward = 1, .backward = 2, .work = 6, .message = 10, .step = 13},
    /* the slice is given out at 9, so B ends at 12; the next round opens at 13, its slice at 19 */
    {.layers = 1,
     .forward = 1,
     .backward = 2,
     .work = 6,
     .message = 10,
     .commits_slices = true,
     .step = 10},
    /* no computing, and a free link */
    {.layers = 1, .work = 6, .step = 6},
    {.layers = 4, .forward = 1, .backward = 2, .work = 0, .step = 12},
    /* two layers of 1 + 1: B2 ends at 3, B1 at 4. The first slice has half of its work done when
     * the second begins; they share the link until 6, when the first is there; the second is at 7
     */
    {.layers = 2, .forward = 1, .backward = 1, .work = 2, .step = 7},
    {.layers = 2,
     .forward = 1,
     .backward = 1,
     .work = 2,
     .wait = MSDU__SIM_WAIT_LAYER,
     .commits_slices = true,
     .step = 7},
    /* three layers: B3 ends at 4, and from then on the link has 9 to do without a pause */
    {.layers = 3, .forward = 1, .backward = 1, .work = 3, .step = 13},
    /* gated: both begin at 4 and share the link */
    {.layers = 2, .forward = 1, .backward = 1, .work = 2, .is_gated = true, .step = 8},
    /* 4 local steps of 3, then 8 on the link */
    {.layers = 1, .forward = 1, .backward = 2, .work = 8, .interval = 4, .step = 5},
    /* a step late: the 3 of that step hide, 5 do not */
    {.layers = 1,
     .forward = 1,
     .backward = 2,
     .work = 8,
     .interval = 4,
     .delay = 1,
     .wait = MSDU__SIM_WAIT_LAYER,
     .step = 4.25},
    /* streamed: 4 slices of 10 over 4 steps of 12 on a link that carries 10 in 10 */
    {.layers = 4,
     .forward = 1,
     .backward = 2,
     .work = 10,
     .parts = 4,
     .interval = 4,
     .delay = 1,
     .wait = MSDU__SIM_WAIT_LAYER,
     .step = 12},
};

START_TEST(steps_solved_by_hand)
{
    const hand *h = &hands[_i];
    msdu__sim_result result = {.step_ns = 0};
    if (h->layers > 0) {
        result = run_hand(h, 4, 2);
    }
    ck_assert(!result.is_stuck);
    ck_assert_double_eq_tol(result.step_ns, h->step, EPSILON);
    ck_assert_double_eq_tol(result.wait_ns, h->step - h->layers * (h->forward + h->backward),
                            EPSILON);
}
END_TEST

/* One at a time: 3 .. 5 and 5 .. 7, and F2 would wait for the first of them only. */
START_TEST(a_window_of_one_serves_in_turn)
{
    hand h = {.layers = 2, .forward = 1, .backward = 1, .work = 2, .commits_slices = true};
    h.wait = MSDU__SIM_WAIT_LAYER;
    ck_assert_double_eq_tol(run_hand(&h, 1, 1).step_ns, 7, EPSILON);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("whatif");
    TCase *c = suite_case(suite, "exchange", 30, NULL, NULL);
    suite_table(c, exchanges_cost_what_the_formulas_say, exchanges);
    tcase_add_loop_test(c, more_ranks_never_send_fewer_bytes, 0, MSDU__WHATIF_TOPOLOGIES);
    c = suite_case(suite, "pipeline", 30, NULL, NULL);
    suite_table(c, steps_solved_by_hand, hands);
    tcase_add_test(c, a_window_of_one_serves_in_turn);
    return suite_run(suite);
}
