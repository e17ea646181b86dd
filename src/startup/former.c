/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to elements of tensors and outlives the slices that it lay in. */
#include "former.h"

#include "core/domain.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* A piece of a tensor in two slices. */
typedef struct overlap {
    uint64_t old_at; /* elements, within the old slice */
    uint64_t new_at;
    uint64_t count;
} overlap;

typedef void (*move_fn)(msdu__engine *e, const msdu__former *former, uint32_t from, uint32_t to,
                        const overlap *part);

/* --- what there is --- */

msdu__former msdu__former_of(const msdu__engine *e)
{
    msdu__former former = {
        .slicing = e->model->slicing,
        .runs = e->runs,
        .owner = msdu__outer_rank(e),
        .ranks = e->job->ranks,
        .is_local = !e->slices_are_whole,
    };
    for (uint32_t i = 0; e->runs != NULL && i < former.slicing.slice_count; i++) {
        former.has_residual = former.has_residual || e->runs[i].has_residual;
        former.has_momentum = former.has_momentum || e->runs[i].momentum != NULL;
    }
    former.has_momentum = former.has_momentum && former.is_local;
    return former;
}

/* A round that will not be applied leaves nothing behind. */
static void undo_rounds(msdu__engine *e)
{
    for (uint32_t i = 0; e->runs != NULL && i < e->model->slicing.slice_count; i++) {
        if (e->runs[i].state > MSDU__RUN_CAPTURED && e->runs[i].kept != NULL) {
            msdu__domain_restore(e, i);
        }
    }
}

/* Where the memory begins that slices of one kind share; NULL: there is none. */
static const void *arena_of(const msdu__former *former, size_t field)
{
    for (uint32_t i = 0; i < former->slicing.slice_count; i++) {
        const char *place = NULL;
        memcpy(&place, (const char *)&former->runs[i] + field, sizeof(place));
        if (place != NULL) {
            return place - former->slicing.slices[i].arena;
        }
    }
    return NULL;
}

/* The own shares of all slices lie one after another, from the first slice's on. */
static const void *owner_residuals_of(const msdu__former *former)
{
    for (uint32_t i = 0; i < former->slicing.slice_count; i++) {
        if (former->runs[i].owner_residual != NULL) {
            return former->runs[i].owner_residual;
        }
    }
    return NULL;
}

msdu__former msdu__former_take(msdu__engine *e)
{
    undo_rounds(e);
    msdu__former former = msdu__former_of(e);
    if (!former.has_residual && !former.has_momentum) {
        return (msdu__former){.runs = NULL};
    }
    const void *places[MSDU__FORMER_BLOCKS] = {
        former.slicing.slices,
        former.slicing.segments,
        former.runs,
        former.runs[0].shares[0],
        arena_of(&former, offsetof(msdu__run, residual)),
        owner_residuals_of(&former),
        arena_of(&former, offsetof(msdu__run, momentum)),
    };
    for (int i = 0; i < MSDU__FORMER_BLOCKS; i++) {
        former.blocks[i] = places[i] != NULL ? msdu__memory_take(e, places[i]) : NULL;
    }
    return former;
}

void msdu__former_free(msdu__former *former)
{
    for (int i = 0; i < MSDU__FORMER_BLOCKS; i++) {
        free(former->blocks[i]);
    }
    *former = (msdu__former){.runs = NULL};
}

/* --- to the slices of now --- */

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

/* Every new slice that holds a piece of an old slice's segment. */
static void move_segment(msdu__engine *e, const msdu__former *old, uint32_t slice,
                         const msdu__segment *from, uint64_t old_base, move_fn move)
{
    const msdu__tensor *t = &e->model->tensors[from->tensor];
    for (uint32_t i = 0; i < t->slice_count; i++) {
        uint32_t to = e->model->tensor_slices[t->first_slice + i];
        const msdu__slice *cut = &e->model->slicing.slices[to];
        uint64_t new_base = 0;
        for (uint32_t k = 0; k < cut->segments; k++) {
            const msdu__segment *piece = &e->model->slicing.segments[cut->first_segment + k];
            overlap part;
            if (find_overlap(from, old_base, piece, new_base, &part)) {
                move(e, old, slice, to, &part);
            }
            new_base += piece->count;
        }
    }
}

static void move_elements(msdu__engine *e, const msdu__former *old, move_fn move)
{
    for (uint32_t slice = 0; slice < old->slicing.slice_count; slice++) {
        const msdu__slice *cut = &old->slicing.slices[slice];
        uint64_t base = 0;
        for (uint32_t i = 0; i < cut->segments; i++) {
            const msdu__segment *from = &old->slicing.segments[cut->first_segment + i];
            move_segment(e, old, slice, from, base, move);
            base += from->count;
        }
    }
}

