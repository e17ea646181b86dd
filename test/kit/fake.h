/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backends for tests. `fake` is one rank whose peers are made up: it fails, delays and reorders on
 * demand. `recorder` is the backend "local" that writes down what was started, and dawdles.
 */
#ifndef TEST_FAKE_H
#define TEST_FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <msdu/backend.h>

#include "ranks.h"

/* Behaviour and counters of the fake backend; one at a time. */
typedef struct fake_state {
    uint64_t fail_start; /* the n-th start fails, from 1; 0: none */
    uint64_t fail_test;
    msdu_status fail_status;
    uint64_t polls_most; /* a request ends at its 1st .. n-th test, by chance; 0: at the first */
    bool is_stuck[MSDU_OP_BROADCAST + 1]; /* operations of this kind never end */
    uint64_t test_ns;                     /* how far a test moves the clock */
    atomic_bool dwells;                   /* calls of test() do not return before this is false */
    uint64_t random;
    /* counted */
    uint64_t starts;
    uint64_t tests;
    uint64_t in_flight;
    uint64_t in_flight_most;
    uint64_t disorders; /* sequence numbers out of turn, tests of ended requests */
    uint64_t aborts;
    msdu_status abort_status;
    uint64_t closes;
    atomic_int inside;   /* calls under way */
    atomic_int overlaps; /* calls that came while another was under way */
    _Atomic uint64_t now_ns;
} fake_state;

extern fake_state fake;

/*
 * Peers contribute what this rank does, and 1 more to every element of an allreduce in all: the
 * mean is the own value + 1 / ranks.
 */
extern const msdu_backend fake_backend; /* neither wait nor notify */

/* Begin anew; the clock stands at one second. */
void fake_reset(void);
/* msdu__clock_fn over fake.now_ns; every look takes a microsecond. */
uint64_t fake_clock(void *user);

/* Put it in place of a context's backend between create and start. */
extern const msdu_backend fake_recorder;
extern const msdu_backend fake_recorder_single; /* asks for one order over all channels */
/* A rank's `created`: its operations dawdle, where its tensors are in the host's memory. */
void fake_delay(ranks_self *self);
/* Hash of everything started, over all channels in the order of starting. */
uint64_t fake_recorder_order(const msdu_comm *comm);
/* Hash of everything started on any channel of a recorder's group, each channel in its order. */
uint64_t fake_recorder_hash(const msdu_comm *comm);
uint64_t fake_recorder_count(const msdu_comm *comm);

#endif
