/* SPDX-License-Identifier: Apache-2.0 */
/* Random trainers as streams of calls. */
#include "recognize_zoo.h"

#include "random.h"

#include <stdio.h>
#include <string.h>

#define SMALL 16 /* elements of what is no candidate */

static uint64_t below(zoo_trainer *t, uint64_t limit)
{
    return random_next(&t->random) % limit;
}

static bool one_of(zoo_trainer *t, uint64_t many)
{
    return below(t, many) == 0;
}

static void add_tensor(zoo_trainer *t, uint64_t size, uint32_t slot, bool is_in_layer)
{
    t->sizes[t->count] = size;
    t->ids[t->count] = t->count;
    t->slots[t->count] = slot;
    t->is_in_layer[t->count] = is_in_layer;
    t->count++;
}

static void add_layers(zoo_trainer *t)
{
    uint64_t sizes[12] = {0};
    for (uint32_t stage = 0; stage < t->stages; stage++) {
        for (uint32_t k = 0; k < t->tensors_per_layer; k++) {
            sizes[k] = 256U << below(t, 6);
        }
        sizes[t->tensors_per_layer - 1] = t->has_small ? SMALL : sizes[t->tensors_per_layer - 1];
        for (uint32_t l = 0; l < t->layers / t->stages; l++) {
            for (uint32_t k = 0; k < t->tensors_per_layer; k++) {
                add_tensor(t, sizes[k], k, true);
            }
        }
    }
}

/* Buckets of equal size and a rest, as trainers fuse gradients. */
static void fuse(zoo_trainer *t)
{
    t->count = 0;
    for (uint32_t b = 0; b < t->buckets; b++) {
        add_tensor(t, b + 1 < t->buckets ? 1U << 20 : (1U << 18) + 12, b, false);
    }
}

static void reverse(zoo_trainer *t)
{
    for (uint32_t i = 0, k = t->count; i + 1 < k; i++) {
        k--;
        const uint64_t size = t->sizes[i];
        const uint32_t slot = t->slots[i];
        const bool is_in_layer = t->is_in_layer[i];
        t->sizes[i] = t->sizes[k];
        t->slots[i] = t->slots[k];
        t->is_in_layer[i] = t->is_in_layer[k];
        t->sizes[k] = size;
        t->slots[k] = slot;
        t->is_in_layer[k] = is_in_layer;
    }
}

static void draw_model(zoo_trainer *t)
{
    static const uint32_t most[] = {3, 12, 48, 200};
    t->layers = 1 + (uint32_t)below(t, most[below(t, 4)]);
    t->tensors_per_layer = 1 + (uint32_t)below(t, one_of(t, 2) ? 2 : 12);
    t->stages = t->layers >= 4 && one_of(t, 3) ? 2 + (uint32_t)below(t, 3) : 1;
    t->layers -= t->layers % t->stages;
    t->has_small = t->tensors_per_layer > 1 && one_of(t, 4);
    t->has_embedding = !one_of(t, 4);
    t->has_head = !one_of(t, 4);
    t->is_tied = one_of(t, 4);
    t->is_reverse = !one_of(t, 3);
    if (t->has_embedding) {
        add_tensor(t, 50000, 0, false);
    }
    add_layers(t);
    if (t->has_head) {
        add_tensor(t, t->is_tied ? 50000 : 7777, 1, false);
    }
    t->buckets = one_of(t, 6) ? 1 + (uint32_t)below(t, 6) : 0;
    if (t->buckets > 0) {
        fuse(t);
    } else if (t->is_reverse) {
        reverse(t);
    }
    t->first_count = t->count;
}

static void draw_memory(zoo_trainer *t)
{
    t->memory = one_of(t, 2) ? ZOO_OWN : (zoo_memory)below(t, ZOO_MEMORIES);
    /* Layers that take turns on memory look like steps until something else comes. That it comes
     * first, as the head does in a backward pass, is taken for granted (doc/attach.md, limits). */
    const bool is_other_first = t->buckets == 0 && (t->is_reverse ? t->has_head : t->has_embedding);
    const bool is_shared =
        t->memory == ZOO_BY_KIND || t->memory == ZOO_BY_SHAPE || t->memory == ZOO_DOUBLE;
    /* Where there is nothing else, only the number of steps tells. */
    t->is_unseen = is_shared && !is_other_first && t->buckets == 0 && t->stages == 1 &&
                   !t->has_embedding && !t->has_head;
    if (is_shared && !is_other_first && !t->is_unseen) {
        t->memory = ZOO_OWN;
    }
}

