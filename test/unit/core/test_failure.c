/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of failures while owner and communication thread are both at work: nobody uses what is
 * another's, nobody waits for ever.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "fake.h"
#include "pause.h"
#include "suite.h"

#define ELEMENTS 60000
#define HOLD_MS  200

/* Where the rank is lost. */
typedef enum phase {
    START_FAILS,    /* the ranks' agreement cannot begin */
    TEST_FAILS,     /* it begins and fails */
    NEVER_ENDS,     /* it does not end: the deadline */
    OWN_STATE_BAD,  /* as TEST_FAILS, and this rank could not take its state anyway */
    SLICES_GO_BACK, /* as TEST_FAILS, and slices were cut as the state has them */
    PHASES
} phase;

typedef struct rig {
    msdu_ctx *ctx;
    msdu_ctx *p;
    float *parameter;
    float *gradient;
    atomic_bool holds;    /* the communication thread stays a while in its line of log */
    atomic_bool is_back;  /* the owner has returned */
    atomic_bool was_back; /* ... while the communication thread was held */
    atomic_int held;
} rig;

/* The line of a failure is logged after the owner was told of it, inside the call that failed. */
static void hold(void *user, msdu_log_level level, const char *text)
{
    rig *r = user;
    (void)text;
    if (level != MSDU_LOG_ERROR || !atomic_load(&r->holds)) {
        return;
    }
    atomic_fetch_add(&r->held, 1);
    for (int i = 0; i < HOLD_MS && !atomic_load(&r->is_back); i++) {
        pause_us(1000);
    }
    atomic_store(&r->was_back, atomic_load(&r->is_back));
}

static atomic_bool is_hasty; /* every look at the clock takes longer than the owner's patience */

static uint64_t rig_clock(void *user)
{
    return atomic_load(&is_hasty) ? atomic_fetch_add(&fake.now_ns, 100000000000U)
                                  : fake_clock(user);
}

static void rig_open(rig *r)
{
    memset(r, 0, sizeof(*r));
    atomic_store(&is_hasty, false);
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 2;
    config.rank = 0;
    config.backend = "local";
    config.domain = "gradient";
    config.interval = "fixed";
    config.wire = "int8";
    config.deadline_ms = 1000;
    config.log = hold;
    config.log_user = r;
    config.log_level = MSDU_LOG_ERROR;
    ck_assert_int_eq(msdu_create(&config, &r->ctx), MSDU_OK);
    r->p = r->ctx;
    r->p->job.backend = &fake_backend;
    r->p->job.clock = rig_clock;
    r->parameter = calloc(ELEMENTS, sizeof(float));
    r->gradient = calloc(ELEMENTS, sizeof(float));
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "weight";
    desc.parameter = r->parameter;
    desc.gradient = r->gradient;
    desc.count = ELEMENTS;
    ck_assert_int_eq(msdu_tensor_add(r->ctx, &desc, NULL), MSDU_OK);
    ck_assert_int_eq(msdu_start(r->ctx), MSDU_OK);
}

static void rig_close(rig *r)
{
    msdu_destroy(r->ctx);
    free(r->parameter);
    free(r->gradient);
}

/* A state; cut in another way than a new context is, if so asked, and with what `spoil` did. */
static char *save(bool is_cut, void (*spoil)(msdu_ctx *p), size_t *bytes_out)
{
    rig r;
    fake_reset();
    rig_open(&r);
    if (spoil != NULL) {
        spoil(r.p); /* the communication thread has nothing to do yet */
    }
    if (is_cut) {
        const msdu__tuning other = {32768, 4, 1};
        ck_assert(!msdu__tuning_is_equal(r.p->model.tuning, other));
        ck_assert_int_eq(msdu__reslice_to(&r.p->caller, other), MSDU_OK);
    }
    ck_assert_int_eq(msdu_state_get(r.ctx, NULL, 0, bytes_out), MSDU_OK);
    char *state = malloc(*bytes_out);
    ck_assert_ptr_nonnull(state);
    ck_assert_int_eq(msdu_state_get(r.ctx, state, *bytes_out, bytes_out), MSDU_OK);
    rig_close(&r);
    return state;
}

/* --- a rank that is lost inside msdu_state_set(), in every phase of it --- */

static msdu_status lose(phase at)
{
    fake.fail_status = MSDU_ERR_PEER_LOST;
    if (at == NEVER_ENDS) {
        fake.is_stuck[MSDU_OP_ALLGATHER] = true;
        fake.test_ns = 100000000;
        return MSDU_ERR_TIMEOUT;
    }
    *(at == START_FAILS ? &fake.fail_start : &fake.fail_test) =
        1 + (at == START_FAILS ? fake.starts : fake.tests);
    return MSDU_ERR_PEER_LOST;
}

START_TEST(the_owner_waits_for_the_communication_thread)
{
    rig r;
    size_t bytes = 0;
    char *state = save(_i == SLICES_GO_BACK, NULL, &bytes);
    fake_reset();
    rig_open(&r);
    uint64_t slice_bytes = r.p->model.tuning.slice_bytes;
    msdu_status wanted = lose((phase)_i);
    state[bytes - 1] = (char)(state[bytes - 1] ^ (_i == OWN_STATE_BAD ? 1 : 0));
    atomic_store(&r.holds, true);
    msdu_status status = msdu_state_set(r.ctx, state, bytes);
    atomic_store(&r.is_back, true);
    ck_assert_int_eq(status, wanted);
    ck_assert_int_eq(msdu_step(r.ctx), wanted);
    ck_assert_int_eq(msdu_finish(r.ctx), wanted); /* ends the communication thread */
    ck_assert_int_eq(atomic_load(&r.held), 1);
    ck_assert_msg(!atomic_load(&r.was_back), "the owner returned from under a call under way");
    ck_assert_uint_eq(r.p->model.tuning.slice_bytes, slice_bytes);
    ck_assert_uint_eq(r.p->caller.step, 0);
    rig_close(&r);
    free(state);
}
END_TEST

