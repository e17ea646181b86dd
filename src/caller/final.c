/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between steps, and at the end: one exact, blocking average of all parameters, with what the error
 * feedback still held back, so that every rank has the same bits. The owner waits while the
 * communication thread, which has nothing else to do, does it.
 */
#include "caller.h"

#include <stdlib.h>
#include <string.h>

typedef struct final_facts {
    uint64_t model;   /* hash of all parameters */
    uint64_t buffers; /* and of all buffers */
    uint64_t bad;     /* 1 + tensor with a non-finite value */
    double weight;    /* of this rank */
    uint64_t held;    /* error feedback holds back a part of parameters */
    uint64_t reached; /* steps for which it had input */
} final_facts;

/* What all ranks know of each other before they meet. */
typedef struct meeting {
    bool differs_in_model;
    bool differs_in_buffers;
    double weight;  /* of this rank */
    double weights; /* of all; never 0 */
    int32_t first;  /* first of the ranks that had input longest, which alone have weight */
    bool is_uneven; /* there are others */
} meeting;

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

static bool is_finite(msdu__pipeline *p, const msdu__tensor *t)
{
    msdu_sums *sums = &p->runs[0].found->summed; /* no round is under way */
    msdu_launch at = msdu__kernels_at(p, MSDU_STAGE_EARLY, t->dtype, t->count);
    *sums = (msdu_sums){0};
    MSDU__KERNEL(p, norm, &at, t->parameter, sums);
    return msdu__kernels_settle(p) != MSDU_OK || sums->bad == 0;
}

static uint64_t find_bad(msdu__pipeline *p)
{
    for (uint32_t i = 0; p->settings.check_finite && i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        if (t->role == MSDU_ROLE_MODEL && t->parameter != NULL && !is_finite(p, t)) {
            return i + 1;
        }
    }
    return 0;
}

/* Error feedback is in units of parameters: of pseudo-gradients, or of drift. */
static bool is_in_parameters(const msdu__pipeline *p)
{
    return p->is_local_entered || p->is_accumulated;
}

static bool holds_back(const msdu__pipeline *p)
{
    bool does = false;
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        does = does || p->runs[slice].has_residual;
    }
    return does && is_in_parameters(p);
}

static void find_first(const msdu__pipeline *p, const final_facts *facts, meeting *out)
{
    out->first = 0;
    out->is_uneven = false;
    for (int32_t i = 1; i < p->ranks; i++) {
        out->first = facts[i].reached > facts[out->first].reached ? i : out->first;
        out->is_uneven = out->is_uneven || facts[i].reached != facts[0].reached;
    }
}

static void count_weights(const msdu__pipeline *p, const final_facts *facts, meeting *out)
{
    uint64_t reached = facts[out->first].reached;
    int32_t count = 0;
    out->weights = 0;
    for (int32_t i = 0; i < p->ranks; i++) {
        bool counts = facts[i].reached == reached;
        out->weights += counts ? facts[i].weight : 0;
        count += counts ? 1 : 0;
    }
    bool has_voices = out->weights > 0;
    bool counts = facts[p->rank].reached == reached;
    out->weight = !counts ? 0 : has_voices ? facts[p->rank].weight : 1;
    out->weights = has_voices ? out->weights : count;
}

/* Ranks stand after the same step, or are inside msdu_join() and may have come there one by one. */
static msdu_status check_steps(const msdu__pipeline *p, const final_facts *facts, const meeting *m)
{
    int32_t other = 0;
    if (!m->is_uneven || p->is_absent) {
        return MSDU_OK;
    }
    while (facts[other].reached == facts[0].reached) {
        other++;
    }
    return msdu__fail(MSDU_ERR_MISMATCH,
                      "ranks 0 and %d meet after different steps: %llu and %llu (see msdu_join)",
                      other, (unsigned long long)facts[0].reached,
                      (unsigned long long)facts[other].reached);
}

