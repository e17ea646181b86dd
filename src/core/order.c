/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One order over all lanes, for backends that need it (MSDU_CAP_SINGLE_ORDER): ranks start
 * everything in an order that follows from positions in the queue alone. The all-gather of slice k
 * comes right behind the first phase of slice k + lag - 1, the control message of a round right
 * behind its last first phase, and the all-gathers that are then left behind that. The lag lets a
 * slice be reduced while others travel; it is half the window, so that slots are left for these.
 * Where tensors are given out alone (commit = tensor) a trainer may wait for one before it
 * announces the next, so nothing of a slice comes behind the next one: there is no lag, and the
 * control message leaves last. Without the capability everything may leave at once: lanes are in
 * order each for itself.
 */
#include "pipeline.h"

static bool has_single_order(const msdu__pipeline *p)
{
    return (p->backend->caps & MSDU_CAP_SINGLE_ORDER) != 0;
}

static uint64_t lag_of(const msdu__pipeline *p)
{
    return p->settings.commit_tensor ? 1 : ((uint64_t)p->tuning.window + 1) / 2;
}

/* All-gathers of a round that come before its control message. */
static uint64_t gathers_before_control(const msdu__pipeline *p, const msdu__fragment *f)
{
    if (p->settings.commit_tensor) {
        return f->slice_count;
    }
    return f->slice_count > lag_of(p) ? f->slice_count - lag_of(p) : 0;
}

/* Messages of rounds opened before this one have left? */
static bool are_earlier_controls_out(const msdu__pipeline *p, const msdu__fragment *f)
{
    for (uint32_t i = 0; i < p->active_count && &p->fragments[p->active[i]] != f; i++) {
        if (!p->fragments[p->active[i]].is_control_issued) {
            return false;
        }
    }
    return true;
}

bool msdu__order_may_first(const msdu__pipeline *p, const msdu__fragment *f)
{
    if (!has_single_order(p)) {
        return true;
    }
    uint64_t due = f->queue_begin; /* all-gathers in front of it */
    if (p->queue_first - f->queue_begin >= lag_of(p)) {
        due = p->queue_first + 1 - lag_of(p);
    }
    return p->queue_second >= due && are_earlier_controls_out(p, f);
}

bool msdu__order_may_second(const msdu__pipeline *p, const msdu__fragment *f)
{
    if (!has_single_order(p)) {
        return true;
    }
    uint64_t index = p->queue_second - f->queue_begin;
    if (index < gathers_before_control(p, f)) {
        return p->queue_first >= p->queue_second + lag_of(p);
    }
    return f->is_control_issued;
}

bool msdu__order_may_control(const msdu__pipeline *p, const msdu__fragment *f)
{
    return !has_single_order(p) || p->queue_second >= f->queue_begin + gathers_before_control(p, f);
}
