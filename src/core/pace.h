/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of different speeds: what their messages tell, and what follows from it for all (setting
 * uneven = auto, interval/ladder.h). The communication thread.
 */
#ifndef MSDU_PACE_H
#define MSDU_PACE_H

#include "fragment.h"

#include "engine.h"

/* Room for what is told of ranks; anew where slices are cut anew, before there is a clock. */
msdu_status msdu__pace_prepare(msdu__engine *e);
/* Why there can be no rounds by the clock; NULL: there can. */
const char *msdu__pace_obstacle(const msdu__engine *e);
/* Steps of ranks with input, ascending; none until all of them have told it. */
void msdu__pace_times(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats);
/* How much less each rank waited than the mean of those that train, which is for slower ones. */
void msdu__pace_late(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats);
/* Ranks that took part in a round by the clock with anything but zeros. Before msdu__pace_watch().
 */
int32_t msdu__pace_came(const msdu__engine *e, const msdu__fragment *f);
/* Decide for rounds by the clock, where the ladder does; else false. */
bool msdu__pace_decide(msdu__engine *e, const msdu__round_stats *stats, msdu__decision *next);
/* After a round by steps: shall there be a clock? Equal on all ranks. */
void msdu__pace_climb(msdu__engine *e, const msdu__fragment *f, const msdu__round_stats *stats,
                      msdu__decision *next);
/* A round has ended: one line for each rank whose speed, or share of rounds, has changed. */
void msdu__pace_watch(msdu__engine *e, const msdu__fragment *f);

#endif