/* What a rank held back from means, by its place in the slice; 0: another one's duty. */
static float owed(const msdu__former *old, uint32_t slice, uint64_t at)
{
    const msdu__run *run = &old->runs[slice];
    uint64_t share = run->share_start[old->owner];
    bool is_own = at >= share && at < share + run->share_count[old->owner];
    return is_own ? run->owner_residual[at - share] : 0;
}

/* A rank's own goes along. What it held back from means was its duty as an owner of shares, and
 * shares lie elsewhere now, so it becomes a part of the rank's next contribution. */
static void move_residual(msdu__engine *e, const msdu__former *old, uint32_t slice, uint32_t into,
                          const overlap *part)
{
    bool is_sum = e->job->settings.reduce_sum != 0;
    float factor = is_sum ? 1.0F : (float)e->job->ranks;
    const msdu__run *from = &old->runs[slice];
    msdu__run *to = &e->runs[into];
    if (!from->has_residual || to->residual == NULL) {
        return;
    }
    for (uint64_t i = 0; i < part->count; i++) {
        to->residual[part->new_at + i] =
            from->residual[part->old_at + i] + factor * owed(old, slice, part->old_at + i);
    }
    to->has_residual = true;
    to->scale = from->scale;
}

static void move_momentum(msdu__engine *e, const msdu__former *old, uint32_t slice, uint32_t into,
                          const overlap *part)
{
    uint64_t width = msdu__dtype_working_bytes(old->slicing.slices[slice].dtype);
    const char *from = old->runs[slice].momentum;
    char *to = e->runs[into].momentum;
    if (from != NULL && to != NULL) {
        memcpy(to + part->new_at * width, from + part->old_at * width, part->count * width);
    }
}

/* The latest piece decides when a slice is ready; its time on the link goes by elements. */
static void move_times(msdu__engine *e, const msdu__former *old, uint32_t slice, uint32_t into,
                       const overlap *part)
{
    const msdu__run *from = &old->runs[slice];
    msdu__run *to = &e->runs[into];
    to->wait_ns = from->wait_ns > to->wait_ns ? from->wait_ns : to->wait_ns;
    to->link_ns += from->link_ns * (double)part->count / (double)old->slicing.slices[slice].count;
}

void msdu__former_move_residual(msdu__engine *e, const msdu__former *former)
{
    move_elements(e, former, move_residual);
}

void msdu__former_move_momentum(msdu__engine *e, const msdu__former *former)
{
    move_elements(e, former, move_momentum);
}

void msdu__former_move_times(msdu__engine *e, const msdu__former *former)
{
    move_elements(e, former, move_times);
}

/* --- into parameters --- */

typedef void (*visit_fn)(const msdu__former *old, uint32_t slice, const overlap *part,
                         int32_t ranks, float *values);

static void deliver(const msdu__former *old, uint32_t slice, const overlap *part, int32_t ranks,
                    float *values)
{
    const msdu__run *run = &old->runs[slice];
    double each = run->scale * ranks; /* as the mean of a round has it */
    for (uint64_t i = 0; i < part->count; i++) {
        double held = (double)run->residual[part->old_at + i] / old->ranks +
                      (double)owed(old, slice, part->old_at + i);
        values[part->new_at + i] -= (float)(each * held);
    }
}

static void clear(const msdu__former *old, uint32_t slice, const overlap *part, int32_t ranks,
                  float *values)
{
    const msdu__run *run = &old->runs[slice];
    uint64_t share = run->share_start[old->owner];
    (void)ranks;
    (void)values;
    memset(run->residual + part->old_at, 0, part->count * sizeof(float));
    for (uint64_t i = part->old_at; i < part->old_at + part->count; i++) {
        if (i >= share && i < share + run->share_count[old->owner]) {
            run->owner_residual[i - share] = 0;
        }
    }
}

/* Every piece of an old slice that holds elements of the segment and held anything back. */
static void visit(const msdu__former *old, const msdu__segment *wanted, visit_fn fn, int32_t ranks,
                  float *values)
{
    for (uint32_t slice = 0; slice < old->slicing.slice_count; slice++) {
        const msdu__slice *cut = &old->slicing.slices[slice];
        uint64_t base = 0;
        for (uint32_t i = 0; old->runs[slice].has_residual && i < cut->segments; i++) {
            const msdu__segment *from = &old->slicing.segments[cut->first_segment + i];
            overlap part;
            if (find_overlap(from, base, wanted, 0, &part)) {
                fn(old, slice, &part, ranks, values);
            }
            base += from->count;
        }
    }
}

void msdu__former_deliver(const msdu__former *former, const msdu__segment *elements, int32_t ranks,
                          float *values)
{
    if (former->is_local && former->has_residual) {
        visit(former, elements, deliver, ranks, values);
    }
}

void msdu__former_delivered(const msdu__former *former, const msdu__segment *elements)
{
    if (former->is_local && former->has_residual) {
        visit(former, elements, clear, 0, NULL);
    }
}
