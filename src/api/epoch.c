/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that change while they train (setting ranks_least). An epoch is a group of ranks as any
 * other: met, sliced for, and left. When one is lost, or another one waits to be let in, the ranks
 * leave it, and the next one begins in the same context, with the same tensors, where the last one
 * ended. The backend decides who is in it (msdu_membership); parameters become equal in
 * startup/heal.c.
 */
#include <stdio.h>
#include <string.h>

#include "backend/registry.h"
#include "guard.h"

#define LONG_ROUND_NS 0.5e9
#define TRIES         100 /* epochs in a row in which no step was made, before this rank gives up */

/* What the next epoch goes on with, beside parameters and what ranks compare. */
typedef struct kept {
    double weight;
    uint64_t step_ns;
    uint64_t blocked_ns;
    uint64_t start_ns;
    double loss;
    bool is_first_call;
    bool is_clipping;
    msdu_summary summary;
} kept;

/* --- into an epoch --- */

/* In the words of the group: its rank, its size, and where its rank 0 is. */
static void settle(msdu_ctx *ctx)
{
    const msdu_epoch *now = &ctx->epochs.now;
    msdu__settings *s = &ctx->job.settings;
    s->rank = now->rank;
    s->ranks = now->ranks;
    s->store = now->store;
    (void)snprintf(s->rendezvous, sizeof(s->rendezvous), "store://");
    (void)snprintf(s->job, sizeof(s->job), "%.480s, epoch %llu", ctx->epochs.settings.job,
                   (unsigned long long)now->number);
    ctx->job.rank = now->rank;
    ctx->job.log.rank = now->rank;
    ctx->job.ranks = now->ranks;
    ctx->job.is_later = now->number > 1;
    ctx->hand.summary.rank = now->rank;
    ctx->hand.summary.ranks = now->ranks;
    ctx->hand.summary.epoch = now->number;
    ctx->epochs.lost += (uint32_t)now->lost;
    ctx->epochs.joined += (uint32_t)now->joined;
    ctx->hand.summary.ranks_lost = ctx->epochs.lost;
    ctx->hand.summary.ranks_joined = ctx->epochs.joined;
}

static void describe(const msdu_ctx *ctx)
{
    const msdu_epoch *now = &ctx->epochs.now;
    msdu__log_line(&ctx->job.log, now->lost > 0 ? MSDU_LOG_WARN : MSDU_LOG_INFO,
                   "epoch %llu: %d ranks (%d lost, %d joined), this is rank %d%s",
                   (unsigned long long)now->number, now->ranks, now->lost, now->joined, now->rank,
                   now->is_newcomer ? ", which has joined" : "");
    if (now->lost > 0 && ctx->epochs.former.has_residual) {
        msdu__log_line(&ctx->job.log, MSDU_LOG_WARN,
                       "epoch %llu: what error feedback of lost ranks held back is lost with them",
                       (unsigned long long)now->number);
    }
}

static msdu_status begin(msdu_ctx *ctx)
{
    settle(ctx);
    describe(ctx);
    msdu_status status = msdu__derive(&ctx->job, &ctx->engine.correct_args);
    status = status == MSDU_OK ? msdu__context_backend(ctx) : status;
    ctx->hand.summary.interval = status == MSDU_OK ? ctx->job.policy->name : "fixed";
    return status == MSDU_OK ? msdu__context_begin(ctx) : status;
}

/* What the trainer has to see to. */
static void tell(msdu_ctx *ctx)
{
    const msdu__carried *c = &ctx->epochs.carried;
    ctx->epochs.needs_rest = c->was_given != 0;
    ctx->hand.summary.has_given = (int32_t)c->has_given;
    ctx->hand.summary.was_given = (int32_t)c->was_given;
}

static msdu_status check(const msdu_ctx *ctx)
{
    const msdu__job *job = &ctx->job;
    for (uint32_t i = 0; i < ctx->model.tensor_count; i++) {
        const msdu__tensor *t = &ctx->model.tensors[i];
        if (t->place != MSDU_PLACE_HOST || t->parameter == NULL) {
            return msdu__fail(MSDU_ERR_UNSUPPORTED, "rank %d: setting ranks_least: tensor '%s' %s",
                              job->rank, t->name,
                              t->parameter == NULL
                                  ? "has no parameter, which a new rank would be given"
                                  : "is in a device's memory: new ranks cannot be given it yet");
        }
    }
    return MSDU_OK;
}

/* The module of setting backend, also where one rank alone needs none. */
static msdu_status find_membership(msdu_ctx *ctx)
{
    const msdu_backend *backend = NULL;
    if (ctx->epochs.membership != NULL) {
        return MSDU_OK; /* another one's, in tests */
    }
    msdu_status status = msdu__backend_find(ctx->job.settings.backend, &backend);
    if (status == MSDU_OK && !MSDU_BACKEND_HAS(backend, membership)) {
        status = msdu__fail(MSDU_ERR_UNSUPPORTED,
                            "rank %d: setting ranks_least: backend \"%s\" cannot go on without a "
                            "rank that was lost, nor let one in; gloo can",
                            ctx->job.rank, backend->name);
    }
    ctx->epochs.membership = status == MSDU_OK ? backend->membership : NULL;
    return status;
}

