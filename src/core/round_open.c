/* SPDX-License-Identifier: Apache-2.0 */
/* Begin of a round. Runs on the communication thread. */
#include "round.h"

#include "domain.h"
#include "kernels.h"
#include "levels.h"

#include <string.h>

void msdu__round_orders(msdu__engine *e)
{
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        e->fragments[i].slice_count = 0;
    }
    uint32_t bound = e->slices_are_whole ? e->model->slice_bound : e->model->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        msdu__fragment *f = msdu__engine_fragment(e, slice);
        f->members[f->slice_count++] = slice;
    }
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        msdu__fragment *f = &e->fragments[i];
        msdu__plan_initial(f->slice_count, f->order.plan);
        f->order.hash = msdu__plan_hash(f->order.plan, f->slice_count);
    }
}

void msdu__round_enter_local(msdu__engine *e)
{
    msdu__domain_anchor(e);
    msdu__levels_set(e, true);
    e->slices_are_whole = false;
    msdu__round_orders(e);
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        msdu__engine_release(e, slice, MSDU_PARAMETER);
    }
}

void msdu__round_open(msdu__engine *e, uint32_t fragment)
{
    msdu__fragment *f = &e->fragments[fragment];
    f->round = msdu__engine_mailbox(e, f)->rounds[f->opened & 1];
    f->opened++;
    f->state = MSDU__FRAGMENT_OPEN;
    f->may_apply = f->round.delay_steps == 0;
    f->captured = f->issued = f->reduced = 0;
    f->sums = (msdu__sums){0};
    f->bad_tensor = 0;
    f->is_skipped = f->is_propagated = f->is_void = false;
    f->scale = 1;
    f->residual_sq = f->mean_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    f->bytes = 0;
    f->control.is_issued = f->control.is_done = false;
    f->is_marked = f->is_applied = false;
    f->opened_ns = msdu__engine_now(e);
    f->queue_begin = e->queue.tail;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        uint32_t slice = f->members[f->order.plan[i]];
        e->runs[slice].state = MSDU__RUN_OPEN;
        msdu__domain_forget_sums(e, slice);
        e->queue.slices[e->queue.tail++ & e->queue.mask] = slice;
    }
    e->active[e->active_count++] = fragment;
}

bool msdu__round_kernels_done(msdu__engine *e, msdu__fragment *f)
{
    if (!f->is_marked) {
        f->mark = msdu__kernels_mark(e);
        f->is_marked = true;
    }
    f->is_marked = !msdu__kernels_reached(e, f->mark);
    return !f->is_marked;
}
