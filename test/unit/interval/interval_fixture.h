/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of interval policies share: settings, a round's statistics, a call. */
#ifndef MSDU_INTERVAL_FIXTURE_H
#define MSDU_INTERVAL_FIXTURE_H

#include "interval/interval.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { FLOAT32, BFLOAT16, INT8, INT4, INT2, WIRES };

static uint64_t seed_now = 3;

/* Uniform in -1 .. 1. */
static inline double noise(void)
{
    seed_now = seed_now * 6364136223846793005U + 1442695040888963407U;
    return (double)(int64_t)(seed_now >> 11) / 4503599627370496.0 - 1;
}

static inline msdu__interval_args default_args(void)
{
    msdu__interval_args args = {
        .interval_steps = 8,
        .interval_max = 64,
        .warmup_steps = 8,
        .target_overhead = 0.03,
        .drift_exponent = 1,
        .qsr_alpha = 0.2,
        .plateau_patience = 2,
        .plateau_threshold = 0.05,
        .fixed_wire = -1,
        .widest_wire = FLOAT32,
        .can_go_local = true,
        .delay_max = 4,
        .hide_share = 0.5,
        .wires = {{"float32", 32, 0, 0, 0, true, true, false},
                  {"bfloat16", 16, 1e-6, 1e-6, 0, true, true, false},
                  {"int8", 8.0625, 5e-5, 5e-5, 0, true, true, false},
                  {"int4", 4.0625, 0.0163, 0.0163, 0, true, true, false},
                  {"int2", 2.0625, 0.132, 0.132, 0, true, false, false}},
        .wire_count = WIRES,
    };

    return args;
}

/* As wire WIRES; `is_sgd`: the optimizer is linear in the gradient. */
static inline void add_sparse(msdu__interval_args *args, bool is_sgd)
{
    args->wires[WIRES] = (msdu__interval_wire){"sparse", 0.8125, 3.47, 0.34, 0, true, is_sgd, true};
    args->wire_count = WIRES + 1;
}

/* A round of h = 1 gradients over a link that needs `link_ms` for float32, with steps of 10 ms. */
static inline msdu__round_stats default_stats(double link_ms)
{
    msdu__round_stats stats = {
        .step = 100,
        .round = 100,
        .interval = 1,
        .wire = FLOAT32,
        .ranks = 4,
        .is_gradient = true,
        .local_sq = 4,
        .mean_sq = 1.5,
        .weight_sq = 100,
        .loss = (double)NAN,
        .step_ns = 10000000,
        .link_ns = (uint64_t)(link_ms * 1e6),
        .round_bytes = 4000000,
        .elements = 1000000,
        .messages = 4,
    };

    return stats;
}

static inline msdu__decision decide(const char *policy, const msdu__interval_args *args,
                                    const msdu__round_stats *stats, msdu__interval_state *state)
{
    msdu__decision decision = {.interval = 0, .wire = -7};

    memset(decision.reason, '?', sizeof decision.reason);
    ck_assert_ptr_nonnull(msdu__policy_find(policy));
    msdu__policy_find(policy)->decide(args, stats, state, &decision);
    ck_assert_ptr_nonnull(memchr(decision.reason, '\0', sizeof decision.reason));
    ck_assert_uint_ge(strlen(decision.reason), 8);
    return decision;
}

#endif
