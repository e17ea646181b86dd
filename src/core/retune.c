/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size of slices and window as measured: the tuner hears every round, all ranks take its choice
 * between the same two steps, and what belongs to an element moves with it.
 *
 * Only gradients are cut anew: between two of their rounds nothing is kept by slice but error
 * feedback and measured times. Only on the host, in one fragment, and where neither the backend's
 * sums nor the wire that was asked for depend on the cut: bits must not depend on time.
 */
#include "start.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROBES       5
#define PROBE_FLOATS 64
#define LANES_FIRST  2
#define WINDOW_LEAST                                                                               \
    MSDU__WINDOW_AUTO /* measured: 2 gain nothing, and one that is late stops all */

/* --- what the tuner has to know --- */

/* Who forbids fusing waits for gradients one by one, and wants each as a whole. */
static bool may_cut(const msdu__pipeline *p)
{
    return p->settings.slice_bytes < 0 && p->settings.fuse_bytes != 0 && p->is_gradient &&
           p->ranks > 1 && p->fragment_count == 1 && p->tensors[0].place == MSDU_PLACE_HOST;
}

static bool may_tune(const msdu__pipeline *p)
{
    bool is_exact = p->settings.wire < 0 || p->settings.wire == MSDU__WIRE_FLOAT32;
    return may_cut(p) && is_exact && (p->backend->caps & MSDU_CAP_RANK_ORDER) != 0;
}

/* Rounds of a wire, where nothing was measured: as float32 was cut first, in as many lanes. */
static msdu__tuning cut_of_wire(const msdu__pipeline *p, int wire, uint32_t lanes)
{
    msdu__tuning tuning = p->tuning_first;
    tuning.lanes = lanes;
    tuning.slice_bytes = msdu__tuner_narrow(tuning.slice_bytes, p->tuner_args.model_bytes,
                                            msdu__start_wire_bytes(p, wire), p->fragment_count);
    return tuning;
}

void msdu__retune_prepare(msdu__pipeline *p)
{
    const msdu__settings *s = &p->settings;
    uint64_t bytes = msdu__start_bytes(p);
    uint32_t window = s->window < 0 ? MSDU__WINDOW_AUTO : (uint32_t)s->window;
    p->may_cut = may_cut(p);
    p->is_tuned = may_tune(p);
    p->is_recut = p->is_tuned || (p->may_cut && s->wire < 0);
    p->tuner_args = (msdu__tuner_args){
        .model_bytes = bytes,
        .slice_least = msdu__tuner_slice_least(bytes),
        .slice_most = msdu__tuner_slice_most(bytes),
        .window_least = s->window < 0 ? WINDOW_LEAST : window,
        .window_most = s->window < 0 ? MSDU__WINDOW_TUNED : window,
        .lanes_most = (uint32_t)s->lanes,
        .is_whole = s->commit_tensor == 0,
        .is_single = p->tensor_count == 1,
    };
    uint32_t lanes = s->lanes < LANES_FIRST ? (uint32_t)s->lanes : LANES_FIRST;
    p->tuning = p->tuning_first =
        msdu__tuner_first(bytes, window, p->is_tuned ? lanes : (uint32_t)s->lanes);
    if (s->slice_bytes >= 0) {
        p->tuning.slice_bytes = (uint64_t)s->slice_bytes;
    } else if (s->wire >= 0) {
        p->tuning = cut_of_wire(p, (int)s->wire, p->tuning.lanes);
    }
    msdu__retune_begin(p);
}

void msdu__retune_begin(msdu__pipeline *p)
{
    msdu__tuner_begin(&p->tuner, p->tuning);
    p->fragments[0].tunings[0] = p->fragments[0].tunings[1] = p->tuning;
}

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
        msdu_status status = msdu__agree_run(p, &op, 0);
        if (status != MSDU_OK) {
            return status;
        }
        *latency_out = fmin(*latency_out, (double)(msdu__pipeline_now(p) - began));
    }
    return MSDU_OK;
}

