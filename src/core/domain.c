/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a slice means in each domain: what is captured, where it is reduced, what is done with the
 * mean. Kernels only (kernels.h); runs on the communication thread.
 */
#include "domain.h"

#include "control.h"
#include "kernels.h"

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
static piece piece_at(const msdu__engine *e, uint32_t slice, uint32_t index, uint64_t at,
                      msdu_what what)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    const msdu__segment *segment = &e->model->slicing.segments[cut->first_segment + index];
    const msdu__tensor *tensor = &e->model->tensors[segment->tensor];
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
static msdu_what memory_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    bool is_gradient = f->round.is_gradient || (e->job->is_accumulated && !f->round.is_exact);
    return is_gradient && !e->runs[slice].is_state ? MSDU_GRADIENT : MSDU_PARAMETER;
}

static void *offset_of(void *base, int32_t dtype, uint64_t elements)
{
    return base == NULL ? NULL : (char *)base + elements * msdu__dtype_working_bytes(dtype);
}

/* A kernel over a part. */
static msdu_launch over(const msdu__engine *e, msdu_stage stage, uint32_t slice, const piece *part)
{
    msdu_launch at = msdu__kernels_at(e, stage, e->model->slicing.slices[slice].dtype, part->count);
    at.announcement = part->announcement;
    return at;
}

/* working <- a part */
static void load(msdu__engine *e, void *working, uint32_t slice, const piece *part)
{
    msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, part);
    MSDU__KERNEL(e, load, &at, working, part->memory, NULL);
}

/* a part <- working */
static void store(msdu__engine *e, const void *working, uint32_t slice, const piece *part)
{
    msdu_launch at = over(e, MSDU_STAGE_LATE, slice, part);
    MSDU__KERNEL(e, store, &at, part->memory, working);
}

static void fill(msdu__engine *e, void *out, int byte, uint64_t bytes, msdu_stage stage)
{
    msdu_launch at = msdu__kernels_at(e, stage, MSDU_FLOAT32, bytes);
    MSDU__KERNEL(e, fill, &at, out, byte);
}

static void copy(msdu__engine *e, void *out, const void *in, uint64_t bytes, msdu_stage stage)
{
    msdu_launch at = msdu__kernels_at(e, stage, MSDU_FLOAT32, bytes);
    MSDU__KERNEL(e, copy, &at, out, in);
}

void *msdu__domain_buffer(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    bool is_in_place = !e->runs[slice].is_staged && !f->contribution.is_idle;
    if (f->round.is_gradient && is_in_place) {
        return piece_at(e, slice, 0, 0, MSDU_GRADIENT).memory;
    }
    return e->runs[slice].buf;
}

/* Memory of a slice's part. A mean that is applied at once needs no snapshot: the parameters still
 * are what was captured. */
static msdu_arrays arrays_of(const msdu__engine *e, const msdu__fragment *f, uint32_t slice,
                             const piece *part)
{
    const msdu__run *run = &e->runs[slice];
    void *snapshot = f->round.delay_steps > 0 ? run->snapshot : NULL;
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    return (msdu_arrays){
        .param = part->memory,
        .anchor = offset_of(run->anchor, dtype, part->at),
        .update = offset_of(run->buf, dtype, part->at),
        .momentum = offset_of(run->momentum, dtype, part->at),
        .snapshot = offset_of(snapshot, dtype, part->at),
    };
}

static msdu_recursion recursion_of(msdu__engine *e, double lr)
{
    const msdu__recursion_args args = {
        .lr = lr,
        .momentum = e->job->settings.momentum,
        .factor = msdu__flag_get(&e->hand->reports.is_first_call)
                      ? 1.0
                      : 1.0 - e->job->settings.dampening,
        .weight_decay = e->job->settings.weight_decay,
        .is_nesterov = e->job->settings.nesterov != 0,
    };
    return msdu__recursion_numbers(&args);
}

static msdu_recursion_state state_of(const msdu__engine *e, uint32_t slice, const piece *part)
{
    const msdu_recursion_state *whole = &e->runs[slice].recursion;
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    return (msdu_recursion_state){offset_of(whole->drift, dtype, part->at),
                                  offset_of(whole->velocity, dtype, part->at),
                                  offset_of(whole->trace, dtype, part->at)};
}

/* Where sums are asked for (setting reduce), a local gradient stands for what ranks with the same
 * one would have summed up. The recursion is linear, so it may run in units of that. */
static void sum_alone(msdu__engine *e, uint32_t slice, const piece *part)
{
    msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, part);
    if (e->job->settings.reduce_sum) {
        MSDU__KERNEL(e, scale, &at, part->memory, e->job->ranks, NULL);
    }
}

