/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size of slices and window as measured: the tuner hears every round, all ranks take its choice
 * between the same two steps, and what belongs to an element moves with it.
 *
 * Only gradients are cut anew: between two of their rounds nothing is kept by slice but error
 * feedback and measured times. Only on the host, in one fragment, and where neither the backend's
 * sums nor the wire that was asked for depend on the slicing: bits must not depend on time.
 */
#include "caller.h"

#include "core/blocking.h"
#include "core/progress.h"
#include "core/round.h"
#include "core/tune.h"
#include "startup/startup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROBES       5
#define PROBE_FLOATS 64

/* The quickest of a few on this rank. */
static msdu_status probe(msdu__engine *e, double *latency_out)
{
    float values[PROBE_FLOATS] = {0};
    *latency_out = (double)INFINITY;
    for (int i = 0; i < PROBES; i++) {
        msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                      .place = MSDU_PLACE_HOST,
                      .dtype = MSDU_FLOAT32,
                      .count = PROBE_FLOATS,
                      .recv = values};
        uint64_t began = msdu__engine_now(e);
        msdu_status status = msdu__blocking_run(e, &op, 0);
        if (status != MSDU_OK) {
            return status;
        }
        *latency_out = fmin(*latency_out, (double)(msdu__engine_now(e) - began));
    }
    return MSDU_OK;
}

msdu_status msdu__reslice_probe(msdu__engine *e)
{
    if (!e->model->recut.is_tuned) {
        return MSDU_OK;
    }
    double latency = 0;
    msdu_status status = probe(e, &latency);
    msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                  .place = MSDU_PLACE_HOST,
                  .dtype = MSDU_FLOAT64,
                  .count = 1,
                  .recv = &latency};
    if (status == MSDU_OK) {
        status = msdu__blocking_run(e, &op, 0);
    }
    e->model->recut.args.latency_ns = latency / e->job->ranks;
    return status;
}

static bool is_at_rest(const msdu__engine *e)
{
    for (uint32_t i = 0; i < e->active_count; i++) {
        if (e->fragments[e->active[i]].captured > 0) {
            return false;
        }
    }
    return e->fragments[0].order.req == NULL;
}

/* A command. subject: the tuning that is wanted. */
static msdu__outcome carry(msdu__engine *e, void *subject, uint64_t number)
{
    const msdu__tuning *wanted = subject;
    (void)number;
    if (!is_at_rest(e)) {
        return MSDU__LATER;
    }
    (void)msdu__reslice_cut(e, *wanted);
    return msdu__event_completed(e);
}

msdu_status msdu__reslice_to(msdu__caller *c, msdu__tuning wanted)
{
    return msdu__caller_carry(c, &(msdu__event){.run = carry, .subject = &wanted},
                              "a change of its slices");
}

static void change_to(msdu__caller *c, msdu__tuning wanted)
{
    if (!msdu__tuning_is_equal(wanted, c->model->tuning)) {
        (void)msdu__reslice_to(c, wanted);
    }
}

/* As with a decision, that of the round before the last armed one is known on every rank. */
void msdu__reslice_due(msdu__caller *c)
{
    uint64_t armed = c->schedules[0].armed;
    if (c->model->recut.is_recut && c->is_gradient && armed >= 2) {
        change_to(c, c->hand->fragments[0].answers[armed & 1].tuning);
    }
}

void msdu__reslice_last(msdu__caller *c, int wire)
{
    if (c->model->recut.is_recut && c->job->settings.wire < 0) {
        change_to(c, msdu__tune_of_wire(c->job, c->model, wire, c->model->tuning.lanes));
    }
}

/* --- cutting anew --- */

/* The slicing before, while what belongs to its elements moves. */
typedef struct old_slicing {
    msdu__former former;
    msdu__control *control;
    void **blocks;
    uint32_t block_count;
    bool is_open; /* the next round, of which nothing was announced */
} old_slicing;

static old_slicing take_old(msdu__engine *e)
{
    old_slicing old = {.former = msdu__former_of(e),
                       .control = e->fragments[0].control.of,
                       .blocks = e->model->memory.blocks,
                       .block_count = e->model->memory.block_count,
                       .is_open = e->active_count > 0};
    e->model->memory.blocks = NULL;
    e->model->memory.block_count = 0;
    if (old.is_open) { /* it is opened again */
        e->fragments[0].opened--;
        e->fragments[0].state = MSDU__FRAGMENT_IDLE;
        e->active_count = 0;
    }
    e->queue = (msdu__queue){.slices = e->queue.slices, .mask = e->queue.mask};
    return old;
}

static void free_old(const old_slicing *old)
{
    for (uint32_t i = 0; i < old->block_count; i++) {
        free(old->blocks[i]);
    }
    free(old->blocks);
}

static msdu_status rename_trace(msdu__engine *e)
{
    const char **names = e->files.trace != NULL ? msdu__start_names(e) : NULL;
    msdu_status status = MSDU_OK;
    if (names != NULL) {
        status = msdu__trace_rename(e->files.trace, names, e->model->slicing.slice_count);
        if (status == MSDU_ERR_IO) {
            msdu__handover_io(e->hand, status);
            status = MSDU_OK;
        }
    } else if (e->files.trace != NULL) {
        status = msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the trace", e->job->rank);
    }
    free(names);
    return status;
}

/* As the API thread arms them: it waits, and nothing was announced. */
static void open_again(msdu__engine *e)
{
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        msdu__cell_set(&e->hand->missing[slice], e->model->slicing.slices[slice].segments);
    }
    msdu__round_open(e, 0);
}

static void note_choice(msdu__engine *e)
{
    uint64_t now = msdu__engine_now(e);
    msdu__trace_counter(e->files.trace, "slice KiB", now,
                        (double)e->model->tuning.slice_bytes / 1024);
    msdu__trace_counter(e->files.trace, "window", now, e->model->tuning.window);
    msdu__trace_counter(e->files.trace, "lanes", now, e->model->tuning.lanes);
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.slice_bytes = e->model->tuning.slice_bytes;
    e->hand->summary.window = e->model->tuning.window;
    e->hand->summary.lanes = e->model->tuning.lanes;
    e->hand->summary.slice_cuts++;
    pthread_mutex_unlock(&e->hand->lock);
}

msdu_status msdu__reslice_cut(msdu__engine *e, msdu__tuning tuning)
{
    bool is_cut = tuning.slice_bytes != e->model->tuning.slice_bytes;
    e->model->tuning = tuning;
    if (is_cut) {
        old_slicing old = take_old(e);
        msdu_status status = msdu__start_tables(e);
        if (status == MSDU_OK) {
            msdu__former_move_residual(e, &old.former);
            msdu__former_move_times(e, &old.former);
            memcpy(e->fragments[0].control.of, old.control,
                   (uint64_t)e->job->ranks * sizeof(*old.control));
            status = rename_trace(e);
        }
        if (status == MSDU_OK && old.is_open) {
            open_again(e);
        }
        free_old(&old);
        if (status != MSDU_OK) {
            msdu__handover_fail_last(e->hand, status);
            return status;
        }
    }
    note_choice(e);
    return MSDU_OK;
}
