/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that policies share. Pure. */
#include "interval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policies.h"

/* Residual energy over energy of a contribution up to which trials saw no loss in local rounds. */
#define FREE_RESIDUAL 0.1

uint32_t msdu__interval_limit(const msdu__interval_args *args, uint32_t previous, double wanted)
{
    double most = args->interval_max > 0 ? args->interval_max : 1;
    double before = previous > 0 ? previous : 1;
    double low = ceil(before / 2);
    double value = isnan(wanted) ? before : floor(wanted);

    if (!args->can_go_local) {
        return 1;
    }
    value = fmin(fmax(value, low), 2 * before);
    return (uint32_t)fmin(fmax(value, 1), most);
}

/*
 * Means are float32, each element within 2^-24 of itself, so a - b holds twice that of b whatever
 * the ranks did. And every step rounds every weight, at random within 2^-24: as much may lie
 * between ranks that computed the same in another order.
 */
double msdu__interval_drift(const msdu__round_stats *stats)
{
    double drift = stats->local_sq - stats->mean_sq;
    double of_mean = 0x1p-22 * stats->local_sq;
    double of_weights = 0x1p-48 * stats->weight_sq * stats->interval;

    return drift > of_mean && drift > of_weights ? drift : 0;
}

static double wire_bits(const msdu__interval_args *args, int wire)
{
    return wire >= 0 && (uint32_t)wire < args->wire_count ? args->wires[wire].bits : 0;
}

double msdu__interval_percent(double share)
{
    return fmin(fmax(100 * share, 0), 999);
}

int msdu__interval_first_wire(const msdu__interval_args *args)
{
    return args->fixed_wire >= 0 ? args->fixed_wire : args->widest_wire;
}

bool msdu__interval_warm_up(const msdu__interval_args *args, const msdu__round_stats *stats,
                            msdu__decision *decision)
{
    if (stats->step >= args->warmup_steps) {
        return false;
    }
    decision->interval = 1;
    decision->wire = msdu__interval_first_wire(args);
    snprintf(decision->reason, sizeof decision->reason, "warm-up: step %llu of %u",
             (unsigned long long)stats->step, args->warmup_steps);
    return true;
}

/* Ties go to the wider format, which comes first. */
static int narrowest_free_wire(const msdu__interval_args *args)
{
    int best = args->widest_wire;

    for (uint32_t i = 0; i < args->wire_count; i++) {
        const msdu__interval_wire *wire = &args->wires[i];

        if (wire->is_allowed && wire->residual_ratio <= FREE_RESIDUAL && wire->bits > 0 &&
            wire->bits < wire_bits(args, best)) {
            best = (int)i;
        }
    }
    return best;
}

void msdu__interval_decide_plain(const msdu__interval_args *args, uint32_t interval,
                                 msdu__decision *decision)
{
    decision->interval = interval;
    decision->reason[0] = '\0';
    if (args->fixed_wire >= 0) {
        decision->wire = args->fixed_wire;
    } else {
        decision->wire = interval > 1 ? narrowest_free_wire(args) : args->widest_wire;
    }
}
