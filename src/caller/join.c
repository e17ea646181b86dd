/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank without input: it goes through the steps of the others with weight 0, and knows from their
 * statistics messages when no rank has any input left. Runs on the API thread.
 *
 * All ranks stop after the same step: whoever is in here waits, after a step in which ranks met,
 * for the messages of that round, and all of them say the same on all ranks.
 */
#include "caller.h"

/* The present step with nothing in it; *are_all_out to true if no rank had input for it. */
static msdu_status take_empty_step(msdu__caller *c, bool *are_all_out)
{
    uint32_t met = c->sync_mask;
    uint64_t armed[MSDU__FRAGMENTS_MAX] = {0};
    for (uint32_t i = 0; i < c->model->fragment_count; i++) {
        armed[i] = c->schedules[i].armed;
    }
    msdu_status status = msdu__inner_step(c);
    for (uint32_t i = 0; i < c->model->fragment_count && status == MSDU_OK; i++) {
        const msdu__answer *answer = &c->hand->fragments[i].answers[(armed[i] - 1) & 1];
        if ((met >> i & 1U) != 0) {
            *are_all_out = msdu__caller_hear(c, i, armed[i]) && answer->are_all_idle;
            status = msdu__handover_status(c->hand);
        }
    }
    return status;
}

static void set_idle(msdu__caller *c, bool is_idle)
{
    c->is_idle = is_idle;
    msdu__flag_set(&c->hand->reports.is_idle, is_idle);
    msdu__step_weigh(c);
    if (c->inner != NULL) {
        c->inner->is_idle = is_idle;
        c->inner->reached = c->inner->step;
        msdu__flag_set(&c->inner->hand->reports.is_idle, is_idle);
        msdu__inner_weigh(c);
    }
}

msdu_status msdu__join_run(msdu__caller *c)
{
    if (c->is_clocked) {
        return msdu__boundary_join(c);
    }
    bool are_all_out = false;
    msdu_status status = MSDU_OK;
    c->reached = c->step;
    set_idle(c, true);
    while (status == MSDU_OK && !are_all_out) {
        status = take_empty_step(c, &are_all_out);
    }
    if (status == MSDU_OK && (c->is_gradient || c->job->is_accumulated)) {
        status = msdu__average_catch_up(c);
    } else if (status == MSDU_OK && c->job->levels.is_on && c->job->starts_gradients) {
        status = msdu__inner_catch_up(c);
    }
    c->is_deferred = false; /* no gradient of the step before is owed to anybody */
    set_idle(c, false);
    return status;
}
