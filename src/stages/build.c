/* SPDX-License-Identifier: Apache-2.0 */
/* A plan for the caller; pure but for memory. */
#include "build.h"

#include "compare.h"
#include "lower.h"

typedef struct parts {
    msdu_stages_stage *stages;
    msdu_stages_action *actions;
    uint32_t *rank_begin;
    msdu_stages_action *lowered;
    uint32_t *lowered_begin;
} parts;

static void set_stages(const msdu__stages_model *m, const msdu__search_answer *a, parts *p)
{
    for (uint32_t s = 0; s < a->layout.count; s++) {
        p->stages[s] = (msdu_stages_stage){
            .device = a->layout.device[s],
            .rank = a->layout.rank[s],
            .first = a->layout.first[s],
            .end = a->layout.first[s + 1],
            .holds = a->run.held[s],
            .memory_bytes = msdu__search_stage_bytes(m, &a->layout, s, a->run.held[s]),
        };
    }
    for (uint32_t i = 0; i < a->run.count; i++) {
        const msdu_stages_action *action = &a->run.actions[i];
        p->stages[action->stage].busy_ns += action->end_ns - action->begin_ns;
    }
}

/* The run's actions are in the order of time; those of a rank stay so. */
static void group_actions(const msdu__search_answer *a, parts *p)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < a->layout.ranks; r++) {
        p->rank_begin[r] = count;
        for (uint32_t i = 0; i < a->run.count; i++) {
            if (a->layout.rank[a->run.actions[i].stage] == r) {
                p->actions[count++] = a->run.actions[i];
            }
        }
    }
    p->rank_begin[a->layout.ranks] = count;
}

static bool take_parts(const msdu__search_answer *a, msdu__stages_memory *memory, parts *p)
{
    p->stages = msdu__stages_take(memory, a->layout.count, sizeof(*p->stages));
    p->actions = msdu__stages_take(memory, a->run.count, sizeof(*p->actions));
    p->rank_begin = msdu__stages_take(memory, a->layout.ranks + 1, sizeof(uint32_t));
    p->lowered_begin = msdu__stages_take(memory, a->layout.ranks + 1, sizeof(uint32_t));
    return !memory->is_short;
}

static bool lower(const msdu__stages_model *m, const msdu__search_answer *a, uint32_t ahead,
                  msdu__stages_memory *memory, parts *p)
{
    msdu__stages_memory work = {.count = 0};
    msdu__stages_lowering lowering = {.layout = &a->layout,
                                      .micro_batches = m->micro_batches,
                                      .actions = p->actions,
                                      .rank_begin = p->rank_begin,
                                      .ahead = ahead};
    uint32_t count = msdu__stages_lower_count(&lowering);
    p->lowered = msdu__stages_take(memory, count, sizeof(*p->lowered));
    bool is_done =
        p->lowered != NULL && msdu__stages_lower(&lowering, &work, p->lowered, p->lowered_begin);
    msdu__stages_give_back(&work);
    return is_done;
}

static bool fill(const msdu__stages_model *m, const msdu__search_answer *a, uint32_t ahead,
                 msdu__stages_made *made)
{
    parts p;
    if (!take_parts(a, &made->memory, &p)) {
        return false;
    }
    set_stages(m, a, &p);
    group_actions(a, &p);
    if (!lower(m, a, ahead, &made->memory, &p)) {
        return false;
    }
    made->plan = (msdu_stages){.size = sizeof(made->plan),
                               .stage_count = a->layout.count,
                               .rank_count = a->layout.ranks,
                               .micro_batches = m->micro_batches,
                               .stages = p.stages,
                               .actions = p.actions,
                               .rank_begin = p.rank_begin,
                               .lowered = p.lowered,
                               .lowered_begin = p.lowered_begin,
                               .step_ns = a->run.step_ns,
                               .bound_ns = a->bound_ns,
                               .beta_ns = a->beta_ns};
    return msdu__stages_compare(m, &a->layout, &made->plan.torch);
}

msdu__stages_made *msdu__stages_build(const msdu__stages_model *model,
                                      const msdu__search_answer *answer, uint32_t ahead)
{
    msdu__stages_memory memory = {.count = 0};
    msdu__stages_made *made = msdu__stages_take(&memory, 1, sizeof(*made));
    if (made == NULL) {
        return NULL;
    }
    made->memory = memory;
    if (!fill(model, answer, ahead, made)) {
        msdu__stages_unbuild(made);
        return NULL;
    }
    return made;
}

void msdu__stages_unbuild(msdu__stages_made *made)
{
    if (made != NULL) {
        msdu__stages_memory memory = made->memory;
        msdu__stages_give_back(&memory);
    }
}
