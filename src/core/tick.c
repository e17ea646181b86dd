/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds by the clock; the communication thread's part. */
#include "tick.h"

#include "dealer.h"
#include "domain.h"
#include "pace.h"
#include "round.h"

#include <math.h>
#include <stddef.h>

static msdu__fragment *the_fragment(msdu__engine *e)
{
    return &e->fragments[0];
}

static msdu__mailbox *box_of(msdu__engine *e)
{
    return &e->hand->fragments[0];
}

msdu_status msdu__tick_prepare(msdu__engine *e)
{
    e->ticks.is_on = e->job->settings.uneven == MSDU__UNEVEN_CLOCK;
    e->ticks.weight = 1;
    e->job->may_clock = e->ticks.is_on;
    if (e->ticks.is_on && e->job->device != NULL) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: setting uneven = clock needs tensors in the host's memory",
                          e->job->rank);
    }
    if (e->job->settings.uneven == MSDU__UNEVEN_AUTO) {
        const char *obstacle = msdu__pace_obstacle(e);
        e->job->may_clock = obstacle == NULL;
        if (obstacle != NULL) {
            msdu__log_line(&e->job->log, MSDU_LOG_INFO,
                           "setting uneven = auto: no rounds by the clock, for %s", obstacle);
        }
    }
    return MSDU_OK;
}

msdu__outcome msdu__event_enter_clock(msdu__engine *e, void *subject, uint64_t number)
{
    if (e->active_count > 0 || e->fragments[0].order.req != NULL) {
        return MSDU__LATER;
    }
    e->ticks.is_on = true;
    msdu__domain_anchor(e);
    e->slices_are_whole = false;
    msdu__round_orders(e);
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        msdu__engine_release(e, slice, MSDU_PARAMETER);
    }
    return msdu__event_tick(e, subject, number);
}

msdu__outcome msdu__event_tick(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    e->ticks.is_running = true;
    e->ticks.tick_ns = 0;
    e->ticks.came_ns = msdu__engine_now(e);
    return MSDU__DONE;
}

msdu__outcome msdu__event_shift(msdu__engine *e, void *subject, uint64_t number)
{
    (void)subject;
    (void)number;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        msdu__domain_shift(e, slice);
        msdu__engine_release(e, slice, MSDU_PARAMETER);
    }
    return MSDU__DONE;
}

/* --- a round opens --- */

/* In steps of the median rank, as it is told. */
static uint32_t interval_now(const msdu__engine *e)
{
    double period = e->job->settings.clock_period;
    bool is_chosen = e->decision.period_ns > 0;
    return is_chosen ? e->decision.interval : period > 1 ? (uint32_t)lround(period) : 1;
}

/* A tick that a slow round has passed over is due at once, and the next one is counted from it. */
static void open_next(msdu__engine *e)
{
    const msdu__fragment *f = the_fragment(e);
    msdu__mailbox *box = box_of(e);
    uint64_t now = msdu__engine_now(e);
    double period_ns = e->decision.period_ns > 0 ? e->decision.period_ns
                                                 : e->job->settings.clock_period * e->ticks.step_ns;
    uint64_t tick = e->ticks.tick_ns + (uint64_t)period_ns;
    e->ticks.tick_ns = tick > now ? tick : now;
    box->rounds[f->opened & 1] = (msdu__round){
        .step = f->opened,
        .interval = interval_now(e),
        .wire = e->decision.wire,
        .began_ns = msdu__cell_get(&e->hand->reports.step_start_ns),
    };
    msdu__round_open(e, 0);
    msdu__cell_set(&box->tick_ns, e->ticks.tick_ns);
    msdu__cell_set(&box->gate, 4 * f->opened + MSDU__GATE_OPEN);
    msdu__handover_wake(e->hand);
}

/* --- a round that this rank misses --- */

static bool is_idle(msdu__engine *e)
{
    return msdu__flag_get(&e->hand->reports.is_idle);
}

/* The bound of stale synchronous parallel training: so many rounds in a row, and all wait. But who
 * waits for work gets it after a round. */
static bool may_miss(const msdu__engine *e)
{
    return msdu__flag_get(&e->hand->supply.is_awaited) ||
           (e->ticks.step_ns > 0 && e->ticks.missed < e->job->settings.clock_bound);
}

