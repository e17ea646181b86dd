/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control message of a round: what every rank says of its part, and what comes of it for all.
 * Runs on the communication thread.
 */
#include "pipeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t round_hash(const msdu__fragment *f)
{
    uint32_t facts[6] = {(uint32_t)f->opened,     f->round.interval,    f->round.delay_steps,
                         (uint32_t)f->round.wire, f->round.is_gradient, (uint32_t)f->round.step};
    return msdu__plan_hash(facts, 6) ^ f->plan_hash;
}

/* What the passes of all slices found, in slice order. */
static void collect(msdu__pipeline *p, msdu__fragment *f)
{
    msdu__domain_sums(p, f);
    f->residual_sq = 0;
    memset(f->sketch, 0, sizeof(f->sketch));
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const msdu__found *found = p->runs[f->members[i]].found;
        f->residual_sq += found->residual.update_sq;
        for (uint32_t k = 0; k < MSDU__SKETCH; k++) {
            f->sketch[k] += found->sketch[k];
        }
    }
}

/* Equal parameters are told where they would be their own mean in exact arithmetic: every rank
 * counts alike, nothing of former rounds is held back, and the correction is no optimizer. */
static bool is_told(const msdu__pipeline *p, const msdu__fragment *f)
{
    const msdu__voice *voice = msdu__voice_of(f);
    return p->device == NULL && !f->round.is_gradient && !p->is_accumulated && voice->weight == 1 &&
           !voice->is_absent &&
           msdu__chain_keeps_equal(&p->chain, &p->correct_args, f->round.delay_steps == 0);
}

static uint64_t captured_hash(const msdu__pipeline *p, const msdu__fragment *f)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < f->slice_count && is_told(p, f); i++) {
        uint64_t found = p->runs[f->members[i]].found->hash;
        if (found == 0) {
            return 0;
        }
        hash = (hash ^ found) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 29;
    }
    return hash != 1 ? hash : 0;
}

static void fill_control(msdu__pipeline *p, msdu__fragment *f, msdu__control *out)
{
    uint64_t hash = round_hash(f);
    uint64_t captured = captured_hash(p, f);
    double weight = msdu__voice_of(f)->weight;
    uint64_t blocked = atomic_load(&p->blocked_ns);
    /* a rank without input waits for the others only */
    bool is_absent = msdu__voice_of(f)->is_absent;
    double waited = is_absent ? (double)INFINITY : (double)(blocked - f->blocked_ns);
    *out = (msdu__control){
        .bad_tensor = p->settings.check_finite ? (double)f->bad_tensor : 0.0,
        .local_sq = f->sums.update_sq,
        .weight_sq = f->sums.weight_sq,
        .residual_sq = f->residual_sq,
        .step_ns = atomic_load(&p->step_ns),
        .link_ns = p->last_link_ns,
        .latency_ns = p->latency_ns,
        .wait_ns = waited,
        .alone_ns = is_absent ? waited : msdu__cores_alone(p, f, waited),
        .queued_ns = p->last_queued_ns,
        .loss = atomic_load(&p->loss),
        .lr = atomic_load(&p->lr),
        .wants_plan = f->wants_plan ? 1.0 : 0.0,
        .weight = weight,
        .is_absent = is_absent ? 1.0 : 0.0,
        .check = {(double)(uint32_t)hash, (double)(uint32_t)(hash >> 32)},
        .hash = {(double)(uint32_t)captured, (double)(uint32_t)(captured >> 32)},
    };
    memcpy(out->sketch, f->sketch, sizeof(out->sketch));
    for (uint32_t k = 0; k < MSDU__SKETCH && weight != 1 && weight > 0; k++) {
        out->sketch[k] =
            (float)((double)out->sketch[k] / weight); /* what was captured, unweighted */
    }
    f->blocked_ns = blocked;
}

bool msdu__control_start(msdu__pipeline *p, msdu__fragment *f)
{
    if (f->issued < f->slice_count || !msdu__order_may_control(p, f) ||
        !msdu__round_passes_done(p, f)) {
        return false;
    }
    collect(p, f);
    fill_control(p, f, &f->control[p->rank]);
    msdu_op op = {
        .kind = MSDU_OP_ALLGATHER,
        .send = &f->control[p->rank],
        .recv = f->control,
        .shares = p->control_shares,
    };
    msdu_status status = msdu__pipeline_start(p, &op, msdu__control_lane(p), &f->control_req);
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
        return false;
    }
    f->bytes += sizeof(msdu__control) * (uint64_t)(p->ranks - 1);
    f->control_issued_ns = msdu__pipeline_now(p);
    f->is_control_issued = true;
    return true;
}

