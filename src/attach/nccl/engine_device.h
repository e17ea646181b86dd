/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of one communicator, in a device's memory, as tensors of an msdu context: what
 * engine.h is for the host's. Knows no NCCL; streams are handles.
 */
#ifndef MSDU_ENGINE_DEVICE_H
#define MSDU_ENGINE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <msdu/store.h>

#include "attach/engine.h"
#include "attach/recognize.h"

/* How its ranks meet. Texts are borrowed for the call. */
typedef struct msdu__device_place {
    const char *backend;
    const char *url; /* NULL: setting rendezvous */
    const msdu_store *store;
    const char *job;
    const char *secret;
    int32_t rank;
    int32_t ranks;
    bool is_mean; /* else sums are asked for */
} msdu__device_place;

/* Make the context and join the group; all ranks do. On failure there is nothing to release. */
msdu_status msdu__device_open(msdu__attach_engine *engine, const msdu__recognizer *r,
                              const msdu__device_place *place);
/* Tensor `at` is in `data`, behind what `stream` was given so far. Does not wait. */
msdu_status msdu__device_start(msdu__attach_engine *engine, uint32_t at, void *data, void *stream);
/* What `stream` is given from here on comes behind its sum. The last of a step ends the step. */
msdu_status msdu__device_wait(msdu__attach_engine *engine, uint32_t at, void *stream);
/* The same once more for another stream, before or after that. */
msdu_status msdu__device_wait_too(msdu__attach_engine *engine, uint32_t at, void *stream);

#endif