static void draw_habits(zoo_trainer *t)
{
    t->loss_every = one_of(t, 2) ? 1 : one_of(t, 2) ? 0 : 5;
    t->has_layer_marks = one_of(t, 12);
    t->norm_calls = one_of(t, 4) ? 1 : 0;
    t->barrier_every = one_of(t, 6) ? 1 : 0;
    t->evaluation_every = one_of(t, 3) ? 1 + (uint32_t)below(t, 12) : 0;
    t->evaluation_calls = 1 + (uint32_t)below(t, 20);
    /* as often as memory comes back it would make two steps one: nothing tells that from a model */
    t->is_evaluation_large = one_of(t, 6) && !(t->memory == ZOO_MOVING && t->evaluation_every <= 2);
    t->has_startup_average = one_of(t, 5);
    t->has_startup_large = one_of(t, 8);
    t->has_startup_small = one_of(t, 2);
    t->micro_steps = one_of(t, 12) ? 2 + (uint32_t)below(t, 3) : 1;
    t->critic_steps = 0;
    if (one_of(t, 10) && t->count > 1 && t->buckets == 0) {
        t->critic_steps = 1 + (uint32_t)below(t, 5);
        t->first_count = 1 + (uint32_t)below(t, t->count - 1);
    }
    t->change_step = one_of(t, 4) ? (one_of(t, 2) ? 2 : 100) : UINT32_MAX;
    t->change_kind = (uint32_t)below(t, 3);
    t->steps = 30 + (uint32_t)below(t, 300);
    if (t->is_unseen) {
        t->change_step = UINT32_MAX;
        t->is_evaluation_large = false;
    }
    const uint32_t enough = 20 + 30000 / (t->count * t->micro_steps + 1);
    t->steps = t->steps < enough ? t->steps : enough;
}

void zoo_draw(zoo_trainer *t, uint64_t seed)
{
    *t = (zoo_trainer){.random = seed * 0x9E3779B97F4A7C15U + 1};
    for (int i = 0; i < 8; i++) {
        (void)random_next(&t->random);
    }
    draw_model(t);
    draw_memory(t);
    draw_habits(t);
    t->is_counted = seed % 4 > 0;
    t->is_said = one_of(t, 5);
    /* in buffers that belong to places, and not to tensors, nobody can see it: documented */
    t->has_swap =
        t->change_step != UINT32_MAX && !t->is_unseen && one_of(t, 2) && t->memory != ZOO_BY_KIND;
}

/* --- a step --- */

typedef struct writer {
    zoo_trainer *t;
    zoo_event *events;
    uint32_t count;
    uint32_t step;
    uint32_t rank;
} writer;

/* The place of another tensor of its size, each step and rank another one. */
static uint64_t exchanged(const writer *w, uint32_t at)
{
    const zoo_trainer *t = w->t;
    uint32_t place = at;
    for (uint32_t left = w->step % 5 + 3 * w->rank; left > 0;) {
        place = place + 1 < t->count ? place + 1 : 0;
        left -= t->sizes[place] == t->sizes[at] ? 1 : 0;
    }
    return t->ids[place];
}

static uint64_t place_of(const writer *w, uint32_t at)
{
    zoo_trainer *t = w->t;
    const uint64_t id = t->ids[at];
    switch (t->memory) {
    case ZOO_ONE:
        return 1;
    case ZOO_BY_SHAPE:
        return t->sizes[at];
    case ZOO_BY_KIND:
        return t->is_in_layer[at] ? 1 + t->slots[at] : 1000 + id;
    case ZOO_DOUBLE:
        return 1 + w->count % 2;
    case ZOO_MOVING:
        return 2 * id + w->step % 2;
    case ZOO_MIXED:
        return exchanged(w, at);
    case ZOO_FRESH:
        return 1000000 + t->calls;
    case ZOO_OWN:
    case ZOO_MEMORIES:
        break;
    }
    return id;
}

static void write_call(writer *w, uint64_t count, uint32_t tensor, uint64_t place)
{
    w->events[w->count++] = (zoo_event){
        .call = {.count = count,
                 .kind = 1,
                 .is_candidate = count >= 256,
                 .is_sum = true,
                 .memory = 64 * (place + 1) + ((uint64_t)w->rank << 40)},
        .tensor = tensor,
    };
    w->t->calls++;
}

static void write_small(writer *w, uint32_t calls)
{
    for (uint32_t i = 0; i < calls; i++) {
        w->events[w->count++] = (zoo_event){
            .call = {.count = 1 + i % 3, .kind = i % 2 == 0 ? 16 : 1, .is_sum = i % 2 == 1},
            .tensor = ZOO_NO_TENSOR};
    }
}

