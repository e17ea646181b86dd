/* SPDX-License-Identifier: Apache-2.0 */
/* One step of the communication thread, and the events of a slice and of a fragment. */
#ifndef MSDU_PROGRESS_H
#define MSDU_PROGRESS_H

#include "engine.h"

/* One step of everything that can progress; a msdu__worker_fn. user: the engine. */
uint64_t msdu__engine_advance(void *user);

/* Events; number: the slice, whose last tensor was announced. */
msdu__outcome msdu__event_slice(msdu__engine *e, void *subject, uint64_t number);
/* Its next round begins; number: the fragment. */
msdu__outcome msdu__event_open(msdu__engine *e, void *subject, uint64_t number);
/* Its means may be applied; number: the fragment. */
msdu__outcome msdu__event_apply(msdu__engine *e, void *subject, uint64_t number);
/* Leave the gradient domain: set all anchors from the parameters. */
msdu__outcome msdu__event_enter_local(msdu__engine *e, void *subject, uint64_t number);
/* Zeros in optimizer state (setting state = reset). */
msdu__outcome msdu__event_reset(msdu__engine *e, void *subject, uint64_t number);
/* Everything captured has ended; a command. */
msdu__outcome msdu__event_drain(msdu__engine *e, void *subject, uint64_t number);
/* `number` ns were waited for something that was asked for: they are not the network's. */
msdu__outcome msdu__event_excuse(msdu__engine *e, void *subject, uint64_t number);
/* A command has been carried out: who waits for it goes on. */
msdu__outcome msdu__event_completed(msdu__engine *e);

#endif
