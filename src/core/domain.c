/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a slice means in each domain: what is captured, where it is reduced, what is done with the
 * mean. Passes over memory only (pass.h); runs on the communication thread.
 */
#include "pipeline.h"

#include <assert.h>
#include <string.h>

/* One tensor's part of a slice. */
typedef struct piece {
    char *memory;   /* its gradient or parameter */
    uint64_t at;    /* first element within the slice */
    uint64_t count; /* elements */
    uint32_t segment;
    uint32_t announcement;
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
        .segment = cut->first_segment + index,
        .announcement = msdu__announcement(segment->tensor, what),
    };
}

/* What is read and written in a slice of this round. */
static msdu_what memory_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    bool is_gradient = f->round.is_gradient || (p->is_accumulated && !f->round.is_exact);
    return is_gradient && !p->runs[slice].is_state ? MSDU_GRADIENT : MSDU_PARAMETER;
}

static void *offset_of(void *base, int32_t dtype, uint64_t elements)
{
    return base == NULL ? NULL : (char *)base + elements * msdu__dtype_working_bytes(dtype);
}

/* in (dtype) to working type, or, as a store, back */
static void convert(msdu__pipeline *p, msdu_pass_kind kind, const piece *part, void *working,
                    int32_t dtype)
{
    bool is_store = kind == MSDU_PASS_STORE;
    assert(part->memory != NULL && working != NULL);
    msdu__pass pass = {.data = {.kind = (int32_t)kind,
                                .dtype = dtype,
                                .count = part->count,
                                .stage = is_store ? MSDU_STAGE_LATE : MSDU_STAGE_EARLY,
                                .announcement = part->announcement,
                                .in = is_store ? working : part->memory,
                                .out = is_store ? part->memory : working}};
    msdu__pass_run(p, &pass);
}

static void fill(msdu__pipeline *p, void *out, int byte, uint64_t bytes, bool is_late)
{
    msdu__pass pass = {.data = {.kind = MSDU_PASS_FILL,
                                .byte = byte,
                                .count = bytes,
                                .stage = is_late ? MSDU_STAGE_LATE : MSDU_STAGE_EARLY,
                                .out = out}};
    msdu__pass_run(p, &pass);
}

static void copy(msdu__pipeline *p, void *out, const void *in, uint64_t bytes, bool is_late)
{
    msdu__pass pass = {.data = {.kind = MSDU_PASS_COPY,
                                .count = bytes,
                                .stage = is_late ? MSDU_STAGE_LATE : MSDU_STAGE_EARLY,
                                .in = in,
                                .out = out}};
    msdu__pass_run(p, &pass);
}

/* sums: NULL, or where the sum of squares afterwards goes */
static void scale(msdu__pipeline *p, void *x, int32_t dtype, uint64_t count, double factor,
                  msdu_sums *sums, bool is_late)
{
    msdu__pass pass = {.data = {.kind = factor == 1 ? MSDU_PASS_NORM : MSDU_PASS_SCALE,
                                .dtype = dtype,
                                .count = count,
                                .stage = is_late ? MSDU_STAGE_LATE : MSDU_STAGE_EARLY,
                                .factor = factor,
                                .in = x,
                                .out = x,
                                .sums = sums}};
    msdu__pass_run(p, &pass);
}

void *msdu__domain_buffer(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    bool is_in_place = !p->runs[slice].is_staged && !msdu__voice_of(f)->is_absent;
    if (f->round.is_gradient && is_in_place) {
        return piece_at(p, slice, 0, 0, MSDU_GRADIENT).memory;
    }
    return p->runs[slice].buf;
}

/* Memory of a slice's part. A mean that is applied at once needs no snapshot: the parameters still
 * are what was captured. */
