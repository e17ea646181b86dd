/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the progress engine over the fake backend, driven by hand: failures at every call,
 * delay, disorder, deadlines.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/progress.h"
#include "fake.h"
#include "suite.h"

#define TENSORS 4
#define STEPS   3

/* --- a context over the fake backend --- */

static const uint64_t counts[TENSORS] = {1, 200, 77, 500};

typedef struct rig {
    msdu_ctx *ctx;
    msdu_ctx *p;
    float parameter[TENSORS][500];
    float gradient[TENSORS][500];
    float before[TENSORS][500]; /* parameters as the trainer left them in this step */
    bool is_threaded;           /* the communication thread runs; else pump() does its work */
} rig;

static rig *rig_new(const char *domain, const char *wire, bool is_threaded)
{
    rig *r = calloc(1, sizeof(*r));
    ck_assert_ptr_nonnull(r);
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 2;
    config.rank = 0;
    config.backend = "local";
    config.domain = domain;
    config.overlap = "backward";
    config.interval = "fixed";
    config.interval_steps = 1;
    config.warmup_steps = 1;
    config.wire = wire;
    config.slice_bytes = 512;
    config.fuse_bytes = 256;
    config.wire_block = 32;
    config.deadline_ms = 1000;
    ck_assert_int_eq(msdu_create(&config, &r->ctx), MSDU_OK);
    r->is_threaded = is_threaded;
    r->p = r->ctx;
    r->p->job.backend = &fake_backend;
    r->p->job.clock = fake_clock;
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof(name), "t%u", t);
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = name;
        desc.parameter = r->parameter[t];
        desc.gradient = r->gradient[t];
        desc.count = counts[t];
        ck_assert_int_eq(msdu_tensor_add(r->ctx, &desc, NULL), MSDU_OK);
    }
    return r;
}

static void rig_free(rig *r)
{
    msdu_destroy(r->ctx);
    free(r);
}

static msdu_status rig_start(rig *r)
{
    msdu_status status = msdu_start(r->ctx);
    if (!r->is_threaded) {
        msdu__worker_stop(&r->p->hand.worker);
    }
    return status;
}

static bool is_any_busy(const msdu_ctx *p)
{
    for (uint32_t t = 0; t < p->model.tensor_count; t++) {
        if (msdu__handover_is_busy(&p->hand, t, MSDU_GRADIENT | MSDU_PARAMETER)) {
            return true;
        }
    }
    return false;
}

/* The communication thread's work, until nothing is under way. A fixed bound: it must not hang. */
static void pump(rig *r)
{
    for (int i = 0; i < 2000 && !r->is_threaded; i++) {
        if (msdu__engine_advance(&r->p->engine) == UINT64_MAX) {
            break;
        }
    }
    bool is_failed = (int)msdu__handover_status(&r->p->hand) != MSDU_OK;
    ck_assert_msg(r->is_threaded || is_failed || !is_any_busy(r->p), "a tensor stays busy");
}

static void fill(rig *r, int step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) {
            r->gradient[t][i] = (float)(step + 1) + 0.25F * (float)(i % 7);
            r->before[t][i] = r->parameter[t][i] + 0.5F;
            r->parameter[t][i] = r->before[t][i];
        }
    }
}

static msdu_status announce_all(rig *r, msdu_what what)
{
    for (uint32_t t = TENSORS; t-- > 0;) {
        msdu_status status = msdu_tensor_ready(r->ctx, t, what);
        if (status != MSDU_OK) {
            return status;
        }
    }
    pump(r);
    return MSDU_OK;
}

static msdu_status rig_step(rig *r, int step)
{
    fill(r, step);
    msdu_status status = announce_all(r, MSDU_GRADIENT);
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    }
    if (status == MSDU_OK) {
        status = announce_all(r, MSDU_PARAMETER);
    }
    if (status == MSDU_OK) {
        status = msdu_step(r->ctx);
    }
    if (status == MSDU_OK) {
        pump(r);
        status = msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
    }
    return status;
}

/* All steps and, with the thread, the end. */
static msdu_status rig_run(rig *r)
{
    msdu_status status = rig_start(r);
    for (int step = 0; step < STEPS && status == MSDU_OK; step++) {
        status = rig_step(r, step);
    }
    return status == MSDU_OK && r->is_threaded ? msdu_finish(r->ctx) : status;
}

/* --- failures --- */

/* Parameter domain: mean = own + 1 / 2, for all elements of a round or for none. */
static void check_whole_round(const rig *r)
{
    float moved = r->parameter[0][0] - r->before[0][0];
    ck_assert(moved == 0.0F || moved == -0.5F || moved == 0.5F);
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) {
            if (r->parameter[t][i] - r->before[t][i] != moved) {
                ck_abort_msg("tensor %u element %llu is part of a round", t, (unsigned long long)i);
            }
        }
    }
}

