/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a slice means in each domain: what is captured, where it is reduced, what is done with the
 * mean. Loops over memory only; runs on the communication thread.
 */
#include "pipeline.h"

#include <assert.h>
#include <string.h>

#include "correct/vec.h"

#define REDUCED_CHUNK                                                                              \
    1024 /* elements scaled and summed while they are in the first cache levels                    \
          */

/* One tensor's part of a slice. */
typedef struct piece {
    char *memory;   /* its gradient or parameter */
    uint64_t at;    /* first element within the slice */
    uint64_t count; /* elements */
    uint32_t tensor;
} piece;

/* Only the pointer that is meant is read: the trainer may just be moving the other one. */
static piece piece_at(const msdu__pipeline *p, uint32_t slice, uint32_t index, uint64_t at,
                      msdu_what what)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    const msdu__segment *segment = &p->slicing.segments[cut->first_segment + index];
    const msdu__tensor *tensor = &p->tensors[segment->tensor];
    char *memory = what == MSDU_GRADIENT ? tensor->gradient : tensor->parameter;
    assert(memory != NULL);
    return (piece){
        .memory = memory + segment->offset * msdu__dtype_bytes(tensor->dtype),
        .at = at,
        .count = segment->count,
        .tensor = segment->tensor,
    };
}

/* What is read and written in a slice of this round. */
static msdu_what memory_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    bool is_gradient = f->round.is_gradient || (p->is_accumulated && !f->round.is_exact);
    return is_gradient && !p->runs[slice].is_state ? MSDU_GRADIENT : MSDU_PARAMETER;
}

static uint32_t working_bytes(int32_t dtype)
{
    return dtype == MSDU_FLOAT64 ? 8 : 4;
}

static void *offset_of(void *base, int32_t dtype, uint64_t elements)
{
    return base == NULL ? NULL : (char *)base + elements * working_bytes(dtype);
}

/* in (dtype) to working type */
static void load(const void *in, int32_t dtype, void *out, uint64_t count)
{
    assert(in != NULL && out != NULL);
    if (dtype == MSDU_FLOAT64 || dtype == MSDU_FLOAT32) {
        memcpy(out, in, count * working_bytes(dtype));
    } else {
        msdu__vec_widen(in, dtype, out, count);
    }
}

static void store(const void *in, int32_t dtype, void *out, uint64_t count)
{
    assert(in != NULL && out != NULL);
    if (dtype == MSDU_FLOAT64 || dtype == MSDU_FLOAT32) {
        memcpy(out, in, count * working_bytes(dtype));
    } else {
        msdu__vec_narrow(in, dtype, out, count);
    }
}

void *msdu__domain_buffer(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    bool is_in_place = !p->runs[slice].is_staged && !msdu__voice_of(f)->is_absent;
    if (f->round.is_gradient && is_in_place) {
        return piece_at(p, slice, 0, 0, MSDU_GRADIENT).memory;
    }
    return p->runs[slice].buf;
}

/* A mean that is applied at once needs no snapshot: the parameters still are what was captured. */
static msdu__arrays arrays_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice,
                              const piece *part)
{
    const msdu__run *run = &p->runs[slice];
    void *snapshot = f->round.delay_steps > 0 ? run->snapshot : NULL;
    int32_t dtype = p->slicing.slices[slice].dtype;
    return (msdu__arrays){
        .param = part->memory,
        .anchor = offset_of(run->anchor, dtype, part->at),
        .update = offset_of(run->buf, dtype, part->at),
        .momentum = offset_of(run->momentum, dtype, part->at),
        .snapshot = offset_of(snapshot, dtype, part->at),
        .count = part->count,
        .dtype = dtype,
    };
}

static msdu__recursion_args recursion_args(msdu__pipeline *p)
{
    return (msdu__recursion_args){
        .lr = atomic_load(&p->lr),
        .momentum = p->settings.momentum,
        .factor = atomic_load(&p->is_first_call) ? 1.0 : 1.0 - p->settings.dampening,
        .weight_decay = p->settings.weight_decay,
        .is_nesterov = p->settings.nesterov != 0,
    };
}

static msdu__recursion_state recursion_state(const msdu__run *run, int32_t dtype, uint64_t at)
{
    return (msdu__recursion_state){
        .drift = offset_of(run->recursion.drift, dtype, at),
        .velocity = offset_of(run->recursion.velocity, dtype, at),
        .trace = offset_of(run->recursion.trace, dtype, at),
    };
}

static void capture_gradient(const msdu__pipeline *p, uint32_t slice, const piece *part,
                             msdu__sums *sums)
{
    const msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    const void *x = part->memory;
    if (run->is_staged) {
        void *buf = offset_of(run->buf, dtype, part->at);
        load(part->memory, dtype, buf, part->count);
        x = buf;
        dtype = dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
    }
    sums->update_sq += msdu__vec_sum_sq(x, dtype, part->count, &sums->has_bad);
}

