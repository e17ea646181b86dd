/* SPDX-License-Identifier: Apache-2.0 */
/*
 * End of a round. Runs on the communication thread. It begins in round_open.c; the message is
 * control.c, what follows from it decide.c.
 */
#include "round.h"

#include "control.h"
#include "cores.h"
#include "decide.h"
#include "domain.h"
#include "pace.h"
#include "replan.h"
#include "tick.h"

#include <math.h>
#include <string.h>

static msdu_what what_of(const msdu__engine *e, const msdu__fragment *f)
{
    return f->round.is_gradient || e->job->is_accumulated ? MSDU_GRADIENT : MSDU_PARAMETER;
}

/* EDiT (2412.07210) clips the mean pseudo-gradient; here at a multiple of its running norm. */
static void prepare_correction(msdu__engine *e, const msdu__fragment *f)
{
    e->correct_args.clip_scale = 1.0;
    e->correct_args.groups = (int32_t)lround(msdu__message_groups(e, f));
    if ((e->job->chain.needs & MSDU__NEEDS_NORM) == 0) {
        return;
    }
    double norm = sqrt(f->mean_sq);
    double limit = e->job->settings.clip_ratio * e->norm_average;
    if (e->norm_average > 0 && norm > limit) {
        e->correct_args.clip_scale = limit / norm;
        msdu__log_line(&e->job->log, MSDU_LOG_INFO, "step %llu: update norm %g clipped to %g",
                       (unsigned long long)f->round.step, norm, limit);
        norm = limit;
    }
    e->norm_average += (e->norm_average > 0 ? MSDU__SMOOTH : 1.0) * (norm - e->norm_average);
}

static bool is_reduced(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    return e->runs[slice].state == MSDU__RUN_REDUCED &&
           &e->fragments[msdu__fragment_of(e->model, slice, e->slices_are_whole)] == f;
}

/* In slice order and not as slices ended: the sum must have the same bits on all ranks. */
static void sum_norms(msdu__engine *e, msdu__fragment *f)
{
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        double mean_sq = e->runs[slice].found->mean.update_sq * (f->scale * f->scale);
        f->mean_sq += is_reduced(e, f, slice) ? mean_sq : 0;
    }
}

/* Where the norm was not needed before, the correction found it on its way. */
static void sum_applied(msdu__engine *e, msdu__fragment *f)
{
    for (uint32_t k = e->model->slicing.slice_count; k-- > 0;) {
        const msdu__slice *cut = &e->model->slicing.slices[k];
        bool is_own = msdu__engine_fragment(e, k) == f;
        for (uint32_t i = 0; is_own && i < cut->segments; i++) {
            f->mean_sq += e->applied[cut->first_segment + i].update_sq;
        }
    }
}

/* Finite gradients whose sum is not: seen in the mean, which is the same on all ranks. */
static bool has_overflowed(const msdu__engine *e, const msdu__fragment *f)
{
    bool has_bad = false;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        has_bad = has_bad || (is_reduced(e, f, slice) && e->runs[slice].found->mean.bad != 0);
    }
    return has_bad && f->round.is_gradient &&
           e->job->settings.check_finite == MSDU__CHECK_PROPAGATE;
}

static void prepare_round(msdu__engine *e, msdu__fragment *f)
{
    if (f->is_skipped) {
        /* before the first gradient is released */
        msdu__cell_set(&e->hand->failure.skipped, f->round.step + 1);
        return;
    }
    f->is_propagated = f->is_propagated || has_overflowed(e, f);
    if (!f->is_void && !f->is_propagated) {
        sum_norms(e, f);
        prepare_correction(e, f);
    }
}

/* Forward order: what the next forward needs first is given back first. */
static void apply_round(msdu__engine *e, msdu__fragment *f)
{
    bool is_released = msdu__domain_commits_slice(e, f);
    prepare_round(e, f);
    for (uint32_t slice = e->model->slicing.slice_count; slice-- > 0;) {
        msdu__run *run = &e->runs[slice];
        if (!is_reduced(e, f, slice)) {
            continue;
        }
        if (f->is_skipped) {
            msdu__domain_skip(e, f, slice);
        } else if (!is_released || f->round.is_gradient) {
            msdu__domain_apply(e, f, slice);
        }
        if (f->is_propagated) {
            /* of a step that the trainer takes back; where it lowers a loss scale, in units of the
             * old one */
            msdu__domain_clear(e, slice, true);
        }
        run->times.applied_ns = msdu__engine_now(e);
        run->state = MSDU__RUN_IDLE;
        msdu__replan_note(e, f, slice);
        msdu__trace_slice_done(e->files.trace, &run->times);
        if (!is_released && !e->ticks.is_on) {
            msdu__engine_release(e, slice, what_of(e, f));
        }
    }
}

