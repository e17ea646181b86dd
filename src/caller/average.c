/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between steps, and at the end: one exact, blocking average of all parameters, with what the error
 * feedback still held back, so that every rank has the same bits. The API thread waits while the
 * communication thread, which has nothing else to do, does it.
 */
#include "caller.h"

#include "core/blocking.h"
#include "core/domain.h"
#include "core/kernels.h"
#include "core/memory.h"
#include "core/progress.h"
#include "startup/startup.h"

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

/* What all ranks know of each other before they average. */
typedef struct synchronization {
    bool differs_in_model;
    bool differs_in_buffers;
    double weight;  /* of this rank */
    double weights; /* of all; never 0 */
    int32_t first;  /* first of the ranks that had input longest, which alone have weight */
    bool is_uneven; /* there are others */
} synchronization;

static bool is_finite(msdu__caller *c, const msdu__tensor *t)
{
    msdu_sums *sums = &c->engine->runs[0].found->summed; /* no round is under way */
    msdu_launch at = msdu__kernels_at(c->engine, MSDU_STAGE_EARLY, t->dtype, t->count);
    *sums = (msdu_sums){0};
    MSDU__KERNEL(c->engine, norm, &at, t->parameter, sums);
    return msdu__kernels_settle(c->engine) != MSDU_OK || sums->bad == 0;
}

static uint64_t find_bad(msdu__caller *c)
{
    for (uint32_t i = 0; c->job->settings.check_finite && i < c->model->tensor_count; i++) {
        const msdu__tensor *t = &c->model->tensors[i];
        if (t->role == MSDU_ROLE_MODEL && t->parameter != NULL && !is_finite(c, t)) {
            return i + 1;
        }
    }
    return 0;
}

/* Error feedback is in units of parameters: of pseudo-gradients, or of drift. */
static bool is_in_parameters(const msdu__caller *c)
{
    return c->is_local_entered || c->job->is_accumulated;
}

static bool holds_back(const msdu__caller *c)
{
    bool does = false;
    for (uint32_t slice = 0; slice < c->model->slice_bound; slice++) {
        does = does || c->engine->runs[slice].has_residual;
    }
    return does && is_in_parameters(c);
}

static void find_first(const msdu__caller *c, const final_facts *facts, synchronization *out)
{
    out->first = 0;
    out->is_uneven = false;
    for (int32_t i = 1; i < c->job->ranks; i++) {
        out->first = facts[i].reached > facts[out->first].reached ? i : out->first;
        out->is_uneven = out->is_uneven || facts[i].reached != facts[0].reached;
    }
}

static void count_weights(const msdu__caller *c, const final_facts *facts, synchronization *out)
{
    uint64_t reached = facts[out->first].reached;
    int32_t count = 0;
    out->weights = 0;
    for (int32_t i = 0; i < c->job->ranks; i++) {
        bool counts = facts[i].reached == reached;
        out->weights += counts ? facts[i].weight : 0;
        count += counts ? 1 : 0;
    }
    bool has_weights = out->weights > 0;
    bool counts = facts[c->job->rank].reached == reached;
    out->weight = !counts ? 0 : has_weights ? facts[c->job->rank].weight : 1;
    out->weights = has_weights ? out->weights : count;
}

/* Ranks stand after the same step, or are inside msdu_join() and may have come there one by one. */
static msdu_status check_steps(const msdu__caller *c, const final_facts *facts,
                               const synchronization *m)
{
    int32_t other = 0;
    if (!m->is_uneven || c->is_idle) {
        return MSDU_OK;
    }
    while (facts[other].reached == facts[0].reached) {
        other++;
    }
    return msdu__fail(
        MSDU_ERR_MISMATCH,
        "ranks 0 and %d synchronize after different steps: %llu and %llu (see msdu_join)", other,
        (unsigned long long)facts[0].reached, (unsigned long long)facts[other].reached);
}

/* By the clock ranks make different numbers of steps, and all of them count. */
static uint64_t reached_by(const msdu__caller *c)
{
    return c->is_clocked ? 0 : c->is_idle ? c->reached : c->step;
}

