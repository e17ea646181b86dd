/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one communicator as tensors of an msdu context. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "given.h"
#include "settings.h"

/* --- settings that decide before there is a context; the context reads them all itself --- */

bool msdu__attach_engine_is_local(void)
{
    return msdu__attach_is_local();
}

/* float32 at h = 1 is what MPI does; then MPI does it, bit for bit. */
bool msdu__attach_engine_is_plain(void)
{
    return msdu__attach_is_exact();
}

/* After a change ranks are joined by sums of the same counts, and which of equal ones is denied
 * would not be known then. */
const char *msdu__attach_engine_refusal(const msdu__recognizer *r)
{
    return r->tensor_count < r->pattern_count && msdu__attach_engine_is_local()
               ? "local steps need every gradient of a step, and a list denies some by at="
               : NULL;
}

bool msdu__attach_engine_allows(const void *user, const msdu__call *call, uint32_t at)
{
    const msdu__attach_facts facts = {
        .count = call->count,
        .dtype = msdu__kind_dtype(call->kind),
        .comm = user,
        .at = at == MSDU__ANYWHERE ? -1 : (int64_t)at,
    };
    return msdu__attach_is_allowed(&facts);
}

/* Local steps hand out what a step of the optimizer is to make of a gradient: 16 bits would leave
 * parameters off by its rounding. */
bool msdu__attach_engine_takes_half(void)
{
    const char *wire = msdu__attach_setting("wire");
    return !msdu__attach_engine_is_local() && strcmp(wire, "float32") != 0 &&
           strcmp(wire, "bfloat16") != 0 && strcmp(wire, "float16") != 0;
}

/* --- the context --- */

static msdu_config settings_of(const msdu__attach_engine *engine, const char *backend, char *place,
                               int32_t rank)
{
    msdu_config config = msdu__attach_config(engine->is_accumulated);
    config.lr = engine->lr > 0 ? engine->lr : config.lr;
    config.ranks = engine->ranks;
    config.rank = rank;
    config.backend = backend;
    config.rendezvous = place;
    return config;
}

/* Only float32 has compressed formats; drift keeps the trainer's own precision. */
static bool is_widened(const msdu__attach_engine *engine, const msdu__grad *grad)
{
    return grad->is_double && !engine->is_accumulated;
}

static msdu_status add_tensor(msdu__attach_engine *engine, uint32_t at)
{
    static double nowhere; /* until the first call says where the gradient is */
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu__grad *grad = &engine->grads[at];
    bool is_double = grad->is_double && !is_widened(engine, grad);
    char name[32];
    (void)snprintf(name, sizeof(name), "gradient %u", at);
    if (is_widened(engine, grad)) {
        grad->wide = calloc(grad->count, sizeof(*grad->wide));
        if (grad->wide == NULL) {
            return MSDU_ERR_NO_MEMORY;
        }
    }
    desc.name = name;
    desc.gradient = &nowhere;
    desc.count = grad->count;
    desc.dtype = is_double ? MSDU_FLOAT64 : MSDU_FLOAT32;
    /* what is needed last is ready first: slices leave in the order of the calls */
    desc.priority = (int32_t)(engine->count - at);
    return msdu_tensor_add(engine->ctx, &desc, NULL);
}

msdu_status msdu__attach_engine_prepare(msdu__attach_engine *engine, const msdu__recognizer *r,
                                        int32_t ranks)
{
    *engine = (msdu__attach_engine){
        .grads = calloc(r->tensor_count, sizeof(*engine->grads)),
        .ranks = ranks,
        .is_accumulated = msdu__attach_engine_is_local(),
        .equal_steps = msdu__attach_number("MSDU_ATTACH_EQUAL_STEPS", 0),
        .total_steps = msdu__attach_number("total_steps", 0),
        .guard_steps = msdu__attach_number("MSDU_ATTACH_GUARD", 0),
        .lr = engine->lr,
    };
    if (engine->grads == NULL) {
        return MSDU_ERR_NO_MEMORY;
    }
    engine->count = r->tensor_count;
    for (uint32_t i = 0; i < r->tensor_count; i++) {
        engine->grads[i].count = r->tensors[i].count;
        engine->grads[i].kind = r->tensors[i].kind;
        engine->grads[i].is_double = msdu__kind_dtype(r->tensors[i].kind) == MSDU_FLOAT64;
    }
    return MSDU_OK;
}

static msdu_status build(msdu__attach_engine *engine, const msdu_config *config)
{
    msdu_status status = msdu_create(config, &engine->ctx);
    for (uint32_t i = 0; status == MSDU_OK && i < engine->count; i++) {
        status = add_tensor(engine, i);
    }
    return status == MSDU_OK ? msdu_start(engine->ctx) : status;
}

void msdu__attach_engine_close(msdu__attach_engine *engine)
{
    msdu_destroy(engine->ctx);
    for (uint32_t i = 0; i < engine->count; i++) {
        free(engine->grads[i].wide);
    }
    free(engine->grads);
    *engine = (msdu__attach_engine){.lr = engine->lr};
}

