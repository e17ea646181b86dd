/* SPDX-License-Identifier: Apache-2.0 */
/* What a choice costs the processor. Pure. */
#include "cost.h"

#include <math.h>

/* Bytes of an element that passes move, as far as a copy of a byte moves two (core/domain.c): the
 * norm reads 4, the division reads and writes 4; the capture reads 8 and writes 4, the correction
 * reads and writes 16. */
#define GRADIENT_PASSES 6.0
#define LOCAL_PASSES    14.0
/* Of a measured step, that processor time of coding may explain at most. */
#define TAKEN_MOST 0.5

double msdu__cost_code_ns(const msdu__interval_args *args, const msdu__round_stats *stats, int wire)
{
    double scale = stats->code_scale > 0 ? stats->code_scale : 1;
    bool is_known = wire >= 0 && (uint32_t)wire < args->wire_count;

    return is_known ? scale * args->wires[wire].code_ns * (double)stats->elements : 0;
}

static double round_ns(const msdu__interval_args *args, const msdu__round_stats *stats, int wire,
                       bool is_gradient)
{
    bool is_known = wire >= 0 && (uint32_t)wire < args->wire_count;
    double ring = stats->ranks > 0 ? 2.0 * (stats->ranks - 1) / stats->ranks : 0;
    double sent = is_known ? ring * args->wires[wire].bits / 8 : 0;
    double passes = is_gradient ? GRADIENT_PASSES : LOCAL_PASSES;

    return msdu__cost_code_ns(args, stats, wire) +
           args->copy_ns * (passes + 2 * sent) * (double)stats->elements;
}

double msdu__cost_round_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                           const msdu__choice *choice)
{
    return round_ns(args, stats, choice->wire, stats->is_gradient && choice->interval == 1);
}

double msdu__cost_taken_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                           const msdu__choice *choice)
{
    double steps = choice->interval > 0 ? choice->interval : 1;
    double plain = round_ns(args, stats, args->widest_wire, true);

    return stats->taken_share * fmax(msdu__cost_round_ns(args, stats, choice) - steps * plain, 0);
}

double msdu__cost_hidden_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                            const msdu__choice *choice, double sync_ns, double waited_ns)
{
    double hidden = sync_ns > 0 ? 1 - fmin(fmax(waited_ns / sync_ns, 0), 1) : 1;

    return hidden * msdu__cost_taken_ns(args, stats, choice);
}

double msdu__cost_step_ns(const msdu__interval_args *args, const msdu__round_stats *stats)
{
    msdu__choice now = {.interval = stats->interval, .wire = stats->wire};
    double step = (double)stats->step_ns;
    double steps = stats->interval > 0 ? stats->interval : 1;

    return fmax(step - msdu__cost_taken_ns(args, stats, &now) / steps, (1 - TAKEN_MOST) * step);
}

double msdu__cost_share(double ranks, double cores, double busy)
{
    if (!(ranks > 0 && cores > 0)) {
        return 0;
    }
    double crowded = (fmin(fmax(busy, 0), cores) + ranks - cores) / ranks;

    return fmin(fmax(crowded, 0), 1) * ranks / cores;
}
