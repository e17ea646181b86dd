/* SPDX-License-Identifier: Apache-2.0 */
/* Passes where they belong: by the stages' loops over host memory, or on the backend's device. */
#include "pass.h"

#include <string.h>

#include "interval/sketch.h"
#include "pipeline.h"
#include "simd/vec.h"

/* Elements scaled and summed while they are in the first cache levels. */
#define SCALED_CHUNK 1024

/* A device knows formats by these numbers. */
_Static_assert(MSDU__WIRE_FLOAT32 == (int)MSDU_FORMAT_FLOAT32 &&
                   MSDU__WIRE_BFLOAT16 == (int)MSDU_FORMAT_BFLOAT16 &&
                   MSDU__WIRE_FLOAT16 == (int)MSDU_FORMAT_FLOAT16 &&
                   MSDU__WIRE_INT8 == (int)MSDU_FORMAT_INT8 &&
                   MSDU__WIRE_INT4 == (int)MSDU_FORMAT_INT4 &&
                   MSDU__WIRE_TERNARY == (int)MSDU_FORMAT_TERNARY &&
                   MSDU__WIRE_SPARSE == (int)MSDU_FORMAT_SPARSE &&
                   MSDU__CHAIN_MAX <= MSDU_PASS_RULES,
               "msdu/device.h and the stages agree");

static int32_t working_dtype(int32_t dtype)
{
    return dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
}

static void give_sums(const msdu_pass *pass, const msdu__sums *sums)
{
    if (pass->sums != NULL) {
        *pass->sums = (msdu_sums){sums->update_sq, sums->weight_sq, sums->has_bad ? 1 : 0};
    }
}

static void norm(const msdu_pass *pass, const void *x, int32_t dtype)
{
    msdu__sums sums = {0};
    if (pass->sums != NULL) {
        sums.update_sq = msdu__vec_sum_sq(x, dtype, pass->count, &sums.has_bad);
        give_sums(pass, &sums);
    }
}

static void load(const msdu_pass *pass)
{
    if (msdu__dtype_is_half(pass->dtype)) {
        msdu__vec_widen(pass->in, pass->dtype, pass->out, pass->count);
    } else {
        memcpy(pass->out, pass->in, pass->count * msdu__dtype_working_bytes(pass->dtype));
    }
    norm(pass, pass->out, working_dtype(pass->dtype));
}

static void store(const msdu_pass *pass)
{
    if (msdu__dtype_is_half(pass->dtype)) {
        msdu__vec_narrow(pass->in, pass->dtype, pass->out, pass->count);
    } else {
        memcpy(pass->out, pass->in, pass->count * msdu__dtype_working_bytes(pass->dtype));
    }
}

static void scale(const msdu_pass *pass)
{
    int32_t dtype = working_dtype(pass->dtype);
    msdu__sums sums = {0};
    for (uint64_t at = 0; at < pass->count; at += SCALED_CHUNK) {
        uint64_t count = pass->count - at < SCALED_CHUNK ? pass->count - at : SCALED_CHUNK;
        void *x = (char *)pass->out + at * msdu__dtype_working_bytes(dtype);
        if (pass->factor != 1) {
            msdu__vec_scale(x, dtype, pass->factor, count);
        }
        if (pass->sums != NULL) {
            sums.update_sq += msdu__vec_sum_sq(x, dtype, count, &sums.has_bad);
        }
    }
    give_sums(pass, &sums);
}

static void add(const msdu_pass *pass)
{
    float *x = pass->out;
    const float *y = pass->in;
    const float factor = (float)pass->factor;
    for (uint64_t i = 0; i < pass->count; i++) {
        x[i] += factor * y[i];
    }
}

static msdu__arrays arrays_of(const msdu_pass *pass)
{
    return (msdu__arrays){
        .param = pass->param,
        .anchor = pass->anchor,
        .update = pass->update,
        .momentum = pass->momentum,
        .snapshot = pass->snapshot,
        .count = pass->count,
        .dtype = pass->dtype,
    };
}

static void capture(const msdu__pass *pass)
{
    msdu__arrays arrays = arrays_of(&pass->data);
    msdu__sums sums = {.hash = pass->hash != NULL ? *pass->hash : 0};
    msdu__correct_capture(&arrays, pass->data.snapshot, &sums);
    give_sums(&pass->data, &sums);
    if (pass->hash != NULL) {
        *pass->hash = sums.hash;
    }
}

static void apply(const msdu__pass *pass)
{
    msdu__arrays arrays = arrays_of(&pass->data);
    msdu__sums sums = {0};
    msdu__correct_apply(pass->chain, pass->correct, &arrays, &sums);
    give_sums(&pass->data, &sums);
}

static void recur(const msdu__pass *pass)
{
    const msdu_pass *d = &pass->data;
    const msdu__recursion_args *args = pass->recursion;
    msdu__recursion_state state = {d->drift, d->velocity, d->trace};
    msdu__sums sums = {0};
    if (d->kind == MSDU_PASS_LOCAL) {
        msdu__recursion_local(args, &state, d->out, d->count, d->dtype, &sums);
    } else if (d->kind == MSDU_PASS_DRIFT) {
        msdu__recursion_capture(args, &state, d->in, d->out, d->count, d->dtype, &sums);
    } else {
        msdu__recursion_apply(args, &state, d->in, d->out, d->count, d->dtype);
    }
    give_sums(d, &sums);
}