/* Gradients that do not count are not even read; without input a shadowed optimizer stands still.
 */
static bool is_unread(const msdu__engine *e, const msdu__fragment *f)
{
    bool is_shadow = e->job->is_accumulated && !f->round.is_exact;
    return (f->round.is_gradient && f->contribution.weight == 0) ||
           (is_shadow && f->contribution.is_idle);
}

/* Rounds by the clock: own progress since the last contribution, which the shift keeps as well. */
static void capture_progress(msdu__engine *e, const msdu__fragment *f, uint32_t slice,
                             const piece *part, msdu_sums *sums)
{
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, part);
    msdu_arrays arrays = arrays_of(e, f, slice, part);
    void *shift = offset_of(e->runs[slice].snapshot, dtype, part->at);
    MSDU__KERNEL(e, shift, &at, arrays.param, shift);
    MSDU__KERNEL(e, capture, &at, &arrays, sums, &e->runs[slice].found->hash);
    copy(e, shift, arrays.update, part->count * msdu__dtype_working_bytes(dtype), MSDU_STAGE_EARLY);
}

static void capture_piece(msdu__engine *e, const msdu__fragment *f, uint32_t slice,
                          const piece *part)
{
    msdu__run *run = &e->runs[slice];
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    void *buf = offset_of(run->buf, dtype, part->at);
    msdu_sums *sums = f->round.is_exact ? NULL : &e->captured[part->segment];
    msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, part);
    if (e->ticks.is_on && !f->round.is_exact) {
        capture_progress(e, f, slice, part, run->is_state ? NULL : sums);
    } else if (run->is_state) {
        load(e, buf, slice, part);
    } else if (is_unread(e, f)) {
        return;
    } else if (f->round.is_gradient && run->is_staged) {
        MSDU__KERNEL(e, load, &at, buf, part->memory, sums);
    } else if (f->round.is_gradient) {
        MSDU__KERNEL(e, norm, &at, part->memory, sums);
    } else if (e->job->is_accumulated && !f->round.is_exact) {
        msdu_recursion recursion = recursion_of(e, msdu__number_get(&e->hand->reports.lr));
        msdu_recursion_state state = state_of(e, slice, part);
        sum_alone(e, slice, part);
        MSDU__KERNEL(e, drift, &at, &recursion, &state, part->memory, buf, sums);
    } else {
        msdu_arrays arrays = arrays_of(e, f, slice, part);
        MSDU__KERNEL(e, capture, &at, &arrays, sums, &run->found->hash);
    }
}

/* Type and bytes of what is reduced. */
static int32_t working_dtype(const msdu__engine *e, uint32_t slice)
{
    return e->model->slicing.slices[slice].dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
}

/* sums: NULL, or where the sum of squares afterwards goes */
static void scale(msdu__engine *e, const msdu__fragment *f, uint32_t slice, msdu_stage stage,
                  double factor, msdu_sums *sums)
{
    void *x = msdu__domain_buffer(e, f, slice);
    msdu_launch at =
        msdu__kernels_at(e, stage, working_dtype(e, slice), e->model->slicing.slices[slice].count);
    if (factor == 1) {
        MSDU__KERNEL(e, norm, &at, x, sums);
    } else {
        MSDU__KERNEL(e, scale, &at, x, factor, sums);
    }
}

static void weigh(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    if (f->contribution.weight == 0 || f->contribution.is_missed) {
        fill(e, msdu__domain_buffer(e, f, slice), 0,
             cut->count * msdu__dtype_working_bytes(cut->dtype), MSDU_STAGE_EARLY);
    } else {
        double share = 1.0 / (1.0 + f->contribution.stale);
        scale(e, f, slice, MSDU_STAGE_EARLY, f->contribution.weight * share, NULL);
    }
}

void msdu__domain_capture(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    const msdu__contribution *own = &f->contribution;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments && !own->is_missed; i++) {
        piece part = piece_at(e, slice, i, at, memory_of(e, f, slice));
        capture_piece(e, f, slice, &part);
        at += part.count;
    }
    if (own->weight != 1 || own->stale != 0 || own->is_missed) {
        weigh(e, f, slice);
    }
    if (e->runs[slice].has_residual) {
        e->runs[slice].found->hash = 0; /* a part of the mean is still to come */
    } else if (e->runs[slice].is_state) {
        e->runs[slice].found->hash = 1; /* averaged as it is */
    }
}

