/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of slices that are cut anew under way: no bit may tell. */
#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/tune.h"
#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

#define KIB   1024
#define STEPS 16
#define SHORT 12 /* of large models */

/* Large enough for several slices of the sizes that are tuned; small ones are fused. */
static const ranks_tensor model[] = {
    {.count = 1},     {.count = 7},   {.count = 30000}, {.count = 12000, .dtype = MSDU_BFLOAT16},
    {.count = 40000}, {.count = 300}, {.count = 9000},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))

/* --- forced changes --- */

static const msdu__tuning tunings[] = {
    {32 * KIB, 4, 2}, {64 * KIB, 8, 1}, {64 * KIB, 5, 2}, {32 * KIB, 4, 1}};
#define TUNINGS (sizeof(tunings) / sizeof(tunings[0]))

/* As msdu__reslice_due() does it, between two steps. */
static void cut(ranks_self *self, msdu__tuning tuning)
{
    msdu_ctx *p = self->ctx;
    if (!p->model.recut.may_cut || !p->caller.is_gradient) {
        return;
    }
    /* what the tuner chooses itself comes between */
    msdu_status status = msdu__reslice_to(&p->caller, tuning);
    self->status = self->status == MSDU_OK ? status : self->status;
}

/* Where a round is still under way (RANKS_DEFERRED) the change waits for its end. */
static void cut_often(ranks_self *self, int step)
{
    if (step % 2 == 1) {
        cut(self, tunings[(size_t)(step / 2) % TUNINGS]);
    }
}

static ranks_job cutting_job(int ranks, const char *wire)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = STEPS,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = {.domain = "gradient",
                   .interval = "fixed",
                   .interval_steps = 4,
                   .wire = wire,
                   .warmup_steps = 7,
                   .lr = 0.05,
                   .momentum = 0.9},
        .stepped = cut_often,
    };
}

START_TEST(a_plain_allreduce_to_the_bit_whatever_the_cut)
{
    static const ranks_style styles[] = {RANKS_IN_ORDER, RANKS_THREADS, RANKS_DEFERRED};
    ranks_job job = cutting_job(2 + _i % 2, "float32");
    job.style = styles[_i];
    job.config.commit = _i == 2 ? "tensor" : "round";
    reference_check(&job, 0);
}
END_TEST

START_TEST(local_steps_follow)
{
    ranks_job job = cutting_job(3, "float32");
    job.config.domain = "auto";
    job.config.overlap = _i == 0 ? "backward" : "delayed";
    job.config.delay_steps = 1;
    reference_check(&job, 0);
}
END_TEST

/* --- error feedback --- */

/* What this rank still owes to each element: its own part, and the mean's as an owner. */
static void owed(const msdu_ctx *p, double *out)
{
    uint64_t first[MODEL_COUNT] = {0};
    for (uint32_t t = 1; t < MODEL_COUNT; t++) {
        first[t] = first[t - 1] + model[t - 1].count;
    }
    for (uint32_t slice = 0; slice < p->model.slice_bound; slice++) {
        const msdu__slice *cut_at = &p->model.slicing.slices[slice];
        const msdu__run *run = &p->engine.runs[slice];
        uint64_t at = 0;
        for (uint32_t i = 0; i < cut_at->segments; i++) {
            const msdu__segment *part = &p->model.slicing.segments[cut_at->first_segment + i];
            for (uint64_t k = 0; k < part->count; k++, at++) {
                uint64_t own = at - run->share_start[p->job.rank];
                bool is_own =
                    at >= run->share_start[p->job.rank] && own < run->share_count[p->job.rank];
                double held = run->has_residual ? (double)run->residual[at] : 0;
                held += run->has_residual && is_own
                            ? (double)p->job.ranks * (double)run->owner_residual[own]
                            : 0;
                out[first[part->tensor] + part->offset + k] = held;
            }
        }
    }
}

typedef struct owing {
    int moved[RANKS_MOST]; /* elements that owed something when they were cut anew */
    int lost[RANKS_MOST];
} owing;