static const struct {
    const char *domain;
    const char *wire;
    bool is_threaded;
} modes[] = {{"gradient", "float32", false},  {"gradient", "int8", false},
             {"parameter", "float32", false}, {"parameter", "int4", false},
             {"gradient", "float32", true},   {"parameter", "float32", true}};
#define MODES_BY_HAND 4
#define MODES         6

static rig *mode_rig(int mode)
{
    return rig_new(modes[mode].domain, modes[mode].wire, modes[mode].is_threaded);
}

static void count_calls(int mode, uint64_t *starts_out, uint64_t *tests_out)
{
    fake_reset();
    rig *r = mode_rig(mode);
    ck_assert_int_eq(rig_run(r), MSDU_OK);
    *starts_out = fake.starts;
    *tests_out = fake.tests;
    ck_assert_uint_eq(fake.disorders, 0);
    rig_free(r);
    ck_assert_uint_eq(fake.closes, 1);
}

static void check_failure(rig *r, const char *text)
{
    ck_assert_int_eq(rig_run(r), MSDU_ERR_PEER_LOST);
    ck_assert_str_eq(msdu_last_error(), text);
    if (strcmp(r->p->job.settings.wire == MSDU__WIRE_FLOAT32 ? "float32" : "", "float32") == 0) {
        check_whole_round(r);
    }
    /* and again, from any call and after finish */
    bool is_running =
        msdu__cell_get(&r->p->hand.reports.start_ns) != 0 && !r->p->caller.is_finished;
    if (is_running) {
        ck_assert_int_eq(msdu_step(r->ctx), MSDU_ERR_PEER_LOST);
        ck_assert_int_eq(msdu_tensor_wait(r->ctx, 0, MSDU_PARAMETER), MSDU_ERR_PEER_LOST);
        ck_assert_int_eq(msdu_finish(r->ctx), MSDU_ERR_PEER_LOST);
        ck_assert_str_eq(msdu_last_error(), text);
    }
    ck_assert_uint_eq(fake.disorders, 0);
    rig_free(r);
}

START_TEST(every_failing_call_reaches_the_caller)
{
    uint64_t calls[2] = {0, 0}; /* starts, tests */
    count_calls(_i, &calls[0], &calls[1]);
    ck_assert_uint_gt(calls[0], 10);
    for (int k = 0; k < (_i < MODES_BY_HAND ? 2 : 1); k++) {
        for (uint64_t n = 1; n <= calls[k]; n++) {
            char text[64];
            fake_reset();
            *(k == 0 ? &fake.fail_start : &fake.fail_test) = n;
            fake.fail_status = MSDU_ERR_PEER_LOST;
            snprintf(text, sizeof(text), "fake: %s %llu failed", k == 0 ? "start" : "test",
                     (unsigned long long)n);
            check_failure(mode_rig(_i), text);
        }
    }
}
END_TEST

START_TEST(a_failure_ends_what_is_in_flight)
{
    fake_reset();
    fake.fail_start = 8;
    rig *r = mode_rig(0);
    ck_assert_int_eq(rig_run(r), MSDU_ERR_BACKEND);
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_int_eq(fake.abort_status, MSDU_ERR_BACKEND);
    rig_free(r);
    ck_assert_uint_eq(fake.closes, 1);
}
END_TEST

/* --- formats --- */

/* Which formats may wire=auto choose for one tensor of `count` elements? */
static unsigned formats_for(uint64_t count, int32_t dtype, int ranks)
{
    static float memory[300000];
    unsigned allowed = 0;
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu_ctx *ctx = NULL;
    fake_reset();
    config.ranks = ranks;
    config.backend = "local";
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    msdu_ctx *p = (msdu_ctx *)ctx;
    p->job.backend = &fake_backend;
    p->job.clock = fake_clock;
    desc.name = "w";
    desc.count = count;
    desc.dtype = dtype;
    desc.parameter = desc.gradient = memory;
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    msdu__worker_stop(&p->hand.worker);
    for (uint32_t i = 0; i < p->job.interval_args.wire_count; i++) {
        const msdu__interval_wire *wire = &p->job.interval_args.wires[i];
        allowed |= wire->is_allowed || wire->is_allowed_h1 ? 1U << i : 0;
    }
    msdu_destroy(ctx);
    return allowed;
}