/* --- a state whose delays this context has no room for --- */

static void spoil_decision(msdu_ctx *p)
{
    p->engine.decision.delay_steps = p->job.interval_args.delay_max + 1;
}

static void spoil_next(msdu_ctx *p)
{
    p->caller.schedules[0].delay_steps = p->job.interval_args.delay_max + 1;
}

static void spoil_decided(msdu_ctx *p)
{
    p->hand.fragments[0].answers[1].decision.delay_steps = p->job.interval_args.delay_max + 1;
}

START_TEST(delays_of_a_state_are_bounded)
{
    static void (*const spoils[])(msdu_ctx *) = {spoil_decision, spoil_next, spoil_decided};
    rig r;
    size_t bytes = 0;
    char *state = save(false, spoils[_i], &bytes);
    fake_reset();
    rig_open(&r);
    ck_assert_int_eq(msdu_state_set(r.ctx, state, bytes), MSDU_ERR_INVALID);
    ck_assert_msg(strstr(msdu_last_error(), "state's delay") != NULL, "%s", msdu_last_error());
    rig_close(&r);
    free(state);
}
END_TEST

/* --- one thread at a time is inside the backend --- */

static void wait_until(const atomic_int *value, int wanted)
{
    while (atomic_load(value) != wanted) {
        (void)sched_yield();
    }
}

START_TEST(the_backend_is_aborted_by_who_uses_it)
{
    rig r;
    fake_reset();
    rig_open(&r);
    fake.is_stuck[MSDU_OP_ALLTOALL] = fake.is_stuck[MSDU_OP_ALLREDUCE] = true;
    atomic_store(&fake.dwells, true);
    ck_assert_int_eq(msdu_tensor_ready(r.ctx, 0, MSDU_GRADIENT), MSDU_OK);
    wait_until(&fake.inside, 1);
    msdu__handover_fail(&r.p->hand, MSDU_ERR_STATE, "of the owner's"); /* as a full queue would */
    ck_assert_int_eq(atomic_load(&fake.overlaps), 0);
    atomic_store(&fake.dwells, false);
    ck_assert_int_eq(msdu_tensor_wait(r.ctx, 0, MSDU_GRADIENT), MSDU_ERR_STATE);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&fake.overlaps), 0);
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_int_eq(fake.abort_status, MSDU_ERR_STATE);
}
END_TEST

/* Once, though the owner ends it where the communication thread ended first. */
START_TEST(a_failure_at_the_end_is_told_once)
{
    rig r;
    fake_reset();
    rig_open(&r);
    fake.fail_start = fake.starts + 1;
    fake.fail_status = MSDU_ERR_PEER_LOST;
    r.parameter[0] = 1;
    ck_assert_int_eq(msdu_finish(r.ctx), MSDU_ERR_PEER_LOST);
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_int_eq(fake.abort_status, MSDU_ERR_PEER_LOST);
    rig_close(&r);
    ck_assert_uint_eq(fake.aborts, 1);
}
END_TEST

/* --- waits that would never end --- */

/* Something busy that is never pushed: as if a wake-up, or an event, had been lost. */
START_TEST(an_owner_that_waits_for_nothing_fails)
{
    rig r;
    fake_reset();
    rig_open(&r);
    atomic_store(&is_hasty, true);
    (void)msdu__cell_add(&r.p->hand.leases[0].free[1], (uint64_t)-1);
    ck_assert_int_eq(msdu_tensor_wait(r.ctx, 0, MSDU_PARAMETER), MSDU_ERR_TIMEOUT);
    ck_assert_msg(strstr(msdu_last_error(), "tensor weight in step 0") != NULL, "%s",
                  msdu_last_error());
    ck_assert_int_eq(msdu_step(r.ctx), MSDU_ERR_TIMEOUT);
    rig_close(&r);
}
END_TEST

/* What other threads do while the owner waits. */
static void *go_on(void *argument)
{
    rig *r = argument;
    for (int i = 0; i < 100; i++) { /* some looks of the owner's */
        (void)msdu__cell_add(&r->p->hand.progress, 1);
        pause_us(20000);
    }
    (void)msdu__cell_add(&r->p->hand.leases[0].free[1], 1);
    (void)msdu__cell_add(&r->p->hand.progress, 1);
    return NULL; /* without a wake-up: as if it had been lost */
}

START_TEST(an_owner_waits_while_anything_moves)
{
    rig r;
    pthread_t thread;
    fake_reset();
    rig_open(&r);
    atomic_store(&is_hasty, true);
    (void)msdu__cell_add(&r.p->hand.leases[0].free[1], (uint64_t)-1);
    ck_assert_int_eq(pthread_create(&thread, NULL, go_on, &r), 0);
    ck_assert_int_eq(msdu_tensor_wait(r.ctx, 0, MSDU_PARAMETER), MSDU_OK);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("failure");
    TCase *tcase = suite_case(suite, "failure", 60, NULL, NULL);
    tcase_add_loop_test(tcase, the_owner_waits_for_the_communication_thread, 0, PHASES);
    tcase_add_loop_test(tcase, delays_of_a_state_are_bounded, 0, 3);
    tcase_add_test(tcase, the_backend_is_aborted_by_who_uses_it);
    tcase_add_test(tcase, a_failure_at_the_end_is_told_once);
    tcase_add_test(tcase, an_owner_that_waits_for_nothing_fails);
    tcase_add_test(tcase, an_owner_waits_while_anything_moves);
    return suite_run(suite);
}
