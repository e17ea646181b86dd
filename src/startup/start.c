/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a context needs is sliced, sized and allocated here, before the first step. */
#include "startup.h"

#include "core/cut.h"
#include "core/dealer.h"
#include "core/levels.h"
#include "core/memory.h"
#include "core/pace.h"
#include "core/round.h"
#include "core/tick.h"
#include "core/tune.h"

#include <stdlib.h>
#include <string.h>

#define EXCHANGE_ALIGN UINT64_C(512) /* a transfer between devices is whole sectors */

/* --- domain --- */

static bool has_all(const msdu__engine *e, bool is_gradient)
{
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        const msdu__tensor *t = &e->model->tensors[i];
        if (t->role == MSDU_ROLE_MODEL && (is_gradient ? t->gradient : t->parameter) == NULL) {
            return false;
        }
    }
    return true;
}

static bool has_model(const msdu__engine *e)
{
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        if (e->model->tensors[i].role == MSDU_ROLE_MODEL) {
            return true;
        }
    }
    return false;
}

static msdu_status choose_domain(msdu__engine *e)
{
    if (!has_model(e)) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: there is no model tensor, only state or buffers", e->job->rank);
    }
    bool has_gradients = has_all(e, true);
    bool has_parameters = has_all(e, false);
    int64_t domain = e->job->settings.domain;
    bool wants_gradient = domain == MSDU__DOMAIN_GRADIENT || domain == MSDU__DOMAIN_ACCUMULATED;
    if ((wants_gradient && !has_gradients) ||
        (domain == MSDU__DOMAIN_PARAMETER && !has_parameters) ||
        (domain == MSDU__DOMAIN_AUTO && !has_gradients && !has_parameters)) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: setting domain needs a %s pointer in every model tensor",
                          e->job->rank, wants_gradient ? "gradient" : "parameter");
    }
    e->job->is_accumulated = domain == MSDU__DOMAIN_ACCUMULATED;
    e->job->starts_gradients =
        domain == MSDU__DOMAIN_GRADIENT || (domain == MSDU__DOMAIN_AUTO && has_gradients);
    e->slices_are_whole = e->job->starts_gradients || e->job->is_accumulated;
    e->job->starts_local = !e->slices_are_whole;
    e->job->interval_args.can_go_local =
        domain != MSDU__DOMAIN_GRADIENT && (e->job->is_accumulated || has_parameters);
    bool is_streamed =
        e->job->settings.overlap == MSDU__OVERLAP_STREAMED && !e->job->is_accumulated;
    e->model->fragment_count = is_streamed ? (uint32_t)e->job->settings.fragments : 1;
    return MSDU_OK;
}

/* --- memory of slices --- */

static bool uses_feedback(const msdu__engine *e)
{
    if (e->job->ranks == 1 && e->job->settings.ranks_least == 0) {
        return false;
    }
    return e->job->settings.wire < 0 || msdu__wire_at((int)e->job->settings.wire)->has_feedback ||
           msdu__wire_at(msdu__interval_first_wire(&e->job->interval_args))->has_feedback;
}

/* A round that is skipped, or in which the group changes, gives the error feedback back as it was
 * before: a copy of it is needed. */
static bool keeps_feedback(const msdu__engine *e)
{
    bool may_skip = e->job->starts_gradients && e->job->settings.check_finite == MSDU__CHECK_SKIP;
    return uses_feedback(e) && (may_skip || e->job->settings.ranks_least > 0);
}

static bool may_be_local(const msdu__engine *e)
{
    return !e->job->is_accumulated && e->job->interval_args.can_go_local;
}

/* One block for each kind of working memory, in which a slice has the same offset in all: where
 * pointers to it are in msdu__run. */
typedef struct arena {
    size_t field;
    bool is_needed;
    bool is_feedback; /* not of float64, buffers and state */
} arena;

static bool place_arena(msdu__engine *e, const arena *a)
{
    char *memory = msdu__memory_slices(e, e->model->slicing.arena_bytes);
    for (uint32_t slice = 0; memory != NULL && slice < e->model->slicing.slice_count; slice++) {
        const msdu__slice *cut = &e->model->slicing.slices[slice];
        msdu__run *run = &e->runs[slice];
        void *place = memory + cut->arena;
        if (!a->is_feedback || (cut->dtype != MSDU_FLOAT64 && !run->is_state)) {
            memcpy((char *)run + a->field, &place, sizeof(place));
        }
    }
    return memory != NULL;
}