START_TEST(no_format_is_chosen_that_hardly_sends_less)
{
    static const int sizes[] = {2, 4, 8};
    for (int k = 0; k < 3; k++) {
        ck_assert_uint_eq(formats_for(1, MSDU_FLOAT32, sizes[k]), 0);
        ck_assert_uint_eq(formats_for(21, MSDU_FLOAT32, sizes[k]), 0);
        unsigned all = (1U << MSDU__WIRE_COUNT) - 1 - (1U << MSDU__WIRE_FLOAT32);
        ck_assert_uint_eq(formats_for(300000, MSDU_FLOAT32, sizes[k]), all);
        /* 16-bit tensors travel in 16 bits as they are, and doubles never in fewer */
        unsigned narrow = all - (1U << MSDU__WIRE_BFLOAT16) - (1U << MSDU__WIRE_FLOAT16);
        ck_assert_uint_eq(formats_for(300000, MSDU_BFLOAT16, sizes[k]), narrow);
        ck_assert_uint_eq(formats_for(100000, MSDU_FLOAT64, sizes[k]), 0);
    }
}
END_TEST

/* --- delay and disorder --- */

/* 3 steps: gradients are step + 1 + ..., each mean is 1 / 2 more. */
static void check_gradients(const rig *r)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) {
            float own = (float)STEPS + 0.25F * (float)(i % 7);
            if (r->gradient[t][i] != own + 0.5F) {
                ck_abort_msg("tensor %u element %llu", t, (unsigned long long)i);
            }
        }
    }
}

START_TEST(operations_may_end_in_any_order)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        fake_reset();
        fake.polls_most = 1 + seed % 9;
        fake.random += seed * 0x9e3779b97f4a7c15U;
        rig *r = mode_rig(_i);
        ck_assert_int_eq(rig_run(r), MSDU_OK);
        ck_assert_uint_eq(fake.disorders, 0);
        if (_i == 0) {
            check_gradients(r);
        }
        if (_i == 2) {
            check_whole_round(r);
            ck_assert(r->parameter[0][0] != r->before[0][0]);
        }
        rig_free(r);
    }
}
END_TEST

START_TEST(a_backend_that_cannot_notify_is_polled)
{
    fake_reset();
    fake.polls_most = 4;
    rig *r = mode_rig(4);
    ck_assert_int_eq(rig_run(r), MSDU_OK);
    ck_assert_uint_eq(fake.in_flight, 0);
    rig_free(r);
}
END_TEST

/* Window of 4 slices, and the statistics message. */
START_TEST(no_more_than_the_window_is_in_flight)
{
    fake_reset();
    fake.polls_most = 9;
    rig *r = mode_rig(_i);
    ck_assert_int_eq(rig_run(r), MSDU_OK);
    ck_assert_uint_ge(fake.in_flight_most, 4);
    ck_assert_uint_le(fake.in_flight_most, 5);
    rig_free(r);
}
END_TEST

/* Backward: at once. Blocking: nothing before everything of the round is ready. */
START_TEST(slices_start_as_overlap_says)
{
    fake_reset();
    rig *r = mode_rig(0);
    r->p->job.settings.overlap = _i == 0 ? MSDU__OVERLAP_BACKWARD : MSDU__OVERLAP_BLOCKING;
    ck_assert_int_eq(rig_start(r), MSDU_OK);
    uint64_t starts = fake.starts;
    fill(r, 0);
    for (uint32_t t = TENSORS; t-- > 0;) {
        ck_assert_uint_eq(fake.starts > starts, _i == 0 && t < TENSORS - 1);
        ck_assert_int_eq(msdu_tensor_ready(r->ctx, t, MSDU_GRADIENT), MSDU_OK);
        (void)msdu__engine_advance(&r->p->engine);
    }
    ck_assert_uint_gt(fake.starts, starts);
    pump(r);
    rig_free(r);
}
END_TEST

START_TEST(gradients_wait_for_the_statistics_message)
{
    fake_reset();
    rig *r = mode_rig(0);
    ck_assert_int_eq(rig_start(r), MSDU_OK);
    fake.is_stuck[MSDU_OP_ALLGATHER] = true;
    fill(r, 0);
    for (uint32_t t = 0; t < TENSORS; t++) {
        ck_assert_int_eq(msdu_tensor_ready(r->ctx, t, MSDU_GRADIENT), MSDU_OK);
    }
    for (int i = 0; i < 50; i++) {
        (void)msdu__engine_advance(&r->p->engine);
    }
    ck_assert(is_any_busy(r->p));
    fake.is_stuck[MSDU_OP_ALLGATHER] = false;
    pump(r);
    ck_assert(!is_any_busy(r->p));
    rig_free(r);
}
END_TEST

/* --- deadlines --- */

