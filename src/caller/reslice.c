/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size of slices and window as measured: the tuner hears every round, all ranks take its choice
 * between the same two steps, and what belongs to an element moves with it.
 *
 * Only gradients are cut anew: between two of their rounds nothing is kept by slice but error
 * feedback and measured times. Only on the host, in one fragment, and where neither the backend's
 * sums nor the wire that was asked for depend on the cut: bits must not depend on time.
 */
#include "caller.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROBES       5
#define PROBE_FLOATS 64

/* The quickest of a few on this rank. */
static msdu_status probe(msdu__pipeline *p, double *latency_out)
{
    float values[PROBE_FLOATS] = {0};
    *latency_out = (double)INFINITY;
    for (int i = 0; i < PROBES; i++) {
        msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                      .place = MSDU_PLACE_HOST,
                      .dtype = MSDU_FLOAT32,
                      .count = PROBE_FLOATS,
                      .recv = values};
        uint64_t began = msdu__pipeline_now(p);
        msdu_status status = msdu__blocking_run(p, &op, 0);
        if (status != MSDU_OK) {
            return status;
        }
        *latency_out = fmin(*latency_out, (double)(msdu__pipeline_now(p) - began));
    }
    return MSDU_OK;
}

msdu_status msdu__reslice_probe(msdu__pipeline *p)
{
    if (!p->is_tuned) {
        return MSDU_OK;
    }
    double latency = 0;
    msdu_status status = probe(p, &latency);
    msdu_op op = {.kind = MSDU_OP_ALLREDUCE,
                  .place = MSDU_PLACE_HOST,
                  .dtype = MSDU_FLOAT64,
                  .count = 1,
                  .recv = &latency};
    if (status == MSDU_OK) {
        status = msdu__blocking_run(p, &op, 0);
    }
    p->tuner_args.latency_ns = latency / p->ranks;
    return status;
}

static bool carry(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->active_count; i++) {
        if (p->fragments[p->active[i]].captured > 0) {
            return false;
        }
    }
    if (p->fragments[0].plan_req != NULL) {
        return false;
    }
    (void)msdu__reslice_cut(p, p->tuning_next);
    msdu__handoff_carried(p);
    return true;
}

msdu_status msdu__reslice_to(msdu__pipeline *p, msdu__tuning wanted)
{
    p->tuning_next = wanted;
    return msdu__handoff_carry(p, carry, "a change of its slices");
}

static void change_to(msdu__pipeline *p, msdu__tuning wanted)
{
    if (!msdu__tuning_is_equal(wanted, p->tuning)) {
        (void)msdu__reslice_to(p, wanted);
    }
}

/* As with a decision, that of the round before the last armed one is known on every rank. */
void msdu__reslice_due(msdu__pipeline *p)
{
    const msdu__fragment *f = &p->fragments[0];
    if (p->is_recut && p->is_gradient && f->armed >= 2) {
        change_to(p, f->tunings[f->armed & 1]);
    }
}

void msdu__reslice_last(msdu__pipeline *p, int wire)
{
    if (p->is_recut && p->settings.wire < 0) {
        change_to(p, msdu__tune_of_wire(p, wire, p->tuning.lanes));
    }
}

/* --- cutting anew --- */

/* The cut before, while what belongs to its elements moves. */
typedef struct old_cut {
    msdu__slicing slicing;
    msdu__run *runs;
    msdu__control *control;
    void **blocks;
    uint32_t block_count;
    bool is_open; /* the next round, of which nothing was announced */
} old_cut;

/* A piece of a tensor under both cuts. */
typedef struct overlap {
    uint64_t old_at; /* elements, within the old slice */
    uint64_t new_at;
    uint64_t count;
} overlap;

static bool find_overlap(const msdu__segment *old, uint64_t old_base, const msdu__segment *new,
                         uint64_t new_base, overlap *out)
{
    uint64_t first = old->offset > new->offset ? old->offset : new->offset;
    uint64_t old_end = old->offset + old->count;
    uint64_t new_end = new->offset + new->count;
    uint64_t end = old_end < new_end ? old_end : new_end;
    if (old->tensor != new->tensor || first >= end) {
        return false;
    }
    *out = (overlap){old_base + first - old->offset, new_base + first - new->offset, end - first};
    return true;
}

/* Error feedback: a rank's own goes along. What it held back from means was its duty as an owner of
 * shares, and shares lie elsewhere now, so it becomes a part of the rank's next contribution. */
static void move_residual(const msdu__pipeline *p, const msdu__run *from, msdu__run *to,
                          const overlap *part)
{
    bool is_sum = p->settings.reduce_sum != 0;
    float factor = is_sum ? 1.0F : (float)p->ranks;
    uint64_t share = from->share_start[p->rank];
    uint64_t share_end = share + from->share_count[p->rank];
    if (!from->has_residual || to->residual == NULL) {
        return;
    }
    for (uint64_t i = 0; i < part->count; i++) {
        uint64_t at = part->old_at + i;
        float held = from->residual[at];
        if (at >= share && at < share_end) {
            held += factor * from->owner_residual[at - share];
        }
        to->residual[part->new_at + i] = held;
    }
    to->has_residual = true;
    to->scale = from->scale;
}