static msdu_status place_arenas(msdu__engine *e)
{
    const uint32_t needs = e->job->chain.needs;
    const bool is_local = may_be_local(e);
    const bool is_shadow = e->job->is_accumulated;
    const bool is_late = e->job->settings.delay_steps > 0 && (needs & MSDU__NEEDS_SNAPSHOT) != 0;
    const arena arenas[] = {
        /* gradients only: buf is for fused and 16-bit slices, the rest of it is never touched */
        {offsetof(msdu__run, buf), true, false},
        {offsetof(msdu__run, anchor), is_local, false},
        {offsetof(msdu__run, snapshot), is_local && (is_late || e->job->may_clock), false},
        {offsetof(msdu__run, momentum), is_local && (needs & MSDU__NEEDS_MOMENTUM) != 0, false},
        {offsetof(msdu__run, residual), uses_feedback(e), true},
        {offsetof(msdu__run, kept), keeps_feedback(e), true},
        {offsetof(msdu__run, recursion.drift), is_shadow, false},
        {offsetof(msdu__run, recursion.velocity), is_shadow, false},
        {offsetof(msdu__run, recursion.trace), is_shadow, false},
    };
    for (size_t i = 0; i < sizeof(arenas) / sizeof(arenas[0]); i++) {
        if (arenas[i].is_needed && !place_arena(e, &arenas[i])) {
            return msdu__memory_none(e, "copies of the model");
        }
    }
    return MSDU_OK;
}

/* Owners of shares in the exchange between hosts. */
static uint64_t hosts_of(const msdu__engine *e)
{
    return e->job->levels.is_on ? (uint64_t)e->job->levels.hosts : (uint64_t)e->job->ranks;
}

static void place_share(const msdu__engine *e, uint32_t slice, int32_t owners, uint64_t *count)
{
    msdu__exchange_shares(e->model->slicing.slices[slice].count,
                          (uint32_t)e->job->settings.wire_block, owners, count, count + owners);
}

/* The largest own share that this slice may have. */
static uint64_t own_most(const msdu__engine *e, uint32_t slice)
{
    const msdu__run *run = &e->runs[slice];
    uint64_t flat = run->shares[0][e->job->rank];
    uint64_t outer = e->job->levels.is_on ? run->shares[1][e->job->levels.host] : 0;
    return flat > outer ? flat : outer;
}

/* Shares of every slice by owner, and the second residual, which covers the own shares only. */
static msdu_status place_shares(msdu__engine *e)
{
    uint64_t ranks = (uint64_t)e->job->ranks;
    uint64_t *table = msdu__memory_block(e, 2 * (ranks + hosts_of(e)) *
                                                e->model->slicing.slice_count * sizeof(uint64_t));
    if (table == NULL) {
        return msdu__memory_none(e, "shares");
    }
    uint64_t own = 0;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        uint64_t *count = table + 2 * (ranks + hosts_of(e)) * slice;
        place_share(e, slice, e->job->ranks, count);
        place_share(e, slice, (int32_t)hosts_of(e), count + 2 * ranks);
        e->runs[slice].shares[0] = count;
        e->runs[slice].shares[1] = count + 2 * ranks;
        own += own_most(e, slice);
    }
    msdu__levels_set(e, e->is_two_level);
    float *residual = uses_feedback(e) ? msdu__memory_slices(e, own * sizeof(float)) : NULL;
    float *kept = keeps_feedback(e) ? msdu__memory_slices(e, own * sizeof(float)) : NULL;
    if ((uses_feedback(e) && residual == NULL) || (keeps_feedback(e) && kept == NULL)) {
        return msdu__memory_none(e, "error feedback");
    }
    own = 0;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        msdu__run *run = &e->runs[slice];
        if (run->residual != NULL) {
            run->owner_residual = residual + own;
            run->owner_kept = kept == NULL ? NULL : kept + own;
            own += own_most(e, slice);
        }
    }
    return MSDU_OK;
}

/* Of an encoded slice, or of what its owners receive; in any format, for a state may bring one that
 * is not this context's. */
static uint64_t encoded_bytes(const msdu__engine *e, const msdu__slice *cut)
{
    uint64_t most = 0;
    for (int wire = MSDU__WIRE_FLOAT32 + 1; wire < MSDU__WIRE_COUNT; wire++) {
        uint32_t block = (uint32_t)e->job->settings.wire_block;
        uint64_t flat = msdu__exchange_bytes(msdu__wire_at(wire), cut->count, block, e->job->ranks);
        uint64_t outer =
            msdu__exchange_bytes(msdu__wire_at(wire), cut->count, block, (int32_t)hosts_of(e));
        most = flat > most ? flat : most;
        most = outer > most ? outer : most;
    }
    return most; /* float32 is reduced in place */
}

