/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slice's exchange between all ranks, or between the hosts: one allreduce, or an all-to-all and
 * an all-gather of fewer bits. Runs on the communication thread, which decides when (progress.c).
 */
#include "transfer.h"

#include "cores.h"
#include "domain.h"
#include "kernels.h"

static int wire_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    int wire = e->runs[slice].is_state ? MSDU__WIRE_FLOAT32 : f->round.wire;
    return msdu__wire_of(e->model->slicing.slices[slice].dtype, wire);
}

static msdu_exchange exchange_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    return (msdu_exchange){
        .format = wire_of(e, f, slice),
        .block = (uint32_t)e->job->settings.wire_block,
        .ranks = msdu__outer_ranks(e),
        .factor = is_sum ? 1.0 : 1.0 / e->job->ranks,
    };
}

/* A kernel over floats of a slice in flight. */
static msdu_launch floats_at(const msdu__engine *e, msdu_stage stage, uint64_t count)
{
    return msdu__kernels_at(e, stage, MSDU_FLOAT32, count);
}

/* Processor time of coding counts for the round. With a clock of a test nothing is measured, and a
 * device codes by itself. */
static uint64_t coding_begins(const msdu__engine *e)
{
    bool is_measured = e->job->clock == msdu__clock_monotonic && e->job->device == NULL;
    return is_measured ? msdu__cores_thread_ns() : 0;
}

static void coding_ends(msdu__engine *e, uint64_t began_ns)
{
    e->link.coding_ns += began_ns > 0 ? (double)(msdu__cores_thread_ns() - began_ns) : 0;
}

static uint64_t ring_bytes(const msdu__engine *e, uint64_t bytes)
{
    uint64_t ranks = (uint64_t)msdu__outer_ranks(e);
    return 2 * bytes * (ranks - 1) / ranks;
}

/*
 * Gradients of a device that are given out one by one, with nothing that is decided from how long
 * they took: then all of a slice's way is launched at once, and no API thread waits for the
 * network.
 */
static uint32_t flags_of(const msdu__engine *e, const msdu__fragment *f)
{
    bool is_timed =
        e->job->settings.domain != MSDU__DOMAIN_GRADIENT || e->job->interval_args.fixed_wire < 0;
    bool is_chained =
        e->job->device != NULL && e->job->settings.commit_tensor && f->round.is_gradient;
    return is_chained && !is_timed ? MSDU_OP_CHAINED : 0;
}

/* Formats without error feedback send what others held back. */
static void send_held(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    bool has_feedback = msdu__wire_at(wire_of(e, f, slice))->has_feedback;
    if (!has_feedback && f->contribution.weight > 0) {
        msdu__domain_flush(e, msdu__domain_buffer(e, f, slice), slice, 1,
                           is_sum ? 1 : e->job->ranks);
    }
}

static uint32_t outer_group(const msdu__engine *e)
{
    return e->is_two_level ? MSDU_GROUP_INDEX : MSDU_GROUP_WORLD;
}

static msdu_status start_whole(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    bool is_double = cut->dtype == MSDU_FLOAT64;
    msdu_op op = {
        .kind = MSDU_OP_ALLREDUCE,
        .group = outer_group(e),
        .place = msdu__place(e->job),
        .dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32,
        .count = cut->count,
        .recv = msdu__domain_buffer(e, f, slice),
        .flags = flags_of(e, f),
    };
    e->runs[slice].times.bytes = ring_bytes(e, cut->count * (is_double ? 8 : 4));
    return msdu__engine_start(e, &op, e->runs[slice].times.lane, &e->runs[slice].req);
}

/* Has the sum over this host anything in it, from a rank with weight? Waits for the kernel. */
static bool has_host_weight(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    msdu_launch at = floats_at(e, MSDU_STAGE_EARLY, e->model->slicing.slices[slice].count);
    run->found->summed.update_sq = 0;
    MSDU__KERNEL(e, norm, &at, msdu__domain_buffer(e, f, slice), &run->found->summed);
    return msdu__kernels_settle(e) == MSDU_OK && run->found->summed.update_sq != 0;
}

