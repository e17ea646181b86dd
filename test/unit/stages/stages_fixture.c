/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about pipelines, and what holds for every plan. */
#include "stages_fixture.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "random.h"

#define TOLERANCE 1e-6

static void point(stages_case *c, uint32_t layers, uint32_t devices, uint32_t micro_batches)
{
    ck_assert_uint_le(layers, LAYERS_MOST);
    ck_assert_uint_le(devices, DEVICES_MOST);
    c->q = (msdu_stages_question){.size = sizeof(c->q),
                                  .layers = layers,
                                  .devices = devices,
                                  .micro_batches = micro_batches,
                                  .forward_ns = c->forward,
                                  .backward_ns = c->backward,
                                  .output_bytes = c->output,
                                  .kept_bytes = c->kept,
                                  .state_bytes = c->state,
                                  .memory_bytes = c->memory,
                                  .card_rate = c->card,
                                  .link_rate = c->rate,
                                  .latency_ns = c->latency};
}

void stages_equal(stages_case *c, uint32_t layers, uint32_t devices, uint32_t micro_batches)
{
    memset(c, 0, sizeof(*c));
    point(c, layers, devices, micro_batches);
    for (uint32_t i = 0; i < layers * devices; i++) {
        c->forward[i] = 10;
        c->backward[i] = 20;
    }
    for (uint32_t i = 0; i < devices * devices; i++) {
        c->rate[i] = (double)INFINITY;
    }
}

uint32_t stages_below(uint64_t *random, uint32_t below)
{
    return (uint32_t)(random_next(random) % below);
}

static void set_device(stages_case *c, uint64_t *random, uint32_t d)
{
    uint32_t layers = c->q.layers;
    double speed = 1 << stages_below(random, 3);
    bool is_scaled = stages_below(random, 3) > 0;
    for (uint32_t l = 0; l < layers; l++) {
        c->forward[d * layers + l] =
            is_scaled ? (10.0 + 10 * (l % 3)) / speed : 1 + stages_below(random, 40);
        c->backward[d * layers + l] =
            is_scaled ? (20.0 + 20 * (l % 3)) / speed : 1 + stages_below(random, 80);
    }
    c->memory[d] = stages_below(random, 2) == 0 ? 0 : 20 + stages_below(random, 120);
    c->card[d] = stages_below(random, 2) == 0 ? 0 : 1e9 * (1 + stages_below(random, 3)) / 4;
}

void stages_random(stages_case *c, uint64_t *random, uint32_t layers, uint32_t devices,
                   uint32_t micro_batches)
{
    memset(c, 0, sizeof(*c));
    point(c, layers, devices, micro_batches);
    for (uint32_t l = 0; l < layers; l++) {
        c->output[l] = stages_below(random, 5) == 0 ? 0 : 1 + stages_below(random, 6);
        c->kept[l] = stages_below(random, 4);
        c->state[l] = stages_below(random, 16);
    }
    for (uint32_t d = 0; d < devices; d++) {
        set_device(c, random, d);
        if (d > 0 && stages_below(random, 3) == 0) { /* a twin */
            memcpy(&c->forward[d * layers], &c->forward[(d - 1) * layers], layers * sizeof(double));
            memcpy(&c->backward[d * layers], &c->backward[(d - 1) * layers],
                   layers * sizeof(double));
            c->memory[d] = c->memory[d - 1];
            c->card[d] = c->card[d - 1];
        }
    }
    bool is_even = stages_below(random, 2) == 0;
    for (uint32_t i = 0; i < devices * devices; i++) {
        bool is_missing = !is_even && stages_below(random, 8) == 0;
        c->rate[i] = is_even ? 5e8 : is_missing ? 0 : 1e8 * (1 + stages_below(random, 20));
        c->latency[i] = is_even ? 3 : stages_below(random, 10);
    }
}

/* --- plans --- */

typedef struct walk {
    const stages_case *c;
    const msdu_stages *p;
    /* by stage and micro-batch: when F, and B or I, had ended; 0: not met */
    double forward[2 * DEVICES_MOST][64];
    double backward[2 * DEVICES_MOST][64];
    uint32_t weights[2 * DEVICES_MOST];
    uint32_t splits[2 * DEVICES_MOST];
} walk;

static double transfer_ns(const walk *w, uint32_t from, uint32_t to, double bytes)
{
    const msdu_stages_stage *a = &w->p->stages[from];
    const msdu_stages_stage *b = &w->p->stages[to];
    size_t at = (size_t)a->device * w->c->q.devices + b->device;
    if (a->device == b->device) {
        return 0;
    }
    double rate = w->c->rate[at];
    rate = w->c->card[a->device] > 0 ? fmin(rate, w->c->card[a->device]) : rate;
    rate = w->c->card[b->device] > 0 ? fmin(rate, w->c->card[b->device]) : rate;
    ck_assert_double_gt(rate, 0);
    return bytes / rate * 1e9 + w->c->latency[at];
}