static msdu_status place_slots(msdu__engine *e)
{
    uint64_t encoded = 0;
    uint64_t share = 0;
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        uint64_t bytes = encoded_bytes(e, &e->model->slicing.slices[slice]);
        encoded = bytes > encoded ? bytes : encoded;
        const msdu__run *run = &e->runs[slice]; /* no rank owns more than rank 0 */
        uint64_t own =
            run->shares[0][0] > run->shares[1][0] ? run->shares[0][0] : run->shares[1][0];
        share = own > share ? own : share;
    }
    uint32_t window =
        e->model->recut.may_cut ? e->model->recut.args.window_most : e->model->tuning.window;
    char *exchange = NULL;
    encoded = (encoded + EXCHANGE_ALIGN - 1) / EXCHANGE_ALIGN * EXCHANGE_ALIGN;
    msdu_status status = msdu__memory_exchange(e, 2 * window * encoded, &exchange);
    if (status != MSDU_OK) {
        return status;
    }
    for (uint32_t i = 0; i < window; i++) {
        msdu__slot *slot = &e->slots[i];
        slot->send = (uint8_t *)exchange + 2 * i * encoded;
        slot->received = slot->send + encoded;
        slot->sum = msdu__memory_slices(e, share * sizeof(float));
        slot->share_bytes = msdu__memory_block(e, (uint64_t)e->job->ranks * sizeof(uint64_t));
        slot->spread_bytes = msdu__memory_block(e, (uint64_t)e->job->ranks * sizeof(uint64_t));
        if (slot->sum == NULL || slot->share_bytes == NULL || slot->spread_bytes == NULL) {
            return msdu__memory_none(e, "slices in flight");
        }
    }
    return MSDU_OK;
}

/* Hosts are known after the first build: what their exchange needs besides. */
msdu_status msdu__start_levels(msdu__engine *e)
{
    msdu_status status = place_shares(e);
    return status == MSDU_OK ? place_slots(e) : status;
}

static msdu_status place_fragments(msdu__engine *e)
{
    uint32_t slices = e->model->slicing.slice_count;
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        msdu__fragment *f = &e->fragments[i];
        uint32_t *lists = msdu__memory_block(e, 3ULL * slices * sizeof(uint32_t));
        f->control.of = msdu__memory_block(e, (uint64_t)e->job->ranks * sizeof(msdu__control));
        if (lists == NULL || f->control.of == NULL) {
            return msdu__memory_none(e, "fragments");
        }
        f->members = lists;
        f->order.plan = lists + slices;
        f->order.next = lists + 2ULL * slices;
    }
    e->control_shares = msdu__memory_block(e, (uint64_t)e->job->ranks * sizeof(uint64_t));
    e->scratch.items = msdu__memory_block(e, slices * sizeof(*e->scratch.items));
    e->scratch.marks = msdu__memory_block(e, slices * sizeof(*e->scratch.marks));
    e->scratch.ends = msdu__memory_block(e, slices * sizeof(*e->scratch.ends));
    uint64_t ring = 2;
    while (ring < slices) {
        ring *= 2;
    }
    e->queue.slices = msdu__memory_block(e, ring * sizeof(uint32_t));
    e->queue.mask = ring - 1;
    if (e->control_shares == NULL || e->scratch.items == NULL || e->scratch.marks == NULL ||
        e->scratch.ends == NULL || e->queue.slices == NULL) {
        return msdu__memory_none(e, "queues");
    }
    for (int32_t i = 0; i < e->job->ranks; i++) {
        e->control_shares[i] = sizeof(msdu__control);
    }
    return MSDU_OK;
}

