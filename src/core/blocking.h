/* SPDX-License-Identifier: Apache-2.0 */
/* One operation from begin to end. */
#ifndef MSDU_BLOCKING_H
#define MSDU_BLOCKING_H

#include "engine.h"

/* Run one operation to its end: before the communication thread exists, or on it while nothing is
 * under way. */
msdu_status msdu__blocking_run(msdu__engine *e, msdu_op *op, uint32_t lane);

/* All ranks' facts, `bytes` of each, in rank order; release *all_out by free(). */
msdu_status msdu__blocking_gather(msdu__engine *e, const void *own, uint64_t bytes, uint32_t flags,
                                  uint32_t lane, void **all_out);

#endif