/* In slice order and not as slices became ready, so that a run repeated sums the same bits. */
void msdu__domain_sums(msdu__engine *e, msdu__fragment *f)
{
    f->sums = (msdu__sums){0};
    f->bad_tensor = 0;
    for (uint32_t k = 0; k < f->slice_count; k++) {
        const msdu__slice *cut = &e->model->slicing.slices[f->members[k]];
        for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
            f->sums.update_sq += e->captured[i].update_sq;
            f->sums.weight_sq += e->captured[i].weight_sq;
            if (e->captured[i].bad != 0 && f->bad_tensor == 0) {
                f->bad_tensor = e->model->slicing.segments[i].tensor + 1;
            }
        }
    }
}

void msdu__domain_forget_sums(msdu__engine *e, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    memset(&e->captured[cut->first_segment], 0, cut->segments * sizeof(*e->captured));
    memset(&e->applied[cut->first_segment], 0, cut->segments * sizeof(*e->applied));
    memset(e->runs[slice].found, 0, sizeof(*e->runs[slice].found));
}

static void store_gradients(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    uint64_t at = 0;
    for (uint32_t i = 0; i < cut->segments && !f->contribution.is_idle; i++) {
        piece part = piece_at(e, slice, i, at, MSDU_GRADIENT);
        store(e, offset_of(e->runs[slice].buf, cut->dtype, at), slice, &part);
        at += part.count;
    }
}

/* The mean over one rank, on the host: what was read when it was captured need not be read again,
 * and no sum of finite values can overflow. */
static bool is_as_captured(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    return e->job->ranks == 1 && f->round.is_gradient && !e->runs[slice].is_compressed &&
           f->contribution.weight == 1 && e->model->tensors[0].place == MSDU_PLACE_HOST;
}

static void take_captured(const msdu__engine *e, uint32_t slice, msdu_sums *out)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    *out = (msdu_sums){.update_sq = 0};
    for (uint32_t i = cut->first_segment; i < cut->first_segment + cut->segments; i++) {
        out->update_sq += e->captured[i].update_sq;
    }
}

void msdu__domain_reduced(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    bool is_sum = f->round.is_gradient && e->job->settings.reduce_sum;
    bool needs_norm = f->round.is_gradient || e->job->is_accumulated || e->ticks.is_on ||
                      (e->job->chain.needs & MSDU__NEEDS_NORM) != 0;
    double factor = run->is_compressed || is_sum ? 1 : 1.0 / e->job->ranks;
    msdu_sums *sums = needs_norm && !run->is_state ? &run->found->mean : NULL;
    if (sums != NULL && is_as_captured(e, f, slice)) {
        take_captured(e, slice, sums);
    } else if (factor != 1 || sums != NULL) {
        /* a bad value is known from the capture already, with its rank */
        scale(e, f, slice, MSDU_STAGE_LATE, factor, sums);
    }
    if (f->round.is_gradient && run->is_staged) {
        store_gradients(e, f, slice);
    }
}

/* The weights are known: of the sum, divided by the number of ranks, to the mean. */
static void rescale(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    scale(e, f, slice, MSDU_STAGE_LATE, f->scale, NULL);
    if (f->round.is_gradient && e->runs[slice].is_staged) {
        store_gradients(e, f, slice);
    }
}

static void correct_piece(msdu__engine *e, msdu__fragment *f, uint32_t slice, const piece *part)
{
    msdu_launch at = over(e, MSDU_STAGE_LATE, slice, part);
    msdu_arrays arrays = arrays_of(e, f, slice, part);
    msdu_rules rules = msdu__chain_numbers(f->round.is_exact ? &e->job->mean_chain : &e->job->chain,
                                           &e->correct_args, arrays.snapshot == NULL);
    MSDU__KERNEL(e, apply, &at, &arrays, &rules,
                 f->round.is_exact ? NULL : &e->applied[part->segment]);
}

static void apply_piece(msdu__engine *e, msdu__fragment *f, uint32_t slice, const piece *part)
{
    const msdu__run *run = &e->runs[slice];
    void *buf = offset_of(run->buf, e->model->slicing.slices[slice].dtype, part->at);
    if (run->is_state) {
        store(e, buf, slice, part);
        if (e->ticks.is_on) {
            load(e, offset_of(run->anchor, e->model->slicing.slices[slice].dtype, part->at), slice,
                 part);
        }
    } else if (e->job->is_accumulated && !f->round.is_exact) {
        /* without a mean: a local step after all */
        msdu_recursion recursion =
            recursion_of(e, f->is_void ? 0 : msdu__number_get(&e->hand->reports.lr));
        msdu_recursion_state state = state_of(e, slice, part);
        msdu_launch at = over(e, MSDU_STAGE_LATE, slice, part);
        MSDU__KERNEL(e, meet, &at, &recursion, &state, buf, part->memory);
    } else {
        correct_piece(e, f, slice, part);
    }
}