static msdu_status join(msdu_ctx *ctx)
{
    msdu__epochs *e = &ctx->epochs;
    const msdu__settings *s = &ctx->job.settings;
    e->settings = *s;
    e->host = msdu__start_host(&ctx->engine);
    e->host.job = e->settings.job;
    e->host.rendezvous = e->settings.rendezvous[0] != '\0' ? e->settings.rendezvous : NULL;
    e->host.store = e->settings.store.size > 0 ? &e->settings.store : NULL;
    e->now.size = sizeof(e->now);
    return e->membership->open(&e->host, (int32_t)s->ranks_least, (int32_t)s->ranks_most,
                               (uint64_t)s->ranks_wait_ms * 1000000, &e->members, &e->now);
}

/* --- from one into the next --- */

static void keep(const msdu_ctx *ctx, kept *k)
{
    const msdu__reports *r = &ctx->hand.reports;
    *k = (kept){
        .weight = ctx->caller.weight,
        .blocked_ns = msdu__cell_get(&r->blocked_ns),
        .start_ns = msdu__cell_get(&r->start_ns),
        .loss = msdu__number_get(&r->loss),
        .is_first_call = msdu__flag_get(&r->is_first_call),
        .is_clipping = msdu__flag_get(&r->is_clipping),
        .summary = ctx->hand.summary,
    };
}

static void give_back(msdu_ctx *ctx, const kept *k)
{
    msdu__reports *r = &ctx->hand.reports;
    ctx->caller.is_started = true;
    ctx->caller.weight = k->weight;
    msdu__cell_set(&r->blocked_ns, k->blocked_ns);
    msdu__cell_set(&r->start_ns, k->start_ns);
    msdu__number_set(&r->loss, k->loss);
    msdu__flag_set(&r->is_first_call, k->is_first_call);
    msdu__flag_set(&r->is_clipping, k->is_clipping);
    ctx->hand.summary = k->summary;
}

/* What this rank brings, once its threads have ended. */
static void carry(msdu_ctx *ctx, uint64_t step)
{
    ctx->epochs.carried = (msdu__carried){
        .needs_rest = ctx->epochs.needs_rest ? 1 : 0,
        .is_exact = ctx->caller.is_gradient ? 1 : 0,
        .step = step,
        .lr = msdu__number_get(&ctx->hand.reports.lr),
        .norm_average = ctx->engine.norm_average,
        .policy = ctx->engine.interval_state,
        .decision = ctx->engine.decision,
    };
}

/* The group is left, whatever is in flight; the context is as before its start. */
static void leave(msdu_ctx *ctx)
{
    kept k;
    msdu__context_halt(ctx);
    (void)msdu__context_files(ctx);
    keep(ctx, &k);
    msdu__context_leave(ctx);
    if (ctx->epochs.former.runs == NULL) { /* else an epoch has ended before it began */
        ctx->epochs.former = msdu__former_take(&ctx->engine);
    }
    msdu__context_reset(ctx);
    give_back(ctx, &k);
}

/* Of a group that another one can take the place of. */
static bool is_passing(msdu_status status)
{
    return status == MSDU_ERR_PEER_LOST || status == MSDU_ERR_TIMEOUT || status == MSDU_ERR_IO ||
           status == MSDU_ERR_BACKEND;
}

static bool may_follow(const msdu_ctx *ctx, msdu_status status)
{
    bool is_other = status == MSDU_ERR_MISMATCH && !ctx->epochs.carried.is_newcomer;
    return is_passing(status) || is_other; /* a newcomer that does not fit has left by then */
}

/* The epoch that is next, met; the context has failed otherwise. */
static msdu_status follow(msdu_ctx *ctx)
{
    msdu__epochs *e = &ctx->epochs;
    msdu_status status = MSDU_OK;
    for (int i = 0; i < TRIES; i++) {
        msdu__carried own = e->carried;
        e->now = (msdu_epoch){.size = sizeof(e->now)};
        status = e->membership->next(e->members, own.step, own.is_newcomer ? 0 : 1, &e->now);
        if (status != MSDU_OK) {
            break;
        }
        status = begin(ctx);
        if (status == MSDU_OK || !may_follow(ctx, status)) {
            msdu__former_free(&e->former);
            break;
        }
        leave(ctx);
        e->carried = own;
    }
    if (status != MSDU_OK && !msdu__handover_has_failed(&ctx->hand)) {
        msdu__handover_fail_last(&ctx->hand, status);
    }
    return status;
}

