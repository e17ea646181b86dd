/* SPDX-License-Identifier: Apache-2.0 */
/* What coding takes on this machine, measured before the first step. */
#ifndef MSDU_COSTS_H
#define MSDU_COSTS_H

#include "engine.h"
#include "wire/cost.h"

/* Of this process, by the loops that it will run: measured once, in some 10 ms, kept after that. */
const msdu__wire_costs *msdu__costs_here(void);
/* What this rank tells the others before they agree on one: measured where it matters. */
msdu__wire_costs msdu__costs_own(const msdu__engine *e);
/* From those of all ranks: the slowest of each hold for all. */
void msdu__costs_agree(msdu__engine *e, const msdu__wire_costs *of);
/* From a round's statistics: what coding really took, and what trainers lack for it; into the
 * statistics, smoothed. */
void msdu__costs_learn(msdu__engine *e, msdu__round_stats *stats);

#endif
