/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of before, under new times; pure but for memory. */
#include "given.h"

#include <math.h>

#include "programs.h"

/* Actions of a stage and micro-batch that have been met. */
enum { MET_FORWARD = 1, MET_BACKWARD = 2, MET_INPUT = 4, MET_WEIGHT = 8 };

typedef struct walk {
    const msdu__stages_model *m;
    const msdu_stages *plan;
    const msdu__stages_layout *layout;
    uint8_t *met; /* stages x M */
} walk;

static bool read_layout(const msdu__stages_model *m, const msdu_stages *plan,
                        msdu__stages_layout *out)
{
    uint32_t layer = 0;
    if (plan->stage_count == 0 || plan->stage_count > MSDU__STAGES_MAX || plan->rank_count == 0 ||
        plan->rank_count > m->devices) {
        return false;
    }
    *out = (msdu__stages_layout){.count = plan->stage_count, .ranks = plan->rank_count};
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const msdu_stages_stage *stage = &plan->stages[s];
        if (stage->first != layer || stage->end <= layer || stage->end > m->layers ||
            stage->device >= m->devices || stage->rank >= plan->rank_count) {
            return false;
        }
        layer = stage->end;
        out->device[s] = stage->device;
        out->rank[s] = stage->rank;
        out->first[s + 1] = layer;
    }
    return layer == m->layers;
}

static bool has_links(const msdu__stages_model *m, const msdu__stages_layout *layout)
{
    for (uint32_t s = 0; s + 1 < layout->count; s++) {
        double bytes = m->cross[layout->first[s + 1]];
        if (layout->rank[s] != layout->rank[s + 1] &&
            msdu__stages_link(m, layout->device[s], layout->device[s + 1], bytes) ==
                (double)INFINITY) {
            return false;
        }
    }
    return true;
}

static uint8_t met(const walk *w, uint32_t stage, uint32_t micro_batch)
{
    return w->met[(size_t)stage * w->m->micro_batches + micro_batch];
}

/* What must have been met before on the same rank: a neighbor's result that is handed over there.
 */
static bool has_neighbor(const walk *w, const msdu_stages_action *a)
{
    const uint32_t *rank = w->layout->rank;
    if (a->kind == MSDU_STAGES_FORWARD && a->stage > 0 && rank[a->stage - 1] == rank[a->stage]) {
        return (met(w, a->stage - 1, a->micro_batch) & MET_FORWARD) != 0;
    }
    if ((a->kind == MSDU_STAGES_BACKWARD || a->kind == MSDU_STAGES_INPUT) &&
        a->stage + 1 < w->layout->count && rank[a->stage + 1] == rank[a->stage]) {
        return (met(w, a->stage + 1, a->micro_batch) & (MET_BACKWARD | MET_INPUT)) != 0;
    }
    return true;
}

static bool meet(const walk *w, uint32_t rank, const msdu_stages_action *a)
{
    static const uint8_t before[] = {0, MET_FORWARD, MET_FORWARD, MET_FORWARD | MET_INPUT};
    if (a->stage >= w->layout->count || a->micro_batch >= w->m->micro_batches || a->kind < 0 ||
        a->kind > MSDU_STAGES_WEIGHT || w->layout->rank[a->stage] != rank ||
        met(w, a->stage, a->micro_batch) != before[a->kind] || !has_neighbor(w, a)) {
        return false;
    }
    w->met[(size_t)a->stage * w->m->micro_batches + a->micro_batch] |= (uint8_t)(1U << a->kind);
    return true;
}

/* All actions in their order on each rank; false, with its number: one is wrong. Ranks stand in
 * the order of neighbors on them only, so each is walked by itself. */
static bool meet_all(const walk *w, uint32_t *action_out)
{
    const msdu_stages *p = w->plan;
    for (uint32_t r = 0; r < p->rank_count; r++) {
        for (uint32_t i = p->rank_begin[r]; i < p->rank_begin[r + 1]; i++) {
            *action_out = i;
            if (!meet(w, r, &p->actions[i])) {
                return false;
            }
        }
    }
    for (uint32_t s = 0; s < w->layout->count; s++) {
        for (uint32_t i = 0; i < w->m->micro_batches; i++) {
            uint8_t all = met(w, s, i);
            *action_out = p->rank_begin[p->rank_count];
            if (all != (MET_FORWARD | MET_BACKWARD) &&
                all != (MET_FORWARD | MET_INPUT | MET_WEIGHT)) {
                return false;
            }
        }
    }
    return true;
}

static uint32_t most_on_one(const msdu__stages_layout *layout)
{
    uint32_t on[MSDU_STAGES_DEVICES_MAX] = {0};
    uint32_t most = 0;
    for (uint32_t s = 0; s < layout->count; s++) {
        uint32_t count = ++on[layout->rank[s]];
        most = count > most ? count : most;
    }
    return most;
}

static msdu__given_outcome time_of(const walk *w, msdu__stages_memory *memory, double *step_ns_out)
{
    msdu__replay *replay = msdu__stages_take(memory, 1, sizeof(*replay));
    if (replay == NULL || !msdu__replay_make(w->m, w->layout->count, w->layout->ranks,
                                             most_on_one(w->layout), memory, replay)) {
        return MSDU__GIVEN_SHORT;
    }
    msdu__replay_clear(replay, w->layout);
    msdu__programs_given(replay, w->plan->actions, w->plan->rank_begin);
    double step_ns = msdu__replay_run(replay);
    if (step_ns == (double)INFINITY) {
        return MSDU__GIVEN_FOREVER;
    }
    *step_ns_out = step_ns;
    return MSDU__GIVEN_OK;
}

msdu__given_outcome msdu__given_time(const msdu__stages_model *model, const msdu_stages *plan,
                                     double *step_ns_out, uint32_t *action_out)
{
    msdu__stages_memory memory = {.count = 0};
    msdu__stages_layout layout;
    walk w = {.m = model, .plan = plan, .layout = &layout};
    msdu__given_outcome outcome = MSDU__GIVEN_OK;
    if (!read_layout(model, plan, &layout)) {
        return MSDU__GIVEN_LAYOUT;
    }
    if (!has_links(model, &layout)) {
        return MSDU__GIVEN_LINK;
    }
    w.met = msdu__stages_take(&memory, (size_t)layout.count * model->micro_batches, 1);
    if (w.met == NULL) {
        outcome = MSDU__GIVEN_SHORT;
    } else if (!meet_all(&w, action_out)) {
        outcome = MSDU__GIVEN_ACTION;
    } else {
        outcome = time_of(&w, &memory, step_ns_out);
    }
    msdu__stages_give_back(&memory);
    return outcome;
}
