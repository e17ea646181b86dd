/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a context needs is sliced, sized and allocated here, before the first step. */
#include "startup.h"

#include <stdlib.h>
#include <string.h>

#define EXCHANGE_ALIGN UINT64_C(512) /* a transfer between devices is whole sectors */

/* --- domain --- */

static bool has_all(const msdu__pipeline *p, bool is_gradient)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const msdu__tensor *t = &p->tensors[i];
        if (t->role == MSDU_ROLE_MODEL && (is_gradient ? t->gradient : t->parameter) == NULL) {
            return false;
        }
    }
    return true;
}

static bool has_model(const msdu__pipeline *p)
{
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].role == MSDU_ROLE_MODEL) {
            return true;
        }
    }
    return false;
}

static msdu_status choose_domain(msdu__pipeline *p)
{
    if (!has_model(p)) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: there is no model tensor, only state or buffers", p->rank);
    }
    bool has_gradients = has_all(p, true);
    bool has_parameters = has_all(p, false);
    int64_t domain = p->settings.domain;
    bool wants_gradient = domain == MSDU__DOMAIN_GRADIENT || domain == MSDU__DOMAIN_ACCUMULATED;
    if ((wants_gradient && !has_gradients) ||
        (domain == MSDU__DOMAIN_PARAMETER && !has_parameters) ||
        (domain == MSDU__DOMAIN_AUTO && !has_gradients && !has_parameters)) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: setting domain needs a %s pointer in every model tensor",
                          p->rank, wants_gradient ? "gradient" : "parameter");
    }
    p->is_accumulated = domain == MSDU__DOMAIN_ACCUMULATED;
    p->is_gradient =
        domain == MSDU__DOMAIN_GRADIENT || (domain == MSDU__DOMAIN_AUTO && has_gradients);
    p->slices_are_whole = p->is_gradient || p->is_accumulated;
    p->is_local_entered = !p->slices_are_whole;
    p->interval_args.can_go_local =
        domain != MSDU__DOMAIN_GRADIENT && (p->is_accumulated || has_parameters);
    bool is_streamed = p->settings.overlap == MSDU__OVERLAP_STREAMED && !p->is_accumulated;
    p->fragment_count = is_streamed ? (uint32_t)p->settings.fragments : 1;
    return MSDU_OK;
}

/* --- memory of slices --- */

/* Arenas: one block for each kind of working memory; a slice has the same offset in all. */
typedef struct arenas {
    char *buf;
    char *anchor;
    char *snapshot;
    char *momentum;
    char *residual;
    char *kept;
    char *drift;
    char *velocity;
    char *trace;
} arenas;

static bool take_arena(msdu__pipeline *p, bool is_needed, char **out)
{
    *out = is_needed ? msdu__memory_slices(p, p->slicing.arena_bytes) : NULL;
    return !is_needed || *out != NULL;
}

static bool uses_feedback(const msdu__pipeline *p)
{
    if (p->ranks == 1) {
        return false;
    }
    return p->settings.wire < 0 || msdu__wire_at((int)p->settings.wire)->has_feedback ||
           msdu__wire_at(msdu__interval_first_wire(&p->interval_args))->has_feedback;
}

/* A skipped round gives the error feedback back as it was before: a copy of it is needed. */
static bool keeps_feedback(const msdu__pipeline *p)
{
    return uses_feedback(p) && p->is_gradient && p->settings.check_finite == MSDU__CHECK_SKIP;
}

static bool may_be_local(const msdu__pipeline *p)
{
    return !p->is_accumulated && p->interval_args.can_go_local;
}

static msdu_status take_arenas(msdu__pipeline *p, arenas *a)
{
    bool is_local = may_be_local(p);
    bool needs_snapshot =
        is_local && p->settings.delay_steps > 0 && (p->chain.needs & MSDU__NEEDS_SNAPSHOT) != 0;
    bool needs_momentum = is_local && (p->chain.needs & MSDU__NEEDS_MOMENTUM) != 0;
    /* gradients only: buf is for fused and 16-bit slices, the rest of it is never touched */
    if (!take_arena(p, true, &a->buf) || !take_arena(p, is_local, &a->anchor) ||
        !take_arena(p, needs_snapshot, &a->snapshot) ||
        !take_arena(p, needs_momentum, &a->momentum) ||
        !take_arena(p, uses_feedback(p), &a->residual) ||
        !take_arena(p, keeps_feedback(p), &a->kept) ||
        !take_arena(p, p->is_accumulated, &a->drift) ||
        !take_arena(p, p->is_accumulated, &a->velocity) ||
        !take_arena(p, p->is_accumulated, &a->trace)) {
        return msdu__memory_none(p, "copies of the model");
    }
    return MSDU_OK;
}