bool msdu__domain_commits_slice(const msdu__engine *e, const msdu__fragment *f)
{
    bool is_of_gradients = f->round.is_gradient || (e->job->is_accumulated && !f->round.is_exact);
    return e->job->settings.commit_tensor && is_of_gradients;
}

/* All ranks captured the same: that is the next anchor, and who has gone on from it stays there.
 * Anchor minus what was captured would lose bits that no difference can give back. */
static void keep_equal(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
        piece part = piece_at(e, slice, i, at, MSDU_PARAMETER);
        msdu_arrays arrays = arrays_of(e, f, slice, &part);
        if (arrays.snapshot != NULL) {
            copy(e, arrays.anchor, arrays.snapshot, part.count * msdu__dtype_working_bytes(dtype),
                 MSDU_STAGE_LATE);
        } else {
            load(e, arrays.anchor, slice, &part);
        }
        at += part.count;
    }
    msdu__domain_clear(e, slice, true);
}

static bool is_kept(const msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    /* accumulated: a slice may be applied before the message has come */
    return !e->job->is_accumulated && !f->round.is_exact && !e->runs[slice].is_state &&
           msdu__message_is_equal(e, f);
}

/* Rounds by the clock: the trainer has its parameters, so only anchor and shift take the mean. */
static void follow(msdu__engine *e, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    msdu_launch at = msdu__kernels_at(e, MSDU_STAGE_LATE, working_dtype(e, slice),
                                      e->model->slicing.slices[slice].count);
    MSDU__KERNEL(e, follow, &at, run->anchor, run->snapshot, run->buf);
}

void msdu__domain_shift(msdu__engine *e, uint32_t slice)
{
    uint64_t first = 0;
    int32_t dtype = e->model->slicing.slices[slice].dtype;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
        piece part = piece_at(e, slice, i, first, MSDU_PARAMETER);
        msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, &part);
        void *shift = offset_of(e->runs[slice].snapshot, dtype, first);
        MSDU__KERNEL(e, shift, &at, part.memory, shift);
        fill(e, shift, 0, part.count * msdu__dtype_working_bytes(dtype), MSDU_STAGE_EARLY);
        first += part.count;
    }
}

void msdu__domain_apply(msdu__engine *e, msdu__fragment *f, uint32_t slice)
{
    bool is_void = f->is_void && (f->round.is_gradient || !e->job->is_accumulated);
    bool is_unmoved = e->job->is_accumulated && !f->round.is_exact && f->contribution.is_idle;
    e->runs[slice].scale = f->is_void ? e->runs[slice].scale : f->scale;
    if (f->scale != 1) {
        rescale(e, f, slice);
    }
    if (f->round.is_gradient || is_void || is_unmoved) {
        return; /* gradients hold the mean already */
    }
    if (e->ticks.is_on && !f->round.is_exact) {
        follow(e, slice);
        return;
    }
    if (is_kept(e, f, slice)) {
        keep_equal(e, f, slice);
        return;
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
        piece part = piece_at(e, slice, i, at, memory_of(e, f, slice));
        apply_piece(e, f, slice, &part);
        at += part.count;
    }
}

void msdu__domain_local(msdu__engine *e, uint32_t slice)
{
    if (msdu__flag_get(&e->hand->reports.is_idle)) {
        return;
    }
    msdu_recursion recursion = recursion_of(e, msdu__number_get(&e->hand->reports.lr));
    uint64_t first = 0;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
        piece part = piece_at(e, slice, i, first, MSDU_GRADIENT);
        msdu_recursion_state state = state_of(e, slice, &part);
        msdu_launch at = over(e, MSDU_STAGE_EARLY, slice, &part);
        sum_alone(e, slice, &part);
        MSDU__KERNEL(e, local, &at, &recursion, &state, part.memory);
        first += part.count;
    }
}

void msdu__domain_forget(msdu__engine *e, uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    void *drift = e->runs[slice].recursion.drift;
    if (drift != NULL) {
        fill(e, drift, 0, cut->count * msdu__dtype_working_bytes(cut->dtype), MSDU_STAGE_LATE);
    }
}

void msdu__domain_clear(msdu__engine *e, uint32_t slice, bool is_late)
{
    msdu__run *run = &e->runs[slice];
    msdu_stage stage = is_late ? MSDU_STAGE_LATE : MSDU_STAGE_EARLY;
    if (run->has_residual) {
        fill(e, run->residual, 0, e->model->slicing.slices[slice].count * sizeof(float), stage);
        fill(e, run->owner_residual, 0, run->share_count[msdu__outer_rank(e)] * sizeof(float),
             stage);
        run->has_residual = false;
    }
}