/* Do all ranks hold the same bits already? Names a rank with a bad value. */
static msdu_status compare_ranks(msdu__pipeline *p, meeting *out)
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
                                   .bad = find_bad(p),
                                   .weight = p->weight,
                                   .held = holds_back(p) ? 1 : 0,
                                   .reached = p->is_absent ? p->reached : p->step};
    msdu_op op = {.kind = MSDU_OP_ALLGATHER,
                  .send = &facts[p->rank],
                  .recv = facts,
                  .shares = shares,
                  .flags = MSDU_OP_MEETING};
    status = msdu__blocking_run(p, &op, 0);
    *out = (meeting){.differs_in_model = false};
    for (int32_t i = 0; status == MSDU_OK && i < p->ranks; i++) {
        out->differs_in_model |= facts[i].model != facts[0].model || facts[i].held != 0;
        out->differs_in_buffers |= facts[i].buffers != facts[0].buffers;
        if (facts[i].bad > 0) {
            status = msdu__fail(MSDU_ERR_NOT_FINITE,
                                "rank %d: parameter '%s' holds NaN or infinity at the end of "
                                "step %llu; nothing was averaged",
                                i, p->tensors[facts[i].bad - 1].name, (unsigned long long)p->step);
        }
    }
    if (status == MSDU_OK) {
        find_first(p, facts, out);
        count_weights(p, facts, out);
        status = check_steps(p, facts, out);
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
    char *anchor = msdu__memory_slices(p, p->slicing.arena_bytes);
    if (anchor == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the final average", p->rank);
    }
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        p->runs[slice].anchor = anchor + p->slicing.slices[slice].arena;
    }
    return MSDU_OK;
}

static msdu_status reduce_slice(msdu__pipeline *p, const meeting *m, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    bool is_double = cut->dtype == MSDU_FLOAT64;
    int32_t dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32;
    msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                  .place = msdu__place(p),
                  .dtype = dtype,
                  .count = cut->count,
                  .recv = p->runs[slice].buf};
    msdu_status status = msdu__blocking_run(p, &op, 0);
    if (status == MSDU_OK) {
        msdu_launch at = msdu__kernels_at(p, MSDU_STAGE_LATE, dtype, cut->count);
        MSDU__KERNEL(p, scale, &at, p->runs[slice].buf, 1.0 / m->weights, NULL);
        p->summary.bytes_sent +=
            2 * cut->count * (is_double ? 8 : 4) * (uint64_t)(p->ranks - 1) / (uint64_t)p->ranks;
    }
    return status;
}

/* What error feedback holds back; of drift, the other way round. It was weighted as its round was.
 */
static void send_along(msdu__pipeline *p, const meeting *m, uint32_t slice)
{
    double factor = m->weights * p->runs[slice].scale / p->ranks;
    if (is_in_parameters(p)) {
        msdu__domain_flush(p, p->runs[slice].buf, slice, p->is_accumulated ? -factor : factor,
                           p->ranks);
    }
}

/* Slices first .. bound - 1. */
static msdu_status average(msdu__pipeline *p, const meeting *m, uint32_t first, uint32_t bound)
{
    msdu__fragment f = {
        .round = {.is_exact = true}, .opened = 1, .voices = {{.weight = m->weight}}, .scale = 1};
    msdu_status status = MSDU_OK;
    for (uint32_t slice = first; slice < bound; slice++) {
        msdu__domain_capture(p, &f, slice);
        send_along(p, m, slice);
    }
    for (uint32_t slice = first; status == MSDU_OK && slice < bound; slice++) {
        status = reduce_slice(p, m, slice);
    }
    for (uint32_t slice = first; status == MSDU_OK && slice < bound; slice++) {
        msdu__domain_apply(p, &f, slice);
        msdu__domain_forget(p, slice);
    }
    return status == MSDU_OK ? msdu__kernels_settle(p) : status;
}

bool msdu__final_has_parameters(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].role == MSDU_ROLE_MODEL && p->tensors[i].parameter == NULL) {
            return false;
        }
    }
    return true;
}

