/* SPDX-License-Identifier: Apache-2.0 */
/* Two levels: who is on which host, and a slice's way over a host. */
#include "levels.h"

#include <string.h>

static bool is_same(const uint64_t *keys, int32_t a, int32_t b)
{
    return a == b || (keys[a] != 0 && keys[a] == keys[b]);
}

/* The first rank of the host of `rank`. */
static int32_t first_of(const uint64_t *keys, int32_t rank)
{
    int32_t first = 0;
    while (!is_same(keys, first, rank)) {
        first++;
    }
    return first;
}

static int32_t size_of(const uint64_t *keys, int32_t ranks, int32_t rank)
{
    int32_t size = 0;
    for (int32_t i = 0; i < ranks; i++) {
        size += is_same(keys, i, rank) ? 1 : 0;
    }
    return size;
}

msdu__levels msdu__levels_of(const uint64_t *keys, int32_t ranks, int32_t rank, int32_t *host,
                             int32_t *index)
{
    msdu__levels levels = {.carriers = ranks};
    for (int32_t i = 0; i < ranks; i++) {
        int32_t first = first_of(keys, i);
        int32_t size = size_of(keys, ranks, i);
        host[i] = first < i ? host[first] : levels.hosts++;
        index[i] = 0;
        for (int32_t before = first; before < i; before++) {
            index[i] += is_same(keys, before, i) ? 1 : 0;
        }
        levels.carriers = size < levels.carriers ? size : levels.carriers;
        levels.most = size > levels.most ? size : levels.most;
    }
    levels.host = host[rank];
    levels.index = index[rank];
    levels.size = size_of(keys, ranks, rank);
    return levels;
}

bool msdu__levels_are_two(const msdu__levels *levels, int32_t ranks)
{
    return levels->hosts > 1 && levels->hosts < ranks;
}

void msdu__levels_set(msdu__engine *e, bool is_local)
{
    e->is_two_level = is_local && e->job->levels.is_on;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        msdu__run *run = &e->runs[slice];
        run->share_count = run->shares[e->is_two_level ? 1 : 0];
        run->share_start = run->share_count + msdu__outer_ranks(e);
    }
}

static int32_t carrier_of(const msdu__engine *e, uint32_t slice)
{
    return (int32_t)(slice % (uint32_t)e->job->levels.carriers);
}

bool msdu__levels_carries(const msdu__engine *e, uint32_t slice)
{
    return !e->is_two_level || carrier_of(e, slice) == e->job->levels.index;
}

static int32_t dtype_of(const msdu__engine *e, uint32_t slice)
{
    return e->model->slicing.slices[slice].dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
}

msdu_status msdu__levels_sum(msdu__engine *e, uint32_t slice, void *buffer)
{
    msdu__run *run = &e->runs[slice];
    msdu_op op = {
        .kind = MSDU_OP_ALLREDUCE,
        .group = MSDU_GROUP_HOST,
        .dtype = dtype_of(e, slice),
        .count = e->model->slicing.slices[slice].count,
        .recv = buffer,
    };
    e->inside_bytes += op.count * msdu__dtype_bytes(op.dtype);
    return msdu__engine_start(e, &op, run->times.lane, &run->req);
}

msdu_status msdu__levels_spread(msdu__engine *e, uint32_t slice, void *buffer)
{
    msdu__run *run = &e->runs[slice];
    uint64_t *shares = e->slots[run->slot].spread_bytes;
    memset(shares, 0, (size_t)e->job->levels.size * sizeof(*shares));
    shares[carrier_of(e, slice)] =
        e->model->slicing.slices[slice].count * msdu__dtype_bytes(dtype_of(e, slice));
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .group = MSDU_GROUP_HOST,
        .send = buffer,
        .recv = buffer,
        .shares = shares,
    };
    e->inside_bytes += shares[e->job->levels.index];
    uint32_t lane = (uint32_t)e->job->settings.lanes + run->times.lane;
    return msdu__engine_start(e, &op, lane, &run->req);
}