bool msdu__attach_engine_tell_lr(msdu__attach_engine *engine, double lr, char *why, size_t bytes)
{
    const bool has_scale = !engine->is_accumulated || engine->lr > 0 || msdu__attach_is_given("lr");
    if (engine->ctx != NULL && !has_scale) {
        (void)snprintf(
            why, bytes,
            "msdu_attach_lr() was called for the first time after local steps had begun; "
            "call it before every step from the first one on, or set MSDU_LR");
        return false;
    }
    engine->lr = lr;
    if (engine->ctx != NULL && msdu_set_lr(engine->ctx, lr) != MSDU_OK) {
        (void)snprintf(why, bytes, "%s", msdu_last_error());
        return false;
    }
    return true;
}

/* --- a step --- */

uint64_t msdu__attach_engine_steps(const msdu__attach_engine *engine)
{
    return engine->steps_before + engine->steps;
}

bool msdu__attach_engine_is_over(const msdu__attach_engine *engine)
{
    return engine->ctx != NULL && engine->is_accumulated && engine->total_steps > 0 &&
           msdu__attach_engine_steps(engine) >= engine->total_steps;
}

static bool is_meeting_wanted(const msdu__attach_engine *engine)
{
    const uint64_t next = msdu__attach_engine_steps(engine) + 1; /* the trainer's count after it */
    return engine->wants_meeting || (engine->total_steps > 0 && next == engine->total_steps) ||
           (engine->equal_steps > 0 && next % engine->equal_steps == 0);
}

msdu_status msdu__attach_engine_begin_step(msdu__attach_engine *engine)
{
    engine->was_asked = engine->is_accumulated && engine->wants_meeting;
    engine->has_promised = engine->is_accumulated && is_meeting_wanted(engine);
    engine->wants_meeting = engine->wants_meeting && !engine->has_promised;
    return engine->has_promised ? msdu_sync_after_step(engine->ctx) : MSDU_OK;
}

msdu_status msdu__attach_engine_end_step(msdu__attach_engine *engine)
{
    engine->announced = engine->waited = 0;
    engine->steps++;
    return msdu_step(engine->ctx);
}

/* A local gradient stands for what N equal ranks would have summed up: N times itself. */
static void prepare(const msdu__attach_engine *engine, const msdu__grad *grad)
{
    double *wide = grad->user;
    float *narrow = grad->user;
    for (uint64_t i = 0; grad->wide != NULL && i < grad->count; i++) {
        grad->wide[i] = (float)wide[i];
    }
    for (uint64_t i = 0; engine->is_accumulated && i < grad->count; i++) {
        if (grad->is_double) {
            wide[i] *= (double)engine->ranks;
        } else {
            narrow[i] *= (float)engine->ranks;
        }
    }
}

msdu_status msdu__attach_engine_start(msdu__attach_engine *engine, uint32_t at, void *data)
{
    msdu__grad *grad = &engine->grads[at];
    msdu_status status = MSDU_OK;
    if (at == 0) {
        status = msdu__attach_engine_settle(engine); /* a trainer may begin before it has waited */
        status = status == MSDU_OK ? msdu__attach_engine_begin_step(engine) : status;
    }
    if (status == MSDU_OK) {
        grad->user = data;
        prepare(engine, grad);
        status = msdu_tensor_set(engine->ctx, at, MSDU_GRADIENT,
                                 grad->wide != NULL ? (void *)grad->wide : data);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_ready(engine->ctx, at, MSDU_GRADIENT);
        engine->announced++;
    }
    return status;
}

bool msdu__attach_engine_is_guarded(const msdu__attach_engine *engine)
{
    return engine->guard_steps > 0 && engine->steps > 0 && engine->steps % engine->guard_steps == 0;
}

static void add_given(msdu__attach_engine *engine, const msdu__grad *grad, uint32_t at)
{
    if (engine->guard_steps == 0 || engine->is_accumulated) {
        return;
    }
    const uint64_t bytes = grad->count * (grad->is_double ? sizeof(double) : sizeof(float));
    const uint64_t number = msdu__given_add(msdu__given_begin(at), grad->user, bytes);
    engine->given += msdu__given_end(number);
}

msdu_status msdu__attach_engine_wait(msdu__attach_engine *engine, uint32_t at, bool may_block)
{
    const unsigned what = MSDU_GRADIENT | MSDU_ALONE | (may_block ? 0U : MSDU_NOW);
    /* waited for already, perhaps by an engine that ended since */
    if (at >= engine->count || engine->grads[at].user == NULL) {
        return MSDU_OK;
    }
    msdu__grad *grad = &engine->grads[at];
    msdu_status status = msdu_tensor_wait(engine->ctx, at, (msdu_what)what);
    if (status != MSDU_OK) {
        return status;
    }
    double *user = grad->user;
    for (uint64_t i = 0; grad->wide != NULL && i < grad->count; i++) {
        user[i] = (double)grad->wide[i];
    }
    add_given(engine, grad, at);
    grad->user = NULL;
    engine->waited++;
    return engine->waited == engine->count ? msdu__attach_engine_end_step(engine) : MSDU_OK;
}

/* --- begin and end, with steps of zeros --- */