/* Gradients that do not count are not even read; without input a shadowed optimizer stands still.
 */
static bool is_unread(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool is_shadow = p->is_accumulated && !f->round.is_exact;
    return (f->round.is_gradient && msdu__voice_of(f)->weight == 0) ||
           (is_shadow && msdu__voice_of(f)->is_absent);
}

static void capture_piece(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice,
                          const piece *part, msdu__sums *sums)
{
    msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    if (run->is_state) {
        load(part->memory, dtype, offset_of(run->buf, dtype, part->at), part->count);
    } else if (is_unread(p, f)) {
        return;
    } else if (f->round.is_gradient) {
        capture_gradient(p, slice, part, sums);
    } else if (p->is_accumulated && !f->round.is_exact) {
        msdu__recursion_args args = recursion_args(p);
        msdu__recursion_state state = recursion_state(run, dtype, part->at);
        msdu__recursion_capture(&args, &state, part->memory, offset_of(run->buf, dtype, part->at),
                                part->count, dtype, sums);
    } else {
        msdu__arrays arrays = arrays_of(p, f, slice, part);
        void *snapshot = f->round.delay_steps > 0 ? run->snapshot : NULL;
        msdu__correct_capture(&arrays, offset_of(snapshot, dtype, part->at), sums);
    }
}

/* Type and bytes of what is reduced. */
static int32_t working_dtype(const msdu__pipeline *p, uint32_t slice)
{
    return p->slicing.slices[slice].dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
}

static void weigh(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    void *x = msdu__domain_buffer(p, f, slice);
    uint64_t count = p->slicing.slices[slice].count;
    int32_t dtype = working_dtype(p, slice);
    if (msdu__voice_of(f)->weight == 0) {
        memset(x, 0, count * working_bytes(dtype));
    } else {
        msdu__vec_scale(x, dtype, msdu__voice_of(f)->weight, count);
    }
}

void msdu__domain_capture(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, memory_of(p, f, slice));
        msdu__sums sums = {0};
        capture_piece(p, f, slice, &part, &sums);
        f->sums.update_sq += sums.update_sq;
        f->sums.weight_sq += sums.weight_sq;
        if (sums.has_bad && f->bad_tensor == 0) {
            f->bad_tensor = part.tensor + 1;
        }
        at += part.count;
    }
    if (msdu__voice_of(f)->weight != 1) {
        weigh(p, f, slice);
    }
}

static void store_gradients(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    uint64_t at = 0;
    for (uint32_t i = 0; i < cut->segments && !msdu__voice_of(f)->is_absent; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        store(offset_of(p->runs[slice].buf, cut->dtype, at), cut->dtype, part.memory, part.count);
        at += part.count;
    }
}

void msdu__domain_reduced(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    const msdu__slice *cut = &p->slicing.slices[slice];
    void *buf = msdu__domain_buffer(p, f, slice);
    int32_t dtype = working_dtype(p, slice);
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    bool needs_norm =
        f->round.is_gradient || p->is_accumulated || (p->chain.needs & MSDU__NEEDS_NORM) != 0;
    run->mean_sq = 0;
    for (uint64_t at = 0; at < cut->count; at += REDUCED_CHUNK) {
        uint64_t count = cut->count - at < REDUCED_CHUNK ? cut->count - at : REDUCED_CHUNK;
        void *x = offset_of(buf, cut->dtype, at);
        bool has_bad = false; /* known from the capture already, with its rank */
        if (!run->is_narrow && !is_sum) {
            msdu__vec_scale(x, dtype, 1.0 / p->ranks, count);
        }
        if (needs_norm && !run->is_state) {
            run->mean_sq += msdu__vec_sum_sq(x, dtype, count, &has_bad);
        }
    }
    if (f->round.is_gradient && run->is_staged) {
        store_gradients(p, f, slice);
    }
}

/* The weights are known: of the sum, divided by the number of ranks, to the mean. */
static void rescale(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    msdu__vec_scale(msdu__domain_buffer(p, f, slice), working_dtype(p, slice), f->scale,
                    p->slicing.slices[slice].count);
    if (f->round.is_gradient && p->runs[slice].is_staged) {
        store_gradients(p, f, slice);
    }
}

static void apply_piece(msdu__pipeline *p, msdu__fragment *f, uint32_t slice, const piece *part)
{
    msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    if (run->is_state) {
        store(offset_of(run->buf, dtype, part->at), dtype, part->memory, part->count);
        return;
    }
    if (p->is_accumulated && !f->round.is_exact) {
        msdu__recursion_args args = recursion_args(p);
        msdu__recursion_state state = recursion_state(run, dtype, part->at);
        args.lr = f->is_void ? 0 : args.lr; /* there is no mean: a local step after all */
        msdu__recursion_apply(&args, &state, offset_of(run->buf, dtype, part->at), NULL,
                              part->memory, part->count, dtype);
        return;
    }
    msdu__arrays arrays = arrays_of(p, f, slice, part);
    msdu__sums sums = {0};
    const msdu__chain *chain = f->round.is_exact ? &p->mean_chain : &p->chain;
    msdu__correct_apply(chain, &p->correct_args, &arrays, &sums);
    if ((p->chain.needs & MSDU__NEEDS_NORM) == 0) {
        f->mean_sq += sums.update_sq;
    }
}