static msdu_status place_runs(msdu__engine *e)
{
    uint64_t slices = e->model->slicing.slice_count;
    e->runs = msdu__memory_block(e, slices * sizeof(msdu__run));
    e->hand->missing = msdu__memory_block(e, slices * sizeof(*e->hand->missing));
    if (e->runs == NULL || e->hand->missing == NULL) {
        return msdu__memory_none(e, "slices");
    }
    msdu__found *found = msdu__memory_shared(e, e->model->slicing.slice_count * sizeof(*found));
    e->captured = msdu__memory_shared(e, e->model->slicing.segment_count * sizeof(*e->captured));
    e->applied = msdu__memory_shared(e, e->model->slicing.segment_count * sizeof(*e->applied));
    if (found == NULL || e->captured == NULL || e->applied == NULL) {
        return msdu__memory_none(e, "statistics");
    }
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count; slice++) {
        const msdu__slice *cut = &e->model->slicing.slices[slice];
        e->runs[slice].found = found + slice;
        e->runs[slice].is_staged = cut->segments > 1 || msdu__dtype_is_half(cut->dtype);
        e->runs[slice].is_state = slice >= e->model->slice_bound;
        e->runs[slice].scale = 1;
    }
    msdu_status status = place_arenas(e);
    return status == MSDU_OK ? place_shares(e) : status;
}

static void count_bytes(msdu__engine *e)
{
    uint64_t ranks = (uint64_t)e->job->ranks;
    uint64_t bytes = 0;
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        const msdu__slice *cut = &e->model->slicing.slices[slice];
        e->model->element_count += cut->count;
        bytes += cut->count * msdu__dtype_bytes(cut->dtype);
    }
    e->hand->plain_bytes = 2 * bytes * (ranks - 1) / ranks;
}

/* What rank 0 sends in a round of this format, as slices are cut now; it has most to send. */
static uint64_t round_bytes(const msdu__engine *e, int wire)
{
    uint64_t ranks = (uint64_t)e->job->ranks;
    uint64_t bytes = sizeof(msdu__control) * (ranks - 1);
    for (uint32_t slice = 0; slice < e->model->slice_bound; slice++) {
        const msdu__slice *cut = &e->model->slicing.slices[slice];
        int format = msdu__wire_of(cut->dtype, wire);
        bool is_compressed = format != MSDU__WIRE_FLOAT32;
        uint64_t width = msdu__dtype_working_bytes(cut->dtype);
        bytes += is_compressed
                     ? msdu__exchange_sent(msdu__wire_at(format), e->runs[slice].share_count,
                                           (uint32_t)e->job->settings.wire_block, e->job->ranks)
                     : 2 * cut->count * width * (ranks - 1) / ranks;
    }
    return bytes;
}

msdu_status msdu__start_tables(msdu__engine *e)
{
    msdu_status (*const steps[])(msdu__engine *) = {
        msdu__cut_tensors, msdu__cut_list,     place_runs,           place_slots,
        place_fragments,   msdu__pace_prepare, msdu__dealer_prepare,
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        msdu_status status = steps[i](e);
        if (status != MSDU_OK) {
            return status;
        }
    }
    msdu__round_orders(e);
    uint64_t bytes[MSDU__WIRE_COUNT];
    for (int wire = 0; wire < MSDU__WIRE_COUNT; wire++) {
        bytes[wire] = round_bytes(e, wire);
    }
    msdu__derive_wires(e->job, bytes);
    return MSDU_OK;
}

/* Room for every slice of the finest slicing once a step, for the step after, and the API thread's
 * commands: it stays, whatever the slicing. */
static msdu_status place_events(msdu__engine *e)
{
    uint32_t slices = 0;
    msdu_status status = msdu__cut_bound(e, &slices);
    if (status == MSDU_OK &&
        !msdu__ready_init(&e->hand->events, 2 * slices + 4 * e->model->fragment_count + 8)) {
        status = msdu__memory_none(e, "events");
    }
    return status;
}

msdu_status msdu__start_build(msdu__engine *e)
{
    msdu_status status = choose_domain(e);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__tune_prepare(e);
    status = msdu__tick_prepare(e);
    if (status == MSDU_OK) {
        status = place_events(e);
    }
    if (status == MSDU_OK) {
        status = msdu__start_tables(e);
    }
    if (status != MSDU_OK) {
        return status;
    }
    count_bytes(e);
    e->decision = (msdu__decision){.interval = 1,
                                   .wire = msdu__interval_first_wire(&e->job->interval_args),
                                   .delay_steps = (uint32_t)e->job->settings.delay_steps};
    return MSDU_OK;
}

const char **msdu__start_names(const msdu__engine *e)
{
    const char **names = calloc(e->model->slicing.slice_count, sizeof(*names));
    for (uint32_t i = 0; names != NULL && i < e->model->slicing.slice_count; i++) {
        const msdu__slice *cut = &e->model->slicing.slices[i];
        names[i] = e->model->tensors[e->model->slicing.segments[cut->first_segment].tensor].name;
    }
    return names;
}
