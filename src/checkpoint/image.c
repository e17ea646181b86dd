/* SPDX-License-Identifier: Apache-2.0 */
/* The single values of a state: taken from a pipeline, checked, given to one. */
#include <string.h>

#include "state.h"

#define STEPS_MAX (UINT64_MAX / 4) /* sums of two steps stay numbers */

bool msdu__image_is_quiet(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->active_count; i++) {
        const msdu__fragment *f = &p->fragments[p->active[i]];
        bool has_arrived = f->reduced == f->slice_count && f->is_control_done && !f->may_apply;
        if (f->captured > 0 && !has_arrived) {
            return false;
        }
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        if (p->fragments[i].plan_req != NULL) {
            return false;
        }
    }
    return true;
}

/* --- take --- */

static bool is_only_open(const msdu__fragment *f)
{
    return f->state == MSDU__FRAGMENT_OPEN && f->captured == 0;
}

static void take_fragment(const msdu__fragment *f, msdu__image_fragment *out)
{
    *out = (msdu__image_fragment){
        .sync_step = f->sync_step,
        .apply_step = f->apply_step,
        .armed = f->armed - (is_only_open(f) ? 1 : 0),
        .from_step = f->from_step,
        .interval = f->interval,
        .delay_steps = f->delay_steps,
        .wire = (uint64_t)f->wire,
        .blocked_ns = f->blocked_ns,
        .wants_plan = f->wants_plan,
        .is_pending = f->state == MSDU__FRAGMENT_OPEN && f->captured > 0,
        .round_step = f->round.step,
        .round_interval = f->round.interval,
        .round_delay = f->round.delay_steps,
        .round_wire = (uint64_t)f->round.wire,
        .scale = f->scale,
        .is_void = f->is_void,
        .bytes = f->bytes,
        .decisions = {f->decisions[0], f->decisions[1]},
    };
}

/* What all ranks said in the last rounds is equal on all of them, and is never said again: it holds
 * times of this run. */
static uint64_t name_run(const msdu__pipeline *p)
{
    uint64_t name[3] = {p->run_name, p->step, 0};
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        const msdu__fragment *f = &p->fragments[i];
        name[2] = msdu__serial_hash(f->control, (uint64_t)p->ranks * sizeof(*f->control));
        name[0] = msdu__serial_hash(name, sizeof(name));
    }
    return name[0];
}

static void take_summary(const msdu__pipeline *p, msdu__image *image)
{
    image->rounds = p->summary.rounds;
    image->bytes_sent = p->summary.bytes_sent;
    image->plan_renewals = p->summary.plan_renewals;
    image->drift = p->summary.drift;
    image->divergence = p->summary.divergence;
    image->blocked_ns = atomic_load(&p->blocked_ns);
    image->elapsed_ns = msdu__pipeline_now(p) - atomic_load(&p->start_ns);
}

void msdu__image_take(const msdu__pipeline *p, msdu__image *image)
{
    *image = (msdu__image){
        .step = p->step,
        .run = name_run(p),
        .is_gradient = p->is_gradient,
        .is_local_entered = p->is_local_entered,
        .is_deferred = p->is_deferred,
        .is_first_call = atomic_load(&p->is_first_call),
        .was_uneven = p->was_uneven,
        .lr = atomic_load(&p->lr),
        .loss = atomic_load(&p->loss),
        .weight = p->weight,
        .step_ns = atomic_load(&p->step_ns),
        .link_ns = p->link_ns,
        .last_link_ns = p->last_link_ns,
        .latency_ns = p->latency_ns,
        .norm_average = p->norm_average,
        .interval_state = p->interval_state,
        .decision = p->decision,
    };
    take_summary(p, image);
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        take_fragment(&p->fragments[i], &image->fragments[i]);
    }
    for (uint32_t i = 0; i < p->active_count; i++) {
        if (image->fragments[p->active[i]].is_pending) {
            image->pending[image->pending_count++] = p->active[i];
        }
    }
}

/* --- give --- */

