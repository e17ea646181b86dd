/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a choice costs the processor and the memory bus, and what of it a trainer notices. Pure.
 *
 * A round of one rank, in ns of one core, for n elements that travel in b bits:
 *
 *     cost = n (code(wire) scale + passes copy) + 2 copy bytes,    bytes = 2 (N - 1) / N n b / 8
 *
 * `code` is encoding, summing up and decoding, `copy` that of a byte, each sent byte is copied once
 * into the network and once out of it. Passes over gradients are a norm and a division, those over
 * parameters the capture and the correction besides. `scale` is what coding took in rounds as they
 * are, over what was measured before the first.
 *
 * While cores are idle, none of this is the trainer's: coding is a part of a round's time, as the
 * link's is, and hides as that does. On busy cores every part of it that hides is taken from the
 * trainer. With R ranks on C cores, whose computing keeps D of these busy,
 *
 *     taken = share (cost(choice) - h cost(plain))
 *     share = max(0, min(1, (D + R - C) / R)) R / C
 *
 * with one coding thread a rank: `D + R - C` of R threads find no idle core, and what R of them
 * take is missing in C cores. Plain float32 in every step is the measure, as every trainer pays
 * that; less than nothing is not counted as a gain.
 */
#ifndef MSDU_INTERVAL_COST_H
#define MSDU_INTERVAL_COST_H

#include "interval.h"

/* Of a round: coding alone. */
double msdu__cost_code_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                          int wire);
/* Of a round: all that goes over the elements. */
double msdu__cost_round_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                           const msdu__choice *choice);
/* What of a round the trainer is slower for, if all of it hides. */
double msdu__cost_taken_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                           const msdu__choice *choice);
/* The part of that which hides, where `waited_ns` of a round's `sync_ns` are waited for: what is
 * coded meanwhile takes nothing from the trainer. */
double msdu__cost_hidden_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                            const msdu__choice *choice, double sync_ns, double waited_ns);
/* A step of the trainer, less what the round of the statistics took from it. */
double msdu__cost_step_ns(const msdu__interval_args *args, const msdu__round_stats *stats);
/* The share above, of ranks that have `cores` cores together, of which they keep `busy`. */
double msdu__cost_share(double ranks, double cores, double busy);

#endif
