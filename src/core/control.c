/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics message of a round: what every rank says of its part, and what comes of it for
 * all. Runs on the communication thread.
 */
#include "control.h"

#include "cores.h"
#include "domain.h"
#include "issue_order.h"
#include "replan.h"
#include "round.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t round_hash(const msdu__fragment *f)
{
    uint32_t facts[7] = {(uint32_t)f->opened,     f->round.interval,    f->round.delay_steps,
                         (uint32_t)f->round.wire, f->round.is_gradient, (uint32_t)f->round.step,
                         f->contribution.work};
    return msdu__plan_hash(facts, 7) ^ f->order.hash;
}

/* What the kernels of all slices found, in slice order. */
static void collect(msdu__engine *e, msdu__fragment *f)
{
    msdu__domain_sums(e, f);
    f->residual_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const msdu__found *found = e->runs[f->members[i]].found;
        f->residual_sq += found->residual.update_sq;
        for (uint32_t k = 0; k < MSDU__SKETCH; k++) {
            f->sketch[k] += found->sketch[k];
        }
    }
}

/* Equal parameters are told where they would be their own mean in exact arithmetic: every rank
 * counts alike, nothing of former rounds is held back, and the correction is no optimizer. */
static bool is_told(const msdu__engine *e, const msdu__fragment *f)
{
    const msdu__contribution *own = &f->contribution;
    return e->job->device == NULL && !e->ticks.is_on && !f->round.is_gradient &&
           !e->job->is_accumulated && own->weight == 1 && !own->is_idle &&
           msdu__chain_keeps_equal(&e->job->chain, &e->correct_args, f->round.delay_steps == 0);
}

static uint64_t captured_hash(const msdu__engine *e, const msdu__fragment *f)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < f->slice_count && is_told(e, f); i++) {
        uint64_t found = e->runs[f->members[i]].found->hash;
        if (found == 0) {
            return 0;
        }
        hash = (hash ^ found) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 29;
    }
    return hash != 1 ? hash : 0;
}

static void fill_control(msdu__engine *e, msdu__fragment *f, msdu__control *out)
{
    uint64_t hash = round_hash(f);
    uint64_t captured = captured_hash(e, f);
    double weight = f->contribution.weight;
    uint64_t blocked = msdu__cell_get(&e->hand->reports.blocked_ns);
    /* a rank without input waits for the others only */
    bool is_idle = f->contribution.is_idle;
    double waited = is_idle ? (double)INFINITY : (double)(blocked - f->last.blocked_ns);
    *out = (msdu__control){
        .bad_tensor = e->job->settings.check_finite ? (double)f->bad_tensor : 0.0,
        .local_sq = f->sums.update_sq,
        .weight_sq = f->sums.weight_sq,
        .residual_sq = f->residual_sq,
        .step_ns = msdu__number_get(&e->hand->reports.step_ns),
        .link_ns = e->link.last_ns,
        .latency_ns = e->link.latency_ns,
        .wait_ns = waited,
        .alone_ns = is_idle ? waited : msdu__cores_alone(e, f, waited),
        .queued_ns = (float)e->link.last_queued_ns,
        .coding_ns = (float)e->link.last_coding_ns,
        .loss = msdu__number_get(&e->hand->reports.loss),
        .lr = msdu__number_get(&e->hand->reports.lr),
        .flags = (f->order.is_wanted ? MSDU__CONTROL_PLAN : 0) +
                 (is_idle ? MSDU__CONTROL_IDLE : 0) +
                 (msdu__flag_get(&e->hand->reports.is_clipping) ? MSDU__CONTROL_CLIPS : 0) +
                 (msdu__flag_get(&e->hand->reports.is_awaited) ? MSDU__CONTROL_JOINS : 0),
        .weight = weight,
        .host_ranks = (float)msdu__handover_host_ranks(e->hand),
        .taken_share = (float)(is_idle ? 0 : msdu__cores_taken(e, f, waited)),
        .steps = (double)msdu__cell_get(&e->hand->reports.step_count),
        .missed = (double)e->ticks.missed_all,
        .check = {(double)(uint32_t)hash, (double)(uint32_t)(hash >> 32)},
        .hash = {(double)(uint32_t)captured, (double)(uint32_t)(captured >> 32)},
    };
    if (e->ticks.is_on) {
        out->dealt.drawn = (double)msdu__cell_get(&e->hand->supply.drawn);
        out->dealt.work = (double)msdu__cell_get(&e->hand->supply.work);
    }
    memcpy(out->sketch, f->sketch, sizeof(out->sketch));
    for (uint32_t k = 0; k < MSDU__SKETCH && weight != 1 && weight > 0; k++) {
        out->sketch[k] =
            (float)((double)out->sketch[k] / weight); /* what was captured, unweighted */
    }
    f->last.blocked_ns = blocked;
}

bool msdu__control_start(msdu__engine *e, msdu__fragment *f)
{
    if (f->issued < f->slice_count || !msdu__order_may_control(e, f) ||
        !msdu__round_kernels_done(e, f)) {
        return false;
    }
    collect(e, f);
    fill_control(e, f, &f->control.of[e->job->rank]);
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .send = &f->control.of[e->job->rank],
        .recv = f->control.of,
        .shares = e->control_shares,
    };
    msdu_status status = msdu__engine_start(e, &op, msdu__control_channel(e), &f->control.req);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
        return false;
    }
    f->bytes += sizeof(msdu__control) * (uint64_t)(e->job->ranks - 1);
    f->control.issued_ns = msdu__engine_now(e);
    f->control.is_issued = true;
    return true;
}

