/* SPDX-License-Identifier: Apache-2.0 */
/* Work by the clock (msdu_next, interval/deal.h): what ranks are given after a round. The
 * communication thread. */
#ifndef MSDU_DEALER_H
#define MSDU_DEALER_H

#include "fragment.h"

#include "engine.h"

msdu_status msdu__dealer_prepare(msdu__engine *e);
/* A round by the clock has ended. */
void msdu__dealer_deal(msdu__engine *e, const msdu__fragment *f);

#endif