static void cut_and_compare(ranks_self *self, int step)
{
    owing *found = self->job->user;
    double *before = calloc(self->elements, sizeof(*before));
    double *after = calloc(self->elements, sizeof(*after));
    if (step % 3 == 2 && before != NULL && after != NULL) {
        owed(self->ctx, before);
        cut(self, tunings[(size_t)(step / 3) % TUNINGS]);
        owed(self->ctx, after);
    }
    for (uint64_t i = 0; before != NULL && after != NULL && i < self->elements; i++) {
        double off = before[i] - after[i];
        found->moved[self->rank] += after[i] != 0 ? 1 : 0;
        found->lost[self->rank] += fabs(off) > 1e-6 * (1 + fabs(before[i])) ? 1 : 0;
    }
    free(after);
    free(before);
}

START_TEST(nothing_that_was_held_back_is_lost)
{
    owing found = {.moved = {0}};
    ranks_run run;
    ranks_job job = cutting_job(3, _i == 0 ? "int4" : "int2");
    job.stepped = cut_and_compare;
    job.user = &found;
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_gt(found.moved[rank], 1000);
        ck_assert_int_eq(found.lost[rank], 0);
    }
    for (int rank = 1; rank < 3; rank++) {
        ck_assert_mem_eq(ranks_row(&run.selves[rank], STEPS), ranks_row(&run.selves[0], STEPS),
                         run.selves[0].elements * sizeof(double));
    }
    ranks_free(&run);
}
END_TEST

/* --- checkpoints --- */

START_TEST(a_state_brings_its_cut)
{
    static const char *const wires[] = {"float32", "int4"}; /* int4: other cuts, other bits */
    ranks_job job = cutting_job(3, wires[_i % 2]);
    job.config.domain = _i < 2 ? "gradient" : "auto";
    job.config.correct = "average";
    kit_check_resume(&job, 3, 11, 2);
}
END_TEST

START_TEST(a_state_of_more_lanes_goes_on_with_those_there_are)
{
    ranks_run whole;
    ranks_run run;
    kit_save save;
    ranks_job job = cutting_job(3, "float32");
    ck_assert(ranks_go(&job, &whole));
    kit_interrupt(&job, 3, &save); /* step 1 has cut it as tunings[0] says, for 2 channels */
    job.config.lanes = 1;
    job.stepped = NULL;
    ck_assert(kit_resume(&job, 3, &save, &run));
    kit_check_equal(&job, 3, &whole, &run);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(run.selves[rank].summary.lanes, 1);
    }
    kit_free(&save);
    ranks_free(&run);
    ranks_free(&whole);
}
END_TEST

static void load_damaged(ranks_self *self)
{
    const kit_save *save = self->job->user;
    const msdu_ctx *p = self->ctx;
    const kit_rank *in = &save->rank[self->rank];
    unsigned char *copy = malloc(in->bytes);
    uint64_t first = p->model.tuning.slice_bytes;
    memcpy(copy, in->state, in->bytes);
    copy[in->bytes / 2] ^= self->rank == 1 ? 1 : 0; /* the others find nothing wrong */
    bool is_refused = msdu_state_set(self->ctx, copy, in->bytes) != MSDU_OK;
    if (!is_refused || p->model.tuning.slice_bytes != first || first == tunings[0].slice_bytes) {
        self->status = MSDU_ERR_STATE;
    }
    free(copy);
}

START_TEST(a_state_that_is_refused_leaves_the_cut_as_it_was)
{
    kit_save save;
    ranks_job job = cutting_job(3, "float32");
    kit_interrupt(&job, 3, &save); /* step 1 has cut it as tunings[0] says */
    job.started = load_damaged;
    job.stepped = NULL;
    job.user = &save;
    reference_check(&job, 0);
    kit_free(&save);
}
END_TEST

/* --- as measured --- */

