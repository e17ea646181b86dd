/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events for the communication thread: a bounded queue from many threads (gradient hooks, the API
 * thread) to one. An event is a function and its arguments, carried out in the order of pushing.
 */
#ifndef MSDU_READY_H
#define MSDU_READY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct msdu__engine;

typedef enum msdu__outcome {
    MSDU__LATER, /* not yet possible: the event stays where it is, and all behind it */
    MSDU__DONE,
    MSDU__PAUSE, /* done; look at the network before the next one */
} msdu__outcome;

typedef struct msdu__event {
    msdu__outcome (*run)(struct msdu__engine *e, void *subject, uint64_t number);
    void *subject; /* borrowed until the event was carried out */
    uint64_t number;
} msdu__event;

typedef struct msdu__ready_cell {
    _Atomic uint64_t turn; /* whose turn the cell is: position when free, position + 1 when full */
    msdu__event event;
} msdu__ready_cell;

typedef struct msdu__ready {
    msdu__ready_cell *cells;
    uint64_t mask;
    _Atomic uint64_t tail; /* next position to write; any thread */
    uint64_t head;         /* next position to read; the communication thread only */
} msdu__ready;

/* Room for at least `capacity` events. False: no memory. */
bool msdu__ready_init(msdu__ready *queue, uint32_t capacity);
void msdu__ready_free(msdu__ready *queue);
/* False if the queue is full, which its sizing rules out (an announcement is made once a step). */
bool msdu__ready_push(msdu__ready *queue, const msdu__event *event);
/* The oldest event, which stays; false if there is none. */
bool msdu__ready_peek(msdu__ready *queue, msdu__event *event_out);
/* Take what peek showed. */
void msdu__ready_pop(msdu__ready *queue);

#endif