bool msdu__domain_commits_slice(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool is_of_gradients = f->round.is_gradient || (p->is_accumulated && !f->round.is_exact);
    return p->settings.commit_tensor && is_of_gradients;
}

void msdu__domain_apply(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    bool is_void = f->is_void && (f->round.is_gradient || !p->is_accumulated);
    bool is_unmoved = p->is_accumulated && !f->round.is_exact && msdu__voice_of(f)->is_absent;
    p->runs[slice].scale = f->is_void ? p->runs[slice].scale : f->scale;
    if (f->scale != 1) {
        rescale(p, f, slice);
    }
    if (f->round.is_gradient || is_void || is_unmoved) {
        return; /* gradients hold the mean already */
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, memory_of(p, f, slice));
        apply_piece(p, f, slice, &part);
        at += part.count;
    }
}

void msdu__domain_local(msdu__pipeline *p, uint32_t slice)
{
    if (p->is_absent) {
        return;
    }
    int32_t dtype = p->slicing.slices[slice].dtype;
    msdu__recursion_args args = recursion_args(p);
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        msdu__recursion_state state = recursion_state(&p->runs[slice], dtype, at);
        msdu__sums sums = {0};
        msdu__recursion_local(&args, &state, part.memory, part.count, dtype, &sums);
        at += part.count;
    }
}

void msdu__domain_forget(msdu__pipeline *p, uint32_t slice)
{
    void *drift = p->runs[slice].recursion.drift;
    if (drift != NULL) {
        memset(drift, 0,
               p->slicing.slices[slice].count * working_bytes(p->slicing.slices[slice].dtype));
    }
}

static void clear_residuals(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    if (run->has_residual) {
        memset(run->residual, 0, p->slicing.slices[slice].count * sizeof(float));
        memset(run->owner_residual, 0, run->share_count[p->rank] * sizeof(float));
        run->has_residual = false;
    }
}

void msdu__domain_keep(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    run->had_residual = run->has_residual;
    if (run->kept != NULL && run->has_residual) {
        memcpy(run->kept, run->residual, p->slicing.slices[slice].count * sizeof(float));
        memcpy(run->owner_kept, run->owner_residual, run->share_count[p->rank] * sizeof(float));
    }
}

static void restore_residuals(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    if (!run->had_residual) {
        clear_residuals(p, slice);
        return;
    }
    memcpy(run->residual, run->kept, p->slicing.slices[slice].count * sizeof(float));
    memcpy(run->owner_residual, run->owner_kept, run->share_count[p->rank] * sizeof(float));
    run->has_residual = true;
}

/* All bits set is a NaN in every type. */
void msdu__domain_skip(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    bool is_absent = msdu__voice_of(f)->is_absent;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments && !is_absent; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        memset(part.memory, 0xff, part.count * msdu__dtype_bytes(p->slicing.slices[slice].dtype));
        at += part.count;
    }
    restore_residuals(p, slice);
}

void msdu__domain_flush(msdu__pipeline *p, float *x, uint32_t slice, double factor, double own)
{
    const msdu__run *run = &p->runs[slice];
    if (!run->has_residual) {
        return;
    }
    for (uint64_t i = 0; i < p->slicing.slices[slice].count; i++) {
        x[i] += (float)factor * run->residual[i];
    }
    /* the mean's own residual, as this rank's contribution to a sum over all */
    float *share = x + run->share_start[p->rank];
    for (uint64_t i = 0; i < run->share_count[p->rank]; i++) {
        share[i] += (float)(factor * own) * run->owner_residual[i];
    }
    clear_residuals(p, slice);
}

void msdu__domain_anchor(msdu__pipeline *p)
{
    for (uint32_t slice = p->slice_bound; slice-- > 0;) {
        uint64_t at = 0;
        int32_t dtype = p->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
            piece part = piece_at(p, slice, i, at, MSDU_PARAMETER);
            load(part.memory, dtype, offset_of(p->runs[slice].anchor, dtype, at), part.count);
            at += part.count;
        }
        /* what gradient rounds left in the error feedback is in gradient units: of no use here */
        clear_residuals(p, slice);
    }
}

void msdu__domain_rollback(msdu__pipeline *p)
{
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        uint64_t at = 0;
        int32_t dtype = p->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
            piece part = piece_at(p, slice, i, at, MSDU_PARAMETER);
            store(offset_of(p->runs[slice].anchor, dtype, at), dtype, part.memory, part.count);
            at += part.count;
        }
    }
}