START_TEST(all_ranks_choose_alike_by_what_they_measured)
{
    ranks_run run;
    ranks_job job = cutting_job(3, "float32");
    job.stepped = NULL;
    job.steps = 60;
    job.config.lanes = 4;
    job.config.commit = _i == 0 ? "round" : "tensor";
    job.style = _i == 0 ? RANKS_IN_ORDER : RANKS_DEFERRED;
    ranks_run_well(&job, &run);
    const msdu_summary *first = &run.selves[0].summary;
    ck_assert_uint_ge(first->slice_cuts, 1); /* it tries another slicing, at least */
    ck_assert_uint_ge(first->slice_bytes, 32 * KIB);
    for (int rank = 1; rank < 3; rank++) {
        const msdu_summary *other = &run.selves[rank].summary;
        ck_assert_uint_eq(other->slice_bytes, first->slice_bytes);
        ck_assert_uint_eq(other->window, first->window);
        ck_assert_uint_eq(other->lanes, first->lanes);
        ck_assert_uint_eq(other->slice_cuts, first->slice_cuts);
    }
    ranks_free(&run);
    reference_check(&job, 0);
}
END_TEST

START_TEST(what_is_given_is_kept)
{
    ranks_run run;
    ranks_job job = cutting_job(2, _i == 2 ? "int4" : "float32");
    job.stepped = NULL;
    job.steps = 40;
    job.config.slice_bytes = _i == 0 ? 20000 : 0;
    job.config.window = _i == 1 ? 3 : 0;
    ranks_run_well(&job, &run);
    const msdu_summary *summary = &run.selves[0].summary;
    if (_i == 1) {
        ck_assert_uint_eq(summary->window, 3);
    } else { /* and bits that depend on the slicing do not depend on time */
        ck_assert_uint_eq(summary->slice_cuts, 0);
        ck_assert_uint_eq(summary->slice_bytes, _i == 0 ? 20000 : _i == 2 ? 512 * KIB : 256 * KIB);
    }
    ranks_free(&run);
}
END_TEST

/* `msdu bench overlap`, method defaults: rounds in int8 and int4 led to slices of 32 KiB, and
 * float32 that came back had lost what was measured for it. */
START_TEST(narrow_rounds_go_by_the_bytes_that_they_send)
{
    static const struct {
        int wire;
        uint64_t slice_bytes;
    } rounds[] = {
        {MSDU__WIRE_INT4, 2048 * KIB},    {MSDU__WIRE_INT4, 2048 * KIB},
        {MSDU__WIRE_FLOAT16, 2048 * KIB}, /* large enough: formats may change back at once */
        {MSDU__WIRE_FLOAT32, 256 * KIB},  {MSDU__WIRE_FLOAT32, 256 * KIB},
        {MSDU__WIRE_FLOAT16, 512 * KIB},  {MSDU__WIRE_INT8, 1024 * KIB},
        {MSDU__WIRE_FLOAT32, 256 * KIB},
    };
    static msdu__job job;
    static msdu__model its_model;
    static msdu__handover hand;
    static msdu__engine e = {.job = &job, .model = &its_model, .hand = &hand};
    static msdu__tensor tensor = {.count = 40U << 18, .dtype = MSDU_FLOAT32};
    msdu__fragment *f = &e.fragments[0];
    *f = (msdu__fragment){.opened = 1, .slice_count = 40, .round.is_gradient = true};
    msdu__round_stats stats = {.round_bytes = 1 << 20, .link_ns = 90000000};
    its_model.recut.is_tuned = its_model.recut.is_recut = true;
    its_model.tensors = &tensor;
    its_model.tensor_count = 1;
    its_model.fragment_count = 1;
    job.settings.wire_block = 256;
    its_model.recut.first = (msdu__tuning){.slice_bytes = 256 * KIB, .window = 4, .lanes = 2};
    its_model.tuning = (msdu__tuning){.slice_bytes = 64 * KIB, .window = 8, .lanes = 2};
    its_model.recut.args = (msdu__tuner_args){.model_bytes = 40U << 20,
                                              .latency_ns = 1e6,
                                              .slice_least = 32 * KIB,
                                              .slice_most = 4096 * KIB,
                                              .window_least = 4,
                                              .window_most = 8};
    msdu__tuner_begin(&e.tuner, its_model.tuning);
    e.tuner.is_settled = _i == 1;
    e.was_compressed = false;
    for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++) {
        for (int again = 0; again < 12; again++) { /* nothing is measured */
            stats.wire = rounds[i].wire;
            msdu__tune_hear(&e, f, &stats);
            bool is_tuned = rounds[i].wire == MSDU__WIRE_FLOAT32 && _i == 1;
            ck_assert_uint_eq(hand.fragments[0].answers[0].tuning.slice_bytes,
                              is_tuned ? 64 * KIB : rounds[i].slice_bytes);
            ck_assert_uint_eq(hand.fragments[0].answers[0].tuning.window, is_tuned ? 8 : 4);
        }
    }
}
END_TEST

