/* SPDX-License-Identifier: Apache-2.0 */
/* The library's policy on statistics of a simulated run. */
#include "control.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/job.h"
#include "interval/backlog.h"

#define ROUNDS_MOST 2000
#define STEADY      48 /* rounds without a change: longer than any patience of the policy */
#define KNOWN_MOST  256
#define GROWTH      1.5
#define ENERGY      1e-6 /* of one step's pseudo-gradient, over the weights' */

/* A simulated step for each way that the controller tries, simulated once. */
typedef struct known {
    msdu__whatif_way way;
    msdu__whatif_answer answer;
} known;

typedef struct run {
    const msdu__whatif_question *q;
    const msdu__whatif_wish *wish;
    const msdu__overlap_method *method;
    msdu__job *job; /* settings, policy and its arguments; nothing else of it */
    msdu__interval_state state;
    known known[KNOWN_MOST];
    uint32_t known_count;
    bool is_local;
    double link_ns; /* of the round before, of which a message tells; 0: none */
    double wait_ns;
    int wire;
    uint64_t step;
    uint64_t round;
    double window_ns;
    double window_bytes;
    uint32_t window_steps;
    char *why;
    size_t why_bytes;
} run;

static bool is_same(const msdu__whatif_way *a, const msdu__whatif_way *b)
{
    return a->interval == b->interval && a->delay == b->delay && a->wire == b->wire;
}

static const msdu__whatif_answer *answer_of(run *r, const msdu__whatif_way *way)
{
    for (uint32_t i = 0; i < r->known_count; i++) {
        if (is_same(&r->known[i].way, way)) {
            return &r->known[i].answer;
        }
    }
    if (r->known_count == KNOWN_MOST) {
        r->known_count = 0; /* a controller that never settles; begin again */
    }
    known *next = &r->known[r->known_count];
    next->way = *way;
    if (!msdu__whatif_predict(r->q, way, &next->answer, r->why, r->why_bytes)) {
        return NULL;
    }
    r->known_count++;
    return &next->answer;
}

/* As src/caller/step.c: a round that is too short to be late is at once. */
static msdu__whatif_way way_of(const run *r, const msdu__decision *d)
{
    bool is_late = r->is_local && d->interval > d->delay_steps;
    return (msdu__whatif_way){.method = r->method,
                              .interval = d->interval,
                              .delay = is_late ? d->delay_steps : 0,
                              .wire = d->wire};
}

static msdu__round_stats stats_of(const run *r, const msdu__whatif_way *way,
                                  const msdu__whatif_answer *answer)
{
    double ranks = r->q->network.ranks;
    double energy = r->is_local ? ENERGY * pow(way->interval, GROWTH) : ENERGY;
    return (msdu__round_stats){
        .step = r->step,
        .round = r->round,
        .interval = way->interval,
        .wire = way->wire,
        .link_wire = r->round > 1 ? r->wire : way->wire,
        .delay_steps = way->delay,
        .ranks = (int32_t)r->q->network.ranks,
        .is_gradient = !r->is_local,
        .local_sq = energy,
        .mean_sq = energy / ranks,
        .weight_sq = 1,
        .residual_sq = energy * msdu__wire_at(way->wire)->residual_ratio,
        .loss = (double)NAN,
        .step_ns = (uint64_t)(answer->compute_ns + answer->taken_ns),
        .link_ns = (uint64_t)fmin(r->link_ns, 1e18),
        .latency_ns = (uint64_t)msdu__whatif_message_ns(&r->q->network),
        .wait_ns = (uint64_t)fmin(r->wait_ns, 1e18),
        .round_bytes = (uint64_t)fmin(answer->bytes * way->interval, 1e18),
        .elements = msdu__profile_elements(r->q->profile),
        .taken_share = r->q->taken_share,
        .messages = answer->slices,
    };
}

/* What is asked for is training that has settled: the first steps of SGD are not. */
static uint64_t early_steps(const run *r)
{
    return r->job->settings.optimizer == MSDU__OPTIMIZER_SGD ? MSDU__BACKLOG_EARLY_STEPS : 0;
}

/* The part of a round that lies in the window asked for. */
static void note_window(run *r, const msdu__whatif_way *way, const msdu__whatif_answer *answer)
{
    uint64_t early = early_steps(r);
    for (uint64_t s = r->step; s < r->step + way->interval; s++) {
        if (s >= early + r->wish->from_step && s < early + r->wish->until_step) {
            r->window_ns += answer->step_ns;
            r->window_bytes += answer->bytes;
            r->window_steps++;
        }
    }
}

