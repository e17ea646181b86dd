/* SPDX-License-Identifier: Apache-2.0 */
/* The single values of a state: taken from both threads, checked, given to them. */
#include <string.h>

#include "core/round.h"
#include "state.h"

#define STEPS_MAX (UINT64_MAX / 4) /* sums of two steps stay numbers */

bool msdu__image_is_quiet(const msdu__engine *e)
{
    for (uint32_t i = 0; i < e->active_count; i++) {
        const msdu__fragment *f = &e->fragments[e->active[i]];
        bool has_arrived = f->reduced == f->slice_count && f->control.is_done && !f->may_apply;
        if (f->captured > 0 && !has_arrived) {
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

/* --- take --- */

static bool is_only_open(const msdu__fragment *f)
{
    return f->state == MSDU__FRAGMENT_OPEN && f->captured == 0;
}

static void take_schedule(const msdu__schedule *s, const msdu__mailbox *box, bool is_only_open,
                          msdu__image_fragment *out)
{
    out->schedule = *s;
    out->schedule.armed -= is_only_open ? 1 : 0;
    out->decisions[0] = box->answers[0].decision;
    out->decisions[1] = box->answers[1].decision;
}

static void take_fragment(const msdu__fragment *f, msdu__image_fragment *out)
{
    out->blocked_ns = f->last.blocked_ns;
    out->wants_plan = f->order.is_wanted;
    out->schedule.is_pending = f->state == MSDU__FRAGMENT_OPEN && f->captured > 0;
    out->round = f->round;
    out->scale = f->scale;
    out->is_void = f->is_void;
    out->bytes = f->bytes;
}

/* The latest statistics messages of all ranks are the same on every rank and hold times, so their
 * hash names this run. */
static uint64_t name_run(const msdu__caller *caller)
{
    uint64_t at = caller->is_clocked ? caller->hand->summary.rounds : caller->step;
    uint64_t name[3] = {caller->run_name, at, 0};
    for (uint32_t i = 0; i < caller->model->fragment_count; i++) {
        const msdu__control *said = caller->engine->fragments[i].control.of;
        name[2] = msdu__serial_hash(said, (uint64_t)caller->job->ranks * sizeof(*said));
        name[0] = msdu__serial_hash(name, sizeof(name));
    }
    return name[0];
}

/* Ranks have synchronized: rounds by the clock begin anew, and are counted anew. */
static void take_clock(const msdu__caller *caller, msdu__image *image)
{
    msdu__schedule *s = &image->fragments[0].schedule;
    s->armed = 0;
    s->is_pending = false;
    s->sync_step = s->from_step = caller->step;
    s->interval = s->interval > 0 ? s->interval : 1;
    image->is_clocked = true;
    image->period_ns = caller->engine->decision.period_ns;
}

static void take_summary(const msdu__caller *caller, msdu__image *image)
{
    image->rounds = caller->hand->summary.rounds;
    image->bytes_sent = caller->hand->summary.bytes_sent;
    image->plan_renewals = caller->hand->summary.plan_renewals;
    image->drift = caller->hand->summary.drift;
    image->divergence = caller->hand->summary.divergence;
    image->blocked_ns = msdu__cell_get(&caller->hand->reports.blocked_ns);
    image->elapsed_ns =
        msdu__job_now(caller->job) - msdu__cell_get(&caller->hand->reports.start_ns);
}

void msdu__image_take(const msdu__caller *caller, msdu__image *image)
{
    *image = (msdu__image){
        .format = MSDU__STATE_FORMAT,
        .step = caller->step,
        .run = name_run(caller),
        .is_gradient = caller->is_gradient,
        .is_local_entered = caller->is_local_entered,
        .is_deferred = caller->is_deferred,
        .is_first_call = msdu__flag_get(&caller->hand->reports.is_first_call),
        .was_uneven = caller->was_uneven,
        .averages_host = caller->averages_host,
        .lr = msdu__number_get(&caller->hand->reports.lr),
        .loss = msdu__number_get(&caller->hand->reports.loss),
        .weight = caller->weight,
        .step_ns = msdu__number_get(&caller->hand->reports.step_ns),
        .link_ns = caller->engine->link.now_ns,
        .last_link_ns = caller->engine->link.last_ns,
        .latency_ns = caller->engine->link.latency_ns,
        .norm_average = caller->engine->norm_average,
        .interval_state = caller->engine->interval_state,
        .decision = caller->engine->decision,
    };
    take_summary(caller, image);
    for (uint32_t i = 0; i < caller->model->fragment_count; i++) {
        const msdu__fragment *f = &caller->engine->fragments[i];
        take_schedule(&caller->schedules[i], &caller->hand->fragments[i], is_only_open(f),
                      &image->fragments[i]);
        take_fragment(f, &image->fragments[i]);
    }
    for (uint32_t i = 0; i < caller->engine->active_count; i++) {
        if (image->fragments[caller->engine->active[i]].schedule.is_pending) {
            image->pending[image->pending_count++] = caller->engine->active[i];
        }
    }
    if (caller->is_clocked) {
        take_clock(caller, image);
    }
}

/* --- give --- */

static void give_schedule(const msdu__image_fragment *from, msdu__schedule *s, msdu__mailbox *box)
{
    *s = from->schedule;
    for (int i = 0; i < 2; i++) {
        box->answers[i].decision = from->decisions[i];
        box->answers[i].is_any_idle = false;
    }
    msdu__cell_set(&box->heard, s->armed);
    msdu__cell_set(&box->done, s->armed - (s->is_pending ? 1 : 0));
}

static void give_fragment(const msdu__image_fragment *from, msdu__fragment *f)
{
    f->opened = from->schedule.armed;
    f->order.is_wanted = from->wants_plan;
    f->bytes = from->bytes;
    f->last.blocked_ns = from->blocked_ns;
    f->last.told_ns = 0; /* a time of another run */
    f->scale = from->scale;
    f->is_void = from->is_void;
    f->state = from->schedule.is_pending ? MSDU__FRAGMENT_OPEN : MSDU__FRAGMENT_IDLE;
    f->round = from->round;
    f->contribution = (msdu__contribution){.weight = 1};
    f->may_apply = false;
    f->control.is_issued = f->control.is_done = from->schedule.is_pending;
    f->captured = f->issued = f->reduced = from->schedule.is_pending ? f->slice_count : 0;
    f->is_marked = f->is_applied = false;
    f->bad_tensor = 0;
    f->mean_sq = 0;
}

static void give_summary(msdu__caller *caller, const msdu__image *image)
{
    uint64_t began = msdu__job_now(caller->job) - image->elapsed_ns;
    pthread_mutex_lock(&caller->hand->lock);
    caller->hand->summary.rounds = image->rounds;
    caller->hand->summary.bytes_sent = image->bytes_sent;
    caller->hand->summary.plan_renewals = image->plan_renewals;
    caller->hand->summary.interval_steps = image->decision.interval;
    caller->hand->summary.drift = image->drift;
    caller->hand->summary.divergence = image->divergence;
    caller->hand->summary.wire = msdu__wire_at(image->decision.wire)->name;
    caller->hand->summary.domain = image->is_gradient            ? "gradient"
                                   : caller->job->is_accumulated ? "accumulated"
                                                                 : "parameter";
    caller->hand->summary.state = image->is_clocked    ? "clock"
                                  : image->is_gradient ? "exact"
                                                       : "local";
    memcpy(caller->hand->summary.reason, image->decision.reason, sizeof(image->decision.reason));
    pthread_mutex_unlock(&caller->hand->lock);
    msdu__cell_set(&caller->hand->reports.blocked_ns, image->blocked_ns);
    msdu__cell_set(&caller->hand->reports.start_ns,
                   began == 0 ? 1 : began); /* 0 stands for: not started */
}

/* What the start has opened, nobody has announced anything for. */
static void forget_rounds(msdu__caller *caller)
{
    for (uint32_t slice = 0; slice < caller->model->slicing.slice_count; slice++) {
        caller->engine->runs[slice].state = MSDU__RUN_IDLE;
    }
    msdu__queue *queue = &caller->engine->queue;
    *queue = (msdu__queue){.slices = queue->slices, .mask = queue->mask};
    caller->engine->active_count = 0;
}

static void give_clock(msdu__caller *caller, const msdu__image *image)
{
    caller->is_clocked = true;
    caller->draw.clock_step = image->step;
    caller->engine->ticks.is_on = true;
    caller->engine->ticks.weight = image->weight;
    caller->engine->decision.is_clock = true;
    caller->engine->decision.period_ns = image->period_ns;
}

void msdu__image_give(msdu__caller *caller, const msdu__image *image)
{
    caller->step = image->step;
    caller->run_name = image->run;
    caller->is_gradient = image->is_gradient;
    caller->is_local_entered = image->is_local_entered;
    caller->engine->slices_are_whole = image->is_gradient || caller->job->is_accumulated;
    caller->is_deferred = image->is_deferred;
    caller->is_resumed = true;
    caller->resumed_step = image->step;
    msdu__cell_set(&caller->hand->reports.step_count, image->step);
    msdu__flag_set(&caller->hand->reports.is_first_call, image->is_first_call);
    caller->was_uneven = image->was_uneven;
    caller->averages_host = image->averages_host && caller->inner != NULL;
    caller->has_left_host = image->is_local_entered && !caller->averages_host;
    msdu__number_set(&caller->hand->reports.lr, image->lr);
    msdu__number_set(&caller->hand->reports.loss, image->loss);
    caller->weight = image->weight;
    msdu__number_set(&caller->hand->reports.step_ns, image->step_ns);
    caller->engine->link.now_ns = image->link_ns;
    caller->engine->link.last_ns = image->last_link_ns;
    caller->engine->link.latency_ns = image->latency_ns;
    caller->engine->norm_average = image->norm_average;
    caller->engine->interval_state = image->interval_state;
    caller->engine->decision = image->decision;
    give_summary(caller, image);
    forget_rounds(caller);
    msdu__round_orders(caller->engine);
    for (uint32_t i = 0; i < caller->model->fragment_count; i++) {
        const msdu__image_fragment *from = &image->fragments[i];
        give_schedule(from, &caller->schedules[i], &caller->hand->fragments[i]);
        give_fragment(from, &caller->engine->fragments[i]);
        caller->engine->fragments[i].opened_ns = msdu__job_now(caller->job);
    }
    for (uint64_t i = 0; i < image->pending_count; i++) {
        caller->engine->active[caller->engine->active_count++] = (uint32_t)image->pending[i];
    }
    if (image->is_clocked) {
        give_clock(caller, image);
    }
}

/* --- code --- */

static void code_small(msdu__serial *c, const char *name, uint32_t *value, uint64_t least,
                       uint64_t most)
{
    uint64_t wide = *value;
    msdu__serial_whole(c, name, &wide, least, most);
    *value = c->in != NULL ? (uint32_t)wide : *value;
}

static void code_wire(msdu__serial *c, const char *name, int *wire)
{
    uint32_t value = (uint32_t)*wire;
    code_small(c, name, &value, 0, MSDU__WIRE_COUNT - 1);
    *wire = (int)value;
}

static void code_decision(msdu__serial *c, msdu__decision *decision)
{
    code_small(c, "decision's interval", &decision->interval, 0, UINT32_MAX);
    code_small(c, "decision's delay", &decision->delay_steps, 0, UINT32_MAX);
    code_wire(c, "decision's wire", &decision->wire);
    msdu__serial_values(c, "decision's reason", decision->reason, sizeof(decision->reason), 1);
    if (c->in != NULL) {
        decision->reason[sizeof(decision->reason) - 1] = '\0';
    }
}

static void code_fragment(msdu__serial *c, msdu__image_fragment *f)
{
    msdu__schedule *s = &f->schedule;
    msdu__serial_whole(c, "synchronization", &s->sync_step, 0, STEPS_MAX);
    msdu__serial_whole(c, "step of applying", &s->apply_step, 0, STEPS_MAX);
    msdu__serial_whole(c, "number of rounds", &s->armed, 0, STEPS_MAX);
    msdu__serial_whole(c, "first step", &s->from_step, 0, STEPS_MAX);
    code_small(c, "interval", &s->interval, 1, UINT32_MAX);
    code_small(c, "delay", &s->delay_steps, 0, UINT32_MAX);
    code_wire(c, "wire", &s->wire);
    msdu__serial_whole(c, "time waited", &f->blocked_ns, 0, UINT64_MAX);
    msdu__serial_flag(c, "wish for a plan", &f->wants_plan);
    msdu__serial_flag(c, "waiting mean", &s->is_pending);
    code_decision(c, &f->decisions[0]);
    code_decision(c, &f->decisions[1]);
    if (s->is_pending) {
        msdu__serial_whole(c, "round's step", &f->round.step, 0, STEPS_MAX);
        code_small(c, "round's interval", &f->round.interval, 1, UINT32_MAX);
        code_small(c, "round's delay", &f->round.delay_steps, 1, UINT32_MAX);
        code_wire(c, "round's wire", &f->round.wire);
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

/* Policies of formats 4 and 5 remembered less: the rest stays 0 and is learned as in a new run. */
static void code_policy(msdu__serial *c, msdu__image *image)
{
    msdu__interval_state *policy = &image->interval_state;
    uint64_t reals = sizeof(policy->real) / sizeof(policy->real[0]);
    uint64_t counts = sizeof(policy->count) / sizeof(policy->count[0]);
    reals = image->format == 4 ? 16 : image->format == 5 ? 21 : reals;
    counts = image->format == 4 ? 9 : image->format == 5 ? 14 : counts;
    msdu__serial_values(c, "policy", policy->real, reals, sizeof(double));
    msdu__serial_values(c, "policy", policy->count, counts, sizeof(uint64_t));
}

void msdu__image_code(const msdu__model *model, msdu__serial *c, msdu__image *image)
{
    msdu__serial_whole(c, "step", &image->step, 0, STEPS_MAX);
    msdu__serial_whole(c, "run", &image->run, 0, UINT64_MAX);
    msdu__serial_flag(c, "domain", &image->is_gradient);
    msdu__serial_flag(c, "domain", &image->is_local_entered);
    msdu__serial_flag(c, "order of calls", &image->is_deferred);
    msdu__serial_flag(c, "first call", &image->is_first_call);
    msdu__serial_flag(c, "uneven batches", &image->was_uneven);
    if (image->format > 4) {
        msdu__serial_flag(c, "means over a host", &image->averages_host);
    }
    if (image->format > 5) {
        msdu__serial_flag(c, "rounds by the clock", &image->is_clocked);
        msdu__serial_measure(c, "period", &image->period_ns);
    }
    code_measured(c, image);
    code_policy(c, image);
    code_decision(c, &image->decision);
    for (uint32_t i = 0; i < model->fragment_count; i++) {
        code_fragment(c, &image->fragments[i]);
    }
    msdu__serial_whole(c, "waiting means", &image->pending_count, 0, model->fragment_count);
    for (uint64_t i = 0; i < image->pending_count; i++) {
        msdu__serial_whole(c, "waiting mean", &image->pending[i], 0, model->fragment_count - 1);
    }
}

/* --- check --- */

/* The domains a context can be in after its start follow from its settings and tensors. */
static bool fits_domain(const msdu__caller *caller, const msdu__image *image)
{
    if (caller->job->is_accumulated) {
        return !image->is_gradient && !image->is_local_entered;
    }
    if (image->is_gradient == image->is_local_entered) {
        return false;
    }
    return image->is_gradient ? caller->is_gradient : caller->job->interval_args.can_go_local;
}

static bool is_listed(const msdu__image *image, uint32_t fragment)
{
    uint32_t times = 0;
    for (uint64_t i = 0; i < image->pending_count; i++) {
        times += image->pending[i] == fragment ? 1 : 0;
    }
    return times == (image->fragments[fragment].schedule.is_pending ? 1 : 0);
}

/* A mean that waits needs a round before it, a step to come, and the next synchronization after
 * that. */
static bool fits_pending(const msdu__caller *caller, const msdu__image *image,
                         const msdu__image_fragment *f)
{
    return image->is_local_entered && f->schedule.armed > 0 && f->round.step < image->step &&
           f->schedule.apply_step >= image->step &&
           f->schedule.apply_step == f->round.step + f->round.delay_steps &&
           f->round.delay_steps <= caller->job->interval_args.delay_max &&
           f->schedule.sync_step > f->schedule.apply_step;
}

/* What was decided goes into the rounds to come, whose slices have room for so late a mean. */
static bool fits_delays(const msdu__caller *caller, const msdu__image *image,
                        const msdu__image_fragment *f)
{
    uint32_t most = caller->job->interval_args.delay_max;
    return image->decision.delay_steps <= most && f->schedule.delay_steps <= most &&
           f->decisions[0].delay_steps <= most && f->decisions[1].delay_steps <= most;
}

/* `uneven = auto` begins without a clock, `uneven = clock` with it. */
static bool fits_clock(const msdu__caller *caller, const msdu__image *image)
{
    return image->is_clocked
               ? caller->job->may_clock && image->is_local_entered && image->pending_count == 0 &&
                     image->fragments[0].schedule.armed == 0
               : !caller->is_clocked;
}

const char *msdu__image_check(const msdu__caller *caller, const msdu__image *image)
{
    if (!fits_domain(caller, image)) {
        return "domain";
    }
    if (!fits_clock(caller, image)) {
        return "rounds by the clock";
    }
    if (image->decision.interval == 0) {
        return "interval";
    }
    uint32_t used = image->is_gradient ? 1 : caller->model->fragment_count;
    for (uint32_t i = 0; i < caller->model->fragment_count; i++) {
        const msdu__image_fragment *f = &image->fragments[i];
        if (!is_listed(image, i) || (f->schedule.is_pending && !fits_pending(caller, image, f))) {
            return "waiting mean";
        }
        if (!fits_delays(caller, image, f)) {
            return "delay";
        }
        if (i < used && (f->schedule.sync_step < image->step ||
                         f->schedule.sync_step < f->schedule.from_step)) {
            return "synchronization";
        }
        /* the next round to be armed takes this one's decision, made already unless it waits */
        if (f->schedule.armed > 0 && !f->schedule.is_pending &&
            f->decisions[(f->schedule.armed - 1) & 1].interval == 0) {
            return "interval";
        }
    }
    return NULL;
}
