/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two levels: ranks of one host sum up over shared memory, and one of them, the carrier of a slice,
 * exchanges the sum with the carriers on the other hosts. From the begin of local steps on; exact
 * gradients go flat, so that they have the bits of a plain allreduce. The communication thread.
 */
#ifndef MSDU_LEVELS_H
#define MSDU_LEVELS_H

#include "engine.h"

/*
 * Where each rank is, from the keys of all ranks' hosts, which are equal where ranks share one; 0:
 * not known, a host of its own. Hosts are numbered by their first ranks. Pure.
 * host, index: by rank; room for `ranks` each.
 */
msdu__levels msdu__levels_of(const uint64_t *keys, int32_t ranks, int32_t rank, int32_t *host,
                             int32_t *index);
/* Of that: is there anything between one host, and a host for each rank? */
bool msdu__levels_are_two(const msdu__levels *levels, int32_t ranks);

/* Exchange slices over two levels from now on, if there are two, or flat; nothing is in flight. */
void msdu__levels_set(msdu__engine *e, bool is_local);
/* Does this rank carry the slice between hosts? */
bool msdu__levels_carries(const msdu__engine *e, uint32_t slice);
/* Start the sum over this host, in place. */
msdu_status msdu__levels_sum(msdu__engine *e, uint32_t slice, void *buffer);
/* Start to give the mean to the ranks of this host. */
msdu_status msdu__levels_spread(msdu__engine *e, uint32_t slice, void *buffer);

#endif