/* One round under `now`; decides that after the next. */
static const msdu__whatif_answer *run_round(run *r, const msdu__decision *now, msdu__decision *next)
{
    const msdu__job *job = r->job;
    r->is_local = r->is_local || now->interval > 1;
    msdu__whatif_way way = way_of(r, now);
    const msdu__whatif_answer *answer = answer_of(r, &way);
    if (answer == NULL) {
        return NULL;
    }
    note_window(r, &way, answer);
    r->step += way.interval;
    r->round++;
    msdu__round_stats stats = stats_of(r, &way, answer);
    r->link_ns = answer->link_ns;
    r->wait_ns = answer->wait_ns * way.interval;
    r->wire = way.wire;
    *next = (msdu__decision){.interval = now->interval,
                             .wire = now->wire,
                             .delay_steps = (uint32_t)job->settings.delay_steps};
    job->policy->decide(&job->interval_args, &stats, &r->state, next);
    return answer;
}

static bool is_changed(const msdu__decision *a, const msdu__decision *b)
{
    return a->interval != b->interval || a->wire != b->wire || a->delay_steps != b->delay_steps;
}

static void take_choice(const run *r, const msdu__decision *d, const msdu__whatif_answer *answer,
                        msdu__whatif_choice *out)
{
    out->way = way_of(r, d);
    out->answer = *answer;
    snprintf(out->reason, sizeof(out->reason), "%s", d->reason);
}

/* Until nothing changes any more, and the window is full. */
static bool run_rounds(run *r, msdu__whatif_choice *out)
{
    const msdu__settings *s = &r->job->settings;
    msdu__decision now = {.interval = 1,
                          .wire = msdu__interval_first_wire(&r->job->interval_args),
                          .delay_steps = (uint32_t)s->delay_steps};
    msdu__decision soon = now; /* decided, and one round late */
    uint32_t steady = 0;
    uint64_t least = early_steps(r) + r->wish->until_step;
    while (r->round < ROUNDS_MOST && (steady < STEADY || r->step < least)) {
        msdu__decision next;
        const msdu__whatif_answer *answer = run_round(r, &now, &next);
        if (answer == NULL) {
            return false;
        }
        if (is_changed(&now, &soon)) {
            steady = 0;
            out->step = r->step;
        }
        steady = is_changed(&next, &soon) ? 0 : steady + 1;
        snprintf(now.reason, sizeof(now.reason), "%s", next.reason);
        take_choice(r, &now, answer, out);
        now = soon;
        soon = next;
    }
    out->window_ns = r->window_steps > 0 ? r->window_ns / r->window_steps : out->answer.step_ns;
    out->window_bytes = r->window_steps > 0 ? r->window_bytes / r->window_steps : out->answer.bytes;
    return true;
}

static msdu_status read_settings(run *r)
{
    msdu_config config = MSDU_CONFIG_INIT;
    msdu__job *job = r->job;
    msdu__correct_args correct;
    config.settings = r->wish->settings;
    msdu_status status = msdu__settings_load(&config, &job->settings, &job->log);
    job->settings.optimizer = r->wish->is_sgd ? MSDU__OPTIMIZER_SGD : job->settings.optimizer;
    job->ranks = (int32_t)r->q->network.ranks;
    status = status == MSDU_OK ? msdu__derive(job, &correct) : status;
    job->costs = msdu__whatif_costs(r->q);
    msdu__derive_costs(job);
    job->interval_args.can_go_local = true;
    return status;
}

bool msdu__whatif_control(const msdu__whatif_question *question, const msdu__whatif_wish *wish,
                          msdu__whatif_choice *choice, char *why, size_t why_bytes)
{
    run *r = calloc(1, sizeof(*r));
    msdu__job *job = calloc(1, sizeof(*job));
    bool is_done = false;
    *choice = (msdu__whatif_choice){.step = 0};
    snprintf(why, why_bytes, "out of memory");
    if (r != NULL && job != NULL) {
        r->q = question;
        r->wish = wish;
        r->method = msdu__overlap_method_find("defaults");
        r->job = job;
        r->why = why;
        r->why_bytes = why_bytes;
        is_done = read_settings(r) == MSDU_OK;
        if (!is_done) {
            snprintf(why, why_bytes, "%s", msdu_last_error());
        }
        is_done = is_done && run_rounds(r, choice);
    }
    free(r);
    free(job);
    return is_done;
}
