/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: simulates the priority queue in front of the link. Pure.
 *
 * The model: at most `window` slices are in flight; the link serves those in flight one after
 * another in the order they were started, and a place becomes free when its slice ends. A slice is
 * never interrupted: preemption is only between slices, so a late urgent slice waits for at most
 * `window` others. How slices in flight share the link would not change when the last one ends,
 * because the link is never idle while a slice is in flight.
 */
#include "plan.h"

#include <assert.h>
#include <string.h>

/* End of a slice on a link that is busy until `busy_until`. */
static uint64_t serve(uint64_t busy_until, const msdu__plan_item *item)
{
    return (busy_until > item->ready_ns ? busy_until : item->ready_ns) + item->cost_ns;
}

/* --- slices that were not started, as two binary heaps --- */

/* Slices that are not ready lie from the front of one array on, those that are from its end: what
 * one gives away the other takes. */
typedef struct heap {
    const msdu__plan_item *items;
    uint32_t *root;
    ptrdiff_t step; /* from an entry to the next: 1 or -1 */
    uint32_t count;
    bool is_by_time; /* by time at which a slice is ready, then as those that are */
} heap;

static bool is_before(const heap *h, uint32_t x, uint32_t y)
{
    const msdu__plan_item *a = &h->items[x];
    const msdu__plan_item *b = &h->items[y];

    if (h->is_by_time && a->ready_ns != b->ready_ns) {
        return a->ready_ns < b->ready_ns;
    }
    return a->priority != b->priority ? a->priority < b->priority : x < y;
}

static uint32_t *entry(const heap *h, uint32_t place)
{
    return h->root + h->step * (ptrdiff_t)place;
}

static void put(heap *h, uint32_t slice)
{
    uint32_t place = h->count++;

    while (place > 0 && is_before(h, slice, *entry(h, (place - 1) / 2))) {
        *entry(h, place) = *entry(h, (place - 1) / 2);
        place = (place - 1) / 2;
    }
    *entry(h, place) = slice;
}

static uint32_t take(heap *h)
{
    uint32_t first = *entry(h, 0);
    uint32_t last = *entry(h, --h->count);
    uint32_t place = 0;

    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child + 1 < h->count && is_before(h, *entry(h, child + 1), *entry(h, child))) {
            child++;
        }
        if (child >= h->count || !is_before(h, *entry(h, child), last)) {
            break;
        }
        *entry(h, place) = *entry(h, child);
        place = child;
    }
    *entry(h, place) = last;
    return first;
}

uint64_t msdu__plan_simulate(const msdu__plan_item *items, uint32_t count, uint32_t window,
                             uint32_t *order_out, uint32_t *scratch)
{
    heap later = {.items = items, .root = scratch, .step = 1, .is_by_time = true};
    heap ready = {.items = items, .root = scratch + count - (count > 0 ? 1 : 0), .step = -1};
    uint64_t now = 0;
    uint64_t freed = 0; /* when the slice `window` positions back ended */
    uint64_t end = 0;

    window = window > 0 ? window : 1;
    for (uint32_t i = 0; i < count; i++) {
        put(&later, i);
    }
    for (uint32_t p = 0; p < count; p++) {
        uint32_t next = 0;

        if (p >= window) {
            freed = serve(freed, &items[order_out[p - window]]);
            now = freed > now ? freed : now;
        }
        while (later.count > 0 && items[*later.root].ready_ns <= now) {
            put(&ready, take(&later));
        }
        next = ready.count > 0 ? take(&ready) : take(&later);
        order_out[p] = next;
        now = items[next].ready_ns > now ? items[next].ready_ns : now;
        end = serve(end, &items[next]);
    }
    return end;
}

uint64_t msdu__plan_cost(const msdu__plan_item *items, uint32_t count, const uint32_t *order)
{
    uint64_t end = 0;

    /* A place is always free before the link is: with slices served in the order of their start
     * the window delays the choice of a slice, never its service. */
    for (uint32_t p = 0; p < count; p++) {
        end = serve(end, &items[order[p]]);
    }
    return end;
}

uint64_t msdu__plan_need(const msdu__plan_item *items, uint32_t count, const uint32_t *order,
                         uint64_t *scratch)
{
    uint64_t end = 0;
    uint64_t complete = 0;
    double sum = 0;

    for (uint32_t p = 0; p < count; p++) {
        end = serve(end, &items[order[p]]);
        scratch[order[p]] = end;
    }
    for (uint32_t i = count; i-- > 0;) {
        complete = scratch[i] > complete ? scratch[i] : complete;
        sum += (double)complete;
    }
    return count > 0 ? (uint64_t)(sum / count) : 0;
}

void msdu__plan_initial(uint32_t count, uint32_t *order_out)
{
    for (uint32_t i = 0; i < count; i++) {
        order_out[i] = i;
    }
}

bool msdu__plan_is_valid(const uint32_t *order, uint32_t count, uint32_t *scratch)
{
    memset(scratch, 0, count * sizeof(*scratch));
    for (uint32_t i = 0; i < count; i++) {
        if (order[i] >= count || scratch[order[i]]) {
            return false;
        }
        scratch[order[i]] = 1;
    }
    return true;
}

uint64_t msdu__plan_hash(const uint32_t *order, uint32_t count)
{
    uint64_t hash = 14695981039346656037U;

    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t shift = 0; shift < 32; shift += 8) {
            hash ^= (order[i] >> shift) & 0xffU;
            hash *= 1099511628211U;
        }
    }
    return hash;
}

bool msdu__plan_is_stale(uint64_t present_ns, uint64_t best_ns, uint64_t floor_ns)
{
    uint64_t lost = present_ns > best_ns ? present_ns - best_ns : 0;

    return lost > best_ns / 20 && lost > floor_ns;
}