static void give_fragment(msdu__pipeline *p, const msdu__image_fragment *from, msdu__fragment *f)
{
    f->sync_step = from->sync_step;
    f->apply_step = from->apply_step;
    f->is_pending = from->is_pending;
    f->armed = f->opened = from->armed;
    atomic_store(&f->heard, from->armed);
    memset(f->is_any_absent, 0, sizeof(f->is_any_absent));
    f->from_step = from->from_step;
    f->interval = (uint32_t)from->interval;
    f->delay_steps = (uint32_t)from->delay_steps;
    f->wire = (int)from->wire;
    f->wants_plan = from->wants_plan;
    f->bytes = from->bytes;
    f->blocked_ns = from->blocked_ns;
    f->told_ns = 0; /* a time of another run */
    f->scale = from->scale;
    f->is_void = from->is_void;
    memcpy(f->decisions, from->decisions, sizeof(f->decisions));
    atomic_store(&f->done, from->armed - (from->is_pending ? 1 : 0));
    f->state = from->is_pending ? MSDU__FRAGMENT_OPEN : MSDU__FRAGMENT_IDLE;
    f->round = (msdu__round){
        .step = from->round_step,
        .interval = (uint32_t)from->round_interval,
        .delay_steps = (uint32_t)from->round_delay,
        .wire = (int)from->round_wire,
        .is_gradient = false,
    };
    f->may_apply = false;
    f->is_control_issued = f->is_control_done = from->is_pending;
    f->captured = f->issued = f->reduced = from->is_pending ? f->slice_count : 0;
    f->is_marked = f->is_applied = false;
    f->bad_tensor = 0;
    f->mean_sq = 0;
    f->opened_ns = msdu__pipeline_now(p);
}

static void give_summary(msdu__pipeline *p, const msdu__image *image)
{
    uint64_t began = msdu__pipeline_now(p) - image->elapsed_ns;
    pthread_mutex_lock(&p->lock);
    p->summary.rounds = image->rounds;
    p->summary.bytes_sent = image->bytes_sent;
    p->summary.plan_renewals = image->plan_renewals;
    p->summary.interval_steps = image->decision.interval;
    p->summary.drift = image->drift;
    p->summary.divergence = image->divergence;
    p->summary.wire = msdu__wire_at(image->decision.wire)->name;
    p->summary.domain = image->is_gradient  ? "gradient"
                        : p->is_accumulated ? "accumulated"
                                            : "parameter";
    memcpy(p->summary.reason, image->decision.reason, sizeof(image->decision.reason));
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->blocked_ns, image->blocked_ns);
    atomic_store(&p->start_ns, began == 0 ? 1 : began); /* 0 stands for: not started */
}

/* What the start has opened, nobody has announced anything for. */
static void forget_rounds(msdu__pipeline *p)
{
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        p->runs[slice].state = MSDU__RUN_IDLE;
    }
    p->queue_tail = p->queue_first = p->queue_second = p->queue_oldest = 0;
    p->active_count = 0;
}

void msdu__image_give(msdu__pipeline *p, const msdu__image *image)
{
    p->step = image->step;
    p->run_name = image->run;
    p->is_gradient = image->is_gradient;
    p->is_local_entered = image->is_local_entered;
    p->slices_are_whole = image->is_gradient || p->is_accumulated;
    p->is_deferred = image->is_deferred;
    p->is_resumed = true;
    p->resumed_step = image->step;
    atomic_store(&p->step_count, image->step);
    atomic_store(&p->is_first_call, image->is_first_call);
    p->was_uneven = image->was_uneven;
    atomic_store(&p->lr, image->lr);
    atomic_store(&p->loss, image->loss);
    p->weight = image->weight;
    atomic_store(&p->step_ns, image->step_ns);
    p->link_ns = image->link_ns;
    p->last_link_ns = image->last_link_ns;
    p->latency_ns = image->latency_ns;
    p->norm_average = image->norm_average;
    p->interval_state = image->interval_state;
    p->decision = image->decision;
    give_summary(p, image);
    forget_rounds(p);
    msdu__round_orders(p);
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        give_fragment(p, &image->fragments[i], &p->fragments[i]);
    }
    for (uint64_t i = 0; i < image->pending_count; i++) {
        p->active[p->active_count++] = (uint32_t)image->pending[i];
    }
}