/* Do all ranks hold the same bits already? Names a rank with a bad value. */
static msdu_status compare_ranks(msdu__caller *c, synchronization *out)
{
    const final_facts own = {.model = msdu__agree_hash(c->engine, MSDU_ROLE_MODEL),
                             .buffers = msdu__agree_hash(c->engine, MSDU_ROLE_BUFFER),
                             .bad = find_bad(c),
                             .weight = c->weight,
                             .held = holds_back(c) ? 1 : 0,
                             .reached = reached_by(c)};
    void *all = NULL;
    msdu_status status =
        msdu__blocking_gather(c->engine, &own, sizeof(own), MSDU_OP_FINAL, 0, &all);
    const final_facts *facts = all;
    *out = (synchronization){.differs_in_model = false};
    for (int32_t i = 0; status == MSDU_OK && i < c->job->ranks; i++) {
        out->differs_in_model |= facts[i].model != facts[0].model || facts[i].held != 0;
        out->differs_in_buffers |= facts[i].buffers != facts[0].buffers;
        if (facts[i].bad > 0) {
            status = msdu__fail(MSDU_ERR_NOT_FINITE,
                                "rank %d: parameter '%s' holds NaN or infinity at the end of "
                                "step %llu; nothing was averaged",
                                msdu__job_name(c->job, i), c->model->tensors[facts[i].bad - 1].name,
                                (unsigned long long)c->step);
        }
    }
    if (status == MSDU_OK) {
        find_first(c, facts, out);
        count_weights(c, facts, out);
        status = check_steps(c, facts, out);
    }
    free(all);
    return status;
}

/* Parameters are averaged as pseudo-gradients, buffers as they are. */
static msdu_status reserve(msdu__caller *c)
{
    if (c->engine->runs[0].anchor != NULL) {
        return MSDU_OK;
    }
    /* zero anchors: the pseudo-gradient is then minus the parameter itself */
    char *anchor = msdu__memory_slices(c->engine, c->model->slicing.arena_bytes);
    if (anchor == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the final average",
                          c->job->rank);
    }
    for (uint32_t slice = 0; slice < c->model->slicing.slice_count; slice++) {
        c->engine->runs[slice].anchor = anchor + c->model->slicing.slices[slice].arena;
    }
    return MSDU_OK;
}

static msdu_status reduce_slice(msdu__caller *c, const synchronization *m, uint32_t slice)
{
    const msdu__slice *cut = &c->model->slicing.slices[slice];
    bool is_double = cut->dtype == MSDU_FLOAT64;
    int32_t dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32;
    msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                  .place = msdu__place(c->job),
                  .dtype = dtype,
                  .count = cut->count,
                  .recv = c->engine->runs[slice].buf};
    msdu_status status = msdu__blocking_run(c->engine, &op, 0);
    if (status == MSDU_OK) {
        msdu_launch at = msdu__kernels_at(c->engine, MSDU_STAGE_LATE, dtype, cut->count);
        MSDU__KERNEL(c->engine, scale, &at, c->engine->runs[slice].buf, 1.0 / m->weights, NULL);
        c->hand->summary.bytes_sent += 2 * cut->count * (is_double ? 8 : 4) *
                                       (uint64_t)(c->job->ranks - 1) / (uint64_t)c->job->ranks;
    }
    return status;
}

/* What error feedback holds back; of drift, the other way round. It was weighted as its round was.
 */
static void send_along(msdu__caller *c, const synchronization *m, uint32_t slice)
{
    double factor = m->weights * c->engine->runs[slice].scale / c->job->ranks;
    if (is_in_parameters(c)) {
        msdu__domain_flush(c->engine, c->engine->runs[slice].buf, slice,
                           c->job->is_accumulated ? -factor : factor, c->job->ranks);
    }
}

/* Slices first .. bound - 1. */
static msdu_status average(msdu__caller *c, const synchronization *m, uint32_t first,
                           uint32_t bound)
{
    msdu__fragment f = {.round = {.is_exact = true},
                        .opened = 1,
                        .contribution = {.weight = m->weight},
                        .scale = 1};
    msdu_status status = MSDU_OK;
    for (uint32_t slice = first; slice < bound; slice++) {
        msdu__domain_capture(c->engine, &f, slice);
        send_along(c, m, slice);
    }
    for (uint32_t slice = first; status == MSDU_OK && slice < bound; slice++) {
        status = reduce_slice(c, m, slice);
    }
    for (uint32_t slice = first; status == MSDU_OK && slice < bound; slice++) {
        msdu__domain_apply(c->engine, &f, slice);
        msdu__domain_forget(c->engine, slice);
    }
    return status == MSDU_OK ? msdu__kernels_settle(c->engine) : status;
}

bool msdu__average_has_parameters(const msdu__model *model)
{
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (model->tensors[i].role == MSDU_ROLE_MODEL && model->tensors[i].parameter == NULL) {
            return false;
        }
    }
    return true;
}

