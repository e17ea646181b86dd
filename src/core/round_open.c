/* SPDX-License-Identifier: Apache-2.0 */
/* Begin of a round. Runs on the communication thread. */
#include "pipeline.h"

#include <string.h>

void msdu__round_orders(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].slice_count = 0;
    }
    uint32_t bound = p->slices_are_whole ? p->slice_bound : p->slicing.slice_count;
    for (uint32_t slice = 0; slice < bound; slice++) {
        msdu__fragment *f = &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)];
        f->members[f->slice_count++] = slice;
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        msdu__plan_initial(f->slice_count, f->plan);
        f->plan_hash = msdu__plan_hash(f->plan, f->slice_count);
    }
}

void msdu__round_enter_local(msdu__pipeline *p)
{
    msdu__domain_anchor(p);
    p->slices_are_whole = false;
    msdu__round_orders(p);
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        msdu__pipeline_release(p, slice, MSDU_PARAMETER);
    }
}

void msdu__round_open(msdu__pipeline *p, uint32_t fragment)
{
    msdu__fragment *f = &p->fragments[fragment];
    f->round = f->rounds[f->opened & 1];
    f->opened++;
    f->state = MSDU__FRAGMENT_OPEN;
    f->may_apply = f->round.delay_steps == 0;
    f->captured = f->issued = f->reduced = 0;
    f->sums = (msdu__sums){0};
    f->bad_tensor = 0;
    f->is_skipped = f->is_passed = f->is_void = false;
    f->scale = 1;
    f->residual_sq = f->mean_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    f->bytes = 0;
    f->is_control_issued = f->is_control_done = false;
    f->is_marked = f->is_applied = false;
    f->opened_ns = msdu__pipeline_now(p);
    f->queue_begin = p->queue_tail;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        uint32_t slice = f->members[f->plan[i]];
        p->runs[slice].state = MSDU__RUN_OPEN;
        msdu__domain_forget_sums(p, slice);
        p->queue[p->queue_tail++ & p->queue_mask] = slice;
    }
    p->active[p->active_count++] = fragment;
}

bool msdu__round_passes_done(msdu__pipeline *p, msdu__fragment *f)
{
    if (!f->is_marked) {
        f->mark = msdu__kernels_mark(p);
        f->is_marked = true;
    }
    f->is_marked = !msdu__kernels_reached(p, f->mark);
    return !f->is_marked;
}
