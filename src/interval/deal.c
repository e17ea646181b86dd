/* SPDX-License-Identifier: Apache-2.0 */
/* Batches for ranks that are in different steps. Pure. */
#include "deal.h"

#include <math.h>

#define ROUNDS 3 /* from what a rank draws to what it is given for that, and one to spare */

uint64_t msdu__deal_stock(double round_ns, double step_ns)
{
    double steps = step_ns > 0 ? ceil(ROUNDS * round_ns / step_ns) : ROUNDS;
    return (uint64_t)fmin(fmax(steps, 1), MSDU__STOCK_MOST);
}

uint64_t msdu__deal_give(msdu__deal *deal, int32_t rank, uint64_t drawn, uint64_t stock)
{
    uint64_t has = deal->given[rank] - drawn;
    uint64_t more = has < stock ? stock - has : 0;
    deal->given[rank] += more;
    deal->next += more;
    return more;
}