static void code(const msdu__pass *pass)
{
    const msdu_pass *d = &pass->data;
    msdu__sums sums = {0};
    if (d->kind == MSDU_PASS_ENCODE) {
        sums.update_sq = msdu__exchange_encode(pass->exchange, d->in, d->residual, d->out);
    } else if (d->kind == MSDU_PASS_REDUCE) {
        sums.update_sq = msdu__exchange_reduce(pass->exchange, d->in, d->residual, d->sum, d->out);
    } else {
        msdu__exchange_decode(pass->exchange, d->in, d->out);
    }
    give_sums(d, &sums);
}

_Static_assert(MSDU__SKETCH == MSDU__VEC_PROJECTS, "a sketch is what one call projects");

static void sketch(const msdu_pass *pass)
{
    memset(pass->sketch, 0, MSDU__SKETCH * sizeof(*pass->sketch));
    msdu__vec_get()->project(pass->in, pass->count, pass->seed, pass->sketch);
}

void msdu__pass_host(const msdu__pass *pass)
{
    const msdu_pass *d = &pass->data;
    switch (d->kind) {
    case MSDU_PASS_FILL:
        memset(d->out, d->byte, d->count);
        break;
    case MSDU_PASS_COPY:
        memcpy(d->out, d->in, d->count);
        break;
    case MSDU_PASS_LOAD:
        load(d);
        break;
    case MSDU_PASS_STORE:
        store(d);
        break;
    case MSDU_PASS_NORM:
        norm(d, d->in, d->dtype);
        break;
    case MSDU_PASS_SCALE:
        scale(d);
        break;
    case MSDU_PASS_ADD:
        add(d);
        break;
    case MSDU_PASS_CAPTURE:
        capture(pass);
        break;
    case MSDU_PASS_APPLY:
        apply(pass);
        break;
    case MSDU_PASS_SKETCH:
        sketch(d);
        break;
    case MSDU_PASS_ENCODE:
    case MSDU_PASS_REDUCE:
    case MSDU_PASS_DECODE:
        code(pass);
        break;
    default:
        recur(pass);
        break;
    }
}

/* --- on a device --- */

static void number_rules(msdu__pass *pass)
{
    bool is_prompt = pass->data.snapshot == NULL;
    pass->data.rule_count = pass->chain->count;
    for (uint32_t i = 0; i < pass->chain->count; i++) {
        pass->data.rules[i] = pass->chain->rules[i]->step(pass->correct, is_prompt);
    }
}

static void number_exchange(msdu__pass *pass)
{
    const msdu__exchange *x = pass->exchange;
    msdu_pass *d = &pass->data;
    bool is_own = d->kind == MSDU_PASS_REDUCE;
    d->count = 0;
    for (int32_t i = 0; i < x->ranks; i++) {
        d->count += is_own && i != x->rank ? 0 : x->share_count[i];
    }
    d->format = msdu__wire_find(x->wire->name);
    d->block = x->block;
    d->ranks = x->ranks;
    d->stride = x->share_bytes[x->rank];
    d->factor = x->factor;
}

void msdu__pass_number(msdu__pass *pass)
{
    if (pass->chain != NULL) {
        number_rules(pass);
    }
    if (pass->exchange != NULL) {
        number_exchange(pass);
    }
    if (pass->recursion != NULL) {
        msdu__recursion_number(pass->recursion, &pass->data.recursion);
    }
}

void msdu__pass_run(msdu__pipeline *p, msdu__pass *pass)
{
    if (p->device == NULL) {
        msdu__pass_host(pass);
        return;
    }
    pass->data.size = sizeof(pass->data);
    msdu__pass_number(pass);
    if (pass->data.count == 0) {
        return;
    }
    msdu_status status = p->device->run(p->comm, &pass->data);
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
}

uint64_t msdu__pass_mark(msdu__pipeline *p)
{
    uint64_t mark = 0;
    if (p->device != NULL) {
        msdu_status status = p->device->mark(p->comm, &mark);
        if (status != MSDU_OK) {
            msdu__pipeline_fail(p, status, msdu_last_error());
        }
    }
    return mark;
}

bool msdu__pass_reached(msdu__pipeline *p, uint64_t mark)
{
    if (p->device == NULL) {
        return true;
    }
    msdu_status status = p->device->reached(p->comm, mark);
    if (status < 0) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    p->waits_for_device = p->waits_for_device || status == MSDU_IN_PROGRESS;
    return status == MSDU_OK;
}

msdu_status msdu__pass_settle(msdu__pipeline *p)
{
    msdu_status status = p->device == NULL ? MSDU_OK : p->device->before(p->comm, NULL, 1);
    if (status != MSDU_OK) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
    return status;
}

msdu_status msdu__pass_copy(msdu__pipeline *p, void *to, const void *from, uint64_t bytes)
{
    if (p->device != NULL) {
        return p->device->copy(p->comm, to, from, bytes);
    }
    memcpy(to, from, bytes);
    return MSDU_OK;
}