static void observe(msdu__engine *e, const msdu__fragment *f)
{
    uint64_t now = msdu__engine_now(e);
    msdu__cell_set(&e->hand->reports.cpu_ns, msdu__cores_thread_ns());
    msdu__trace_span(e->files.trace, "round", f->round.is_gradient ? "gradients" : "parameters",
                     f->opened_ns, now);
    msdu__trace_counter(e->files.trace, "interval", now, (double)f->round.interval);
    msdu__trace_counter(e->files.trace, "ms waited for slow ranks", now,
                        e->paces.ladder.straggler_ns * 1e-6);
    if (e->ticks.is_on) {
        msdu__trace_counter(e->files.trace, "ranks that came", now, msdu__pace_came(e, f));
    }
    msdu__trace_counter(e->files.trace, "wire bits", now, msdu__wire_at(f->round.wire)->bits);
    msdu_status status = msdu__trace_flush(e->files.trace);
    if (e->job->settings.metrics_file[0] != '\0' && now >= e->files.metrics_due_ns) {
        e->files.metrics_due_ns = now + (uint64_t)e->job->settings.metrics_period_ms * 1000000ULL;
        msdu_summary summary;
        msdu__handover_summary(e->hand, &summary);
        msdu_status written = msdu__metrics_write(e->files.metrics_path, &summary);
        if (written != MSDU_OK) {
            e->files.metrics_due_ns = UINT64_MAX; /* given up */
            status = written;
        }
    }
    msdu__handover_io(e->hand, status);
}

static void note_times(msdu__engine *e)
{
    uint64_t queued = e->job->clock == msdu__clock_monotonic ? msdu__cores_queued_ns() : 0;
    e->link.last_queued_ns = e->link.queued_ns > 0 ? (double)(queued - e->link.queued_ns) : 0;
    e->link.queued_ns = queued;
    e->link.last_ns = e->link.now_ns;
    e->link.now_ns = 0;
    e->link.last_coding_ns = e->link.coding_ns;
    e->link.coding_ns = 0;
}

bool msdu__round_finish(msdu__engine *e, msdu__fragment *f)
{
    if (msdu__handover_has_failed(e->hand) || !f->control.is_done || !f->may_apply ||
        f->reduced < f->slice_count || f->captured < f->slice_count ||
        !msdu__round_kernels_done(e, f)) {
        return false;
    }
    if (!f->is_applied) {
        note_times(e);
        apply_round(e, f);
        f->is_applied = true;
        if (!msdu__round_kernels_done(e, f)) {
            return false;
        }
    }
    bool is_idle = f->is_skipped || f->is_propagated || f->is_void; /* nothing to be learned from */
    if ((e->job->chain.needs & MSDU__NEEDS_NORM) == 0 && !is_idle) {
        sum_applied(e, f);
    }
    if (is_idle) {
        msdu__decide_repeat(e, f);
    } else {
        msdu__decide(e, f);
    }
    msdu__replan_review(e, f);
    observe(e, f);
    f->link_wire = f->round.wire;
    msdu__tick_ended(e, f);
    f->state = MSDU__FRAGMENT_IDLE;
    e->active_count--;
    memmove(e->active, e->active + 1, e->active_count * sizeof(*e->active));
    (void)msdu__cell_add(&msdu__engine_mailbox(e, f)->done, 1);
    msdu__handover_wake(e->hand);
    return true;
}

bool msdu__round_is_drained(const msdu__engine *e)
{
    for (uint32_t i = 0; i < e->active_count; i++) {
        if (e->fragments[e->active[i]].captured > 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        if (e->fragments[i].order.req != NULL) {
            return false;
        }
    }
    return true;
}
