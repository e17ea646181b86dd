/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank without input: it goes through the steps of the others with weight 0, and knows from their
 * control messages when no rank has any input left. Runs on the owner.
 *
 * All ranks stop after the same step: whoever is in here waits, after a step in which ranks met,
 * for the messages of that meeting, and all of them say the same on all ranks.
 */
#include "caller.h"

/* The present step with nothing in it; *are_all_out to true if no rank had input for it. */
static msdu_status take_empty_step(msdu__pipeline *p, bool *are_all_out)
{
    uint32_t met = p->sync_mask;
    uint32_t parity[MSDU__FRAGMENTS_MAX] = {0};
    uint64_t armed[MSDU__FRAGMENTS_MAX] = {0};
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        armed[i] = p->fragments[i].armed;
        parity[i] = (uint32_t)(armed[i] - 1) & 1;
    }
    msdu_status status = msdu__step_end(p);
    for (uint32_t i = 0; i < p->fragment_count && status == MSDU_OK; i++) {
        const msdu__fragment *f = &p->fragments[i];
        if ((met >> i & 1U) != 0) {
            *are_all_out = msdu__handoff_hear(p, f, armed[i]) && f->are_all_absent[parity[i]];
            status = msdu__pipeline_status(p);
        }
    }
    return status;
}

static void set_absent(msdu__pipeline *p, bool is_absent)
{
    p->is_absent = is_absent;
    msdu__step_weigh(p);
}

msdu_status msdu__join_run(msdu__pipeline *p)
{
    bool are_all_out = false;
    msdu_status status = MSDU_OK;
    p->reached = p->step;
    set_absent(p, true);
    while (status == MSDU_OK && !are_all_out) {
        status = take_empty_step(p, &are_all_out);
    }
    if (status == MSDU_OK && (p->is_gradient || p->is_accumulated)) {
        status = msdu__final_catch_up(p);
    }
    p->is_deferred = false; /* no gradient of the step before is owed to anybody */
    set_absent(p, false);
    return status;
}
