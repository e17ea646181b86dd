/* SPDX-License-Identifier: Apache-2.0 */
/* What the statistics messages of a round say, of all ranks together. */
#include "control.h"

/* The same bits everywhere, and exactly their number if all are 1. */
double msdu__message_weights(const msdu__engine *e, const msdu__fragment *f)
{
    double sum = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        sum += f->control.of[rank].weight;
    }
    return sum;
}

double msdu__message_groups(const msdu__engine *e, const msdu__fragment *f)
{
    double groups = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        double shared = (double)f->control.of[rank].host_ranks;
        groups += shared > 1 ? 1 / shared : 1;
    }
    return groups;
}

bool msdu__message_is_equal(const msdu__engine *e, const msdu__fragment *f)
{
    bool is_equal = !e->ticks.is_on;
    is_equal = is_equal && (f->control.of[0].hash[0] != 0 || f->control.of[0].hash[1] != 0);
    for (int32_t rank = 1; rank < e->job->ranks; rank++) {
        is_equal = is_equal && f->control.of[rank].hash[0] == f->control.of[0].hash[0] &&
                   f->control.of[rank].hash[1] == f->control.of[0].hash[1];
    }
    return is_equal;
}