/* What becomes of gradients with a bad value. */
static const char *outcome(const msdu__pipeline *p, const msdu__fragment *f)
{
    if (f->is_passed) {
        return "it is given to all ranks";
    }
    /* local steps with it cannot be undone */
    return p->is_accumulated ? "the round was not applied (setting check_finite; with domain "
                               "gradient, pass gives it to all ranks)"
                             : "the round was not applied (setting check_finite)";
}

/* The whole context fails; or, for gradients and if asked for, only this round. */
static bool take_bad_value(msdu__pipeline *p, msdu__fragment *f, int32_t rank)
{
    uint32_t tensor = (uint32_t)f->control[rank].bad_tensor - 1;
    const char *name = tensor < p->tensor_count ? p->tensors[tensor].name : "?";
    f->is_skipped = f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_SKIP;
    f->is_passed = f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_PASS;
    msdu__fail(MSDU_ERR_NOT_FINITE, "rank %d: tensor '%s' holds NaN or infinity in step %llu; %s",
               rank, name, (unsigned long long)f->round.step, outcome(p, f));
    if (!f->is_skipped && !f->is_passed) {
        msdu__pipeline_fail(p, MSDU_ERR_NOT_FINITE, msdu_last_error());
        return false;
    }
    pthread_mutex_lock(&p->lock);
    snprintf(p->skip_text, sizeof(p->skip_text), "%s", msdu_last_error());
    pthread_mutex_unlock(&p->lock);
    msdu__log_line(&p->log, MSDU_LOG_INFO, "%s", msdu_last_error());
    return true;
}

static void take_weights(const msdu__pipeline *p, msdu__fragment *f)
{
    double sum = msdu__message_weights(p, f);
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    f->is_void = sum == 0;
    f->scale = is_sum || f->is_void ? 1 : p->ranks / sum;
}

/* For the owner, which may stand still until it knows. */
static void tell_absence(const msdu__pipeline *p, msdu__fragment *f)
{
    bool *is_any = &f->is_any_absent[(f->opened - 1) & 1];
    bool *are_all = &f->are_all_absent[(f->opened - 1) & 1];
    *is_any = false;
    *are_all = true;
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        *is_any = *is_any || f->control[rank].is_absent > 0;
        *are_all = *are_all && f->control[rank].is_absent > 0;
    }
    atomic_store(&f->heard, f->opened);
}

/* The ranks' messages must describe the same round, and no rank may have met a bad value. */
static bool check_control(msdu__pipeline *p, msdu__fragment *f)
{
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        const msdu__control *c = &f->control[rank];
        if (memcmp(c->check, f->control[0].check, sizeof(c->check)) != 0) {
            msdu__fail(
                MSDU_ERR_MISMATCH,
                "ranks 0 and %d disagree about the round that ends with step %llu (number of "
                "steps, interval, wire or plan)",
                rank, (unsigned long long)f->round.step);
            msdu__pipeline_fail(p, MSDU_ERR_MISMATCH, msdu_last_error());
            return false;
        }
    }
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        if (f->control[rank].bad_tensor > 0 && !f->is_passed && !take_bad_value(p, f, rank)) {
            return false;
        }
        if (f->is_skipped) {
            return true;
        }
    }
    take_weights(p, f);
    return true;
}

/* OK: ended now. */
static msdu_status poll_request(msdu__pipeline *p, msdu_req **req, uint64_t since_ns)
{
    if (*req == NULL) {
        return MSDU_IN_PROGRESS;
    }
    msdu_status status = p->backend->test(p->comm, *req);
    if (status == MSDU_IN_PROGRESS) {
        status = msdu__pipeline_overdue(p, since_ns, "a round's control message or plan");
    }
    if (status == MSDU_IN_PROGRESS) {
        return status;
    }
    *req = NULL;
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    return status;
}

bool msdu__control_poll(msdu__pipeline *p, msdu__fragment *f)
{
    bool did = false;
    if (poll_request(p, &f->control_req, f->control_issued_ns) == MSDU_OK) {
        p->latency_ns = (double)(msdu__pipeline_now(p) - f->control_issued_ns);
        f->is_control_done = check_control(p, f);
        tell_absence(p, f);
        msdu__pipeline_wake(p);
        did = true;
    }
    if (poll_request(p, &f->plan_req, f->plan_issued_ns) == MSDU_OK) {
        msdu__replan_take(p, f);
        did = true;
    }
    return did;
}
