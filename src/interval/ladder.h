/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of different speeds, as steps of a ladder: exact rounds while ranks are even; rounds by the
 * clock once ranks wait for slow ones too long. What is waited in a round has two parts. The rank
 * that waits least came last, so it waits for the network. What the others wait more, they wait for
 * slower ranks. Pure.
 *
 * Some rank is always the last, also where all are equally fast. So that wait has two parts, too:
 * what lasts, because one rank is late on average, and noise, which has no rank. Of n rounds with
 * noise alone, the latest rank's average is about noise / sqrt(n) late:
 *
 *     lasting = (max_i mean_n late_i - mean_n(max_i late_i) / sqrt(n / k)) / (1 - 1 / sqrt(n / k))
 *
 * where noise stays for k rounds. Noise is a reason to leave exact rounds only where it is large.
 *
 * By the clock nobody waits for a rank, so what is left to choose is the time between rounds, D,
 * and the wire. D is at its floor: a step of the median rank, what an exchange takes and a tenth,
 * and so long that the passes over parameters at step ends keep to the target. Longer rounds cost
 * accuracy and gain nothing. The wire is that of least error at its own floor:
 *
 *     error = mean over ranks of drift.h at h_i = D / step_i, late by (T + what it comes late) /
 * step_i
 */
#ifndef MSDU_LADDER_H
#define MSDU_LADDER_H

#include "interval.h"

typedef struct msdu__ladder {
    double *late_ns;     /* of each rank: how much less it waited than the mean, on average */
    double latest_ns;    /* likewise of the latest rank of each round, whichever it was */
    double straggler_ns; /* waited for slower ranks in a round; bursts count */
    double time_ns;      /* of a round */
    double passes_ns;    /* by the clock: the API thread's wait between two rounds, smoothed */
    uint32_t wanted[3];  /* rounds after which the clock was wanted, by reason, less others */
    uint32_t tried;      /* rounds in which shares moved, less others */
    uint32_t heard;
} msdu__ladder;

/* `late_ns` has room for all ranks, zeroed. */
void msdu__ladder_init(msdu__ladder *ladder, double *late_ns);

/* Learn from a round, by the clock or by steps. */
void msdu__ladder_learn(const msdu__round_stats *stats, bool is_clocked, msdu__ladder *ladder);
/* Share of time waited for slower ranks. */
double msdu__ladder_waits(const msdu__ladder *ladder);
/* The part of it that one rank causes, which is slower than the others. */
double msdu__ladder_lasting(const msdu__round_stats *stats, const msdu__ladder *ladder);
/* After a round by steps: is more waited for slow ranks than the target, and was for long enough?
 */
bool msdu__ladder_wants_clock(const msdu__interval_args *args, const msdu__round_stats *stats,
                              msdu__ladder *ladder);
/* Before that, where work is drawn: shares are the first answer. While they move what was measured
 * is past, but not for ever: bursts may keep them moving. */
void msdu__ladder_try_shares(const msdu__round_stats *stats, bool is_moving, msdu__ladder *ladder);
/* After a round by the clock: the next ones. `decision` holds the last. */
void msdu__ladder_clock(const msdu__interval_args *args, const msdu__round_stats *stats,
                        const msdu__ladder *ladder, msdu__interval_state *state,
                        msdu__decision *decision);

#endif