/* Zeros in place of gradients, from tensor `at` to the end of the step. */
static msdu_status fill_from(msdu__attach_engine *engine, uint32_t at)
{
    msdu_status status = MSDU_OK;
    for (; status == MSDU_OK && at < engine->count; at++) {
        void *zeros = calloc(engine->grads[at].count, sizeof(double));
        if (zeros == NULL) {
            return MSDU_ERR_NO_MEMORY;
        }
        status = msdu__attach_engine_start(engine, at, zeros);
        status = status == MSDU_OK ? msdu__attach_engine_wait(engine, at, true) : status;
        free(zeros);
    }
    return status;
}

/* Of a step that no trainer will see the end of. */
static msdu_status fill_step(msdu__attach_engine *engine)
{
    msdu_status status = msdu__attach_engine_settle(engine);
    return status == MSDU_OK && engine->announced > 0 ? fill_from(engine, engine->announced)
                                                      : status;
}

/*
 * Dampening begins with an optimizer's second call. That of the trainer made its first one while
 * the pattern was learned, that of the context has it with zeros.
 */
static msdu_status first_call(msdu__attach_engine *engine)
{
    bool is_dampened = engine->is_accumulated && msdu__attach_is_dampened();
    msdu_status status = is_dampened ? fill_from(engine, 0) : MSDU_OK;
    engine->steps = 0;
    return status;
}

msdu_status msdu__attach_engine_open(msdu__attach_engine *engine, const msdu__recognizer *r,
                                     const char *backend, int comm, int32_t rank, int32_t ranks)
{
    char place[32];
    (void)snprintf(place, sizeof(place), "mpi:%d", comm);
    msdu_status status = msdu__attach_engine_prepare(engine, r, ranks);
    msdu_config config = settings_of(engine, backend, place, rank);
    status = status == MSDU_OK ? build(engine, &config) : status;
    status = status == MSDU_OK ? first_call(engine) : status;
    if (status != MSDU_OK) {
        msdu__attach_engine_close(engine);
    }
    return status;
}

/* One tensor in front of the list. */
static msdu_status part_tensor(msdu__attach_engine *engine, uint32_t at, msdu__apart **list,
                               msdu__optimizer *optimizer_out)
{
    const msdu__grad *grad = &engine->grads[at];
    msdu__apart *apart = msdu__apart_new(grad->count, grad->kind);
    msdu_local_drift got = MSDU_LOCAL_DRIFT_INIT;
    if (apart == NULL) {
        return MSDU_ERR_NO_MEMORY;
    }
    apart->at = at;
    apart->of = engine->count;
    apart->next = *list;
    *list = apart;
    got.parameter = apart->parameter;
    got.momentum = apart->momentum;
    msdu_status status = msdu_local_drift_get(engine->ctx, at, &got);
    *optimizer_out = (msdu__optimizer){.lr = got.lr,
                                       .momentum = got.mu,
                                       .factor = 1.0 - got.dampening,
                                       .weight_decay = got.weight_decay,
                                       .is_nesterov = got.is_nesterov != 0};
    return status;
}

msdu_status msdu__attach_engine_part(msdu__attach_engine *engine, msdu__apart **list_out,
                                     msdu__optimizer *optimizer_out)
{
    msdu__apart *list = NULL;
    const uint32_t due = engine->announced;
    msdu_status status = msdu__attach_engine_settle(engine);
    for (uint32_t i = engine->is_accumulated ? engine->count : 0; status == MSDU_OK && i > 0; i--) {
        status = part_tensor(engine, (due + i - 1) % engine->count, &list, optimizer_out);
    }
    if (status != MSDU_OK) {
        msdu__apart_free(list);
        return status;
    }
    *list_out = list;
    return MSDU_OK;
}

bool msdu__attach_engine_has_met(msdu__attach_engine *engine)
{
    msdu__apart *list = NULL;
    msdu__optimizer optimizer;
    const msdu_status status = msdu__attach_engine_part(engine, &list, &optimizer);
    const bool is_zero = status == MSDU_OK && msdu__apart_largest(list) == 0;
    msdu__apart_free(list);
    return is_zero;
}

bool msdu__attach_engine_is_early(const msdu__attach_engine *engine)
{
    const bool has_begun = engine->steps > 0 || engine->announced > 0;
    /* without a number of steps, one of MSDU_ATTACH_EQUAL_STEPS is on purpose, too */
    const bool is_met = engine->has_promised && engine->total_steps == 0;
    const bool is_said = (engine->was_asked || is_met) && engine->announced == 0;
    return engine->ctx != NULL && engine->is_accumulated && has_begun && !is_said &&
           !msdu__attach_engine_is_over(engine);
}

msdu_status msdu__attach_engine_finish(msdu__attach_engine *engine)
{
    msdu_status status = fill_step(engine);
    return status == MSDU_OK ? msdu_finish(engine->ctx) : status;
}

msdu_status msdu__attach_engine_settle(msdu__attach_engine *engine)
{
    msdu_status status = MSDU_OK;
    for (uint32_t i = 0; status == MSDU_OK && i < engine->count; i++) {
        status = msdu__attach_engine_wait(engine, i, true);
    }
    return status;
}
