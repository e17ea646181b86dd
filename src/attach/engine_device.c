/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one communicator, in a device's memory, as tensors of an msdu context. */
#include "engine_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "settings.h"

static msdu_config settings_of(const msdu__device_engine *engine, const msdu__device_place *place)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = place->ranks;
    config.rank = place->rank;
    config.backend = place->backend;
    config.rendezvous = place->url;
    config.job = place->job;
    config.secret = place->secret;
    config.domain = engine->is_accumulated ? "accumulated" : "gradient";
    config.overlap = "backward";
    config.commit = "tensor";
    config.reduce = place->is_mean ? "mean" : "sum";
    config.wire = "int4";
    /* as in engine.c: a constant rate cancels, unless there is weight decay */
    config.lr = engine->is_accumulated && getenv("MSDU_WEIGHT_DECAY") == NULL ? 1.0 : 0.0;
    config.settings = "fuse_bytes = 0\n";
    return config;
}

static msdu_status add_tensor(const msdu__device_engine *engine, const msdu__call *call,
                              uint32_t at)
{
    static double nowhere; /* until the first call says where the gradient is */
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    char name[32];
    (void)snprintf(name, sizeof(name), "gradient %u", at);
    desc.name = name;
    desc.gradient = &nowhere;
    desc.count = call->count;
    desc.dtype = call->kind % 2 == 0 ? MSDU_FLOAT64 : MSDU_FLOAT32;
    desc.place = MSDU_PLACE_DEVICE;
    desc.priority = (int32_t)(engine->count - at); /* slices leave in the order of the calls */
    return msdu_tensor_add(engine->ctx, &desc, NULL);
}

msdu_status msdu__device_open(msdu__device_engine *engine, const msdu__recognizer *r,
                              const msdu__device_place *place)
{
    *engine = (msdu__device_engine){
        .count = r->tensor_count,
        .is_accumulated = msdu__engine_is_local(),
        .equal_steps = msdu__attach_number("MSDU_ATTACH_EQUAL_STEPS", 0),
        .total_steps = msdu__attach_number("MSDU_TOTAL_STEPS", 0),
    };
    msdu_config config = settings_of(engine, place);
    msdu_status status = msdu_create(&config, &engine->ctx);
    engine->counts = calloc(engine->count, sizeof(*engine->counts));
    status = engine->counts == NULL ? MSDU_ERR_NO_MEMORY : status;
    for (uint32_t i = 0; status == MSDU_OK && i < r->tensor_count; i++) {
        engine->counts[i] = r->tensors[i].count;
        status = add_tensor(engine, &r->tensors[i], i);
    }
    status = status == MSDU_OK ? msdu_start(engine->ctx) : status;
    if (status != MSDU_OK) {
        msdu__device_close(engine);
    }
    return status;
}

void msdu__device_close(msdu__device_engine *engine)
{
    msdu_destroy(engine->ctx);
    free(engine->counts);
    *engine = (msdu__device_engine){.ctx = NULL};
}

static bool is_meeting_wanted(const msdu__device_engine *engine)
{
    uint64_t next = engine->steps_before + engine->steps + 1; /* the trainer's count after it */
    return engine->wants_meeting || (engine->total_steps > 0 && next == engine->total_steps) ||
           (engine->equal_steps > 0 && next % engine->equal_steps == 0);
}

static msdu_status begin_step(msdu__device_engine *engine)
{
    if (!engine->is_accumulated || !is_meeting_wanted(engine)) {
        return MSDU_OK;
    }
    engine->wants_meeting = false;
    return msdu_meet(engine->ctx);
}

msdu_status msdu__device_start(msdu__device_engine *engine, uint32_t at, void *data, void *stream)
{
    msdu_status status = at == 0 ? begin_step(engine) : MSDU_OK;
    if (status == MSDU_OK) {
        status = msdu_tensor_set(engine->ctx, at, MSDU_GRADIENT, data);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_ready_on(engine->ctx, at, MSDU_GRADIENT, stream);
        engine->announced++;
    }
    return status;
}

msdu_status msdu__device_wait_too(msdu__device_engine *engine, uint32_t at, void *stream)
{
    const msdu_what what = (msdu_what)(MSDU_GRADIENT | MSDU_ALONE);
    return msdu_tensor_wait_on(engine->ctx, at, what, stream);
}

msdu_status msdu__device_wait(msdu__device_engine *engine, uint32_t at, void *stream)
{
    msdu_status status = msdu__device_wait_too(engine, at, stream);
    engine->waited++;
    if (status != MSDU_OK || engine->waited < engine->count) {
        return status;
    }
    engine->announced = engine->waited = 0;
    engine->steps++;
    return msdu_step(engine->ctx);
}
