/* SPDX-License-Identifier: Apache-2.0 */
/* The order of work by list scheduling; pure but for memory. */
#include "order.h"

#include <assert.h>
#include <math.h>

#define NO_RANK UINT32_MAX

/* A stage in a run: what an action takes, and how many of a kind have begun. */
typedef struct stage_state {
    double take_ns[MSDU_STAGES_WEIGHT + 1];
    uint32_t done[MSDU_STAGES_WEIGHT + 1];
    uint32_t holds;
    bool is_split;
} stage_state;

/* What a device has just computed and not yet sent; it has one at most, because it is sent before
 * the next action begins. */
typedef struct letter {
    double ready_ns; /* INFINITY: none */
    uint32_t stage;  /* that it goes to */
    uint32_t micro_batch;
    uint32_t from;
    bool is_forward;
} letter;

typedef struct run_state {
    msdu__stages_order *order;
    const msdu__stages_layout *layout;
    msdu__stages_run *run;
    stage_state stages[MSDU__STAGES_MAX];
    letter letters[MSDU_STAGES_DEVICES_MAX];
    double free_ns[MSDU_STAGES_DEVICES_MAX]; /* by rank */
    int32_t kinds[4];                        /* by rank of need */
    uint32_t left;                           /* actions */
} run_state;

typedef struct choice {
    uint32_t stage;
    int32_t kind;
    double start_ns; /* INFINITY: nothing can start */
} choice;

uint32_t msdu__stages_order_room(const msdu__stages_model *model, uint32_t stages)
{
    return 3 * stages * model->micro_batches;
}

bool msdu__stages_order_make(const msdu__stages_model *model, uint32_t stages,
                             msdu__stages_memory *memory, msdu__stages_order *out)
{
    size_t count = (size_t)stages * model->micro_batches;
    *out = (msdu__stages_order){.m = model,
                                .forward_at = msdu__stages_take(memory, count, sizeof(double)),
                                .backward_at = msdu__stages_take(memory, count, sizeof(double)),
                                .stages = stages};
    return !memory->is_short && msdu__stages_network_make(model, memory, &out->network);
}

static size_t at(const run_state *r, uint32_t stage, uint32_t micro_batch)
{
    return (size_t)stage * r->order->m->micro_batches + micro_batch;
}

static void begin_stage(run_state *r, const msdu__stages_policy *policy, uint32_t s)
{
    const msdu__stages_model *m = r->order->m;
    uint32_t device = r->layout->device[s];
    uint32_t first = r->layout->first[s];
    uint32_t end = r->layout->first[s + 1];
    double backward = msdu__stages_backward(m, device, first, end);
    double weight = msdu__stages_weight(m, device, first, end);
    stage_state *stage = &r->stages[s];
    *stage = (stage_state){.holds = policy->holds[s], .is_split = policy->is_split && s > 0};
    stage->take_ns[MSDU_STAGES_FORWARD] = msdu__stages_forward(m, device, first, end);
    stage->take_ns[MSDU_STAGES_BACKWARD] = backward;
    stage->take_ns[MSDU_STAGES_INPUT] = backward - weight;
    stage->take_ns[MSDU_STAGES_WEIGHT] = weight;
    r->left += m->micro_batches * (stage->is_split ? 3 : 2);
    for (uint32_t i = 0; i < m->micro_batches; i++) {
        r->order->forward_at[at(r, s, i)] = s == 0 ? 0 : (double)INFINITY;
        r->order->backward_at[at(r, s, i)] = (double)INFINITY;
    }
}

static void begin(run_state *r, const msdu__stages_policy *policy)
{
    const int32_t backward[] = {MSDU_STAGES_BACKWARD, MSDU_STAGES_INPUT};
    for (int i = 0; i < 2; i++) {
        r->kinds[policy->is_forward_first ? i + 1 : i] = backward[i];
    }
    r->kinds[policy->is_forward_first ? 0 : 2] = MSDU_STAGES_FORWARD;
    r->kinds[3] = MSDU_STAGES_WEIGHT;
    msdu__stages_network_clear(&r->order->network);
    for (uint32_t s = 0; s < r->layout->count; s++) {
        begin_stage(r, policy, s);
        r->run->held[s] = 0;
    }
    for (uint32_t i = 0; i < r->layout->ranks; i++) {
        r->letters[i].ready_ns = (double)INFINITY;
    }
    r->run->count = 0;
    r->run->step_ns = 0;
}

/* Micro-batches whose activations are there: until the last action that needs them. */
static uint32_t held(const stage_state *stage)
{
    uint32_t gone = stage->done[stage->is_split ? MSDU_STAGES_WEIGHT : MSDU_STAGES_BACKWARD];
    return stage->done[MSDU_STAGES_FORWARD] - gone;
}

