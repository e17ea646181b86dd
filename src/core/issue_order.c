/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One order over all channels, for backends that need it (MSDU_CAP_SINGLE_ORDER): ranks start
 * everything in an order that follows from positions in the queue alone. The all-gather of slice k
 * comes right behind the first phase of slice k + lag - 1, the statistics message of a round right
 * behind its last first phase, and the all-gathers that are then left behind that. The lag lets a
 * slice be reduced while others travel; it is half the window, so that slots are left for these.
 * Where tensors are given out alone (commit = tensor) a trainer may wait for one before it
 * announces the next, so nothing of a slice comes behind the next one: there is no lag, and the
 * statistics message leaves last. Without the capability everything may leave at once: channels are
 * in order each for itself.
 */
#include "issue_order.h"

static bool has_single_order(const msdu__engine *e)
{
    return (e->job->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0;
}

static uint64_t lag_of(const msdu__engine *e)
{
    return e->job->settings.commit_tensor ? 1 : ((uint64_t)e->model->tuning.window + 1) / 2;
}

/* All-gathers of a round that come before its statistics message. */
static uint64_t gathers_before_control(const msdu__engine *e, const msdu__fragment *f)
{
    if (e->job->settings.commit_tensor) {
        return f->slice_count;
    }
    return f->slice_count > lag_of(e) ? f->slice_count - lag_of(e) : 0;
}

/* Messages of rounds opened before this one have left? */
static bool are_earlier_controls_out(const msdu__engine *e, const msdu__fragment *f)
{
    for (uint32_t i = 0; i < e->active_count && &e->fragments[e->active[i]] != f; i++) {
        if (!e->fragments[e->active[i]].control.is_issued) {
            return false;
        }
    }
    return true;
}

bool msdu__order_may_first(const msdu__engine *e, const msdu__fragment *f)
{
    if (!has_single_order(e)) {
        return true;
    }
    uint64_t due = f->queue_begin; /* all-gathers in front of it */
    if (e->queue.first - f->queue_begin >= lag_of(e)) {
        due = e->queue.first + 1 - lag_of(e);
    }
    return e->queue.second >= due && are_earlier_controls_out(e, f);
}

bool msdu__order_may_second(const msdu__engine *e, const msdu__fragment *f)
{
    if (!has_single_order(e)) {
        return true;
    }
    uint64_t index = e->queue.second - f->queue_begin;
    if (index < gathers_before_control(e, f)) {
        return e->queue.first >= e->queue.second + lag_of(e);
    }
    return f->control.is_issued;
}

bool msdu__order_may_control(const msdu__engine *e, const msdu__fragment *f)
{
    return !has_single_order(e) || e->queue.second >= f->queue_begin + gathers_before_control(e, f);
}