static void *in_arena(char *arena, const msdu__slice *cut)
{
    return arena == NULL ? NULL : arena + cut->arena;
}

static void place_run(msdu__pipeline *p, uint32_t slice, const arenas *a)
{
    const msdu__slice *cut = &p->slicing.slices[slice];
    msdu__run *run = &p->runs[slice];
    run->is_staged = cut->segments > 1 || msdu__dtype_is_half(cut->dtype);
    run->is_state = slice >= p->slice_bound;
    run->scale = 1;
    run->buf = in_arena(a->buf, cut);
    run->anchor = in_arena(a->anchor, cut);
    run->snapshot = in_arena(a->snapshot, cut);
    run->momentum = in_arena(a->momentum, cut);
    run->recursion.drift = in_arena(a->drift, cut);
    run->recursion.velocity = in_arena(a->velocity, cut);
    run->recursion.trace = in_arena(a->trace, cut);
    if (cut->dtype != MSDU_FLOAT64 && !run->is_state) {
        run->residual = in_arena(a->residual, cut);
        run->kept = in_arena(a->kept, cut);
    }
}

/* Shares of every slice by owner, and the second residual, which covers the own shares only. */
static msdu_status place_shares(msdu__pipeline *p)
{
    uint64_t ranks = (uint64_t)p->ranks;
    uint64_t *table = msdu__memory_block(p, 2 * ranks * p->slicing.slice_count * sizeof(uint64_t));
    if (table == NULL) {
        return msdu__memory_none(p, "shares");
    }
    uint64_t own = 0;
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        uint64_t *count = table + 2 * ranks * slice;
        msdu__exchange_shares(p->slicing.slices[slice].count, (uint32_t)p->settings.wire_block,
                              p->ranks, count, count + ranks);
        p->runs[slice].share_count = count;
        p->runs[slice].share_start = count + ranks;
        own += count[p->rank];
    }
    float *residual = uses_feedback(p) ? msdu__memory_slices(p, own * sizeof(float)) : NULL;
    float *kept = keeps_feedback(p) ? msdu__memory_slices(p, own * sizeof(float)) : NULL;
    if ((uses_feedback(p) && residual == NULL) || (keeps_feedback(p) && kept == NULL)) {
        return msdu__memory_none(p, "error feedback");
    }
    own = 0;
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        msdu__run *run = &p->runs[slice];
        if (run->residual != NULL) {
            run->owner_residual = residual + own;
            run->owner_kept = kept == NULL ? NULL : kept + own;
            own += run->share_count[p->rank];
        }
    }
    return MSDU_OK;
}

/* Of an encoded slice, or of what its owners receive; in any format, for a state may bring one that
 * is not this context's. */
static uint64_t encoded_bytes(const msdu__pipeline *p, const msdu__slice *cut)
{
    uint64_t most = 0;
    for (int wire = MSDU__WIRE_FLOAT32 + 1; wire < MSDU__WIRE_COUNT; wire++) {
        uint64_t bytes = msdu__exchange_bytes(msdu__wire_at(wire), cut->count,
                                              (uint32_t)p->settings.wire_block, p->ranks);
        most = bytes > most ? bytes : most;
    }
    return most; /* float32 is reduced in place */
}

static msdu_status place_slots(msdu__pipeline *p)
{
    uint64_t encoded = 0;
    uint64_t share = 0;
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        uint64_t bytes = encoded_bytes(p, &p->slicing.slices[slice]);
        encoded = bytes > encoded ? bytes : encoded;
        uint64_t own = p->runs[slice].share_count[0];
        share = own > share ? own : share;
    }
    uint32_t window = p->may_cut ? p->tuner_args.window_most : p->tuning.window;
    char *exchange = NULL;
    encoded = (encoded + EXCHANGE_ALIGN - 1) / EXCHANGE_ALIGN * EXCHANGE_ALIGN;
    msdu_status status = msdu__memory_exchange(p, 2 * window * encoded, &exchange);
    if (status != MSDU_OK) {
        return status;
    }
    for (uint32_t i = 0; i < window; i++) {
        msdu__slot *slot = &p->slots[i];
        slot->send = (uint8_t *)exchange + 2 * i * encoded;
        slot->received = slot->send + encoded;
        slot->sum = msdu__memory_slices(p, share * sizeof(float));
        slot->share_bytes = msdu__memory_block(p, (uint64_t)p->ranks * sizeof(uint64_t));
        if (slot->sum == NULL || slot->share_bytes == NULL) {
            return msdu__memory_none(p, "slices in flight");
        }
    }
    return MSDU_OK;
}

