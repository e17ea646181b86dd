/* SPDX-License-Identifier: Apache-2.0 */
/* Work drawn by the clock: each rank draws when it comes. Runs on the API thread. */
#include "caller.h"

#include <inttypes.h>

/* What is dealt is as at the first call. */
static msdu_status check(const msdu__caller *c, const msdu_work *work)
{
    const msdu__dealt *d = &c->draw.dealt;
    bool is_same = work->total == d->total && work->batch == d->batch;
    bool goes_on = work->position == d->position || (d->is_between && work->position == 0);
    if (is_same && goes_on) {
        return MSDU_OK;
    }
    return msdu__fail(
        MSDU_ERR_STATE,
        "rank %d: by the clock (setting uneven) work is drawn to its end: total %" PRIu64
        ", batch %" PRIu64 " and position %" PRIu64
        " are expected; an epoch begins at position 0 after the end of the last one",
        c->job->rank, d->total, d->batch, d->is_between ? 0 : d->position);
}

static void begin(msdu__caller *c, const msdu_work *work)
{
    c->draw.dealt = (msdu__dealt){.is_on = true,
                                  .total = work->total,
                                  .batch = work->batch,
                                  .first = work->position,
                                  .position = work->position};
    msdu__cell_set(&c->hand->supply.work, msdu__draw_check_of(work, work->position));
}

static uint64_t batches_in(uint64_t samples, uint64_t batch)
{
    return samples / batch + (samples % batch > 0 ? 1 : 0);
}

/* Epoch and first sample of a batch. Dealing began somewhere in epoch 0. */
static uint64_t locate(const msdu__dealt *d, uint64_t number, uint64_t *begin_out)
{
    uint64_t rest = batches_in(d->total - d->first, d->batch);
    uint64_t whole = batches_in(d->total, d->batch);
    if (number < rest) {
        *begin_out = d->first + number * d->batch;
        return 0;
    }
    *begin_out = (number - rest) % whole * d->batch;
    return 1 + (number - rest) / whole;
}

/* Until this rank has been given something. Meanwhile it misses rounds, and that is no step. */
static msdu_status wait_for_work(msdu__caller *c)
{
    msdu__supply *supply = &c->hand->supply;
    const msdu__ticket given = {
        .counter = &supply->given, .value = c->draw.dealt.drawn + 1, .what = "work by the clock"};
    if (!msdu__ticket_is_there(&given)) {
        msdu__flag_set(&supply->is_awaited, true);
        msdu__worker_kick(&c->hand->worker);
        c->step_blocked_ns += msdu__handover_wait(c->hand, &given);
        msdu__flag_set(&supply->is_awaited, false);
    }
    return msdu__handover_status(c->hand);
}

static void end_epoch(msdu__dealt *d, msdu_work *work)
{
    d->epoch++;
    d->is_between = true;
    d->position = work->total;
    work->position = work->begin = work->end = work->total;
}

static void take(msdu__caller *c, msdu_work *work, uint64_t from)
{
    msdu__dealt *d = &c->draw.dealt;
    work->begin = from;
    work->end = work->total - from > work->batch ? from + work->batch : work->total;
    work->position = d->position = from; /* never the end: that is told by the next call */
    msdu__cell_set(&c->hand->supply.drawn, ++d->drawn);
}

msdu_status msdu__dealt_next(msdu__caller *c, msdu_work *work)
{
    msdu__dealt *d = &c->draw.dealt;
    if (!d->is_on) {
        begin(c, work);
    }
    msdu_status status = check(c, work);
    if (status == MSDU_OK && work->position == work->total) { /* the end, asked for again */
        work->begin = work->end = work->total;
        return MSDU_OK;
    }
    if (status == MSDU_OK) {
        msdu__boundary_run(c);
        status = wait_for_work(c);
    }
    if (status != MSDU_OK) {
        return status;
    }
    uint64_t from = 0;
    d->is_between = false;
    uint64_t number = c->hand->supply.batches[d->drawn % MSDU__SUPPLY];
    if (locate(d, number, &from) > d->epoch) {
        end_epoch(d, work);
    } else {
        take(c, work, from);
    }
    return MSDU_OK;
}