/* Deadline 1 s, and the grace in which a backend may name the cause itself. */
START_TEST(operations_that_never_end_time_out)
{
    static const msdu_op_kind kinds[] = {MSDU_OP_ALLREDUCE, MSDU_OP_ALLGATHER, MSDU_OP_ALLTOALL};
    fake_reset();
    rig *r = mode_rig(kinds[_i] == MSDU_OP_ALLTOALL ? 1 : 0);
    ck_assert_int_eq(rig_start(r), MSDU_OK);
    ck_assert_int_eq(rig_step(r, 0), MSDU_OK);
    fake.is_stuck[kinds[_i]] = true;
    fill(r, 1);
    for (uint32_t t = 0; t < TENSORS; t++) {
        ck_assert_int_eq(msdu_tensor_ready(r->ctx, t, MSDU_GRADIENT), MSDU_OK);
    }
    for (int i = 0; i < 10; i++) {
        ck_assert_uint_lt(msdu__engine_advance(&r->p->engine), UINT64_MAX);
    }
    ck_assert_int_eq((int)msdu__handover_status(&r->p->hand), MSDU_OK);
    atomic_fetch_add(&fake.now_ns, 7000000000U);
    for (int i = 0; i < 10; i++) {
        (void)msdu__engine_advance(&r->p->engine);
    }
    ck_assert_int_eq(msdu_tensor_wait(r->ctx, 0, MSDU_GRADIENT), MSDU_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "1000"));
    rig_free(r);
}
END_TEST

/* The plan has a deadline of its own: no slice and no statistics message waits for it. */
START_TEST(a_plan_that_never_comes_times_out)
{
    fake_reset();
    rig *r = mode_rig(0);
    ck_assert_int_eq(rig_start(r), MSDU_OK);
    fake.is_stuck[MSDU_OP_BROADCAST] = true;
    r->p->engine.fragments[0].order.is_wanted = true; /* as if measured times had moved */
    ck_assert_int_eq(rig_step(r, 0), MSDU_OK);
    ck_assert_ptr_nonnull(r->p->engine.fragments[0].order.req);
    ck_assert(!is_any_busy(r->p));
    ck_assert_uint_lt(msdu__engine_advance(&r->p->engine), UINT64_MAX);
    atomic_fetch_add(&fake.now_ns, _i == 0 ? 5000000000U : 7000000000U); /* 1 s and the grace */
    (void)msdu__engine_advance(&r->p->engine);
    ck_assert_int_eq((int)msdu__handover_status(&r->p->hand), _i == 0 ? MSDU_OK : MSDU_ERR_TIMEOUT);
    if (_i > 0) {
        ck_assert_int_eq(msdu_step(r->ctx), MSDU_ERR_TIMEOUT);
        ck_assert_ptr_nonnull(
            strstr(msdu_last_error(), "plan did not end within deadline_ms 1000"));
    }
    rig_free(r);
}
END_TEST

START_TEST(a_start_that_never_ends_times_out)
{
    fake_reset();
    fake.is_stuck[MSDU_OP_ALLGATHER] = true;
    fake.test_ns = 100000000;
    rig *r = mode_rig(0);
    ck_assert_int_eq(msdu_start(r->ctx), MSDU_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "1000"));
    rig_free(r);
}
END_TEST

/* Before there are slices: an optimizer's loop over tensors may go on, and nothing waits. */
START_TEST(calls_after_a_start_that_failed_early_are_answered)
{
    float weight[4] = {0};
    msdu_ctx *ctx = NULL;
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    config.ranks = 2;
    config.backend = "local"; /* which reaches no device */
    desc.name = "weight";
    desc.parameter = desc.gradient = weight;
    desc.count = 4;
    desc.place = MSDU_PLACE_DEVICE;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_tensor_wait(ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_step(ctx), MSDU_ERR_UNSUPPORTED);
    ck_assert_int_eq(msdu_finish(ctx), MSDU_ERR_UNSUPPORTED);
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *tcase = suite_case(suite, "engine", 30, NULL, NULL);
    tcase_add_test(tcase, calls_after_a_start_that_failed_early_are_answered);
    tcase_add_test(tcase, no_format_is_chosen_that_hardly_sends_less);
    tcase_add_loop_test(tcase, every_failing_call_reaches_the_caller, 0, MODES);
    tcase_add_test(tcase, a_failure_ends_what_is_in_flight);
    tcase_add_loop_test(tcase, operations_may_end_in_any_order, 0, MODES_BY_HAND);
    tcase_add_test(tcase, a_backend_that_cannot_notify_is_polled);
    tcase_add_loop_test(tcase, no_more_than_the_window_is_in_flight, 0, MODES_BY_HAND);
    tcase_add_loop_test(tcase, slices_start_as_overlap_says, 0, 2);
    tcase_add_test(tcase, gradients_wait_for_the_statistics_message);
    tcase_add_loop_test(tcase, operations_that_never_end_time_out, 0, 3);
    tcase_add_loop_test(tcase, a_plan_that_never_comes_times_out, 0, 2);
    tcase_add_test(tcase, a_start_that_never_ends_times_out);
    return suite_run(suite);
}