static void write_tensors(writer *w, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        if (w->t->sizes[i] == 0) {
            continue; /* frozen */
        }
        write_call(w, w->t->sizes[i], w->t->ids[i], place_of(w, i));
        if (w->t->has_layer_marks && w->t->slots[i] == 0) {
            write_small(w, 1);
        }
    }
}

/* Once, for all ranks. */
static void change(zoo_trainer *t)
{
    const uint32_t at = (uint32_t)below(t, t->count);
    if (t->change_kind == 0) { /* frozen */
        t->sizes[at] = t->count > 1 ? 0 : t->sizes[at];
    } else if (t->change_kind == 1) { /* a new one at the end */
        add_tensor(t, 999, 0, false);
        t->first_count = t->critic_steps == 0 ? t->count : t->first_count;
    } else { /* two change places */
        uint32_t other = (at + 1) % t->count;
        for (uint32_t i = 0; i < t->count && t->has_swap && t->sizes[other] != t->sizes[at]; i++) {
            other = (other + 1) % t->count;
        }
        const uint64_t size = t->sizes[at];
        const uint32_t id = t->ids[at];
        if (size != t->sizes[other] || t->has_swap) {
            t->sizes[at] = t->sizes[other];
            t->ids[at] = t->ids[other];
            t->sizes[other] = size;
            t->ids[other] = id;
        }
    }
}

static void write_startup(writer *w)
{
    zoo_trainer *t = w->t;
    write_small(w, t->has_startup_small ? 3 : 0);
    if (t->has_startup_large) {
        write_call(w, 3072, ZOO_NO_TENSOR, 500000);
    }
    for (uint32_t i = 0; t->has_startup_average && i < t->count; i++) {
        write_call(w, t->sizes[i], ZOO_NO_TENSOR, 600000 + i);
    }
}

static void write_evaluation(writer *w)
{
    const zoo_trainer *t = w->t;
    if (t->evaluation_every > 0 && w->step % t->evaluation_every == t->evaluation_every - 1) {
        write_small(w, t->evaluation_calls);
        if (t->is_evaluation_large) {
            /* in every step, or as often in each turn of both models, nothing tells it from a
             * gradient; that is what the lists are for */
            const bool is_alike = (t->critic_steps + 1) % t->evaluation_every == 0;
            write_call(w, 4444, is_alike ? ZOO_TENSORS_MAX - 1 : ZOO_NO_TENSOR, 700000);
        }
    }
}

uint32_t zoo_step(zoo_trainer *t, uint32_t step, uint32_t rank, zoo_event *events)
{
    writer w = {.t = t, .events = events, .step = step, .rank = rank};
    if (step == UINT32_MAX) {
        write_startup(&w);
        return w.count;
    }
    if (step == t->change_step && rank == 0) {
        change(t);
    }
    const bool is_second = t->critic_steps > 0 && step % (t->critic_steps + 1) == t->critic_steps;
    const uint32_t first = is_second ? t->first_count : 0;
    const uint32_t end = is_second || t->critic_steps == 0 ? t->count : t->first_count;
    for (uint32_t m = 0; m < t->micro_steps; m++) {
        write_tensors(&w, first, end);
    }
    write_small(&w, t->norm_calls);
    write_small(&w, t->loss_every > 0 && step % t->loss_every == 0 ? 1 : 0);
    if (t->barrier_every > 0) {
        events[w.count++] = (zoo_event){.is_mark = true, .tensor = ZOO_NO_TENSOR};
    }
    write_evaluation(&w);
    return w.count;
}

void zoo_describe(const zoo_trainer *t, char *text, size_t bytes)
{
    static const char *const memories[ZOO_MEMORIES] = {"own",    "one",    "by shape", "by kind",
                                                       "double", "moving", "mixed",    "fresh"};
    (void)snprintf(
        text, bytes,
        "memory %s, %u layers of %u in %u stages%s%s%s%s, %u buckets, %u tensors (first %u), loss "
        "every %u, norm %u, barrier %u%s, evaluation every %u of %u%s, startup%s%s%s, micro %u, "
        "critic %u, change %u at %u, %u steps",
        memories[t->memory], t->layers, t->tensors_per_layer, t->stages,
        t->has_embedding ? ", embedding" : "", t->has_head ? ", head" : "",
        t->is_tied ? " tied" : "", t->is_reverse ? ", reverse" : "", t->buckets, t->count,
        t->first_count, t->loss_every, t->norm_calls, t->barrier_every,
        t->has_layer_marks ? ", layer marks" : "", t->evaluation_every, t->evaluation_calls,
        t->is_evaluation_large ? " large" : "", t->has_startup_small ? " small" : "",
        t->has_startup_large ? " large" : "", t->has_startup_average ? " average" : "",
        t->micro_steps, t->critic_steps, t->change_kind, t->change_step, t->steps);
}