static msdu_status start_exchange(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    msdu__slot *slot = &e->slots[run->slot];
    msdu_exchange x = exchange_of(e, f, slice);
    const msdu__wire *wire = msdu__wire_at(x.format);
    msdu_launch at = floats_at(e, MSDU_STAGE_EARLY, e->model->slicing.slices[slice].count);
    uint64_t total = 0;
    for (int32_t i = 0; i < msdu__outer_ranks(e); i++) {
        slot->share_bytes[i] = msdu__wire_bytes(wire, run->share_count[i], x.block);
        total += slot->share_bytes[i];
    }
    const float *value = msdu__domain_buffer(e, f, slice);
    /* who has no weight sends nothing, not even what it held back */
    bool has_weight =
        f->contribution.weight > 0 || (e->is_two_level && has_host_weight(e, f, slice));
    float *residual = wire->has_feedback && has_weight ? run->residual : NULL;
    run->has_residual = run->has_residual || residual != NULL;
    uint64_t began = coding_begins(e);
    MSDU__KERNEL(e, encode, &at, &x, value, residual, slot->send, &run->found->residual);
    coding_ends(e, began);
    msdu_op op = {
        .kind = MSDU_OP_ALLTOALL,
        .group = outer_group(e),
        .place = msdu__place(e->job),
        .send = slot->send,
        .recv = slot->received,
        .shares = slot->share_bytes,
        .flags = flags_of(e, f),
    };
    /* all other owners' shares once, then the own share to every other rank */
    uint64_t own = slot->share_bytes[msdu__outer_rank(e)];
    run->times.bytes = total - own + own * (uint64_t)(msdu__outer_ranks(e) - 1);
    return msdu__engine_start(e, &op, run->times.lane, &run->req);
}

/* Of what this rank gives, before anything is left out. */
static void sketch(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    const float *value = msdu__domain_buffer(e, f, slice);
    msdu_launch at = floats_at(e, MSDU_STAGE_EARLY, e->model->slicing.slices[slice].count);
    bool is_told = msdu__wire_at(wire_of(e, f, slice))->has_feedback && f->contribution.weight > 0;
    if (run->is_compressed && is_told && run->residual != NULL) {
        MSDU__KERNEL(e, sketch, &at, value, slice, run->found->sketch);
    }
}

/* A round may be skipped, or the group change in it. */
static bool may_come_to_nothing(const msdu__engine *e, const msdu__fragment *f)
{
    return e->job->settings.ranks_least > 0 ||
           (f->round.is_gradient && e->job->settings.check_finite == MSDU__CHECK_SKIP);
}

void msdu__transfer_prepare(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    run->is_compressed = wire_of(e, f, slice) != MSDU__WIRE_FLOAT32 &&
                         e->model->slicing.slices[slice].dtype != MSDU_FLOAT64;
    if (may_come_to_nothing(e, f)) {
        msdu__domain_keep(e, slice);
    }
    send_held(e, f, slice);
    sketch(e, f, slice);
}

msdu_status msdu__transfer_start(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    msdu_status status =
        run->is_compressed ? start_exchange(e, f, slice) : start_whole(e, f, slice);
    run->state = MSDU__RUN_FIRST;
    f->bytes += run->times.bytes;
    return status;
}

msdu_status msdu__transfer_gather(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    msdu__slot *slot = &e->slots[run->slot];
    uint64_t own = 0;
    for (int32_t i = 0; i < msdu__outer_rank(e); i++) {
        own += slot->share_bytes[i];
    }
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .group = outer_group(e),
        .place = msdu__place(e->job),
        .send = slot->send + own,
        .recv = slot->send,
        .shares = slot->share_bytes,
        .flags = flags_of(e, msdu__engine_fragment(e, slice)),
    };
    uint32_t lane = (uint32_t)e->job->settings.lanes + run->times.lane;
    run->state = MSDU__RUN_SECOND;
    return msdu__engine_start(e, &op, lane, &run->req);
}

/* Is there anything in the sum of all contributions to the own share? Waits for the kernel. */
static bool is_empty(msdu__engine *e, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, run->share_count[msdu__outer_rank(e)]);
    run->found->summed.update_sq = 0;
    MSDU__KERNEL(e, norm, &at, e->slots[run->slot].sum, &run->found->summed);
    return msdu__kernels_settle(e) == MSDU_OK && run->found->summed.update_sq == 0;
}

void msdu__transfer_sum(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    const msdu__slot *slot = &e->slots[run->slot];
    msdu_exchange x = exchange_of(e, f, slice);
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, run->share_count[msdu__outer_rank(e)]);
    uint8_t *out = slot->send;
    for (int32_t i = 0; i < msdu__outer_rank(e); i++) {
        out += slot->share_bytes[i];
    }
    bool may_be_void = f->contribution.weight == 0;
    float *residual = msdu__wire_at(x.format)->has_feedback ? run->owner_residual : NULL;
    uint64_t began = coding_begins(e);
    MSDU__KERNEL(e, reduce, &at, &x, slot->received, may_be_void ? NULL : residual, slot->sum, out);
    coding_ends(e, began);
    /* if no rank has weight the mean is dropped, and what it held back with it: not sent */
    if (may_be_void && residual != NULL && !is_empty(e, slice)) {
        MSDU__KERNEL(e, reduce, &at, &x, slot->received, residual, slot->sum, out);
    }
}

void msdu__transfer_decode(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu_exchange x = exchange_of(e, f, slice);
    msdu_launch at = floats_at(e, MSDU_STAGE_LATE, e->model->slicing.slices[slice].count);
    uint64_t began = coding_begins(e);
    MSDU__KERNEL(e, decode, &at, &x, e->slots[e->runs[slice].slot].send,
                 msdu__domain_buffer(e, f, slice));
    coding_ends(e, began);
}