static msdu_pass arrays_of(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice,
                           const piece *part)
{
    const msdu__run *run = &p->runs[slice];
    void *snapshot = f->round.delay_steps > 0 ? run->snapshot : NULL;
    int32_t dtype = p->slicing.slices[slice].dtype;
    return (msdu_pass){
        .dtype = dtype,
        .count = part->count,
        .announcement = part->announcement,
        .param = part->memory,
        .anchor = offset_of(run->anchor, dtype, part->at),
        .update = offset_of(run->buf, dtype, part->at),
        .momentum = offset_of(run->momentum, dtype, part->at),
        .snapshot = offset_of(snapshot, dtype, part->at),
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

/* A pass of the recursion over a part; in and out are the kind's. */
static void recur(msdu__pipeline *p, uint32_t slice, const msdu__recursion_args *args,
                  msdu_pass data, const piece *part)
{
    const msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    data.dtype = dtype;
    data.count = part->count;
    data.announcement = part->announcement;
    data.drift = offset_of(run->recursion.drift, dtype, part->at);
    data.velocity = offset_of(run->recursion.velocity, dtype, part->at);
    data.trace = offset_of(run->recursion.trace, dtype, part->at);
    msdu__pass pass = {.data = data, .recursion = args};
    msdu__pass_run(p, &pass);
}

/* Where sums are asked for (setting reduce), a local gradient stands for what ranks with the same
 * one would have summed up. The recursion is linear, so it may run in units of that. */
static void sum_alone(msdu__pipeline *p, uint32_t slice, const piece *part)
{
    msdu__pass pass = {.data = {.kind = MSDU_PASS_SCALE,
                                .dtype = p->slicing.slices[slice].dtype,
                                .count = part->count,
                                .announcement = part->announcement,
                                .factor = p->ranks,
                                .out = part->memory}};
    if (p->settings.reduce_sum) {
        msdu__pass_run(p, &pass);
    }
}

static void capture_gradient(msdu__pipeline *p, uint32_t slice, const piece *part, msdu_sums *sums)
{
    const msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    msdu__pass pass = {.data = {.kind = run->is_staged ? MSDU_PASS_LOAD : MSDU_PASS_NORM,
                                .dtype = dtype,
                                .announcement = part->announcement,
                                .count = part->count,
                                .in = part->memory,
                                .out = offset_of(run->buf, dtype, part->at),
                                .sums = sums}};
    msdu__pass_run(p, &pass);
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
                          const piece *part)
{
    msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    void *buf = offset_of(run->buf, dtype, part->at);
    msdu_sums *sums = f->round.is_exact ? NULL : &p->captured[part->segment];
    if (run->is_state) {
        convert(p, MSDU_PASS_LOAD, part, buf, dtype);
    } else if (is_unread(p, f)) {
        return;
    } else if (f->round.is_gradient) {
        capture_gradient(p, slice, part, sums);
    } else if (p->is_accumulated && !f->round.is_exact) {
        msdu__recursion_args args = recursion_args(p);
        sum_alone(p, slice, part);
        msdu_pass data = {.kind = MSDU_PASS_DRIFT, .in = part->memory, .out = buf, .sums = sums};
        recur(p, slice, &args, data, part);
    } else {
        msdu__pass pass = {.data = arrays_of(p, f, slice, part)};
        pass.data.kind = MSDU_PASS_CAPTURE;
        pass.data.sums = sums;
        pass.hash = &run->found->hash;
        msdu__pass_run(p, &pass);
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
        fill(p, x, 0, count * msdu__dtype_working_bytes(dtype), false);
    } else {
        scale(p, x, dtype, count, msdu__voice_of(f)->weight, NULL, false);
    }
}

void msdu__domain_capture(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, memory_of(p, f, slice));
        capture_piece(p, f, slice, &part);
        at += part.count;
    }
    if (msdu__voice_of(f)->weight != 1) {
        weigh(p, f, slice);
    }
    if (p->runs[slice].has_residual) {
        p->runs[slice].found->hash = 0; /* a part of the mean is still to come */
    } else if (p->runs[slice].is_state) {
        p->runs[slice].found->hash = 1; /* averaged as it is */
    }
}

/* In slice order and not as slices became ready, so that a run repeated sums the same bits. */
void msdu__domain_sums(msdu__pipeline *p, msdu__fragment *f)
{
    f->sums = (msdu__sums){0};
    f->bad_tensor = 0;
    for (uint32_t k = 0; k < f->slice_count; k++) {
        const msdu__slice *cut = &p->slicing.slices[f->members[k]];
        for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
            f->sums.update_sq += p->captured[i].update_sq;
            f->sums.weight_sq += p->captured[i].weight_sq;
            if (p->captured[i].bad != 0 && f->bad_tensor == 0) {
                f->bad_tensor = p->slicing.segments[i].tensor + 1;
            }
        }
    }
}

void msdu__domain_forget_sums(msdu__pipeline *p, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    memset(&p->captured[cut->first_segment], 0, cut->segments * sizeof(*p->captured));
    memset(&p->applied[cut->first_segment], 0, cut->segments * sizeof(*p->applied));
    memset(p->runs[slice].found, 0, sizeof(*p->runs[slice].found));
}

static void store_gradients(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    uint64_t at = 0;
    for (uint32_t i = 0; i < cut->segments && !msdu__voice_of(f)->is_absent; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        convert(p, MSDU_PASS_STORE, &part, offset_of(p->runs[slice].buf, cut->dtype, at),
                cut->dtype);
        at += part.count;
    }
}