/* When the next action of a kind has what it needs, apart from its device; INFINITY: not known. */
static double input_of(const run_state *r, uint32_t s, int32_t kind)
{
    const stage_state *stage = &r->stages[s];
    uint32_t next = stage->done[kind];
    if (next == r->order->m->micro_batches) {
        return (double)INFINITY;
    }
    switch (kind) {
    case MSDU_STAGES_FORWARD:
        return held(stage) < stage->holds ? r->order->forward_at[at(r, s, next)] : (double)INFINITY;
    case MSDU_STAGES_WEIGHT:
        return next < stage->done[MSDU_STAGES_INPUT] ? 0 : (double)INFINITY;
    default:
        return stage->is_split == (kind == MSDU_STAGES_INPUT)
                   ? r->order->backward_at[at(r, s, next)]
                   : (double)INFINITY;
    }
}

static choice choose(const run_state *r)
{
    choice best = {.start_ns = (double)INFINITY};
    for (int k = 0; k < 4; k++) {
        for (uint32_t s = r->layout->count; s-- > 0;) {
            double start = fmax(input_of(r, s, r->kinds[k]), r->free_ns[r->layout->rank[s]]);
            if (start < best.start_ns) {
                best = (choice){s, r->kinds[k], start};
            }
        }
    }
    return best;
}

/* Of stage s; what it computed goes to a neighbor, or is the loss, or nothing goes out. */
static void hand_on(run_state *r, uint32_t s, int32_t kind, uint32_t micro_batch, double end_ns)
{
    bool is_forward = kind == MSDU_STAGES_FORWARD;
    if (is_forward && s + 1 == r->layout->count) {
        r->order->backward_at[at(r, s, micro_batch)] = end_ns;
    } else if (is_forward || (kind != MSDU_STAGES_WEIGHT && s > 0)) {
        letter *l = &r->letters[r->layout->rank[s]];
        assert(l->ready_ns == (double)INFINITY);
        *l = (letter){.ready_ns = end_ns,
                      .stage = is_forward ? s + 1 : s - 1,
                      .micro_batch = micro_batch,
                      .from = s,
                      .is_forward = is_forward};
    }
}

static void act(run_state *r, const choice *c)
{
    stage_state *stage = &r->stages[c->stage];
    uint32_t rank = r->layout->rank[c->stage];
    uint32_t micro_batch = stage->done[c->kind]++;
    double end_ns = c->start_ns + stage->take_ns[c->kind];
    r->run->actions[r->run->count++] = (msdu_stages_action){.stage = c->stage,
                                                            .micro_batch = micro_batch,
                                                            .kind = c->kind,
                                                            .begin_ns = c->start_ns,
                                                            .end_ns = end_ns};
    r->free_ns[rank] = end_ns;
    r->run->step_ns = fmax(r->run->step_ns, end_ns);
    if (c->kind == MSDU_STAGES_FORWARD && held(stage) > r->run->held[c->stage]) {
        r->run->held[c->stage] = held(stage);
    }
    hand_on(r, c->stage, c->kind, micro_batch, end_ns);
    r->left--;
}

static uint32_t first_letter(const run_state *r)
{
    uint32_t first = NO_RANK;
    for (uint32_t i = 0; i < r->layout->ranks; i++) {
        double ready = r->letters[i].ready_ns;
        if (ready < (double)INFINITY && (first == NO_RANK || ready < r->letters[first].ready_ns)) {
            first = i;
        }
    }
    return first;
}

static void post(run_state *r, letter *l)
{
    uint32_t from = r->layout->device[l->from];
    uint32_t to = r->layout->device[l->stage];
    uint32_t boundary = l->is_forward ? l->stage : l->from;
    double bytes = r->order->m->cross[r->layout->first[boundary]];
    double *arrival = l->is_forward ? r->order->forward_at : r->order->backward_at;
    arrival[at(r, l->stage, l->micro_batch)] =
        from == to
            ? l->ready_ns
            : msdu__stages_network_send(&r->order->network, from, to, bytes, l->ready_ns, NULL);
    l->ready_ns = (double)INFINITY;
}

void msdu__stages_order_run(msdu__stages_order *order, const msdu__stages_layout *layout,
                            const msdu__stages_policy *policy, msdu__stages_run *run)
{
    run_state state = {.order = order, .layout = layout, .run = run};
    run_state *r = &state;
    assert(layout->count <= order->stages);
    begin(r, policy);
    while (r->left > 0) {
        /* in the order of time: what is sent before the next start may still change who starts */
        uint32_t first = first_letter(r);
        choice next = choose(r);
        if (first != NO_RANK && r->letters[first].ready_ns <= next.start_ns) {
            post(r, &r->letters[first]);
            continue;
        }
        assert(next.start_ns < (double)INFINITY);
        act(r, &next);
    }
}
