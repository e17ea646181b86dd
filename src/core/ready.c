/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded multi-producer single-consumer ring; each cell carries the turn at which it may be used.
 */
#include "ready.h"

#include <stdlib.h>

bool msdu__ready_init(msdu__ready *queue, uint32_t capacity)
{
    uint64_t cells = 2;
    while (cells < capacity) {
        cells *= 2;
    }
    queue->cells = calloc(cells, sizeof(*queue->cells));
    if (queue->cells == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < cells; i++) {
        atomic_init(&queue->cells[i].turn, i);
    }
    queue->mask = cells - 1;
    atomic_init(&queue->tail, 0);
    queue->head = 0;
    return true;
}

void msdu__ready_free(msdu__ready *queue)
{
    free(queue->cells);
    queue->cells = NULL;
}

bool msdu__ready_push(msdu__ready *queue, const msdu__event *event)
{
    /* relaxed: only claims a position; the cell's turn publishes the event */
    uint64_t at = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    for (;;) {
        msdu__ready_cell *cell = &queue->cells[at & queue->mask];
        /* acquire: pairs with pop, so that the cell is read out before it is written again */
        uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_acquire);
        if (turn < at) {
            return false;
        }
        if (turn == at &&
            atomic_compare_exchange_weak_explicit(&queue->tail, &at, at + 1, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            cell->event = *event;
            /* release: the event, and all the caller wrote before, is seen with the turn */
            atomic_store_explicit(&cell->turn, at + 1, memory_order_release);
            return true;
        }
        if (turn != at) {
            at = atomic_load_explicit(&queue->tail, memory_order_relaxed);
        }
    }
}

bool msdu__ready_peek(msdu__ready *queue, msdu__event *event_out)
{
    const msdu__ready_cell *cell = &queue->cells[queue->head & queue->mask];
    /* acquire: pairs with the release in push */
    if (atomic_load_explicit(&cell->turn, memory_order_acquire) != queue->head + 1) {
        return false;
    }
    *event_out = cell->event;
    return true;
}

void msdu__ready_pop(msdu__ready *queue)
{
    msdu__ready_cell *cell = &queue->cells[queue->head & queue->mask];
    /* release: pairs with the acquire in push */
    atomic_store_explicit(&cell->turn, queue->head + queue->mask + 1, memory_order_release);
    queue->head++;
}
