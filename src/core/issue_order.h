/* SPDX-License-Identifier: Apache-2.0 */
/* May the next slice start its first phase, or its all-gather; may the round's statistics message
 * leave? f: of that slice. */
#ifndef MSDU_ISSUE_ORDER_H
#define MSDU_ISSUE_ORDER_H

#include "engine.h"

bool msdu__order_may_first(const msdu__engine *e, const msdu__fragment *f);
bool msdu__order_may_second(const msdu__engine *e, const msdu__fragment *f);
bool msdu__order_may_control(const msdu__engine *e, const msdu__fragment *f);

#endif
