/* SPDX-License-Identifier: Apache-2.0 */
/* Renewal of the plan: rank 0 measures and simulates, all ranks take its order. Runs on the
 * communication thread. */
#include "replan.h"

#include <string.h>

#define PLAN_EVERY    8      /* rounds between looks at the plan */
#define PLAN_FLOOR_NS 100000 /* gains below 0.1 ms do not pay for a new plan */

void msdu__replan_note(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
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
static uint64_t best_plan(msdu__engine *e, const msdu__fragment *f, uint32_t *out,
                          uint64_t *present_out)
{
    uint32_t window = e->model->tuning.window;
    for (uint32_t i = 0; i < f->slice_count; i++) {
        uint32_t slice = f->members[i];
        e->scratch.items[i] = (msdu__plan_item){
            .ready_ns = (uint64_t)e->runs[slice].wait_ns,
            .cost_ns = (uint64_t)(e->runs[slice].link_ns / (double)window),
            .priority = e->model->slicing.slices[slice].priority,
        };
    }
    *present_out = msdu__plan_cost(e->scratch.items, f->slice_count, f->order.plan);
    uint64_t best =
        msdu__plan_simulate(e->scratch.items, f->slice_count, window, out, e->scratch.marks);
    if (e->job->settings.commit_tensor == 0) {
        return best; /* all wait for the last one: only the end counts */
    }
    *present_out =
        msdu__plan_need(e->scratch.items, f->slice_count, f->order.plan, e->scratch.ends);
    return msdu__plan_need(e->scratch.items, f->slice_count, out, e->scratch.ends);
}

static void send_plan(msdu__engine *e, msdu__fragment *f)
{
    uint64_t present = 0;
    if (e->job->rank == 0) {
        best_plan(e, f, f->order.next, &present);
        f->order.is_wanted = false;
    }
    msdu_op op = {
        .kind = MSDU_OP_BROADCAST,
        .count = f->slice_count * sizeof(*f->order.next),
        .recv = f->order.next,
    };
    f->order.issued_ns = msdu__engine_now(e);
    msdu_status status = msdu__engine_start(e, &op, msdu__control_channel(e) + 1, &f->order.req);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
    }
}

void msdu__replan_review(msdu__engine *e, msdu__fragment *f)
{
    if (e->model->fragment_count > 1 && (e->job->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0) {
        return; /* a plan leaves when a round ends, which is no place in one order over fragments */
    }
    if (msdu__control_has(&f->control.of[0], MSDU__CONTROL_PLAN)) {
        send_plan(e, f);
        return;
    }
    /* A trainer that waits for each gradient before it computes the next needs them in its order:
     * no estimate of times may put one of the next before the rest of this one. */
    if (e->job->rank != 0 || f->opened % PLAN_EVERY != PLAN_EVERY / 2 ||
        msdu__flag_get(&e->hand->reports.is_sequential)) {
        return;
    }
    uint64_t present = 0;
    uint64_t best = best_plan(e, f, f->order.next, &present);
    f->order.is_wanted = msdu__plan_is_stale(present, best, PLAN_FLOOR_NS);
}

void msdu__replan_take(msdu__engine *e, msdu__fragment *f)
{
    if (!msdu__plan_is_valid(f->order.next, f->slice_count, e->scratch.marks)) {
        msdu__fail(MSDU_ERR_MISMATCH,
                   "rank %d: rank 0's plan is not an order of this rank's slices", e->job->rank);
        msdu__handover_fail_last(e->hand, MSDU_ERR_MISMATCH);
        return;
    }
    memcpy(f->order.plan, f->order.next, f->slice_count * sizeof(*f->order.plan));
    f->order.hash = msdu__plan_hash(f->order.plan, f->slice_count);
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.plan_renewals++;
    pthread_mutex_unlock(&e->hand->lock);
    msdu__log_line(&e->job->log, MSDU_LOG_DEBUG, "plan renewed, hash %016llx",
                   (unsigned long long)f->order.hash);
}
