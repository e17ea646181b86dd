/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of training: one exact, blocking average of all parameters, with what the error feedback
 * still held back, so that every rank ends with the same bits. Runs on the owner, after the
 * communication thread ended.
 */
#include "pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "correct/vec.h"

typedef struct final_facts {
    uint64_t model;   /* hash of all parameters */
    uint64_t buffers; /* and of all buffers */
    uint64_t bad;     /* 1 + tensor with a non-finite value */
} final_facts;

/* What ranks do not have in common. */
typedef struct difference {
    bool is_in_model;
    bool is_in_buffers;
} difference;

bool msdu__final_is_between_steps(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        for (int kind = 0; kind < 2; kind++) {
            if (atomic_load(&p->tensors[i].announced[kind]) == p->step + 1) {
                return false;
            }
        }
    }
    return true;
}

static uint64_t find_bad(const msdu__pipeline *p)
{
    for (uint32_t i = 0; p->settings.check_finite && i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        bool has_bad = false;
        if (t->role == MSDU_ROLE_MODEL && t->parameter != NULL) {
            msdu__vec_sum_sq(t->parameter, t->dtype, t->count, &has_bad);
        }
        if (has_bad) {
            return i + 1;
        }
    }
    return 0;
}

/* Do all ranks hold the same bits already? Names a rank with a bad value. */
static msdu_status compare_ranks(msdu__pipeline *p, difference *out)
{
    final_facts *facts = calloc((size_t)p->ranks, sizeof(*facts));
    uint64_t *shares = calloc((size_t)p->ranks, sizeof(*shares));
    msdu_status status = MSDU_OK;
    if (facts == NULL || shares == NULL) {
        status = msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to compare ranks", p->rank);
        goto err_free;
    }
    for (int32_t i = 0; i < p->ranks; i++) {
        shares[i] = sizeof(*facts);
    }
    facts[p->rank] = (final_facts){.model = msdu__agree_hash(p, MSDU_ROLE_MODEL),
                                   .buffers = msdu__agree_hash(p, MSDU_ROLE_BUFFER),
                                   .bad = find_bad(p)};
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER, .send = &facts[p->rank], .recv = facts, .shares = shares};
    status = msdu__agree_run(p, &op, 0);
    *out = (difference){false, false};
    for (int32_t i = 0; status == MSDU_OK && i < p->ranks; i++) {
        out->is_in_model |= facts[i].model != facts[0].model;
        out->is_in_buffers |= facts[i].buffers != facts[0].buffers;
        if (facts[i].bad > 0) {
            status =
                msdu__fail(MSDU_ERR_NOT_FINITE,
                           "rank %d: parameter '%s' holds NaN or infinity at the end; no final "
                           "average was made",
                           i, p->tensors[facts[i].bad - 1].name);
        }
    }

err_free:
    free(shares);
    free(facts);
    return status;
}

/* Parameters are averaged as pseudo-gradients, buffers as they are. */
static msdu_status reserve(msdu__pipeline *p)
{
    if (p->runs[0].anchor != NULL) {
        return MSDU_OK;
    }
    /* zero anchors: the pseudo-gradient is then minus the parameter itself */
    char *anchor = msdu__start_block(p, p->slicing.arena_bytes);
    if (anchor == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the final average", p->rank);
    }
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        p->runs[slice].anchor = anchor + p->slicing.slices[slice].arena;
    }
    return MSDU_OK;
}

static msdu_status reduce_all(msdu__pipeline *p, uint32_t first, uint32_t bound)
{
    for (uint32_t slice = first; slice < bound; slice++) {
        const msdu__slice *cut = &p->slicing.slices[slice];
        bool is_double = cut->dtype == MSDU_FLOAT64;
        int32_t dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32;
        msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                      .dtype = dtype,
                      .count = cut->count,
                      .recv = p->runs[slice].buf};
        msdu_status status = msdu__agree_run(p, &op, 0);
        if (status != MSDU_OK) {
            return status;
        }
        msdu__vec_scale(p->runs[slice].buf, dtype, 1.0 / p->ranks, cut->count);
        p->summary.bytes_sent +=
            2 * cut->count * (is_double ? 8 : 4) * (uint64_t)(p->ranks - 1) / (uint64_t)p->ranks;
    }
    return MSDU_OK;
}

/* Slices first .. bound - 1. */
static msdu_status average(msdu__pipeline *p, uint32_t first, uint32_t bound)
{
    msdu__fragment f = {.round = {.is_gradient = false}};
    /* from here on as in the parameter domain, with nothing but the mean */
    p->is_accumulated = false;
    char why[MSDU__TEXT_BYTES];
    (void)msdu__chain_parse("average", false, &p->chain, why, sizeof(why));
    for (uint32_t slice = first; slice < bound; slice++) {
        p->runs[slice].has_residual = p->runs[slice].has_residual && p->is_local_entered;
        msdu__domain_capture(p, &f, slice);
        msdu__domain_flush(p, p->runs[slice].buf, slice);
    }
    msdu_status status = reduce_all(p, first, bound);
    for (uint32_t slice = first; status == MSDU_OK && slice < bound; slice++) {
        msdu__domain_apply(p, &f, slice);
    }
    return status;
}

static bool has_parameters(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].role == MSDU_ROLE_MODEL && p->tensors[i].parameter == NULL) {
            return false;
        }
    }
    return true;
}

msdu_status msdu__final_average(msdu__pipeline *p)
{
    difference differs = {false, false};
    bool has_model = has_parameters(p);
    if (p->ranks == 1) {
        return MSDU_OK;
    }
    if (!has_model && p->is_accumulated) {
        msdu__log_line(&p->log, MSDU_LOG_WARN,
                       "no parameter pointers: ranks differ by the drift since their last meeting "
                       "(setting total_steps makes the last step one)");
    }
    if (!has_model && p->buffer_bound == p->slice_bound) {
        return MSDU_OK;
    }
    msdu_status status = compare_ranks(p, &differs);
    differs.is_in_model = differs.is_in_model && has_model;
    if (status == MSDU_OK && differs.is_in_model) {
        status = reserve(p);
    }
    if (status == MSDU_OK && differs.is_in_model) {
        status = average(p, 0, p->slice_bound);
    }
    if (status == MSDU_OK && differs.is_in_buffers) {
        status = average(p, p->slice_bound, p->buffer_bound);
    }
    p->summary.rounds += differs.is_in_model || differs.is_in_buffers ? 1 : 0;
    return status;
}