static msdu_status average_all(msdu__caller *c)
{
    synchronization m = {.weights = 1};
    bool has_model = msdu__average_has_parameters(c->model);
    if (c->job->ranks == 1) {
        return MSDU_OK;
    }
    if (!has_model && c->job->is_accumulated) {
        msdu__log_line(
            &c->job->log, MSDU_LOG_WARN,
            "no parameter pointers: ranks differ by the drift since their last synchronization "
            "(setting total_steps makes the last step one)");
    }
    if (!has_model && c->model->buffer_bound == c->model->slice_bound) {
        return MSDU_OK;
    }
    msdu_status status = compare_ranks(c, &m);
    if (status != MSDU_OK) {
        return status;
    }
    m.differs_in_model = m.differs_in_model && has_model;
    if (m.differs_in_model) {
        status = reserve(c);
    }
    if (status == MSDU_OK && m.differs_in_model) {
        status = average(c, &m, 0, c->model->slice_bound);
    }
    if (status == MSDU_OK && m.differs_in_buffers) {
        status = average(c, &m, c->model->slice_bound, c->model->buffer_bound);
    }
    c->hand->summary.rounds += m.differs_in_model || m.differs_in_buffers ? 1 : 0;
    return status;
}

/* In the gradient domain: parameters and registered optimizer state of the rank that had input
 * longest, as they are; their mean would not have the same bits. */
static msdu_status copy_from(msdu__caller *c, int32_t first)
{
    uint64_t *shares = calloc((size_t)c->job->ranks, sizeof(*shares));
    msdu_status status = MSDU_OK;
    if (shares == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to copy parameters",
                          c->job->rank);
    }
    for (uint32_t i = 0; i < c->model->tensor_count && status == MSDU_OK; i++) {
        const msdu__tensor *t = &c->model->tensors[i];
        if (t->role != MSDU_ROLE_MODEL && t->role != MSDU_ROLE_STATE) {
            continue;
        }
        shares[first] = t->count * msdu__dtype_bytes(t->dtype);
        msdu_op op = {.kind = MSDU_OP_ALLGATHER,
                      .place = msdu__place(c->job),
                      .send = t->parameter,
                      .recv = t->parameter,
                      .shares = shares};
        status = msdu__blocking_run(c->engine, &op, 0);
        c->hand->summary.bytes_sent +=
            c->job->rank == first ? shares[first] * (uint64_t)(c->job->ranks - 1) : 0;
    }
    free(shares);
    return status;
}

static msdu_status catch_up(msdu__caller *c)
{
    synchronization m = {.weights = 1};
    msdu_status status = compare_ranks(c, &m);
    if (status != MSDU_OK || !m.is_uneven) {
        return status;
    }
    if (c->is_gradient) {
        c->was_uneven = true;
        return copy_from(c, m.first);
    }
    status = reserve(c);
    return status == MSDU_OK ? average(c, &m, 0, c->model->slice_bound) : status;
}

/* --- commands, on the communication thread --- */

static msdu__outcome end_with(msdu__engine *e, msdu_status status)
{
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
    }
    return msdu__event_completed(e);
}

static msdu__outcome carry_average(msdu__engine *e, void *subject, uint64_t number)
{
    (void)number;
    return end_with(e, average_all(subject));
}

static msdu__outcome carry_catch_up(msdu__engine *e, void *subject, uint64_t number)
{
    (void)number;
    return end_with(e, catch_up(subject));
}

/* --- the API thread --- */

/* Once everything that was under way has ended. Waiting that was asked for: the policy must not
 * take it for the network's. */
static msdu_status run_drained(msdu__caller *c, const msdu__event *work)
{
    msdu__cell *blocked = &c->hand->reports.blocked_ns;
    uint64_t before = msdu__cell_get(blocked);
    /* by the clock ranks come here one by one: who is here has no input until all are */
    msdu_status status = c->is_clocked ? msdu__boundary_join(c) : MSDU_OK;
    status = status == MSDU_OK ? msdu__caller_drain(c) : status;
    if (status != MSDU_OK) {
        return status;
    }
    uint64_t began = msdu__job_now(c->job);
    status = msdu__caller_carry(c, work, "the last average of all ranks");
    uint64_t spent = msdu__job_now(c->job) - began;
    uint64_t excused = msdu__cell_add(blocked, spent) + spent - before;
    msdu__handover_push(c->hand, &(msdu__event){.run = msdu__event_excuse, .number = excused});
    return status;
}

msdu_status msdu__average_exact(msdu__caller *c)
{
    return run_drained(c, &(msdu__event){.run = carry_average, .subject = c});
}

msdu_status msdu__average_catch_up(msdu__caller *c)
{
    return run_drained(c, &(msdu__event){.run = carry_catch_up, .subject = c});
}