/* Ends of all actions, by stage; each once, with the time that it takes. */
static void meet(walk *w, const msdu_stages_action *a)
{
    const msdu_stages_stage *s = &w->p->stages[a->stage];
    double f = 0;
    double b = 0;
    for (uint32_t l = s->first; l < s->end; l++) {
        f += w->c->forward[s->device * w->c->q.layers + l];
        b += w->c->backward[s->device * w->c->q.layers + l];
    }
    double take = a->end_ns - a->begin_ns;
    switch ((int)a->kind) {
    case MSDU_STAGES_FORWARD:
        ck_assert_double_eq(w->forward[a->stage][a->micro_batch], 0);
        w->forward[a->stage][a->micro_batch] = a->end_ns;
        ck_assert_double_eq_tol(take, f, TOLERANCE);
        break;
    case MSDU_STAGES_BACKWARD:
    case MSDU_STAGES_INPUT:
        ck_assert_double_eq(w->backward[a->stage][a->micro_batch], 0);
        ck_assert_double_ge(a->begin_ns, w->forward[a->stage][a->micro_batch]);
        ck_assert_double_gt(w->forward[a->stage][a->micro_batch], 0);
        w->backward[a->stage][a->micro_batch] = a->end_ns;
        w->splits[a->stage] += a->kind == MSDU_STAGES_INPUT ? 1 : 0;
        ck_assert_double_eq_tol(take, a->kind == MSDU_STAGES_INPUT ? b / 2 : b, TOLERANCE);
        break;
    case MSDU_STAGES_WEIGHT:
        ck_assert_double_gt(w->backward[a->stage][a->micro_batch], 0);
        ck_assert_uint_eq(a->micro_batch, w->weights[a->stage]);
        w->weights[a->stage]++;
        ck_assert_double_eq_tol(take, b / 2, TOLERANCE);
        break;
    default:
        ck_abort_msg("an action of kind %d", a->kind);
    }
}

static void check_input(const walk *w, const msdu_stages_action *a)
{
    const double *output = w->c->output;
    double came = 0;
    if (a->kind == MSDU_STAGES_FORWARD && a->stage > 0) {
        came = w->forward[a->stage - 1][a->micro_batch] +
               transfer_ns(w, a->stage - 1, a->stage, output[w->p->stages[a->stage].first - 1]);
    } else if (a->kind == MSDU_STAGES_BACKWARD || a->kind == MSDU_STAGES_INPUT) {
        came = w->forward[a->stage][a->micro_batch];
        if (a->stage + 1 < w->p->stage_count) {
            came = w->backward[a->stage + 1][a->micro_batch] +
                   transfer_ns(w, a->stage + 1, a->stage, output[w->p->stages[a->stage].end - 1]);
        }
    }
    ck_assert_double_ge(a->begin_ns, came - TOLERANCE);
}

static void check_stage(const walk *w, uint32_t s)
{
    const msdu_stages_stage *stage = &w->p->stages[s];
    for (uint32_t i = 0; i < w->p->micro_batches; i++) {
        ck_assert_double_gt(w->forward[s][i], 0);
        ck_assert_double_gt(w->backward[s][i], 0);
    }
    ck_assert_uint_eq(w->weights[s], w->splits[s]);
    ck_assert(w->splits[s] == 0 || w->splits[s] == w->p->micro_batches);
    ck_assert_uint_eq(stage->first, s == 0 ? 0 : w->p->stages[s - 1].end);
    ck_assert_uint_gt(stage->end, stage->first);
}

/* Activations held at once are what the plan says, and fit together with all else. */
static void check_memory(const walk *w, uint32_t rank)
{
    uint32_t held[2 * DEVICES_MOST] = {0};
    uint32_t most[2 * DEVICES_MOST] = {0};
    double bytes = 0;
    double memory = 0;
    for (uint32_t i = w->p->rank_begin[rank]; i < w->p->rank_begin[rank + 1]; i++) {
        const msdu_stages_action *a = &w->p->actions[i];
        bool is_last = a->kind == MSDU_STAGES_WEIGHT ||
                       (a->kind == MSDU_STAGES_BACKWARD && w->splits[a->stage] == 0);
        held[a->stage] += a->kind == MSDU_STAGES_FORWARD ? 1 : 0;
        held[a->stage] -= is_last ? 1 : 0;
        most[a->stage] = held[a->stage] > most[a->stage] ? held[a->stage] : most[a->stage];
    }
    for (uint32_t s = 0; s < w->p->stage_count; s++) {
        const msdu_stages_stage *stage = &w->p->stages[s];
        double kept = 0;
        if (stage->rank != rank) {
            continue;
        }
        ck_assert_uint_eq(stage->holds, most[s]);
        double received = (s > 0 ? w->c->output[stage->first - 1] : 0) +
                          (s + 1 < w->p->stage_count ? w->c->output[stage->end - 1] : 0);
        for (uint32_t l = stage->first; l < stage->end; l++) {
            bytes += w->c->state[l];
            kept += w->c->kept[l];
        }
        bytes += most[s] * kept + w->p->micro_batches * received;
        memory = w->c->memory[stage->device];
    }
    ck_assert(memory == 0 || bytes <= memory + TOLERANCE);
}

void stages_check_plan(const stages_case *c, const msdu_stages *plan)
{
    static walk w;
    memset(&w, 0, sizeof(w));
    w.c = c;
    w.p = plan;
    ck_assert_uint_le(plan->micro_batches, 64);
    ck_assert_uint_le(plan->stage_count, 2 * DEVICES_MOST);
    double last = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        double now = 0;
        for (uint32_t i = plan->rank_begin[r]; i < plan->rank_begin[r + 1]; i++) {
            const msdu_stages_action *a = &plan->actions[i];
            ck_assert_uint_eq(plan->stages[a->stage].rank, r);
            ck_assert_double_ge(a->begin_ns, now); /* one thing at a time */
            now = a->end_ns;
            meet(&w, a);
        }
        last = fmax(last, now);
    }
    ck_assert_double_eq_tol(plan->step_ns, last, TOLERANCE);
    ck_assert_double_ge(plan->step_ns, plan->bound_ns - TOLERANCE);
    for (uint32_t i = 0; i < plan->rank_begin[plan->rank_count]; i++) {
        check_input(&w, &plan->actions[i]);
    }
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        check_stage(&w, s);
    }
    ck_assert_uint_eq(plan->stages[plan->stage_count - 1].end, c->q.layers);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        check_memory(&w, r);
    }
}