static msdu_status regroup(msdu_ctx *ctx, uint64_t step)
{
    uint64_t began = msdu__job_now(&ctx->job);
    msdu__context_halt(ctx); /* before its numbers are read */
    carry(ctx, step);
    leave(ctx);
    msdu_status status = follow(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    tell(ctx);
    msdu__log_line(
        &ctx->job.log, MSDU_LOG_INFO, "step %llu: trains on after %.3f s; parameters are %s",
        (unsigned long long)ctx->caller.step, (double)(msdu__job_now(&ctx->job) - began) * 1e-9,
        ctx->epochs.carried.was_averaged ? "the mean of all ranks that trained"
        : ctx->epochs.carried.was_given  ? "those of rank 0"
                                         : "as they were");
    return MSDU_REGROUPED;
}

/* A rank may be lost before the first step, too: then this process goes on as after it. */
msdu_status msdu__epoch_start(msdu_ctx *ctx)
{
    msdu_status status = check(ctx);
    status = status == MSDU_OK ? find_membership(ctx) : status;
    status = status == MSDU_OK ? join(ctx) : status;
    if (status != MSDU_OK) {
        msdu__handover_fail_last(&ctx->hand, status);
        return status;
    }
    msdu__carried own = {.is_newcomer = ctx->epochs.now.is_newcomer ? 1 : 0, .is_exact = 1};
    ctx->epochs.carried = own;
    status = begin(ctx);
    if (status != MSDU_OK && may_follow(ctx, status)) {
        leave(ctx);
        ctx->epochs.carried = own;
        status = follow(ctx);
    }
    if (status == MSDU_OK && ctx->job.is_later) {
        tell(ctx);
    }
    return status;
}

/* --- the owner's calls --- */

bool msdu__epoch_will_settle(const msdu_ctx *ctx, msdu_status status)
{
    return ctx->epochs.members != NULL && !ctx->caller.is_finished && is_passing(status);
}

/* Rounds of local steps that last so long that a newcomer does not wait for the end of the next. */
static bool is_long(const msdu_ctx *ctx)
{
    double round_ns =
        ctx->caller.schedules[0].interval * msdu__number_get(&ctx->hand.reports.step_ns);
    return !ctx->caller.is_gradient && round_ns > LONG_ROUND_NS;
}

/* Rank 0 says in its statistics messages that the epoch shall end. By the clock there is no step at
 * which all could, so it ends at once; and in long rounds, where that loses a step and saves many.
 */
static void look_out(msdu_ctx *ctx)
{
    bool has = ctx->job.rank == 0 && ctx->epochs.membership->has_newcomer(ctx->epochs.members) != 0;
    if (has && (ctx->caller.is_clocked || is_long(ctx))) {
        msdu__handover_fail(&ctx->hand, MSDU_ERR_PEER_LOST, "the epoch ends: a rank joins");
    } else if (has) {
        msdu__flag_set(&ctx->hand.reports.is_awaited, true);
    }
}

/* The epoch is over at this step on all ranks: nothing of it stays in flight. */
static msdu_status end_well(msdu_ctx *ctx)
{
    msdu_status status =
        ctx->caller.averages_host ? msdu__caller_drain(&ctx->inner->caller) : MSDU_OK;
    return status == MSDU_OK ? msdu__caller_drain(&ctx->caller) : status;
}

/* Is this call's failure the group's? The host's own group is the first to know that one of its
 * ranks was lost, and the job's context hears of it a moment later: from here, then. */
static bool has_failed(msdu_ctx *ctx, msdu_status status)
{
    bool is_own = msdu__handover_has_failed(&ctx->hand);
    bool is_hosts = ctx->inner != NULL && msdu__handover_has_failed(&ctx->inner->hand);
    if (status >= 0 || !is_passing(status) || !(is_own || is_hosts)) {
        return false;
    }
    if (!is_own) {
        msdu__handover_fail_last(&ctx->hand, status);
    }
    return true;
}

msdu_status msdu__epoch_settle(msdu_ctx *ctx, msdu_status status, uint64_t step)
{
    if (ctx == NULL || ctx->epochs.members == NULL || ctx->caller.is_finished) {
        return status;
    }
    if (status == MSDU_OK) {
        look_out(ctx);
        status = msdu__handover_status(&ctx->hand);
    }
    bool is_over = status == MSDU_OK && ctx->caller.is_over;
    if (is_over) {
        status = end_well(ctx);
    }
    bool is_left = has_failed(ctx, status) || (is_over && status == MSDU_OK);
    return is_left ? regroup(ctx, step) : status;
}

void msdu__epoch_close(msdu_ctx *ctx)
{
    msdu__epochs *e = &ctx->epochs;
    if (e->members != NULL) {
        e->membership->close(e->members);
    }
    e->members = NULL;
    msdu__former_free(&e->former);
    explicit_bzero(e->settings.secret, sizeof(e->settings.secret));
}
