/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a plan: layouts and orders, all simulated; pure but for memory. */
#include "search.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "vee.h"

/* How much slower than the smallest bottleneck a layout may be for a smaller fill. */
static const double slacks[] = {1, 1.03, 1.08, 1.15, 1.3, 1.6, 2, (double)INFINITY};
/* How much more than 1F1B a stage holds: e. */
static const double eagernesses[MSDU__SEARCH_ORDERS] = {0, 1, 2, 4, 6, 10, 16, (double)INFINITY};

typedef struct search_state {
    const msdu__stages_model *m;
    msdu__stages_memory *memory;
    msdu__stages_order order;
    msdu__stages_run tried;
    msdu__search_answer *out;
    msdu__stages_layout layouts[MSDU__SEARCH_LAYOUTS];
    uint32_t count;
    double least_step; /* that no order can beat, where stages hold one micro-batch at least */
} search_state;

/* --- layouts --- */

static bool are_equal(const msdu__stages_layout *a, const msdu__stages_layout *b)
{
    return a->count == b->count && memcmp(a->device, b->device, a->count * sizeof(uint32_t)) == 0 &&
           memcmp(a->first, b->first, (a->count + 1) * sizeof(uint32_t)) == 0;
}

/* The layout in the next place, if it is not one of those before. */
static void keep_layout(search_state *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (are_equal(&s->layouts[i], &s->layouts[s->count])) {
            return;
        }
    }
    s->count++;
    assert(s->count < MSDU__SEARCH_LAYOUTS); /* there is a next place */
}

/* The layout of the smallest step, as far as a way counts; false: nothing fits. */
static bool add_step(search_state *s, msdu__split *split, msdu__split_way way)
{
    double step = msdu__split_step(split, way, &s->layouts[s->count]);
    if (step == (double)INFINITY) {
        return false;
    }
    keep_layout(s);
    s->least_step = split->is_frugal ? fmax(s->least_step, step) : s->least_step;
    return true;
}

static void add_layouts(search_state *s, msdu__split *split)
{
    bool may_split = (s->m->may & MSDU_STAGES_SPLIT) != 0;
    if (!add_step(s, split, may_split ? MSDU__SPLIT_THERE : MSDU__SPLIT_WHOLE)) {
        return;
    }
    if (may_split) {
        (void)add_step(s, split, MSDU__SPLIT_INPUTS);
    }
    double beta = msdu__split_bottleneck(split, &s->layouts[s->count]);
    keep_layout(s);
    for (size_t i = 0; i < sizeof(slacks) / sizeof(slacks[0]); i++) {
        if (msdu__split_fill(split, slacks[i] * beta, &s->layouts[s->count]) < (double)INFINITY) {
            keep_layout(s);
        }
    }
}

/* Can the layouts hold what 1F1B holds? Then those that must be able to are the same ones. */
static bool has_room_for_1f1b(const search_state *s)
{
    uint32_t holds[MSDU__STAGES_MAX];
    for (uint32_t i = 0; i < s->count; i++) {
        const msdu__stages_layout *layout = &s->layouts[i];
        bool is_held = msdu__search_holds(s->m, layout, 0, holds);
        for (uint32_t stage = 0; stage < layout->count; stage++) {
            double wanted = fmin(layout->count - stage, s->m->micro_batches);
            if (!is_held || holds[stage] < wanted) {
                return false;
            }
        }
    }
    return true;
}

static bool same_devices(const msdu__stages_layout *a, const msdu__stages_layout *b)
{
    return a->count == b->count && memcmp(a->device, b->device, a->count * sizeof(uint32_t)) == 0;
}

/* A V with the devices of each layout, in its order. */
static void add_vees(search_state *s)
{
    uint32_t plain = s->count;
    size_t room = msdu__stages_vee_room(s->m, s->m->devices);
    uint32_t *work = msdu__stages_take(s->memory, room, sizeof(*work));
    for (uint32_t i = 0; work != NULL && i < plain && s->count + 1 < MSDU__SEARCH_LAYOUTS; i++) {
        bool is_new = s->layouts[i].count > 1;
        for (uint32_t j = 0; j < i; j++) {
            is_new = is_new && !same_devices(&s->layouts[i], &s->layouts[j]);
        }
        if (is_new && msdu__stages_vee(s->m, &s->layouts[i], work, &s->layouts[s->count])) {
            keep_layout(s);
        }
    }
}

/* --- orders --- */

double msdu__search_stage_bytes(const msdu__stages_model *model, const msdu__stages_layout *layout,
                                uint32_t stage, double holds)
{
    return msdu__stages_bytes(model, layout->first[stage], layout->first[stage + 1], holds);
}

/* Of a rank's memory: what its stages leave if each holds one micro-batch, and what one more of
 * each of them takes. */
static void measure_rank(const msdu__stages_model *m, const msdu__stages_layout *layout,
                         uint32_t rank, double *left, double *more)
{
    *more = 0;
    for (uint32_t s = 0; s < layout->count; s++) {
        if (layout->rank[s] == rank) {
            double one = msdu__search_stage_bytes(m, layout, s, 1);
            *more += one - msdu__search_stage_bytes(m, layout, s, 0);
            *left -= one;
        }
    }
}

bool msdu__search_holds(const msdu__stages_model *model, const msdu__stages_layout *layout,
                        double eagerness, uint32_t *holds_out)
{
    for (uint32_t s = 0; s < layout->count; s++) {
        double more = 0;
        double left = model->memory[layout->device[s]];
        double wanted = ceil((layout->count - s) * (1 + eagerness / layout->count));
        measure_rank(model, layout, layout->rank[s], &left, &more);
        if (left < 0) {
            return false;
        }
        double most = more > 0 ? floor(1 + left / more) : (double)INFINITY;
        wanted = fmin(wanted, fmin(most, model->micro_batches));
        holds_out[s] = (uint32_t)wanted;
    }
    return true;
}

