/* SPDX-License-Identifier: Apache-2.0 */
/*
 * End of a round. Runs on the communication thread. It begins in round_open.c; the message is
 * control.c, what follows from it decide.c.
 */
#include "pipeline.h"

#include <math.h>
#include <string.h>

static msdu_what what_of(const msdu__pipeline *p, const msdu__fragment *f)
{
    return f->round.is_gradient || p->is_accumulated ? MSDU_GRADIENT : MSDU_PARAMETER;
}

/* EDiT (2412.07210) clips the mean pseudo-gradient; here at a multiple of its running norm. */
static void prepare_correction(msdu__pipeline *p, const msdu__fragment *f)
{
    p->correct_args.clip_scale = 1.0;
    if ((p->chain.needs & MSDU__NEEDS_NORM) == 0) {
        return;
    }
    double norm = sqrt(f->mean_sq);
    double limit = p->settings.clip_ratio * p->norm_average;
    if (p->norm_average > 0 && norm > limit) {
        p->correct_args.clip_scale = limit / norm;
        msdu__log_line(&p->log, MSDU_LOG_INFO, "step %llu: update norm %g clipped to %g",
                       (unsigned long long)f->round.step, norm, limit);
        norm = limit;
    }
    p->norm_average += (p->norm_average > 0 ? MSDU__SMOOTH : 1.0) * (norm - p->norm_average);
}

static bool is_reduced(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    return p->runs[slice].state == MSDU__RUN_REDUCED &&
           &p->fragments[msdu__fragment_of(p, slice, p->slices_are_whole)] == f;
}

/* In slice order and not as slices ended: the sum must have the same bits on all ranks. */
static void sum_norms(msdu__pipeline *p, msdu__fragment *f)
{
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        double mean_sq = p->runs[slice].found->mean.update_sq * (f->scale * f->scale);
        f->mean_sq += is_reduced(p, f, slice) ? mean_sq : 0;
    }
}

/* Where the norm was not needed before, the correction found it on its way. */
static void sum_applied(msdu__pipeline *p, msdu__fragment *f)
{
    for (uint32_t k = p->slicing.slice_count; k-- > 0;) {
        const msdu__slice *cut = &p->slicing.slices[k];
        bool is_own = &p->fragments[msdu__fragment_of(p, k, p->slices_are_whole)] == f;
        for (uint32_t i = 0; is_own && i < cut->segments; i++) {
            f->mean_sq += p->applied[cut->first_segment + i].update_sq;
        }
    }
}

/* Finite gradients whose sum is not: seen in the mean, which is the same on all ranks. */
static bool has_overflowed(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool has_bad = false;
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        has_bad = has_bad || (is_reduced(p, f, slice) && p->runs[slice].found->mean.bad != 0);
    }
    return has_bad && f->round.is_gradient && p->settings.check_finite == MSDU__CHECK_PASS;
}

static void prepare_round(msdu__pipeline *p, msdu__fragment *f)
{
    if (f->is_skipped) {
        atomic_store(&p->skipped, f->round.step + 1); /* before the first gradient is released */
        return;
    }
    f->is_passed = f->is_passed || has_overflowed(p, f);
    if (!f->is_void && !f->is_passed) {
        sum_norms(p, f);
        prepare_correction(p, f);
    }
}

/* Forward order: what the next forward needs first is given back first. */
static void apply_round(msdu__pipeline *p, msdu__fragment *f)
{
    bool is_released = msdu__domain_commits_slice(p, f);
    prepare_round(p, f);
    for (uint32_t slice = p->slicing.slice_count; slice-- > 0;) {
        msdu__run *run = &p->runs[slice];
        if (!is_reduced(p, f, slice)) {
            continue;
        }
        if (f->is_skipped) {
            msdu__domain_skip(p, f, slice);
        } else if (!is_released || f->round.is_gradient) {
            msdu__domain_apply(p, f, slice);
        }
        if (f->is_passed) {
            /* of a step that the trainer takes back; where it lowers a loss scale, in units of the
             * old one */
            msdu__domain_clear(p, slice, true);
        }
        run->times.applied_ns = msdu__pipeline_now(p);
        run->state = MSDU__RUN_IDLE;
        msdu__replan_note(p, f, slice);
        msdu__trace_slice_done(p->trace, &run->times);
        if (!is_released) {
            msdu__pipeline_release(p, slice, what_of(p, f));
        }
    }
}

static void observe(msdu__pipeline *p, const msdu__fragment *f)
{
    uint64_t now = msdu__pipeline_now(p);
    atomic_store(&p->cpu_ns, msdu__cores_thread_ns());
    msdu__trace_span(p->trace, "round", f->round.is_gradient ? "gradients" : "parameters",
                     f->opened_ns, now);
    msdu__trace_counter(p->trace, "interval", now, (double)f->round.interval);
    msdu__trace_counter(p->trace, "wire bits", now, msdu__wire_at(f->round.wire)->bits);
    msdu_status status = msdu__trace_flush(p->trace);
    if (p->settings.metrics_file[0] != '\0' && now >= p->metrics_due_ns) {
        p->metrics_due_ns = now + (uint64_t)p->settings.metrics_period_ms * 1000000ULL;
        msdu_summary summary;
        msdu__pipeline_summary(p, &summary);
        msdu_status written = msdu__metrics_write(p->metrics_path, &summary);
        if (written != MSDU_OK) {
            p->metrics_due_ns = UINT64_MAX; /* given up */
            status = written;
        }
    }
    msdu__pipeline_io(p, status);
}

static void note_times(msdu__pipeline *p)
{
    uint64_t queued = p->clock == msdu__clock_monotonic ? msdu__cores_queued_ns() : 0;
    p->last_queued_ns = p->queued_ns > 0 ? (double)(queued - p->queued_ns) : 0;
    p->queued_ns = queued;
    p->last_link_ns = p->link_ns;
    p->link_ns = 0;
}

bool msdu__round_finish(msdu__pipeline *p, msdu__fragment *f)
{
    if (atomic_load(&p->status) != MSDU_OK || !f->is_control_done || !f->may_apply ||
        f->reduced < f->slice_count || f->captured < f->slice_count ||
        !msdu__round_passes_done(p, f)) {
        return false;
    }
    if (!f->is_applied) {
        note_times(p);
        apply_round(p, f);
        f->is_applied = true;
        if (!msdu__round_passes_done(p, f)) {
            return false;
        }
    }
    bool is_idle = f->is_skipped || f->is_passed || f->is_void; /* nothing to be learned from */
    if ((p->chain.needs & MSDU__NEEDS_NORM) == 0 && !is_idle) {
        sum_applied(p, f);
    }
    if (is_idle) {
        msdu__decide_repeat(p, f);
    } else {
        msdu__decide(p, f);
    }
    msdu__replan_review(p, f);
    observe(p, f);
    f->link_wire = f->round.wire;
    f->state = MSDU__FRAGMENT_IDLE;
    p->active_count--;
    memmove(p->active, p->active + 1, p->active_count * sizeof(*p->active));
    atomic_fetch_add(&f->done, 1);
    msdu__pipeline_wake(p);
    return true;
}

bool msdu__round_drain(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->active_count; i++) {
        if (p->fragments[p->active[i]].captured > 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        if (p->fragments[i].plan_req != NULL) {
            return false;
        }
    }
    atomic_store(&p->is_drained, true);
    msdu__pipeline_wake(p);
    return true;
}