/* --- as the wire changes --- */

/* 8.8 MB: slices of 256 KiB in float32, of 512 KiB in 16 bits, of 1 MiB in less. */
static const ranks_tensor large[] = {{.count = 1200000}, {.count = 1000}, {.count = 1000000}};

static ranks_job large_job(const char *wire)
{
    ranks_job job = cutting_job(2, wire);
    job.tensors = large;
    job.tensor_count = 3;
    job.stepped = NULL;
    return job;
}

START_TEST(a_wire_that_is_given_has_its_cut_from_the_start)
{
    ranks_run run;
    ranks_job job = large_job(_i == 0 ? "float32" : "int4");
    job.steps = 2;
    job.config.window = 4;
    job.config.interval_steps = 1;
    ranks_run_well(&job, &run);
    ck_assert_uint_eq(run.selves[0].summary.slice_cuts, 0);
    ck_assert_uint_eq(run.selves[0].summary.slice_bytes, _i == 0 ? 256 * KIB : 1024 * KIB);
    ranks_free(&run);
}
END_TEST

/* Policy fixed, in a wire by round. */
static const int script[] = {MSDU__WIRE_FLOAT32, MSDU__WIRE_INT8, MSDU__WIRE_FLOAT16,
                             MSDU__WIRE_FLOAT32};
#define SCRIPT (sizeof(script) / sizeof(script[0]))

static void decide(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    msdu__policy_find("fixed")->decide(args, stats, state, decision);
    bool is_scripted = decision->interval == 1 && stats->round < SCRIPT;
    decision->wire = is_scripted ? script[stats->round] : MSDU__WIRE_FLOAT16;
}

static const msdu__policy scripted = {.name = "scripted", .help = "by round", .decide = decide};

/* The communication thread decides only after the first announcement. */
static void take_script(ranks_self *self)
{
    self->ctx->job.policy = &scripted;
}

typedef struct cuts {
    uint64_t slice_bytes[RANKS_MOST][SHORT]; /* when a step begins */
} cuts;

static void note_cut(ranks_self *self, int step)
{
    cuts *seen = self->job->user;
    seen->slice_bytes[self->rank][step] = self->ctx->model.tuning.slice_bytes;
}