/* --- code --- */

static void code_decision(msdu__serial *c, msdu__decision *decision)
{
    uint64_t interval = decision->interval;
    uint64_t delay = decision->delay_steps;
    uint64_t wire = (uint64_t)decision->wire;
    msdu__serial_whole(c, "decision's interval", &interval, 0, UINT32_MAX);
    msdu__serial_whole(c, "decision's delay", &delay, 0, UINT32_MAX);
    msdu__serial_whole(c, "decision's wire", &wire, 0, MSDU__WIRE_COUNT - 1);
    msdu__serial_values(c, "decision's reason", decision->reason, sizeof(decision->reason), 1);
    if (c->in != NULL) {
        decision->interval = (uint32_t)interval;
        decision->delay_steps = (uint32_t)delay;
        decision->wire = (int)wire;
        decision->reason[sizeof(decision->reason) - 1] = '\0';
    }
}

static void code_fragment(msdu__serial *c, msdu__image_fragment *f)
{
    msdu__serial_whole(c, "meeting", &f->sync_step, 0, STEPS_MAX);
    msdu__serial_whole(c, "step of applying", &f->apply_step, 0, STEPS_MAX);
    msdu__serial_whole(c, "number of rounds", &f->armed, 0, STEPS_MAX);
    msdu__serial_whole(c, "first step", &f->from_step, 0, STEPS_MAX);
    msdu__serial_whole(c, "interval", &f->interval, 1, UINT32_MAX);
    msdu__serial_whole(c, "delay", &f->delay_steps, 0, UINT32_MAX);
    msdu__serial_whole(c, "wire", &f->wire, 0, MSDU__WIRE_COUNT - 1);
    msdu__serial_whole(c, "time waited", &f->blocked_ns, 0, UINT64_MAX);
    msdu__serial_flag(c, "wish for a plan", &f->wants_plan);
    msdu__serial_flag(c, "waiting mean", &f->is_pending);
    code_decision(c, &f->decisions[0]);
    code_decision(c, &f->decisions[1]);
    if (f->is_pending) {
        msdu__serial_whole(c, "round's step", &f->round_step, 0, STEPS_MAX);
        msdu__serial_whole(c, "round's interval", &f->round_interval, 1, UINT32_MAX);
        msdu__serial_whole(c, "round's delay", &f->round_delay, 1, UINT32_MAX);
        msdu__serial_whole(c, "round's wire", &f->round_wire, 0, MSDU__WIRE_COUNT - 1);
        msdu__serial_whole(c, "round's bytes", &f->bytes, 0, UINT64_MAX);
        msdu__serial_measure(c, "round's scale", &f->scale);
        msdu__serial_flag(c, "round's weight", &f->is_void);
    }
}

static void code_measured(msdu__serial *c, msdu__image *image)
{
    msdu__serial_measure(c, "lr", &image->lr);
    msdu__serial_real(c, "loss", &image->loss);
    msdu__serial_measure(c, "weight", &image->weight);
    msdu__serial_measure(c, "step time", &image->step_ns);
    msdu__serial_measure(c, "link time", &image->link_ns);
    msdu__serial_measure(c, "link time", &image->last_link_ns);
    msdu__serial_measure(c, "latency", &image->latency_ns);
    msdu__serial_measure(c, "norm", &image->norm_average);
    msdu__serial_real(c, "drift", &image->drift);
    msdu__serial_real(c, "divergence", &image->divergence);
    msdu__serial_whole(c, "time waited", &image->blocked_ns, 0, UINT64_MAX);
    msdu__serial_whole(c, "time elapsed", &image->elapsed_ns, 0, UINT64_MAX);
    msdu__serial_whole(c, "rounds", &image->rounds, 0, UINT64_MAX);
    msdu__serial_whole(c, "bytes sent", &image->bytes_sent, 0, UINT64_MAX);
    msdu__serial_whole(c, "plan renewals", &image->plan_renewals, 0, UINT64_MAX);
}

