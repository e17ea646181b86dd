/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a period of so many candidates would explain of all that a recognizer has seen, and which
 * of them could be a step by this rank's own evidence. Pure.
 */
#ifndef MSDU_PERIOD_H
#define MSDU_PERIOD_H

#include <stdbool.h>
#include <stdint.h>

#include "recognize.h"

/* Alike but for their memory? */
static inline bool msdu__call_is_same(const msdu__call *x, const msdu__call *y)
{
    return x->count == y->count && x->kind == y->kind;
}

/* The first candidate from which on everything repeats. */
uint32_t msdu__period_from(const msdu__recognizer *r, uint32_t period);
/* The gradients of each of the latest steps, as a user would count them: with the small ones.
 * most_out: if what looks like a loss is one, too. */
uint32_t msdu__period_sums(const msdu__recognizer *r, uint32_t period, uint32_t *most_out);
/* Does anything repeat often enough? Equal on all ranks. */
bool msdu__period_is_any(const msdu__recognizer *r);
/* The shortest period that could be a step; what the user does not want is noted. */
msdu__proposal msdu__period_propose(msdu__recognizer *r);

#endif