/* The mean over one rank, on the host: what was read when it was captured need not be read again,
 * and no sum of finite values can overflow. */
static bool is_as_captured(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    return p->ranks == 1 && f->round.is_gradient && !p->runs[slice].is_narrow &&
           msdu__voice_of(f)->weight == 1 && p->tensors[0].place == MSDU_PLACE_HOST;
}

static void take_captured(const msdu__pipeline *p, uint32_t slice, msdu_sums *out)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    *out = (msdu_sums){.update_sq = 0};
    for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
        out->update_sq += p->captured[i].update_sq;
    }
}

void msdu__domain_reduced(msdu__pipeline *p, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    bool is_sum = f->round.is_gradient && p->settings.reduce_sum;
    bool needs_norm =
        f->round.is_gradient || p->is_accumulated || (p->chain.needs & MSDU__NEEDS_NORM) != 0;
    double factor = run->is_narrow || is_sum ? 1 : 1.0 / p->ranks;
    msdu_sums *sums = needs_norm && !run->is_state ? &run->found->mean : NULL;
    if (sums != NULL && is_as_captured(p, f, slice)) {
        take_captured(p, slice, sums);
    } else if (factor != 1 || sums != NULL) {
        /* a bad value is known from the capture already, with its rank */
        scale(p, msdu__domain_buffer(p, f, slice), working_dtype(p, slice),
              p->slicing.slices[slice].count, factor, sums, true);
    }
    if (f->round.is_gradient && run->is_staged) {
        store_gradients(p, f, slice);
    }
}

/* The weights are known: of the sum, divided by the number of ranks, to the mean. */
static void rescale(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    scale(p, msdu__domain_buffer(p, f, slice), working_dtype(p, slice),
          p->slicing.slices[slice].count, f->scale, NULL, true);
    if (f->round.is_gradient && p->runs[slice].is_staged) {
        store_gradients(p, f, slice);
    }
}

static void correct_piece(msdu__pipeline *p, msdu__fragment *f, uint32_t slice, const piece *part)
{
    msdu__pass pass = {
        .data = arrays_of(p, f, slice, part),
        .chain = f->round.is_exact ? &p->mean_chain : &p->chain,
        .correct = &p->correct_args,
    };
    pass.data.kind = MSDU_PASS_APPLY;
    pass.data.stage = MSDU_STAGE_LATE;
    pass.data.sums = f->round.is_exact ? NULL : &p->applied[part->segment];
    msdu__pass_run(p, &pass);
}

static void apply_piece(msdu__pipeline *p, msdu__fragment *f, uint32_t slice, const piece *part)
{
    const msdu__run *run = &p->runs[slice];
    int32_t dtype = p->slicing.slices[slice].dtype;
    void *buf = offset_of(run->buf, dtype, part->at);
    if (run->is_state) {
        convert(p, MSDU_PASS_STORE, part, buf, dtype);
    } else if (p->is_accumulated && !f->round.is_exact) {
        msdu__recursion_args args = recursion_args(p);
        args.lr = f->is_void ? 0 : args.lr; /* there is no mean: a local step after all */
        msdu_pass data = {
            .kind = MSDU_PASS_MEET, .stage = MSDU_STAGE_LATE, .in = buf, .out = part->memory};
        recur(p, slice, &args, data, part);
    } else {
        correct_piece(p, f, slice, part);
    }
}

bool msdu__domain_commits_slice(const msdu__pipeline *p, const msdu__fragment *f)
{
    bool is_of_gradients = f->round.is_gradient || (p->is_accumulated && !f->round.is_exact);
    return p->settings.commit_tensor && is_of_gradients;
}

/* All ranks captured the same: that is the next anchor, and who has gone on from it stays there.
 * Anchor minus what was captured would lose bits that no difference can give back. */
static void keep_equal(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    int32_t dtype = p->slicing.slices[slice].dtype;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_PARAMETER);
        msdu_pass arrays = arrays_of(p, f, slice, &part);
        if (arrays.snapshot != NULL) {
            copy(p, arrays.anchor, arrays.snapshot, part.count * msdu__dtype_working_bytes(dtype),
                 true);
        } else {
            convert(p, MSDU_PASS_LOAD, &part, arrays.anchor, dtype);
        }
        at += part.count;
    }
    msdu__domain_clear(p, slice, true);
}

static bool is_kept(const msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    /* accumulated: a slice may be applied before the message has come */
    return !p->is_accumulated && !f->round.is_exact && !p->runs[slice].is_state &&
           msdu__message_is_equal(p, f);
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
    if (is_kept(p, f, slice)) {
        keep_equal(p, f, slice);
        return;
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
    msdu__recursion_args args = recursion_args(p);
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        sum_alone(p, slice, &part);
        msdu_pass data = {.kind = MSDU_PASS_LOCAL, .out = part.memory};
        recur(p, slice, &args, data, &part);
        at += part.count;
    }
}