msdu_status msdu__retune_probe(msdu__pipeline *p)
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
        status = msdu__agree_run(p, &op, 0);
    }
    p->tuner_args.latency_ns = latency / p->ranks;
    return status;
}

/* --- deciding --- */

static void log_choice(msdu__pipeline *p, const msdu__round_stats *stats)
{
    const msdu__tuner *t = &p->tuner;
    msdu__log_line(&p->log, MSDU_LOG_INFO,
                   "step %llu: slices of %llu KiB, %u in flight, %u lanes (were %llu KiB, %u, %u): "
                   "link %.1f MB/s, %.0f us a slice beside its bytes, latency %.0f us",
                   (unsigned long long)stats->step,
                   (unsigned long long)(t->present.slice_bytes / 1024), t->present.window,
                   t->present.lanes, (unsigned long long)(p->tuning.slice_bytes / 1024),
                   p->tuning.window, p->tuning.lanes, t->cost.bytes_per_ns * 1e3,
                   t->cost.slice_ns / 1e3, t->cost.latency_ns / 1e3);
}

/*
 * Narrow rounds are held up by messages and quantizing, which the model does not know: small slices
 * would be the wrong answer. They go by the bytes that a slice sends, and nothing is measured any
 * more. Narrow formats next to each other change now and then, and each cut costs a step its
 * overlap: slices only grow until float32 comes back.
 */
static void note_wire(msdu__pipeline *p, const msdu__round_stats *stats)
{
    bool is_narrow = stats->wire != MSDU__WIRE_FLOAT32;
    uint32_t lanes = p->tuner.present.lanes;
    msdu__tuning wanted = is_narrow ? cut_of_wire(p, stats->wire, lanes) : p->tuning_first;
    if (!is_narrow && !p->is_narrowed) {
        return;
    }
    if (is_narrow && p->is_narrowed && wanted.slice_bytes < p->tuner.present.slice_bytes) {
        return;
    }
    p->is_narrowed = true;
    msdu__tuner_begin(&p->tuner, wanted);
}

void msdu__retune_hear(msdu__pipeline *p, msdu__fragment *f, const msdu__round_stats *stats)
{
    msdu__tuner_round round = {.bytes = stats->round_bytes,
                               .slices = f->slice_count,
                               .window = p->tuning.window,
                               .link_ns = (double)stats->link_ns};
    if (p->is_recut && f->round.is_gradient) {
        note_wire(p, stats);
    }
    if (p->is_tuned && !p->is_narrowed && f->round.is_gradient &&
        msdu__tuner_hear(&p->tuner, &p->tuner_args, &round)) {
        log_choice(p, stats);
    }
    f->tunings[(f->opened - 1) & 1] = p->tuner.present;
}

static void change_to(msdu__pipeline *p, msdu__tuning wanted)
{
    if (!msdu__tuning_is_equal(wanted, p->tuning)) {
        p->tuning_next = wanted;
        (void)msdu__schedule_carry(p, MSDU__COMMAND_RECUT);
    }
}

/* As with a decision, that of the round before the last armed one is known on every rank. */
void msdu__retune_due(msdu__pipeline *p)
{
    const msdu__fragment *f = &p->fragments[0];
    if (p->is_recut && p->is_gradient && f->armed >= 2) {
        change_to(p, f->tunings[f->armed & 1]);
    }
}

void msdu__retune_last(msdu__pipeline *p, int wire)
{
    if (p->is_recut && p->settings.wire < 0) {
        change_to(p, cut_of_wire(p, wire, p->tuning.lanes));
    }
}

bool msdu__retune_carry(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->active_count; i++) {
        if (p->fragments[p->active[i]].captured > 0) {
            return false;
        }
    }
    if (p->fragments[0].plan_req != NULL) {
        return false;
    }
    (void)msdu__retune_cut(p, p->tuning_next);
    atomic_store(&p->is_carried, true);
    msdu__pipeline_wake(p);
    return true;
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

msdu_status msdu__retune_cut(msdu__pipeline *p, msdu__tuning tuning)
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