void msdu__image_code(const msdu__pipeline *p, msdu__serial *c, msdu__image *image)
{
    msdu__interval_state *policy = &image->interval_state;
    msdu__serial_whole(c, "step", &image->step, 0, STEPS_MAX);
    msdu__serial_whole(c, "run", &image->run, 0, UINT64_MAX);
    msdu__serial_flag(c, "domain", &image->is_gradient);
    msdu__serial_flag(c, "domain", &image->is_local_entered);
    msdu__serial_flag(c, "order of calls", &image->is_deferred);
    msdu__serial_flag(c, "first call", &image->is_first_call);
    msdu__serial_flag(c, "uneven batches", &image->was_uneven);
    code_measured(c, image);
    msdu__serial_values(c, "policy", policy->real, sizeof(policy->real) / sizeof(double),
                        sizeof(double));
    msdu__serial_values(c, "policy", policy->count, sizeof(policy->count) / sizeof(uint64_t),
                        sizeof(uint64_t));
    code_decision(c, &image->decision);
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        code_fragment(c, &image->fragments[i]);
    }
    msdu__serial_whole(c, "waiting means", &image->pending_count, 0, p->fragment_count);
    for (uint64_t i = 0; i < image->pending_count; i++) {
        msdu__serial_whole(c, "waiting mean", &image->pending[i], 0, p->fragment_count - 1);
    }
}

/* --- check --- */

/* The domains a context can be in after its start follow from its settings and tensors. */
static bool fits_domain(const msdu__pipeline *p, const msdu__image *image)
{
    if (p->is_accumulated) {
        return !image->is_gradient && !image->is_local_entered;
    }
    if (image->is_gradient == image->is_local_entered) {
        return false;
    }
    return image->is_gradient ? p->is_gradient : p->interval_args.can_go_local;
}

static bool is_listed(const msdu__image *image, uint32_t fragment)
{
    uint32_t times = 0;
    for (uint64_t i = 0; i < image->pending_count; i++) {
        times += image->pending[i] == fragment ? 1 : 0;
    }
    return times == (image->fragments[fragment].is_pending ? 1 : 0);
}

/* A mean that waits needs a round before it, a step to come, and the next meeting after that. */
static bool fits_pending(const msdu__pipeline *p, const msdu__image *image,
                         const msdu__image_fragment *f)
{
    return image->is_local_entered && f->armed > 0 && f->round_step < image->step &&
           f->apply_step >= image->step && f->apply_step == f->round_step + f->round_delay &&
           f->round_delay <= p->interval_args.delay_max && f->sync_step > f->apply_step;
}

/* What was decided goes into the rounds to come, whose slices have room for so late a mean. */
static bool fits_delays(const msdu__pipeline *p, const msdu__image *image,
                        const msdu__image_fragment *f)
{
    uint32_t most = p->interval_args.delay_max;
    return image->decision.delay_steps <= most && f->delay_steps <= most &&
           f->decisions[0].delay_steps <= most && f->decisions[1].delay_steps <= most;
}

const char *msdu__image_check(const msdu__pipeline *p, const msdu__image *image)
{
    if (!fits_domain(p, image)) {
        return "domain";
    }
    if (image->decision.interval == 0) {
        return "interval";
    }
    uint32_t used = image->is_gradient ? 1 : p->fragment_count;
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        const msdu__image_fragment *f = &image->fragments[i];
        if (!is_listed(image, i) || (f->is_pending && !fits_pending(p, image, f))) {
            return "waiting mean";
        }
        if (!fits_delays(p, image, f)) {
            return "delay";
        }
        if (i < used && (f->sync_step < image->step || f->sync_step < f->from_step)) {
            return "meeting";
        }
        /* the next round to be armed takes this one's decision, made already unless it waits */
        if (f->armed > 0 && !f->is_pending && f->decisions[(f->armed - 1) & 1].interval == 0) {
            return "interval";
        }
    }
    return NULL;
}
