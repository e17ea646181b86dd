/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one communicator, in a device's memory, as tensors of an msdu context. */
#include "engine_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "attach/settings.h"

static msdu_config settings_of(const msdu__attach_engine *engine, const msdu__device_place *place)
{
    msdu_config config = msdu__attach_config(engine->is_accumulated);
    config.lr = engine->lr > 0 ? engine->lr : config.lr;
    config.ranks = place->ranks;
    config.rank = place->rank;
    config.backend = place->backend;
    config.rendezvous = place->url;
    config.store = place->store;
    config.job = place->job;
    config.secret = place->secret;
    config.reduce = place->is_mean ? "mean" : "sum";
    return config;
}

static msdu_status add_tensor(const msdu__attach_engine *engine, uint32_t at)
{
    static double nowhere; /* until the first call says where the gradient is */
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    char name[32];
    (void)snprintf(name, sizeof(name), "gradient %u", at);
    desc.name = name;
    desc.gradient = &nowhere;
    desc.count = engine->grads[at].count;
    desc.dtype = msdu__kind_dtype(engine->grads[at].kind);
    desc.place = MSDU_PLACE_DEVICE;
    desc.priority = (int32_t)(engine->count - at); /* slices leave in the order of the calls */
    return msdu_tensor_add(engine->ctx, &desc, NULL);
}

msdu_status msdu__device_open(msdu__attach_engine *engine, const msdu__recognizer *r,
                              const msdu__device_place *place)
{
    msdu_status status = msdu__attach_engine_prepare(engine, r, place->ranks);
    msdu_config config = settings_of(engine, place);
    status = status == MSDU_OK ? msdu_create(&config, &engine->ctx) : status;
    for (uint32_t i = 0; status == MSDU_OK && i < engine->count; i++) {
        status = add_tensor(engine, i);
    }
    status = status == MSDU_OK ? msdu_start(engine->ctx) : status;
    if (status != MSDU_OK) {
        msdu__attach_engine_close(engine);
    }
    return status;
}

msdu_status msdu__device_start(msdu__attach_engine *engine, uint32_t at, void *data, void *stream)
{
    msdu_status status = at == 0 ? msdu__attach_engine_begin_step(engine) : MSDU_OK;
    if (status == MSDU_OK) {
        status = msdu_tensor_set(engine->ctx, at, MSDU_GRADIENT, data);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_ready_on(engine->ctx, at, MSDU_GRADIENT, stream);
        engine->announced++;
    }
    return status;
}

msdu_status msdu__device_wait_too(msdu__attach_engine *engine, uint32_t at, void *stream)
{
    const msdu_what what = (msdu_what)(MSDU_GRADIENT | MSDU_ALONE);
    return msdu_tensor_wait_on(engine->ctx, at, what, stream);
}

msdu_status msdu__device_wait(msdu__attach_engine *engine, uint32_t at, void *stream)
{
    msdu_status status = msdu__device_wait_too(engine, at, stream);
    engine->waited++;
    if (status != MSDU_OK || engine->waited < engine->count) {
        return status;
    }
    return msdu__attach_engine_end_step(engine);
}