/* What becomes of gradients with a bad value. */
static const char *outcome(const msdu__engine *e, const msdu__fragment *f)
{
    if (f->is_propagated) {
        return "it is given to all ranks";
    }
    /* local steps with it cannot be undone */
    return e->job->is_accumulated ? "the round was not applied (setting check_finite; with domain "
                                    "gradient, propagate gives it to all ranks)"
                                  : "the round was not applied (setting check_finite)";
}

/* The whole context fails; or, for gradients and if asked for, only this round. */
static bool take_bad_value(msdu__engine *e, msdu__fragment *f, int32_t rank)
{
    uint32_t tensor = (uint32_t)f->control.of[rank].bad_tensor - 1;
    const char *name = tensor < e->model->tensor_count ? e->model->tensors[tensor].name : "?";
    f->is_skipped = f->round.is_gradient && e->job->settings.check_finite == MSDU__CHECK_SKIP;
    f->is_propagated =
        f->round.is_gradient && e->job->settings.check_finite == MSDU__CHECK_PROPAGATE;
    msdu__fail(MSDU_ERR_NOT_FINITE, "rank %d: tensor '%s' holds NaN or infinity in step %llu; %s",
               msdu__job_name(e->job, rank), name, (unsigned long long)f->round.step,
               outcome(e, f));
    if (!f->is_skipped && !f->is_propagated) {
        msdu__handover_fail_last(e->hand, MSDU_ERR_NOT_FINITE);
        return false;
    }
    pthread_mutex_lock(&e->hand->lock);
    snprintf(e->hand->failure.skip_text, sizeof(e->hand->failure.skip_text), "%s",
             msdu_last_error());
    pthread_mutex_unlock(&e->hand->lock);
    msdu__log_line(&e->job->log, MSDU_LOG_INFO, "%s", msdu_last_error());
    return true;
}

static void take_weights(const msdu__engine *e, msdu__fragment *f)
{
    double sum = msdu__message_weights(e, f);
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    f->is_void = sum == 0;
    f->scale = is_sum || f->is_void ? 1 : e->job->ranks / sum;
}

/* For the API thread, which may stand still until it knows. */
static void publish_idle(msdu__engine *e, msdu__fragment *f)
{
    msdu__answer *answer = msdu__engine_answer(e, f);
    answer->is_any_idle = false;
    answer->are_all_idle = true;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        bool is_idle = msdu__control_has(&f->control.of[rank], MSDU__CONTROL_IDLE);
        answer->is_any_idle = answer->is_any_idle || is_idle;
        answer->are_all_idle = answer->are_all_idle && is_idle;
        if (answer->step_ns != NULL) {
            answer->step_ns[rank] = f->control.of[rank].step_ns;
        }
    }
    msdu__cell_set(&msdu__engine_mailbox(e, f)->heard, f->opened);
}

/* The ranks' messages must describe the same round, and no rank may have met a bad value. */
static bool check_control(msdu__engine *e, msdu__fragment *f)
{
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        if (memcmp(c->check, f->control.of[0].check, sizeof(c->check)) != 0) {
            msdu__fail(
                MSDU_ERR_MISMATCH,
                "ranks %d and %d disagree about the round that ends with step %llu (number of "
                "steps, interval, wire, plan, or what msdu_next() was asked for)",
                msdu__job_name(e->job, 0), msdu__job_name(e->job, rank),
                (unsigned long long)f->round.step);
            msdu__handover_fail_last(e->hand, MSDU_ERR_MISMATCH);
            return false;
        }
    }
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        if (f->control.of[rank].bad_tensor > 0 && !f->is_propagated &&
            !take_bad_value(e, f, rank)) {
            return false;
        }
        if (f->is_skipped) {
            return true;
        }
    }
    take_weights(e, f);
    return true;
}

/* OK: ended now. */
static msdu_status poll_request(msdu__engine *e, msdu_req **req, uint64_t since_ns)
{
    if (*req == NULL) {
        return MSDU_IN_PROGRESS;
    }
    msdu_status status = e->job->backend->test(e->job->comm, *req);
    if (status == MSDU_IN_PROGRESS) {
        status = msdu__engine_overdue(e, since_ns, "a round's statistics message or plan");
    }
    if (status == MSDU_IN_PROGRESS) {
        return status;
    }
    *req = NULL;
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
    }
    return status;
}

bool msdu__control_poll(msdu__engine *e, msdu__fragment *f)
{
    bool did = false;
    if (poll_request(e, &f->control.req, f->control.issued_ns) == MSDU_OK) {
        e->link.latency_ns = (double)(msdu__engine_now(e) - f->control.issued_ns);
        f->control.is_done = check_control(e, f);
        publish_idle(e, f);
        msdu__handover_wake(e->hand);
        did = true;
    }
    if (poll_request(e, &f->order.req, f->order.issued_ns) == MSDU_OK) {
        msdu__replan_take(e, f);
        did = true;
    }
    return did;
}
