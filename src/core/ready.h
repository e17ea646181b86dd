/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded queue from many threads (gradient hooks, owner) to one (the communication thread). */
#ifndef MSDU_READY_H
#define MSDU_READY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct msdu__ready_cell {
    _Atomic uint64_t turn; /* whose turn the cell is: position when free, position + 1 when full */
    uint32_t value;
} msdu__ready_cell;

typedef struct msdu__ready {
    msdu__ready_cell *cells;
    uint64_t mask;
    _Atomic uint64_t tail; /* next position to write; any thread */
    uint64_t head;         /* next position to read; the communication thread only */
} msdu__ready;

/* Room for at least `capacity` values. False: no memory. */
bool msdu__ready_init(msdu__ready *queue, uint32_t capacity);
void msdu__ready_free(msdu__ready *queue);
/* False if the queue is full, which its sizing rules out (an announcement is made once a step). */
bool msdu__ready_push(msdu__ready *queue, uint32_t value);
/* Look at the oldest value without taking it; false if there is none. */
bool msdu__ready_peek(msdu__ready *queue, uint32_t *value_out);
/* Take what peek showed. */
void msdu__ready_pop(msdu__ready *queue);

#endif
