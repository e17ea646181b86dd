/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics message of a round (control.c), and what those of all ranks say (message.c). */
#ifndef MSDU_CONTROL_H
#define MSDU_CONTROL_H

#include "engine.h"

/* Start it once all slices are on their way. True if it was started. */
bool msdu__control_start(msdu__engine *e, msdu__fragment *f);
/* Poll the statistics message and a plan on its way. */
bool msdu__control_poll(msdu__engine *e, msdu__fragment *f);
/* Did all ranks capture the same parameters? Then these are the mean, and nothing is applied. */
bool msdu__message_is_equal(const msdu__engine *e, const msdu__fragment *f);
/* Of all ranks, in rank order. */
double msdu__message_weights(const msdu__engine *e, const msdu__fragment *f);
/* Ranks; those of a host that averages gradients count as one. */
double msdu__message_groups(const msdu__engine *e, const msdu__fragment *f);

#endif