static msdu_status average_all(msdu__pipeline *p)
{
    meeting m = {.weights = 1};
    bool has_model = msdu__final_has_parameters(p);
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
    msdu_status status = compare_ranks(p, &m);
    if (status != MSDU_OK) {
        return status;
    }
    m.differs_in_model = m.differs_in_model && has_model;
    if (m.differs_in_model) {
        status = reserve(p);
    }
    if (status == MSDU_OK && m.differs_in_model) {
        status = average(p, &m, 0, p->slice_bound);
    }
    if (status == MSDU_OK && m.differs_in_buffers) {
        status = average(p, &m, p->slice_bound, p->buffer_bound);
    }
    p->summary.rounds += m.differs_in_model || m.differs_in_buffers ? 1 : 0;
    return status;
}

/* Waiting that was asked for: the policy must not take it for the network's. */
static void forgive(msdu__pipeline *p, uint64_t blocked_ns)
{
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        p->fragments[i].blocked_ns += blocked_ns;
    }
}

/* In the gradient domain: parameters and registered optimizer state of the rank that had input
 * longest, as they are; their mean would not have the same bits. */
static msdu_status copy_from(msdu__pipeline *p, int32_t first)
{
    uint64_t *shares = calloc((size_t)p->ranks, sizeof(*shares));
    msdu_status status = MSDU_OK;
    if (shares == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to copy parameters", p->rank);
    }
    for (uint32_t i = 0; i < p->tensor_count && status == MSDU_OK; i++) {
        const msdu__tensor *t = &p->tensors[i];
        if (t->role != MSDU_ROLE_MODEL && t->role != MSDU_ROLE_STATE) {
            continue;
        }
        shares[first] = t->count * msdu__dtype_bytes(t->dtype);
        msdu_op op = {.kind = MSDU_OP_ALLGATHER,
                      .place = msdu__place(p),
                      .send = t->parameter,
                      .recv = t->parameter,
                      .shares = shares};
        status = msdu__blocking_run(p, &op, 0);
        p->summary.bytes_sent += p->rank == first ? shares[first] * (uint64_t)(p->ranks - 1) : 0;
    }
    free(shares);
    return status;
}

static msdu_status catch_up(msdu__pipeline *p)
{
    meeting m = {.weights = 1};
    msdu_status status = compare_ranks(p, &m);
    if (status != MSDU_OK || !m.is_uneven) {
        return status;
    }
    if (p->is_gradient) {
        p->was_uneven = true;
        return copy_from(p, m.first);
    }
    status = reserve(p);
    return status == MSDU_OK ? average(p, &m, 0, p->slice_bound) : status;
}

/* Communication thread. */
static bool end_with(msdu__pipeline *p, msdu_status status)
{
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    msdu__handoff_carried(p);
    return true;
}

static bool carry_average(msdu__pipeline *p)
{
    return end_with(p, average_all(p));
}

static bool carry_catch_up(msdu__pipeline *p)
{
    return end_with(p, catch_up(p));
}

/* Once everything that was under way has ended. */
static msdu_status run_drained(msdu__pipeline *p, bool (*work)(msdu__pipeline *p))
{
    uint64_t blocked = atomic_load(&p->blocked_ns);
    msdu_status status = msdu__handoff_drain(p);
    if (status != MSDU_OK) {
        return status;
    }
    uint64_t began = msdu__pipeline_now(p);
    status = msdu__handoff_carry(p, work, "the last average of all ranks");
    uint64_t spent = msdu__pipeline_now(p) - began;
    forgive(p, atomic_fetch_add(&p->blocked_ns, spent) + spent - blocked);
    return status;
}

msdu_status msdu__final_meet(msdu__pipeline *p)
{
    return run_drained(p, carry_average);
}

msdu_status msdu__final_catch_up(msdu__pipeline *p)
{
    return run_drained(p, carry_catch_up);
}