/* The wire of a step is decided two steps before, and its cut a step after it was heard. */
START_TEST(slices_follow_the_wire_and_nothing_is_lost)
{
    static cuts seen;
    ranks_run run;
    ranks_job job = large_job("auto");
    bool is_local = _i == 2;
    job.steps = is_local ? SHORT / 2 : SHORT;
    job.config.domain = is_local ? "auto" : "gradient";
    job.config.overlap = "backward";
    job.config.interval_steps = is_local ? 4 : 1;
    job.config.warmup_steps = is_local ? 1 : 0;
    job.config.window = 4;
    job.style = _i == 1 ? RANKS_DEFERRED : RANKS_IN_ORDER;
    job.config.commit = _i == 1 ? "tensor" : "round";
    job.started = take_script;
    job.stepped = note_cut;
    job.user = &seen;
    ranks_run_well(&job, &run);
    uint64_t least = 512 * KIB;
    uint64_t last = 0;
    for (int step = 0; step < job.steps; step++) {
        least = seen.slice_bytes[0][step] < least ? seen.slice_bytes[0][step] : least;
        last = seen.slice_bytes[0][step];
        for (int rank = 1; rank < 2; rank++) {
            ck_assert_uint_eq(seen.slice_bytes[rank][step], seen.slice_bytes[0][step]);
        }
    }
    ck_assert_uint_eq(seen.slice_bytes[0][0], 256 * KIB);
    ck_assert_uint_eq(least, 256 * KIB);
    ck_assert_uint_eq(last, 512 * KIB);
    ck_assert_uint_eq(run.selves[0].summary.slice_cuts, is_local ? 1 : 3);
    for (int rank = 1; rank < 2; rank++) {
        ck_assert_mem_eq(ranks_row(&run.selves[rank], job.steps),
                         ranks_row(&run.selves[0], job.steps),
                         run.selves[0].elements * sizeof(double));
    }
    ranks_free(&run);
    if (_i != 1) {
        reference_check(&job, 0.02);
    }
}
END_TEST

static atomic_uint heard[2]; /* rounds, by whether sizes were being tried */

static void listen(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision)
{
    msdu__policy_find("fixed")->decide(args, stats, state, decision);
    atomic_fetch_add(&heard[stats->is_trial ? 1 : 0], 1);
}

static const msdu__policy listening = {.name = "listening", .help = "counts", .decide = listen};

static void take_listening(ranks_self *self)
{
    self->ctx->job.policy = &listening;
}

START_TEST(a_policy_is_told_which_rounds_try_sizes)
{
    ranks_run run;
    ranks_job job = cutting_job(2, "float32");
    atomic_store(&heard[0], 0); /* sanitizers run all cases in one process */
    atomic_store(&heard[1], 0);
    job.stepped = NULL;
    job.started = take_listening;
    job.steps = 120;
    job.config.slice_bytes = _i == 0 ? 0 : 20000;
    ranks_run_well(&job, &run);
    ranks_free(&run);
    unsigned trials = atomic_load(&heard[1]);
    unsigned others = atomic_load(&heard[0]);
    ck_assert_uint_gt(others, 0);
    if (_i == 0) { /* as long as it takes, and no longer */
        ck_assert_uint_ge(trials, 2 * MSDU__TUNER_ROUNDS);
    } else {
        ck_assert_uint_eq(trials, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("retune");
    TCase *cases = suite_case(suite, "retune", 120, NULL, NULL);
    tcase_add_loop_test(cases, a_plain_allreduce_to_the_bit_whatever_the_cut, 0, 3);
    tcase_add_loop_test(cases, local_steps_follow, 0, 2);
    tcase_add_loop_test(cases, nothing_that_was_held_back_is_lost, 0, 2);
    tcase_add_loop_test(cases, a_state_brings_its_cut, 0, 4);
    tcase_add_test(cases, a_state_of_more_lanes_goes_on_with_those_there_are);
    tcase_add_test(cases, a_state_that_is_refused_leaves_the_cut_as_it_was);
    tcase_add_loop_test(cases, all_ranks_choose_alike_by_what_they_measured, 0, 2);
    tcase_add_loop_test(cases, what_is_given_is_kept, 0, 3);
    tcase_add_loop_test(cases, narrow_rounds_go_by_the_bytes_that_they_send, 0, 2);
    tcase_add_loop_test(cases, slices_follow_the_wire_and_nothing_is_lost, 0, 3);
    tcase_add_loop_test(cases, a_wire_that_is_given_has_its_cut_from_the_start, 0, 2);
    tcase_add_loop_test(cases, a_policy_is_told_which_rounds_try_sizes, 0, 2);
    return suite_run(suite);
}