static msdu_status place_fragments(msdu__pipeline *p)
{
    uint32_t slices = p->slicing.slice_count;
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        msdu__fragment *f = &p->fragments[i];
        uint32_t *lists = msdu__memory_block(p, 3ULL * slices * sizeof(uint32_t));
        f->control = msdu__memory_block(p, (uint64_t)p->ranks * sizeof(msdu__control));
        if (lists == NULL || f->control == NULL) {
            return msdu__memory_none(p, "fragments");
        }
        f->members = lists;
        f->plan = lists + slices;
        f->plan_next = lists + 2ULL * slices;
    }
    p->control_shares = msdu__memory_block(p, (uint64_t)p->ranks * sizeof(uint64_t));
    p->plan_items = msdu__memory_block(p, slices * sizeof(*p->plan_items));
    p->plan_marks = msdu__memory_block(p, slices * sizeof(*p->plan_marks));
    p->plan_ends = msdu__memory_block(p, slices * sizeof(*p->plan_ends));
    uint64_t ring = 2;
    while (ring < slices) {
        ring *= 2;
    }
    p->queue = msdu__memory_block(p, ring * sizeof(uint32_t));
    p->queue_mask = ring - 1;
    if (p->control_shares == NULL || p->plan_items == NULL || p->plan_marks == NULL ||
        p->plan_ends == NULL || p->queue == NULL) {
        return msdu__memory_none(p, "queues");
    }
    for (int32_t i = 0; i < p->ranks; i++) {
        p->control_shares[i] = sizeof(msdu__control);
    }
    return MSDU_OK;
}

static msdu_status place_runs(msdu__pipeline *p)
{
    arenas a = {0};
    p->runs = msdu__memory_block(p, p->slicing.slice_count * sizeof(msdu__run));
    if (p->runs == NULL) {
        return msdu__memory_none(p, "slices");
    }
    msdu_status status = take_arenas(p, &a);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__found *found = msdu__memory_shared(p, p->slicing.slice_count * sizeof(*found));
    p->captured = msdu__memory_shared(p, p->slicing.segment_count * sizeof(*p->captured));
    p->applied = msdu__memory_shared(p, p->slicing.segment_count * sizeof(*p->applied));
    if (found == NULL || p->captured == NULL || p->applied == NULL) {
        return msdu__memory_none(p, "statistics");
    }
    for (uint32_t slice = 0; slice < p->slicing.slice_count; slice++) {
        atomic_init(&p->runs[slice].missing, 0);
        p->runs[slice].found = found + slice;
        place_run(p, slice, &a);
    }
    return place_shares(p);
}

static void count_bytes(msdu__pipeline *p)
{
    uint64_t ranks = (uint64_t)p->ranks;
    uint64_t bytes = 0;
    for (uint32_t slice = 0; slice < p->slice_bound; slice++) {
        const msdu__slice *cut = &p->slicing.slices[slice];
        p->element_count += cut->count;
        bytes += cut->count * msdu__dtype_bytes(cut->dtype);
    }
    p->plain_bytes = 2 * bytes * (ranks - 1) / ranks;
}

msdu_status msdu__start_tables(msdu__pipeline *p)
{
    msdu_status (*const steps[])(msdu__pipeline *) = {
        msdu__cut_tensors, msdu__cut_list, place_runs, place_slots, place_fragments,
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        msdu_status status = steps[i](p);
        if (status != MSDU_OK) {
            return status;
        }
    }
    msdu__round_orders(p);
    msdu__derive_wires(p);
    return MSDU_OK;
}

/* Room for every slice of the finest cut once a step, for the step after, and the owner's
 * commands: it stays, whatever the cut. */
static msdu_status place_events(msdu__pipeline *p)
{
    uint32_t slices = 0;
    msdu_status status = msdu__cut_bound(p, &slices);
    if (status == MSDU_OK && !msdu__ready_init(&p->ready, 2 * slices + 4 * p->fragment_count + 8)) {
        status = msdu__memory_none(p, "events");
    }
    return status;
}

msdu_status msdu__start_build(msdu__pipeline *p)
{
    msdu_status status = choose_domain(p);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__tune_prepare(p);
    status = place_events(p);
    if (status == MSDU_OK) {
        status = msdu__start_tables(p);
    }
    if (status != MSDU_OK) {
        return status;
    }
    for (uint32_t i = 0; i < p->fragment_count; i++) {
        atomic_init(&p->fragments[i].done, 0);
    }
    count_bytes(p);
    return MSDU_OK;
}

const char **msdu__start_names(const msdu__pipeline *p)
{
    const char **names = calloc(p->slicing.slice_count, sizeof(*names));
    for (uint32_t i = 0; names != NULL && i < p->slicing.slice_count; i++) {
        const msdu__slice *cut = &p->slicing.slices[i];
        names[i] = p->tensors[p->slicing.segments[cut->first_segment].tensor].name;
    }
    return names;
}
