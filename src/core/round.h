/* SPDX-License-Identifier: Apache-2.0 */
/* Begin (round_open.c) and end (round.c) of a round. The communication thread. */
#ifndef MSDU_ROUND_H
#define MSDU_ROUND_H

#include "engine.h"

/* Orders of all fragments as the slicer cut them. */
void msdu__round_orders(msdu__engine *e);
/* Leave the gradient domain: anchors <- parameters, fragments as overlap wants them. */
void msdu__round_enter_local(msdu__engine *e);
void msdu__round_open(msdu__engine *e, uint32_t fragment);
/* Have all kernels ended that were launched before the first of these calls? */
bool msdu__round_kernels_done(msdu__engine *e, msdu__fragment *f);
/* Try to end a round: all reduced, control arrived, due. True if something was done. */
bool msdu__round_finish(msdu__engine *e, msdu__fragment *f);
/* True once everything captured has ended; rounds that were only opened stay so. */
bool msdu__round_is_drained(const msdu__engine *e);

#endif