void msdu__domain_keep(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    run->had_residual = run->has_residual;
    if (run->kept != NULL && run->has_residual) {
        copy(e, run->kept, run->residual, e->model->slicing.slices[slice].count * sizeof(float),
             MSDU_STAGE_EARLY);
        copy(e, run->owner_kept, run->owner_residual,
             run->share_count[msdu__outer_rank(e)] * sizeof(float), MSDU_STAGE_EARLY);
    }
}

void msdu__domain_restore(msdu__engine *e, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    if (!run->had_residual) {
        msdu__domain_clear(e, slice, true);
        return;
    }
    copy(e, run->residual, run->kept, e->model->slicing.slices[slice].count * sizeof(float),
         MSDU_STAGE_LATE);
    copy(e, run->owner_residual, run->owner_kept,
         run->share_count[msdu__outer_rank(e)] * sizeof(float), MSDU_STAGE_LATE);
    run->has_residual = true;
}

/* All bits set is a NaN in every type. */
void msdu__domain_skip(msdu__engine *e, const msdu__fragment *f, uint32_t slice)
{
    uint64_t at = 0;
    bool is_idle = f->contribution.is_idle;
    for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments && !is_idle; i++) {
        piece part = piece_at(e, slice, i, at, MSDU_GRADIENT);
        fill(e, part.memory, 0xff,
             part.count * msdu__dtype_bytes(e->model->slicing.slices[slice].dtype),
             MSDU_STAGE_LATE);
        at += part.count;
    }
    msdu__domain_restore(e, slice);
}

static void add(msdu__engine *e, float *x, const float *y, uint64_t count, double factor)
{
    msdu_launch at = msdu__kernels_at(e, MSDU_STAGE_EARLY, MSDU_FLOAT32, count);
    MSDU__KERNEL(e, add, &at, x, y, factor);
}

void msdu__domain_flush(msdu__engine *e, float *x, uint32_t slice, double factor, double own)
{
    const msdu__run *run = &e->runs[slice];
    if (!run->has_residual) {
        return;
    }
    add(e, x, run->residual, e->model->slicing.slices[slice].count, factor);
    /* the mean's own residual, as this rank's contribution to a sum over all */
    add(e, x + run->share_start[msdu__outer_rank(e)], run->owner_residual,
        run->share_count[msdu__outer_rank(e)], factor * own);
    msdu__domain_clear(e, slice, false);
}

void msdu__domain_reset(msdu__engine *e)
{
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        const msdu__tensor *t = &e->model->tensors[i];
        msdu_launch at =
            msdu__kernels_at(e, MSDU_STAGE_EARLY, t->dtype, t->count * msdu__dtype_bytes(t->dtype));
        at.announcement = msdu__announcement(i, MSDU_PARAMETER);
        if (t->role == MSDU_ROLE_STATE) {
            MSDU__KERNEL(e, fill, &at, t->parameter, 0);
        }
    }
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        (void)msdu__cell_add(&e->hand->leases[i].free[1], 1);
    }
    msdu__handover_wake(e->hand);
}

void msdu__domain_anchor(msdu__engine *e)
{
    uint32_t bound = e->ticks.is_on ? e->model->slicing.slice_count : e->model->slice_bound;
    for (uint32_t slice = bound; slice-- > 0;) {
        uint64_t at = 0;
        int32_t dtype = e->model->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
            piece part = piece_at(e, slice, i, at, MSDU_PARAMETER);
            load(e, offset_of(e->runs[slice].anchor, dtype, at), slice, &part);
            at += part.count;
        }
        /* what gradient rounds left in the error feedback is in gradient units: of no use here */
        msdu__domain_clear(e, slice, false);
    }
}

void msdu__domain_rollback(msdu__engine *e)
{
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        uint64_t at = 0;
        int32_t dtype = e->model->slicing.slices[slice].dtype;
        for (uint32_t i = 0; i < e->model->slicing.slices[slice].segments; i++) {
            piece part = piece_at(e, slice, i, at, MSDU_PARAMETER);
            store(e, offset_of(e->runs[slice].anchor, dtype, at), slice, &part);
            at += part.count;
        }
        if (e->ticks.is_on) {
            fill(e, e->runs[slice].snapshot, 0, at * msdu__dtype_working_bytes(dtype),
                 MSDU_STAGE_LATE);
        }
    }
}
