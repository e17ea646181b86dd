/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the policies share: their tables, and the rules that hold for each of them. */
#ifndef MSDU_POLICIES_H
#define MSDU_POLICIES_H

#include "interval.h"

/* A line here registers msdu__policy_<name> of <name>.c; the build reads this list too. The first
 * is the default. */
#define MSDU__POLICIES(X)                                                                          \
    X(divergence)                                                                                  \
    X(fixed)                                                                                       \
    X(qsr)                                                                                         \
    X(plateau)                                                                                     \
    X(post_local)

#define MSDU__POLICY_EXTERN(name) extern const msdu__policy msdu__policy_##name;
MSDU__POLICIES(MSDU__POLICY_EXTERN)
#undef MSDU__POLICY_EXTERN

/* In warm-up: decides h = 1 on the first wire, and returns true. */
bool msdu__interval_warm_up(const msdu__interval_args *args, const msdu__round_stats *stats,
                            msdu__decision *decision);
/* Percent for a reason, kept short and finite. */
double msdu__interval_percent(double share);
/*
 * Decide an interval for a policy that does not watch the wire: `interval` is limited already; the
 * wire is the fixed one, else the narrowest that costs nothing (local rounds) or the widest (h =
 * 1). Clears the reason.
 */
void msdu__interval_decide_plain(const msdu__interval_args *args, uint32_t interval,
                                 msdu__decision *decision);

#endif
