/* SPDX-License-Identifier: Apache-2.0 */
/* Work by the clock: what ranks are given after a round. */
#include "dealer.h"

#include "memory.h"

#include <math.h>

msdu_status msdu__dealer_prepare(msdu__engine *e)
{
    uint64_t *given = msdu__memory_block(e, (uint64_t)e->job->ranks * sizeof(*given));
    e->deal = (msdu__deal){.given = given};
    return given != NULL ? MSDU_OK : msdu__memory_none(e, "work of ranks");
}

/* Numbers of batches mean the same where the work is the same. */
static bool is_one_work(msdu__engine *e, const msdu__fragment *f)
{
    double work = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        double own = f->control.of[rank].dealt.work;
        if (own != 0 && work != 0 && own != work) {
            msdu__fail(MSDU_ERR_MISMATCH,
                       "rank %d asked msdu_next() for other work than a rank before it (total, "
                       "batch, or position)",
                       rank);
            msdu__handover_fail_last(e->hand, MSDU_ERR_MISMATCH);
            return false;
        }
        work = own != 0 ? own : work;
    }
    return true;
}

/* To this rank's trainer. */
static void hand_out(msdu__engine *e, uint64_t first, uint64_t count)
{
    msdu__supply *supply = &e->hand->supply;
    uint64_t given = msdu__cell_get(&supply->given);
    for (uint64_t i = 0; i < count; i++) {
        supply->batches[(given + i) % MSDU__SUPPLY] = first + i;
    }
    if (count > 0) {
        msdu__cell_set(&supply->given, given + count);
        msdu__handover_wake(e->hand);
    }
}

void msdu__dealer_deal(msdu__engine *e, const msdu__fragment *f)
{
    if (!is_one_work(e, f)) {
        return;
    }
    double round_ns = fmax(e->decision.period_ns, e->ticks.step_ns);
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        uint64_t first = e->deal.next;
        uint64_t count = msdu__deal_give(&e->deal, rank, (uint64_t)c->dealt.drawn,
                                         msdu__deal_stock(round_ns, c->step_ns));
        if (rank == e->job->rank) {
            hand_out(e, first, count);
        }
    }
}
