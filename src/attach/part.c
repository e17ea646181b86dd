/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that took local steps when the pattern of reductions changed: how far each is from their
 * mean, what joins them, and what stays apart. */
#include "attach_mpi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* x <- x - mean of all ranks */
static void subtract_mean(const msdu__stream *stream, void *x, uint64_t count, bool is_double)
{
    double sums[4096];
    const uint64_t room = sizeof(sums) / sizeof(sums[0]);
    double *wide = x;
    float *narrow = x;
    for (uint64_t at = 0; at < count; at += room) {
        const uint64_t part = count - at < room ? count - at : room;
        for (uint64_t i = 0; i < part; i++) {
            sums[i] = is_double ? wide[at + i] : (double)narrow[at + i];
        }
        (void)PMPI_Allreduce(MPI_IN_PLACE, sums, (int)part, MPI_DOUBLE, MPI_SUM, stream->own);
        for (uint64_t i = 0; i < part; i++) {
            if (is_double) {
                wide[at + i] -= sums[i] / stream->ranks;
            } else {
                narrow[at + i] -= (float)(sums[i] / stream->ranks);
            }
        }
    }
}

static bool was_known(const msdu__stream *stream, const msdu__call *call)
{
    for (uint32_t i = 0; i < stream->before_count; i++) {
        if (stream->before[i].count == call->count && stream->before[i].kind == call->kind) {
            return true;
        }
    }
    return false;
}

/* For lost(); without memory everything is new. */
static void remember(msdu__stream *stream)
{
    const msdu__engine *engine = &stream->engine;
    msdu__call *larger =
        realloc(stream->before, (stream->before_count + engine->count) * sizeof(*stream->before));
    if (larger == NULL) {
        stream->before_count = 0;
        return;
    }
    stream->before = larger;
    for (uint32_t i = 0; i < engine->count; i++) {
        const msdu__call call = {
            .count = engine->grads[i].count,
            .kind = engine->grads[i].is_double ? MSDU__KIND_FLOAT64 : MSDU__KIND_FLOAT32,
            .is_candidate = true,
        };
        if (!was_known(stream, &call)) {
            stream->before[stream->before_count++] = call;
        }
    }
}

/* From where ranks were together to the mean of where they are; the newest first. */
void msdu__part_keep(msdu__stream *stream, msdu__apart *list)
{
    msdu__apart *last = list;
    for (msdu__apart *apart = list; apart != NULL; apart = apart->next) {
        subtract_mean(stream, apart->parameter, apart->count, apart->kind == MSDU__KIND_FLOAT64);
        subtract_mean(stream, apart->momentum, apart->count, apart->kind == MSDU__KIND_FLOAT64);
        last = apart;
    }
    remember(stream);
    if (last != NULL) {
        last->next = stream->apart;
        stream->apart = list;
    }
}

msdu__apart *msdu__part_find(const msdu__stream *stream, const msdu__call *seen)
{
    bool is_candidate = seen->is_candidate && stream->apart != NULL;
    return is_candidate ? msdu__apart_find(stream->apart, seen->count, seen->kind) : NULL;
}

static void forget_apart(msdu__stream *stream, msdu__apart *apart)
{
    msdu__apart **at = &stream->apart;
    while (*at != apart) {
        at = &(*at)->next;
    }
    *at = apart->next;
    apart->next = NULL;
    msdu__apart_free(apart);
    if (stream->apart == NULL && stream->rank == 0) {
        (void)fprintf(stderr, "msdu: rank 0: ranks are joined again\n");
    }
}

void msdu__part_join(msdu__stream *stream, msdu__apart *apart, void *sum)
{
    if (msdu__rejoin(&stream->optimizer, apart, sum)) {
        forget_apart(stream, apart);
    }
}

static void tell_one(const msdu__apart *apart, bool is_end)
{
    (void)fprintf(stderr,
                  "msdu: rank 0: the gradient of %" PRIu64 " elements, %u of %u of a step, %s: its "
                  "parameters differ between ranks by what local steps did since they met last%s\n",
                  apart->count, apart->at + 1, apart->of,
                  apart->calls == 0 ? "was not reduced any more"
                                    : "was reduced only once after the change",
                  is_end ? "" : ", until it is reduced again");
}

void msdu__part_tell(msdu__stream *stream)
{
    bool is_end = stream->engine.ctx == NULL;
    for (msdu__apart *apart = stream->apart; apart != NULL; apart = apart->next) {
        if (stream->rank == 0 && (is_end || !apart->is_left)) {
            tell_one(apart, is_end);
        }
        apart->is_left = true;
    }
}

/*
 * Gradients that stay away while others are new may have become them, such as a tensor that is
 * reduced in two parts from now on: then ranks would train different models. Where nothing is new
 * they are not trained any more, and the difference stays what it is.
 */
static const msdu__apart *lost(const msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    const msdu__apart *apart = stream->apart;
    bool has_new = false;
    for (uint32_t i = 0; apart != NULL && i < r->tensor_count && !has_new; i++) {
        has_new = !was_known(stream, &r->tensors[i]);
    }
    while (apart != NULL && apart->is_left) {
        apart = apart->next;
    }
    return has_new ? apart : NULL;
}

bool msdu__part_is_lost(msdu__stream *stream)
{
    const msdu__apart *apart = lost(stream);
    if (apart == NULL) {
        return false;
    }
    stream->has_failed = true;
    (void)snprintf(stream->why, sizeof(stream->why),
                   "after local steps the gradient of %" PRIu64 " elements, %u of %u of a step, "
                   "stays away, and others are new: if they took its place, ranks cannot be "
                   "joined; use MSDU_DOMAIN=gradient",
                   apart->count, apart->at + 1, apart->of);
    return true;
}