/* When zeros are given; UINT64_MAX: not by the clock. */
static uint64_t missed_at(msdu__engine *e)
{
    uint64_t grace = (uint64_t)(e->job->settings.clock_grace * e->ticks.step_ns);
    bool has_come = the_fragment(e)->state != MSDU__FRAGMENT_OPEN ||
                    (msdu__cell_get(&box_of(e)->gate) & 3U) != MSDU__GATE_OPEN;
    if (has_come || (!is_idle(e) && !may_miss(e))) {
        return UINT64_MAX;
    }
    return is_idle(e) ? 0 : e->ticks.tick_ns + grace;
}

static void count_missed(msdu__engine *e)
{
    e->ticks.missed++;
    e->ticks.missed_all++;
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.missed++;
    pthread_mutex_unlock(&e->hand->lock);
}

static void give_zeros(msdu__engine *e, msdu__fragment *f)
{
    bool has_left = is_idle(e);
    f->contribution = (msdu__contribution){
        .weight = has_left ? 0 : e->ticks.weight, .is_idle = has_left, .is_missed = true};
    for (uint32_t i = 0; i < f->slice_count; i++) {
        e->runs[f->members[i]].times.ready_ns = msdu__engine_now(e);
        msdu__domain_capture(e, f, f->members[i]);
        e->runs[f->members[i]].state = MSDU__RUN_CAPTURED;
        f->captured++;
    }
    if (!has_left) {
        count_missed(e);
    }
}

/* Zeros would go on for ever where a trainer stands still, and who is at its end would wait. */
static bool is_overdue(msdu__engine *e)
{
    uint64_t deadline_ms = (uint64_t)e->job->settings.deadline_ms;
    if (is_idle(e) || msdu__engine_now(e) - e->ticks.came_ns <= deadline_ms * 1000000) {
        return false;
    }
    msdu__fail(MSDU_ERR_TIMEOUT,
               "rank %d: its trainer has ended no step for more than %llu ms (setting deadline_ms)",
               e->job->rank, (unsigned long long)deadline_ms);
    msdu__handover_fail_last(e->hand, MSDU_ERR_TIMEOUT);
    return true;
}

bool msdu__tick_advance(msdu__engine *e)
{
    msdu__fragment *f = the_fragment(e);
    uint64_t open = 4 * f->opened + MSDU__GATE_OPEN;
    if (e->ticks.is_running && f->state == MSDU__FRAGMENT_IDLE && f->order.req == NULL) {
        open_next(e);
        return true;
    }
    if (!e->ticks.is_running || msdu__engine_now(e) < missed_at(e) || is_overdue(e) ||
        !msdu__cell_change(&box_of(e)->gate, open, 4 * f->opened + MSDU__GATE_MISSED)) {
        return false;
    }
    give_zeros(e, f);
    return true;
}

uint64_t msdu__tick_wait_ns(msdu__engine *e)
{
    uint64_t at = e->ticks.is_running ? missed_at(e) : UINT64_MAX;
    uint64_t now = at < UINT64_MAX ? msdu__engine_now(e) : 0;
    return at == UINT64_MAX ? at : at > now ? at - now : 1;
}

/* --- what comes of it --- */

void msdu__tick_came(msdu__engine *e, msdu__fragment *f)
{
    if (e->ticks.is_on) {
        f->contribution.stale = e->job->settings.clock_scale ? e->ticks.missed : 0;
        e->ticks.weight = f->contribution.weight;
        e->ticks.missed = 0;
        e->ticks.came_ns = msdu__engine_now(e);
    }
}

/* Of the ranks with input; 0 until all of them have told it. */
static double median_step(msdu__engine *e, const msdu__fragment *f)
{
    msdu__round_stats stats = {.times = NULL};
    msdu__pace_times(e, f, &stats);
    return stats.times != NULL ? stats.times[(stats.time_count - 1) / 2] : 0;
}

void msdu__tick_ended(msdu__engine *e, const msdu__fragment *f)
{
    if (!e->ticks.is_on) {
        return;
    }
    e->ticks.step_ns = median_step(e, f);
    msdu__pace_watch(e, f);
    msdu__dealer_deal(e, f);
    if (msdu__engine_answer(e, f)->are_all_idle) {
        e->ticks.is_running = false;
        (void)msdu__cell_add(&box_of(e)->stopped, 1);
    }
}
