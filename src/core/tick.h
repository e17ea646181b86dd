/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds by the clock (setting uneven = clock): a round is a tick of a common clock, not a number
 * of steps. Every rank's communication thread takes part in every round, in the one order. Whose
 * trainer has ended a step contributes all its progress since its last contribution. Whose trainer
 * has not contributes zeros, and comes in a later round. Nobody waits, and no step is dropped.
 *
 * A round opens when the one before has ended; it is due at its tick, `clock_period` steps of the
 * median rank behind the tick before. A rank may come until `clock_grace` such steps later. Clocks
 * decide only when a rank takes part, never which collective is next. So all ranks apply the same
 * means in the same order, and anchors have equal bits.
 *
 * Zeros are encoded as any contribution is, so what error feedback holds back goes out with them.
 *
 * Theta anchor, w parameters, s shift (correct/shift.c), N ranks with input:
 *     step's end, round due:   w += s;  x = Theta - w;  s = x;  x is sent
 *     a mean arrives:          d = sum of x over who came / N;  Theta -= d;  s -= d
 *     any other step's end:    w += s;  s = 0
 */
#ifndef MSDU_TICK_H
#define MSDU_TICK_H

#include "engine.h"

/* --- events --- */
/* From rounds by steps: anchors are the parameters, which are equal on all ranks and lent. Then it
 * ticks. */
msdu__outcome msdu__event_enter_clock(msdu__engine *e, void *subject, uint64_t number);
/* Begin to tick. */
msdu__outcome msdu__event_tick(msdu__engine *e, void *subject, uint64_t number);
/* Parameters take what arrived since, and are given back. */
msdu__outcome msdu__event_shift(msdu__engine *e, void *subject, uint64_t number);

/* May there be a clock, and is there one from the start? Before memory is sized; ERR_UNSUPPORTED
 * where kernels cannot do what is asked for. */
msdu_status msdu__tick_prepare(msdu__engine *e);
/* Open the next round; give up waiting for this rank's trainer. True if something was done. */
bool msdu__tick_advance(msdu__engine *e);
/* Until there is something to do without an event, in ns; UINT64_MAX: nothing. */
uint64_t msdu__tick_wait_ns(msdu__engine *e);
/* The first slice of a round is about to be captured. */
void msdu__tick_came(msdu__engine *e, msdu__fragment *f);
/* A round has ended: what its messages say of the ranks' speeds, and whether any has input. */
void msdu__tick_ended(msdu__engine *e, const msdu__fragment *f);

#endif