void msdu__domain_forget(msdu__pipeline *p, uint32_t slice)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    void *drift = p->runs[slice].recursion.drift;
    if (drift != NULL) {
        fill(p, drift, 0, cut->count * msdu__dtype_working_bytes(cut->dtype), true);
    }
}

void msdu__domain_clear(msdu__pipeline *p, uint32_t slice, bool is_late)
{
    msdu__run *run = &p->runs[slice];
    if (run->has_residual) {
        fill(p, run->residual, 0, p->slicing.slices[slice].count * sizeof(float), is_late);
        fill(p, run->owner_residual, 0, run->share_count[p->rank] * sizeof(float), is_late);
        run->has_residual = false;
    }
}

void msdu__domain_keep(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    run->had_residual = run->has_residual;
    if (run->kept != NULL && run->has_residual) {
        copy(p, run->kept, run->residual, p->slicing.slices[slice].count * sizeof(float), false);
        copy(p, run->owner_kept, run->owner_residual, run->share_count[p->rank] * sizeof(float),
             false);
    }
}

static void restore_residuals(msdu__pipeline *p, uint32_t slice)
{
    msdu__run *run = &p->runs[slice];
    if (!run->had_residual) {
        msdu__domain_clear(p, slice, true);
        return;
    }
    copy(p, run->residual, run->kept, p->slicing.slices[slice].count * sizeof(float), true);
    copy(p, run->owner_residual, run->owner_kept, run->share_count[p->rank] * sizeof(float), true);
    run->has_residual = true;
}

/* All bits set is a NaN in every type. */
void msdu__domain_skip(msdu__pipeline *p, const msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    bool is_absent = msdu__voice_of(f)->is_absent;
    for (uint32_t i = 0; i < p->slicing.slices[slice].segments && !is_absent; i++) {
        piece part = piece_at(p, slice, i, at, MSDU_GRADIENT);
        fill(p, part.memory, 0xff, part.count * msdu__dtype_bytes(p->slicing.slices[slice].dtype),
             true);
        at += part.count;
    }
    restore_residuals(p, slice);
}

static void add(msdu__pipeline *p, float *x, const float *y, uint64_t count, double factor)
{
    msdu__pass pass = {
        .data = {.kind = MSDU_PASS_ADD, .count = count, .factor = factor, .in = y, .out = x}};
    msdu__pass_run(p, &pass);
}

void msdu__domain_flush(msdu__pipeline *p, float *x, uint32_t slice, double factor, double own)
{
    const msdu__run *run = &p->runs[slice];
    if (!run->has_residual) {
        return;
    }
    add(p, x, run->residual, p->slicing.slices[slice].count, factor);
    /* the mean's own residual, as this rank's contribution to a sum over all */
    add(p, x + run->share_start[p->rank], run->owner_residual, run->share_count[p->rank],
        factor * own);
    msdu__domain_clear(p, slice, false);
}

void msdu__domain_reset(msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        msdu__pass pass = {.data = {.kind = MSDU_PASS_FILL,
                                    .announcement = msdu__announcement(i, MSDU_PARAMETER),
                                    .count = t->count * msdu__dtype_bytes(t->dtype),
                                    .out = t->parameter}};
        if (t->role == MSDU_ROLE_STATE) {
            msdu__pass_run(p, &pass);
        }
    }
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        atomic_fetch_sub(&p->tensors[i].busy[1], 1);
    }
    msdu__pipeline_wake(p);
}

void msdu__domain_anchor(msdu__pipeline *p)
{
    for (uint32_t slice = p->slice_bound; slice-- > 0;) {
        uint64_t at = 0;
        int32_t dtype = p->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
            piece part = piece_at(p, slice, i, at, MSDU_PARAMETER);
            convert(p, MSDU_PASS_LOAD, &part, offset_of(p->runs[slice].anchor, dtype, at), dtype);
            at += part.count;
        }
        /* what gradient rounds left in the error feedback is in gradient units: of no use here */
        msdu__domain_clear(p, slice, false);
    }
}

void msdu__domain_rollback(msdu__pipeline *p)
{
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        uint64_t at = 0;
        int32_t dtype = p->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < p->slicing.slices[slice].segments; i++) {
            piece part = piece_at(p, slice, i, at, MSDU_PARAMETER);
            convert(p, MSDU_PASS_STORE, &part, offset_of(p->runs[slice].anchor, dtype, at), dtype);
            at += part.count;
        }
    }
}
