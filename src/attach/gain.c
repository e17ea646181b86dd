/* SPDX-License-Identifier: Apache-2.0 */
/* Is a trainer faster with the library than without? Pure. */
#include "gain.h"

#define BLOCK_STEPS  8
#define BLOCKS       3
#define WARM_STEPS   6 /* not timed: first calls, an engine's start */
#define PHASE_STEPS  (WARM_STEPS + BLOCKS * BLOCK_STEPS) /* PLAIN, TRIAL */
#define KEPT_STEPS   256
#define KEPT_MOST    16384
#define REFUSED_MOST 65536
#define TRIALS_MAX   4

/* Four bits of 32, and scales. */
#define BYTES_SAVED 0.87
/* Coding a contribution and a mean, decoding both, a core of 2020 (bench/results/kernels): an
 * estimate that only has to keep hopeless trials from being made. */
#define CODING_NS 2.0
#define HOPE      0.10 /* of a step: worth a trial */
#define SHORTER   0.95 /* worth keeping */

static uint32_t doubled(uint32_t first, uint32_t times, uint32_t most)
{
    uint32_t steps = first;
    for (uint32_t i = 0; i < times && steps < most; i++) {
        steps *= 2;
    }
    return steps < most ? steps : most;
}

static uint32_t length_of(const msdu__gain *gain)
{
    switch (gain->phase) {
    case MSDU__GAIN_KEPT:
        return doubled(KEPT_STEPS, gain->kept_looks, KEPT_MOST);
    case MSDU__GAIN_REFUSED:
        return gain->trials >= TRIALS_MAX ? 0
                                          : doubled(4 * KEPT_STEPS, 2 * gain->trials, REFUSED_MOST);
    case MSDU__GAIN_PLAIN:
    case MSDU__GAIN_TRIAL:
        return PHASE_STEPS;
    case MSDU__GAIN_ASKED:
        break;
    }
    return 0;
}

static void enter(msdu__gain *gain, msdu__gain_phase phase)
{
    gain->phase = phase;
    gain->steps = 0;
    gain->block_ns = gain->block_waits = gain->best_ns = gain->best_waits = 0;
    gain->block_steps = 0;
    gain->last_ns = 0;
    gain->length = length_of(gain);
}

static uint64_t less(uint64_t best, uint64_t other)
{
    return best == 0 || other < best ? other : best;
}

static void add_step(msdu__gain *gain, uint64_t time_ns, uint64_t wait_ns)
{
    gain->block_ns += time_ns;
    gain->block_waits += wait_ns;
    gain->block_steps++;
    if (gain->block_steps == BLOCK_STEPS) {
        gain->best_ns = less(gain->best_ns, gain->block_ns);
        gain->best_waits = less(gain->best_waits, gain->block_waits);
        gain->block_ns = gain->block_waits = 0;
        gain->block_steps = 0;
    }
}

bool msdu__gain_step(msdu__gain *gain, uint64_t now_ns, uint64_t wait_ns)
{
    if (gain->length == 0) {
        gain->length = length_of(gain);
    }
    if (gain->length == 0) {
        return false;
    }
    if (gain->last_ns > 0 && gain->steps + BLOCKS * BLOCK_STEPS >= gain->length + 1) {
        add_step(gain, now_ns - gain->last_ns, wait_ns);
    }
    gain->last_ns = now_ns;
    gain->steps++;
    gain->kept_steps += gain->phase == MSDU__GAIN_KEPT || gain->phase == MSDU__GAIN_TRIAL ? 1 : 0;
    return gain->steps > gain->length;
}

void msdu__gain_report(const msdu__gain *gain, double own_out[MSDU__GAIN_NUMBERS])
{
    own_out[0] = (double)gain->best_ns / BLOCK_STEPS;
    own_out[1] = -(double)gain->best_waits / BLOCK_STEPS; /* of the rank that waits least */
}

/* Could fewer bytes make a step shorter by a tenth? */
static bool has_hope(const msdu__gain *gain)
{
    const double saved = gain->plain_wait_ns * BYTES_SAVED - (double)gain->elements * CODING_NS;
    return saved > HOPE * gain->plain_ns;
}

/* Is what plain steps took long ago still to be believed? */
static bool is_stale(const msdu__gain *gain)
{
    return doubled(KEPT_STEPS, gain->kept_looks, KEPT_MOST) == KEPT_MOST;
}

void msdu__gain_decide(msdu__gain *gain, const double largest[MSDU__GAIN_NUMBERS])
{
    const double step_ns = largest[0];
    switch (gain->phase) {
    case MSDU__GAIN_PLAIN:
        gain->plain_ns = step_ns;
        gain->plain_wait_ns = -largest[1];
        enter(gain, has_hope(gain) ? MSDU__GAIN_TRIAL : MSDU__GAIN_REFUSED);
        break;
    case MSDU__GAIN_TRIAL:
        gain->trials++;
        gain->taken_ns = step_ns;
        gain->kept_looks = 0;
        enter(gain, step_ns < SHORTER * gain->plain_ns ? MSDU__GAIN_KEPT : MSDU__GAIN_REFUSED);
        break;
    case MSDU__GAIN_KEPT:
        gain->taken_ns = step_ns;
        gain->kept_looks++;
        gain->trials -= is_stale(gain) ? 1 : 0; /* the next is no new one */
        enter(gain,
              step_ns < gain->plain_ns && !is_stale(gain) ? MSDU__GAIN_KEPT : MSDU__GAIN_PLAIN);
        break;
    case MSDU__GAIN_REFUSED:
        enter(gain, MSDU__GAIN_PLAIN);
        break;
    case MSDU__GAIN_ASKED:
        break;
    }
}

bool msdu__gain_wants_engine(const msdu__gain *gain)
{
    return gain->phase == MSDU__GAIN_TRIAL || gain->phase == MSDU__GAIN_KEPT ||
           gain->phase == MSDU__GAIN_ASKED;
}

void msdu__gain_reset(msdu__gain *gain)
{
    if (gain->phase != MSDU__GAIN_ASKED) {
        gain->plain_ns = gain->taken_ns = 0;
        enter(gain, MSDU__GAIN_PLAIN);
    }
}
