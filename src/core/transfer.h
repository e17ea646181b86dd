/* SPDX-License-Identifier: Apache-2.0 */
/* A slice's exchange between all ranks, or between the hosts (levels.h). The communication thread.
 */
#ifndef MSDU_TRANSFER_H
#define MSDU_TRANSFER_H

#include "engine.h"

/* A slice that was captured begins its way: its format, and what was held back before. */
void msdu__transfer_prepare(msdu__engine *e, msdu__fragment *f, uint32_t slice);
/* Start the allreduce, or the first phase of fewer bits. */
msdu_status msdu__transfer_start(msdu__engine *e, msdu__fragment *f, uint32_t slice);
/* Sum of all contributions to the own share, encoded behind those of the owners before. */
void msdu__transfer_sum(msdu__engine *e, const msdu__fragment *f, uint32_t slice);
/* Start the second phase. */
msdu_status msdu__transfer_gather(msdu__engine *e, uint32_t slice);
/* The mean of all shares, to where the slice is reduced. */
void msdu__transfer_decode(msdu__engine *e, msdu__fragment *f, uint32_t slice);

#endif
