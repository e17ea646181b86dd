/* SPDX-License-Identifier: Apache-2.0 */
/* Renewal of the plan. */
#ifndef MSDU_REPLAN_H
#define MSDU_REPLAN_H

#include "engine.h"

/* Remember when a slice was ready and how long it took. */
void msdu__replan_note(msdu__engine *e, const msdu__fragment *f, uint32_t slice);
/* End of a round: look at the plan now and then; renew it where rank 0 asked for it. */
void msdu__replan_review(msdu__engine *e, msdu__fragment *f);
/* Rank 0's order has arrived. */
void msdu__replan_take(msdu__engine *e, msdu__fragment *f);

#endif
