/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters after the group of ranks changed (setting ranks_least): equal on all of them before
 * the next step. Runs on the API thread, before the communication thread exists.
 *
 * Ranks that trained exactly hold the same parameters already, but for one that missed the end of
 * the last step, and newcomers: those take what rank 0 holds. After local steps every rank holds
 * its own: all take the mean of those that trained, in which no step of theirs is lost.
 *
 * What error feedback held back of pseudo-gradients gets into that mean, and of gradients into the
 * next steps'; what lost ranks held back is lost. Outer momentum is rank 0's.
 */
#include "startup.h"

#include "core/blocking.h"
#include "core/kernels.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (UINT64_C(4) << 20) /* moved at once, through memory of this size */

/* What all ranks do, and this one. */
typedef struct healing {
    const msdu__former *former; /* slices of the epoch before */
    bool is_mean;               /* parameters become the mean of those that trained */
    bool is_given;              /* some rank takes what rank 0 holds */
    bool takes;                 /* this one does */
    bool is_owed;               /* some rank needs what the trainer shares */
    int32_t old;                /* ranks that trained */
    void *piece;
} healing;

static healing decide(const msdu__engine *e, const msdu__carried *all)
{
    healing h = {.takes = all[e->job->rank].is_newcomer != 0};
    bool differs = false;
    bool holds_back = false;
    for (int32_t i = 0; i < e->job->ranks; i++) {
        bool is_other = all[i].hash != all[0].hash;
        h.old += all[i].is_newcomer == 0 ? 1 : 0;
        h.is_given = h.is_given || all[i].is_newcomer != 0;
        h.is_owed = h.is_owed || all[i].needs_rest != 0;
        differs = differs || (is_other && all[i].is_newcomer == 0);
        holds_back = holds_back || all[i].holds_back != 0;
    }
    h.is_mean = (differs || holds_back) && all[0].is_exact == 0;
    if (differs && !h.is_mean) {
        h.is_given = true;
        h.takes = h.takes || all[e->job->rank].hash != all[0].hash;
    }
    return h;
}

/* From rank 0; who needs none of it receives it beside. */
static msdu_status give(msdu__engine *e, const healing *h, const msdu__tensor *t)
{
    uint64_t bytes = t->count * msdu__dtype_bytes(t->dtype);
    bool is_kept = e->job->rank != 0 && !h->takes;
    msdu_status status = MSDU_OK;
    for (uint64_t at = 0; at < bytes && status == MSDU_OK; at += PIECE_BYTES) {
        msdu_op op = {
            .kind = MSDU_OP_BROADCAST,
            .count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES,
            .recv = is_kept ? h->piece : (char *)t->parameter + at,
        };
        status = msdu__blocking_run(e, &op, 0);
    }
    return status;
}

/* Newcomers have no part in it, but take it. */
static msdu_status average(msdu__engine *e, const healing *h, const msdu__tensor *t)
{

    const uint64_t width = msdu__dtype_working_bytes(t->dtype);
    const uint64_t most = PIECE_BYTES / width;
    const int32_t working = width == sizeof(double) ? MSDU_FLOAT64 : MSDU_FLOAT32;
    msdu_status status = MSDU_OK;
    for (uint64_t i = 0; i < t->count && status == MSDU_OK; i += most) {
        uint64_t count = t->count - i < most ? t->count - i : most;
        char *part = (char *)t->parameter + i * msdu__dtype_bytes(t->dtype);
        msdu__segment elements = {(uint32_t)(t - e->model->tensors), i, count};
        msdu_launch at = msdu__kernels_at(e, MSDU_STAGE_EARLY, t->dtype, count);
        msdu_launch sum = msdu__kernels_at(e, MSDU_STAGE_EARLY, working, count);
        msdu_op op = {
            .kind = MSDU_OP_ALLREDUCE, .dtype = working, .count = count, .recv = h->piece};
        if (h->takes) {
            memset(h->piece, 0, count * width);
        } else {
            MSDU__KERNEL(e, load, &at, h->piece, part, NULL);
            msdu__former_deliver(h->former, &elements, h->old, h->piece);
        }
        status = msdu__blocking_run(e, &op, 0);
        if (status == MSDU_OK) {
            MSDU__KERNEL(e, scale, &sum, h->piece, 1.0 / h->old, NULL);
            MSDU__KERNEL(e, store, &at, part, h->piece);
            msdu__former_delivered(h->former, &elements);
        }
    }
    return status;
}

static msdu_status heal_tensor(msdu__engine *e, const healing *h, const msdu__tensor *t)
{
    bool is_averaged = h->is_mean && t->role == MSDU_ROLE_MODEL;
    return is_averaged ? average(e, h, t) : h->is_given ? give(e, h, t) : MSDU_OK;
}

static msdu_status heal(msdu__engine *e, healing *h)
{
    msdu_status status = MSDU_OK;
    if (!h->is_mean && !h->is_given) {
        return MSDU_OK;
    }
    h->piece = malloc(PIECE_BYTES);
    if (h->piece == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to take parameters",
                          e->job->rank);
    }
    for (uint32_t i = 0; i < e->model->tensor_count && status == MSDU_OK; i++) {
        status = heal_tensor(e, h, &e->model->tensors[i]);
    }
    free(h->piece);
    return status == MSDU_OK ? msdu__handover_status(e->hand) : status;
}

/* Of the slices of now: rank 0's, to all. */
static msdu_status give_momentum(msdu__engine *e, const msdu__former *former)
{
    msdu_status status = MSDU_OK;
    if (e->job->rank == 0) {
        msdu__former_move_momentum(e, former);
    }
    for (uint32_t i = 0; i < e->model->slicing.slice_count && status == MSDU_OK; i++) {
        const msdu__slice *cut = &e->model->slicing.slices[i];
        msdu_op op = {.kind = MSDU_OP_BROADCAST,
                      .count = cut->count * msdu__dtype_working_bytes(cut->dtype),
                      .recv = e->runs[i].momentum};
        status = op.recv != NULL ? msdu__blocking_run(e, &op, 0) : MSDU_OK;
    }
    return status;
}

/* What does not lie in parameters. */
static msdu_status heal_slices(msdu__engine *e, const msdu__carried *now,
                               const msdu__former *former)
{
    if (former->has_residual && !former->is_local && now->is_exact != 0) {
        msdu__former_move_residual(e, former);
    }
    e->norm_average = now->norm_average;
    return now->has_momentum != 0 ? give_momentum(e, former) : MSDU_OK;
}

msdu_status msdu__heal(msdu__engine *e, msdu__carried *carried, const msdu__former *former)
{
    void *all = NULL;
    carried->holds_back = former->has_residual && former->is_local ? 1 : 0;
    carried->has_momentum = former->has_momentum ? 1 : 0;
    carried->hash = msdu__agree_hash(e, MSDU_ROLE_MODEL);
    msdu_status status = msdu__blocking_gather(e, carried, sizeof(*carried), 0, 0, &all);
    if (status == MSDU_OK) {
        healing h = decide(e, all);
        h.former = former;
        status = heal(e, &h);
        status = status == MSDU_OK ? heal_slices(e, all, former) : status;
        bool needs_rest = carried->needs_rest != 0 || (h.is_given && h.takes);
        *carried = *(const msdu__carried *)all;
        carried->has_given = h.is_given || h.is_owed ? 1 : 0;
        carried->was_given = needs_rest ? 1 : 0;
        carried->was_averaged = h.is_mean ? 1 : 0;
        e->interval_state = carried->policy;
    }
    free(all);
    return status;
}