/* The latest piece decides when a slice is ready; its time on the link goes by elements. */
static void move_times(const msdu__run *from, uint64_t old_count, msdu__run *to,
                       const overlap *part)
{
    to->wait_ns = from->wait_ns > to->wait_ns ? from->wait_ns : to->wait_ns;
    to->link_ns += from->link_ns * (double)part->count / (double)old_count;
}

/* Every new slice that holds a piece of an old slice's segment. */
static void move_segment(msdu__pipeline *p, const old_cut *old, uint32_t slice, uint32_t segment,
                         uint64_t old_base)
{
    const msdu__segment *from = &old->slicing.segments[segment];
    const msdu__tensor *t = &p->tensors[from->tensor];
    for (uint32_t i = 0; i < t->slice_count; i++) {
        uint32_t to = p->tensor_slices[t->first_slice + i];
        const msdu__slice *cut = &p->slicing.slices[to];
        uint64_t new_base = 0;
        for (uint32_t k = 0; k < cut->segments; k++) {
            const msdu__segment *piece = &p->slicing.segments[cut->first_segment + k];
            overlap part;
            if (find_overlap(from, old_base, piece, new_base, &part)) {
                move_residual(p, &old->runs[slice], &p->runs[to], &part);
                move_times(&old->runs[slice], old->slicing.slices[slice].count, &p->runs[to],
                           &part);
            }
            new_base += piece->count;
        }
    }
}

static void move_elements(msdu__pipeline *p, const old_cut *old)
{
    for (uint32_t slice = 0; slice < old->slicing.slice_count; slice++) {
        const msdu__slice *cut = &old->slicing.slices[slice];
        uint64_t base = 0;
        for (uint32_t i = 0; i < cut->segments; i++) {
            move_segment(p, old, slice, cut->first_segment + i, base);
            base += old->slicing.segments[cut->first_segment + i].count;
        }
    }
}

static old_cut take_old(msdu__pipeline *p)
{
    old_cut old = {.slicing = p->slicing,
                   .runs = p->runs,
                   .control = p->fragments[0].control,
                   .blocks = p->blocks,
                   .block_count = p->block_count,
                   .is_open = p->active_count > 0};
    p->blocks = NULL;
    p->block_count = 0;
    if (old.is_open) { /* it is opened again */
        p->fragments[0].opened--;
        p->fragments[0].state = MSDU__FRAGMENT_IDLE;
        p->active_count = 0;
    }
    p->queue_tail = p->queue_first = p->queue_second = p->queue_oldest = 0;
    return old;
}

static void free_old(const old_cut *old)
{
    for (uint32_t i = 0; i < old->block_count; i++) {
        free(old->blocks[i]);
    }
    free(old->blocks);
}

static msdu_status rename_trace(msdu__pipeline *p)
{
    const char **names = p->trace != NULL ? msdu__start_names(p) : NULL;
    msdu_status status = MSDU_OK;
    if (names != NULL) {
        status = msdu__trace_rename(p->trace, names, p->slicing.slice_count);
        if (status == MSDU_ERR_IO) {
            msdu__pipeline_io(p, status);
            status = MSDU_OK;
        }
    } else if (p->trace != NULL) {
        status = msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the trace", p->rank);
    }
    free(names);
    return status;
}

/* As the owner arms them: it waits, and nothing was announced. */
static void open_again(msdu__pipeline *p)
{
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        atomic_store(&p->runs[slice].missing, p->slicing.slices[slice].segments);
    }
    msdu__round_open(p, 0);
}

static void note_choice(msdu__pipeline *p)
{
    uint64_t now = msdu__pipeline_now(p);
    msdu__trace_counter(p->trace, "slice KiB", now, (double)p->tuning.slice_bytes / 1024);
    msdu__trace_counter(p->trace, "window", now, p->tuning.window);
    msdu__trace_counter(p->trace, "lanes", now, p->tuning.lanes);
    pthread_mutex_lock(&p->lock);
    p->summary.slice_bytes = p->tuning.slice_bytes;
    p->summary.window = p->tuning.window;
    p->summary.lanes = p->tuning.lanes;
    p->summary.slice_cuts++;
    pthread_mutex_unlock(&p->lock);
}

msdu_status msdu__reslice_cut(msdu__pipeline *p, msdu__tuning tuning)
{
    bool is_cut = tuning.slice_bytes != p->tuning.slice_bytes;
    p->tuning = tuning;
    if (is_cut) {
        old_cut old = take_old(p);
        msdu_status status = msdu__start_tables(p);
        if (status == MSDU_OK) {
            move_elements(p, &old);
            memcpy(p->fragments[0].control, old.control, (uint64_t)p->ranks * sizeof(*old.control));
            status = rename_trace(p);
        }
        if (status == MSDU_OK && old.is_open) {
            open_again(p);
        }
        free_old(&old);
        if (status != MSDU_OK) {
            msdu__pipeline_fail(p, status, msdu_last_error());
            return status;
        }
    }
    note_choice(p);
    return MSDU_OK;
}