static void try_order(search_state *s, const msdu__stages_layout *layout,
                      const msdu__stages_policy *policy)
{
    msdu__search_answer *best = s->out;
    msdu__stages_order_run(&s->order, layout, policy, &s->tried);
    if (best->run.count > 0 && s->tried.step_ns >= best->run.step_ns) {
        return;
    }
    msdu__stages_run worse = best->run;
    best->run = s->tried;
    best->layout = *layout;
    worse.count = 0;
    s->tried = worse;
}

static void try_layout(search_state *s, const msdu__stages_layout *layout)
{
    int ways = (s->m->may & MSDU_STAGES_SPLIT) != 0 ? 4 : 2;
    msdu__stages_policy policy = {.is_split = false};
    for (int e = 0; e < MSDU__SEARCH_ORDERS; e++) {
        if (!msdu__search_holds(s->m, layout, eagernesses[e], policy.holds)) {
            return;
        }
        for (int way = 0; way < ways; way++) {
            policy.is_forward_first = way % 2 == 1;
            policy.is_split = way >= 2;
            try_order(s, layout, &policy);
        }
    }
}

/* --- the bound --- */

/* Whatever device has whatever part of each layer. For any shares y of devices that add up to 1,
 * a step takes at least the sum over layers of min over d of y_d c[d][l] (duality of the linear
 * program); with y in proportion to speed it is sum c / sum v where devices differ by a factor. */
static double shared_ideally(const msdu__stages_model *m)
{
    double share[MSDU_STAGES_DEVICES_MAX];
    double sum = 0;
    double ideal = 0;
    for (uint32_t d = 0; d < m->devices; d++) {
        double whole =
            msdu__stages_forward(m, d, 0, m->layers) + msdu__stages_backward(m, d, 0, m->layers);
        share[d] = 1 / whole;
        sum += share[d];
    }
    for (uint32_t l = 0; l < m->layers; l++) {
        double least = (double)INFINITY;
        for (uint32_t d = 0; d < m->devices; d++) {
            double layer =
                msdu__stages_forward(m, d, l, l + 1) + msdu__stages_backward(m, d, l, l + 1);
            least = fmin(least, share[d] / sum * layer);
        }
        ideal += least;
    }
    return ideal;
}

/* A micro-batch alone, every layer where it is fastest, and messages take no time. If backward
 * passes are split, gradients of weights need not be waited for. */
static double shortest_way(const msdu__stages_model *m)
{
    double sum = 0;
    for (uint32_t l = 0; l < m->layers; l++) {
        double least = (double)INFINITY;
        for (uint32_t d = 0; d < m->devices; d++) {
            bool is_split = (m->may & MSDU_STAGES_SPLIT) != 0;
            double aside = is_split ? msdu__stages_weight(m, d, l, l + 1) : 0;
            least = fmin(least, msdu__stages_forward(m, d, l, l + 1) +
                                    msdu__stages_backward(m, d, l, l + 1) - aside);
        }
        sum += least;
    }
    return sum;
}

/* With two stages a device, one of them may be anywhere: only computing counts. */
static double bound_of(const search_state *s)
{
    const msdu__stages_model *m = s->m;
    if ((m->may & MSDU_STAGES_TWO) != 0) {
        return fmax(m->micro_batches * shared_ideally(m), shortest_way(m));
    }
    return s->least_step;
}

/* --- all together --- */

static bool make_room(search_state *s)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < s->count; i++) {
        most = s->layouts[i].count > most ? s->layouts[i].count : most;
    }
    size_t room = msdu__stages_order_room(s->m, most);
    s->tried.actions = msdu__stages_take(s->memory, room, sizeof(msdu_stages_action));
    s->out->run.actions = msdu__stages_take(s->memory, room, sizeof(msdu_stages_action));
    return !s->memory->is_short && msdu__stages_order_make(s->m, most, s->memory, &s->order);
}

msdu__search_outcome msdu__search(const msdu__stages_model *model, msdu__stages_memory *memory,
                                  msdu__search_answer *out)
{
    search_state *s = msdu__stages_take(memory, 1, sizeof(*s));
    msdu__split split;
    *out = (msdu__search_answer){.bound_ns = 0};
    if (s == NULL) {
        return MSDU__SEARCH_SHORT;
    }
    *s = (search_state){.m = model, .memory = memory, .out = out};
    msdu__split_outcome made = msdu__split_make(model, true, memory, &split);
    if (made != MSDU__SPLIT_OK) {
        return made == MSDU__SPLIT_SHORT ? MSDU__SEARCH_SHORT : MSDU__SEARCH_TOO_MANY;
    }
    split.is_frugal = true;
    add_layouts(s, &split);
    if (s->count == 0) {
        return MSDU__SEARCH_NONE;
    }
    if (!has_room_for_1f1b(s)) {
        split.is_frugal = false;
        add_layouts(s, &split);
    }
    if ((model->may & MSDU_STAGES_TWO) != 0) {
        add_vees(s);
    }
    if (memory->is_short || !make_room(s)) {
        return MSDU__SEARCH_SHORT;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        try_layout(s, &s->layouts[i]);
    }
    out->bound_ns = bound_of(s);
    out->beta_ns = msdu__stages_beta(model, &out->layout);
    return MSDU__SEARCH_OK;
}
