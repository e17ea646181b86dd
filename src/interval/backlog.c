/* SPDX-License-Identifier: Apache-2.0 */
/* Does what a format holds back of gradients keep growing? Pure. */
#include "backlog.h"

#include <math.h>

/* bench/results/trials/interval.md has what models do that bear sparse, and those that do not. */
#define FILL_ROUNDS    16           /* until what is held back is about what it stays */
#define SMOOTH         (1.0 / 16)   /* weight of the newest round */
#define SMOOTH_LEAST   (1.0 / 4096) /* growth in so many rounds is not this */
#define GROWING_ROUNDS 20
#define FORGIVEN       2  /* of these, by a round in which it did not grow */
#define GROWN          64 /* in energy: eight times in norm */
#define BEGUN          4  /* likewise, from where on rounds count: what scatters does not add up */
#define GIVEN_UP       UINT64_MAX
#define RISEN          1e-3 /* share by which a learning rate is larger */

bool msdu__backlog_is_given_up(const msdu__interval_state *state)
{
    return state->count[MSDU__COUNT_BACKLOG] == GIVEN_UP;
}

bool msdu__backlog_is_early(const msdu__round_stats *stats, const msdu__interval_state *state)
{
    return stats->step < state->count[MSDU__COUNT_ROSE] + MSDU__BACKLOG_EARLY_STEPS;
}

static void learn_rate(const msdu__round_stats *stats, msdu__interval_state *state)
{
    double *most = &state->real[MSDU__REAL_LR_MOST];

    if (stats->lr > (1 + RISEN) * *most) {
        *most = stats->lr;
        state->count[MSDU__COUNT_ROSE] = stats->step;
    }
}

static bool is_backlog(const msdu__interval_args *args, const msdu__round_stats *stats)
{
    bool is_wire = stats->wire >= 0 && (uint32_t)stats->wire < args->wire_count;
    return args->fixed_wire < 0 && stats->is_gradient && is_wire &&
           args->wires[stats->wire].has_backlog;
}

/* The first rounds are compared with what a gradient's energy lets expect. */
static void learn_least(const msdu__interval_args *args, const msdu__round_stats *stats,
                        msdu__interval_state *state)
{
    double held = state->real[MSDU__REAL_BACKLOG];
    double *least = &state->real[MSDU__REAL_BACKLOG_LEAST];
    uint64_t rounds = state->count[MSDU__COUNT_BACKLOG];

    if (rounds == 1) {
        *least = args->wires[stats->wire].residual_ratio * stats->local_sq;
    } else if (rounds >= FILL_ROUNDS) {
        *least = fmin(*least + SMOOTH_LEAST * (held - *least), held);
    }
}

const char *msdu__backlog_learn(const msdu__interval_args *args, const msdu__round_stats *stats,
                                msdu__interval_state *state)
{
    double *held = &state->real[MSDU__REAL_BACKLOG];
    uint64_t *rounds = &state->count[MSDU__COUNT_BACKLOG];
    uint64_t *growing = &state->count[MSDU__COUNT_GROWING];

    learn_rate(stats, state);
    if (*rounds == GIVEN_UP) {
        return NULL;
    }
    if (stats->is_clipping) {
        *rounds = GIVEN_UP;
        return is_backlog(args, stats) ? "sparse and clipped gradients" : NULL;
    }
    if (!is_backlog(args, stats)) {
        *held = 0;
        *rounds = *growing = 0;
        return NULL;
    }
    *rounds += 1;
    bool is_more = stats->residual_sq > *held;
    *held += fmax(SMOOTH, 1.0 / (double)*rounds) * (stats->residual_sq - *held);
    learn_least(args, stats, state);
    double grown = *held / state->real[MSDU__REAL_BACKLOG_LEAST];
    is_more = is_more && grown > BEGUN;
    *growing = is_more ? *growing + 1 : *growing - (*growing < FORGIVEN ? *growing : FORGIVEN);
    if (*growing < GROWING_ROUNDS || !(grown > GROWN)) {
        return NULL;
    }
    *rounds = GIVEN_UP;
    return "sparse held back more and more";
}
