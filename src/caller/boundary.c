/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds by the clock (core/tick.h); the API thread's part. At the end of a step a rank comes to
 * the round that is open, if that is due or will be before the middle of its next step. Else its
 * parameters take what has arrived meanwhile.
 */
#include "caller.h"

#include "core/tick.h"

static msdu__mailbox *box_of(msdu__caller *c)
{
    return &c->hand->fragments[0];
}

void msdu__boundary_run(msdu__caller *c)
{
    if (!c->is_ticking) {
        c->is_ticking = true;
        msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_tick});
        msdu__worker_kick(&c->hand->worker);
    }
}

static bool is_due(msdu__caller *c)
{
    uint64_t half = (uint64_t)(msdu__number_get(&c->hand->reports.step_ns) / 2);
    return msdu__job_now(c->job) + half >= msdu__cell_get(&box_of(c)->tick_ns);
}

/* Come to the open round, unless there is none or its grace is over. */
static bool take_gate(msdu__caller *c)
{
    uint64_t gate = msdu__cell_get(&box_of(c)->gate);
    return (gate & 3U) == MSDU__GATE_OPEN &&
           msdu__cell_change(&box_of(c)->gate, gate, (gate & ~3ULL) + MSDU__GATE_TAKEN);
}

/* All progress since the last contribution. */
static void contribute(msdu__caller *c)
{
    uint64_t round = msdu__cell_get(&box_of(c)->gate) / 4;
    box_of(c)->contributions[(round - 1) & 1] = msdu__caller_contribution(c, 0);
    c->shifted = round - 1; /* the capture takes the shift as well */
    c->sync_mask = 1;
    msdu__caller_arm(c);
    msdu__caller_announce_all(c, MSDU_PARAMETER);
    c->sync_mask = 0;
}

static void take_shift(msdu__caller *c)
{
    c->shifted = msdu__cell_get(&box_of(c)->done);
    msdu__caller_lend(c, 0);
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_shift});
    msdu__worker_kick(&c->hand->worker);
}

msdu_status msdu__boundary(msdu__caller *c)
{
    msdu_status status = msdu__caller_wait_free(c, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__boundary_run(c);
    if (is_due(c) && take_gate(c)) {
        contribute(c);
    } else if (msdu__cell_get(&box_of(c)->done) > c->shifted) {
        take_shift(c);
    }
    return MSDU_OK;
}

/* --- no input --- */

static void set_idle(msdu__caller *c, bool is_idle)
{
    c->is_idle = is_idle;
    msdu__flag_set(&c->hand->reports.is_idle, is_idle);
    msdu__worker_kick(&c->hand->worker);
}

/* Into the next round, whenever that is. */
static msdu_status contribute_rest(msdu__caller *c)
{
    msdu_status status = msdu__caller_wait_free(c, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    while (status == MSDU_OK && !take_gate(c)) {
        uint64_t next = msdu__cell_get(&box_of(c)->gate) / 4 + 1;
        msdu__caller_block(c, &(msdu__ticket){.counter = &box_of(c)->gate,
                                              .value = 4 * next + MSDU__GATE_OPEN,
                                              .what = "the next round by the clock"});
        status = msdu__handover_status(c->hand);
    }
    if (status == MSDU_OK) {
        contribute(c);
        status = msdu__caller_wait_free(c, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    return status;
}

msdu_status msdu__boundary_join(msdu__caller *c)
{
    msdu__boundary_run(c);
    msdu_status status = contribute_rest(c);
    if (status != MSDU_OK) {
        return status;
    }
    set_idle(c, true);
    msdu__caller_block(c, &(msdu__ticket){.counter = &box_of(c)->stopped,
                                          .value = ++c->stops,
                                          .what = "ranks that still have input"});
    c->is_ticking = false;
    status = msdu__handover_status(c->hand);
    if (status == MSDU_OK) {
        take_shift(c);
        status = msdu__caller_wait_free(c, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    set_idle(c, false);
    return status;
}
