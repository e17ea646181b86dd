/* SPDX-License-Identifier: Apache-2.0 */
/* Renewal of the plan: rank 0 measures and simulates, all ranks take its order. Runs on the
 * communication thread. */
#include "pipeline.h"

#include <string.h>

#define PLAN_EVERY    8      /* rounds between looks at the plan */
#define PLAN_FLOOR_NS 100000 /* gains below 0.1 ms do not pay for a new plan */

void msdu__replan_note(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    /* not the present step's: without a barrier, a round ends when the next step is under way */
    uint64_t start = f->round.began_ns;
    double ready = run->times.ready_ns > start ? (double)(run->times.ready_ns - start) : 0.0;
    double link = (double)(run->times.done_ns - run->times.issued_ns);
    double weight = f->opened <= 1 ? 1.0 : MSDU__SMOOTH;
    run->wait_ns += weight * (ready - run->wait_ns);
    run->link_ns += weight * (link - run->link_ns);
}

/* Rank 0: the best order by measurement, into out. Returns its simulated end; *present_out that of
 * the order in use. */
static uint64_t best_plan(msdu__pipeline *p, const msdu__fragment *f, uint32_t *out,
                          uint64_t *present_out)
{
    uint32_t window = p->tuning.window;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        uint32_t slice = f->members[i];
        p->plan_items[i] = (msdu__plan_item){
            .ready_ns = (uint64_t)p->runs[slice].wait_ns,
            .cost_ns = (uint64_t)(p->runs[slice].link_ns / (double)window),
            .priority = p->slicing.slices[slice].priority,
        };
    }
    *present_out = msdu__plan_cost(p->plan_items, f->slice_count, f->plan);
    uint64_t best = msdu__plan_simulate(p->plan_items, f->slice_count, window, out, p->plan_marks);
    if (p->settings.commit_tensor == 0) {
        return best; /* all wait for the last one: only the end counts */
    }
    *present_out = msdu__plan_need(p->plan_items, f->slice_count, f->plan, p->plan_ends);
    return msdu__plan_need(p->plan_items, f->slice_count, out, p->plan_ends);
}

static void send_plan(msdu__pipeline *p, msdu__fragment *f)
{
    uint64_t present = 0;
    if (p->rank == 0) {
        best_plan(p, f, f->plan_next, &present);
        f->wants_plan = false;
    }
    msdu_op op = {
        .kind = MSDU_OP_BROADCAST,
        .count = f->slice_count * sizeof(*f->plan_next),
        .recv = f->plan_next,
    };
    f->plan_issued_ns = msdu__pipeline_now(p);
    msdu_status status = msdu__pipeline_start(p, &op, msdu__control_lane(p) + 1, &f->plan_req);
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
}

void msdu__replan_review(msdu__pipeline *p, msdu__fragment *f)
{
    if (p->fragment_count > 1 && (p->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0) {
        return; /* a plan leaves when a round ends, which is no place in one order over fragments */
    }
    if (f->control[0].wants_plan > 0) {
        send_plan(p, f);
        return;
    }
    /* A trainer that waits for each gradient before it computes the next needs them in its order:
     * no estimate of times may put one of the next before the rest of this one. */
    if (p->rank != 0 || f->opened % PLAN_EVERY != PLAN_EVERY / 2 ||
        atomic_load(&p->is_sequential)) {
        return;
    }
    uint64_t present = 0;
    uint64_t best = best_plan(p, f, f->plan_next, &present);
    f->wants_plan = msdu__plan_is_stale(present, best, PLAN_FLOOR_NS);
}

void msdu__replan_take(msdu__pipeline *p, msdu__fragment *f)
{
    if (!msdu__plan_is_valid(f->plan_next, f->slice_count, p->plan_marks)) {
        msdu__fail(MSDU_ERR_MISMATCH,
                   "rank %d: rank 0's plan is not an order of this rank's slices", p->rank);
        msdu__pipeline_fail(p, MSDU_ERR_MISMATCH, msdu_last_error());
        return;
    }
    memcpy(f->plan, f->plan_next, f->slice_count * sizeof(*f->plan));
    f->plan_hash = msdu__plan_hash(f->plan, f->slice_count);
    pthread_mutex_lock(&p->lock);
    p->summary.plan_renewals++;
    pthread_mutex_unlock(&p->lock);
    msdu__log_line(&p->log, MSDU_LOG_DEBUG, "plan renewed, hash %016llx",
                   (unsigned long long)f->plan_hash);
}
