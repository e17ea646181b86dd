/* SPDX-License-Identifier: Apache-2.0 */
/* What torch's own schedules would take; pure but for memory. */
#include "compare.h"

#include <math.h>

#include "programs.h"

typedef void (*program)(msdu__replay *replay);

bool msdu__stages_equal(const msdu__stages_model *model, msdu__stages_layout *out)
{
    if (model->layers < model->devices) {
        return false;
    }
    out->count = model->devices;
    out->ranks = model->devices;
    for (uint32_t s = 0; s <= model->devices; s++) {
        uint32_t more = model->layers % model->devices; /* stages with a layer more come first */
        out->first[s] = s * (model->layers / model->devices) + (s < more ? s : more);
    }
    for (uint32_t s = 0; s < model->devices; s++) {
        out->device[s] = s;
        out->rank[s] = s;
    }
    return true;
}

static bool fits(const msdu__stages_model *m, const msdu__stages_layout *layout, bool holds_all)
{
    for (uint32_t s = 0; s < layout->count; s++) {
        double holds = holds_all ? m->micro_batches : fmin(layout->count - s, m->micro_batches);
        if (msdu__stages_bytes(m, layout->first[s], layout->first[s + 1], holds) >
            m->memory[layout->device[s]]) {
            return false;
        }
    }
    return true;
}

static double time_of(const msdu__stages_model *m, const msdu__stages_layout *layout,
                      msdu__replay *replay, program write)
{
    bool is_gpipe = write == msdu__programs_gpipe;
    if (!fits(m, layout, is_gpipe) || (!is_gpipe && m->micro_batches < layout->count)) {
        return 0;
    }
    msdu__replay_clear(replay, layout);
    write(replay);
    double step_ns = msdu__replay_run(replay);
    return step_ns < (double)INFINITY ? step_ns : 0;
}

bool msdu__stages_compare(const msdu__stages_model *model, const msdu__stages_layout *layout,
                          msdu_stages_torch *out)
{
    msdu__stages_memory memory = {.count = 0};
    msdu__stages_layout equal;
    msdu__replay *replay = msdu__stages_take(&memory, 1, sizeof(*replay));
    bool is_made = replay != NULL &&
                   msdu__replay_make(model, model->devices, model->devices, 1, &memory, replay);
    *out = (msdu_stages_torch){.equal_1f1b_ns = 0};
    if (is_made && msdu__stages_equal(model, &equal)) {
        out->equal_1f1b_ns = time_of(model, &equal, replay, msdu__programs_1f1b);
        out->equal_gpipe_ns = time_of(model, &equal, replay, msdu__programs_gpipe);
    }
    if (is_made && layout->count == layout->ranks) {
        out->cuts_1f1b_ns = time_of(model, layout, replay, msdu__programs_1f1b);
        out->cuts_gpipe_ns = time_of(model, layout, replay, msdu__programs_gpipe);
    }
    msdu__stages_give_back(&memory);
    return is_made;
}
