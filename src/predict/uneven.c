/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of uneven ranks by each way of training them together; uneven.h has the formulas. */
#include "uneven.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

typedef struct asked {
    const msdu__whatif_question *q;
    const msdu__uneven_speeds *speeds;
    int wire;
    char *why;
    size_t why_bytes;
} asked;

/* What follows from the speeds alone. */
typedef struct spread {
    double mean;
    double slowest;
    double fastest;
    double median; /* the lower one of two, as core/tick.c takes the shorter step */
} spread;

const char *msdu__uneven_name(msdu__uneven_way way)
{
    static const char *const names[] = {"exact", "shares", "clock", "two-level"};
    return names[way];
}

static uint32_t local_of(const msdu__whatif_question *q)
{
    return q->network.ranks / q->network.nodes;
}

bool msdu__uneven_applies(const msdu__whatif_question *question, msdu__uneven_way way)
{
    bool has_levels = question->network.nodes > 1 && local_of(question) > 1;
    return way != MSDU__UNEVEN_TWO_LEVELS || has_levels;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static spread spread_of(const double *of, uint32_t count)
{
    double sorted[MSDU__UNEVEN_SPEEDS_MAX];
    spread s = {.mean = 0};
    memcpy(sorted, of, count * sizeof(*of));
    qsort(sorted, count, sizeof(*sorted), by_size);
    for (uint32_t i = 0; i < count; i++) {
        s.mean += sorted[i] / count;
    }
    s.slowest = sorted[0];
    s.fastest = sorted[count - 1];
    s.median = sorted[count / 2];
    return s;
}

/* --- simulated steps --- */

static bool predict(const asked *a, const msdu__whatif_question *q, const msdu__whatif_way *way,
                    msdu__whatif_answer *answer)
{
    return msdu__whatif_predict(q, way, answer, a->why, a->why_bytes);
}

/* A step in which all ranks of the network wait for each other. */
static bool exact_step(const asked *a, msdu__whatif_network network, int wire, double slowness,
                       msdu__whatif_answer *answer)
{
    msdu__whatif_question q = *a->q;
    q.network = network;
    q.slowness = slowness;
    msdu__whatif_way way = msdu__whatif_way_of(&q, msdu__overlap_method_find("free"));
    way.wire = wire;
    return predict(a, &q, &way, answer);
}

/* An exchange of the whole model beside the trainer's steps: time of it, and a rank's bytes. */
static bool exchange(const asked *a, msdu__whatif_network network, double *link_ns, double *bytes)
{
    msdu__whatif_question q = *a->q;
    msdu__whatif_answer answer;
    q.network = network;
    msdu__whatif_way way = msdu__whatif_way_of(&q, msdu__overlap_method_find("local-delayed"));
    way.wire = a->wire;
    if (!predict(a, &q, &way, &answer)) {
        return false;
    }
    *link_ns = answer.link_ns;
    *bytes = answer.bytes * way.interval;
    return true;
}

/* Of what a rank sends to all others, the part that leaves its host. */
static double leaving(const msdu__whatif_question *q)
{
    double ranks = q->network.ranks;
    return ranks > 1 ? (ranks - local_of(q)) / (ranks - 1) : 0;
}

/* --- the ways --- */

static bool together(const asked *a, double slowness, msdu__uneven_answer *out)
{
    msdu__whatif_answer answer;
    if (!exact_step(a, a->q->network, a->wire, slowness, &answer)) {
        return false;
    }
    *out = (msdu__uneven_answer){.step_ns = answer.step_ns,
                                 .batches_ns = answer.step_ns,
                                 .round_ns = answer.step_ns,
                                 .bytes = answer.bytes,
                                 .outer_bytes = answer.bytes * leaving(a->q),
                                 .interval = 1};
    return true;
}

/* Rounds that follow each other as fast as the exchange, or the median's steps, allow. */
static void set_round(msdu__uneven_answer *out, double median_ns, double link_ns)
{
    out->round_ns = fmax(median_ns, link_ns);
    out->interval = median_ns > 0 ? (uint32_t)fmin(ceil(out->round_ns / median_ns), 1e9) : 1;
}

static bool by_clock(const asked *a, const spread *s, msdu__uneven_answer *out)
{
    double compute = msdu__profile_compute_ns(a->q->profile);
    double link_ns = 0;
    double bytes = 0;
    if (!exchange(a, a->q->network, &link_ns, &bytes)) {
        return false;
    }
    out->step_ns = compute / s->fastest;
    out->batches_ns = compute / s->mean;
    set_round(out, compute / s->median, link_ns);
    out->bytes = bytes * out->batches_ns / out->round_ns;
    out->outer_bytes = out->bytes * leaving(a->q);
    return true;
}

/* Speeds of hosts: each is as fast as its slowest rank. Their pattern repeats with that of ranks.
 */
static uint32_t host_speeds(const asked *a, double *of)
{
    uint32_t local = local_of(a->q);
    uint32_t nodes = a->q->network.nodes;
    uint32_t count = nodes < a->speeds->count ? nodes : a->speeds->count;
    for (uint32_t h = 0; h < count; h++) {
        uint64_t first = (uint64_t)h * local;
        of[h] = (double)INFINITY;
        for (uint32_t k = 0; k < local && k < a->speeds->count; k++) {
            of[h] = fmin(of[h], a->speeds->of[(first + k) % a->speeds->count]);
        }
    }
    return count;
}

static bool two_levels(const asked *a, msdu__uneven_answer *out)
{
    double of[MSDU__UNEVEN_SPEEDS_MAX];
    double link_ns = 0;
    double bytes = 0;
    uint32_t hosts = host_speeds(a, of);
    uint32_t local = local_of(a->q);
    msdu__whatif_network inner = a->q->network;
    msdu__whatif_network outer = a->q->network;
    msdu__whatif_answer step = {.step_ns = 0};
    inner.ranks = local;
    inner.nodes = 1;
    outer.ranks = outer.nodes; /* shards of its ranks pass a host's link as one model would */
    if (!exchange(a, outer, &link_ns, &bytes)) {
        return false;
    }
    for (uint32_t h = 0; h < hosts; h++) { /* speeds become steps made in a second */
        if (!exact_step(a, inner, MSDU__WIRE_FLOAT32, 1 / of[h], &step)) {
            return false;
        }
        of[h] = 1e9 / step.step_ns;
    }
    spread s = spread_of(of, hosts);
    out->step_ns = 1e9 / s.fastest;
    out->batches_ns = 1e9 / s.mean;
    set_round(out, 1e9 / s.median, link_ns);
    out->outer_bytes = bytes / local * out->batches_ns / out->round_ns;
    out->bytes = step.bytes + out->outer_bytes;
    return true;
}

bool msdu__uneven_predict(const msdu__whatif_question *question, const msdu__uneven_speeds *speeds,
                          msdu__uneven_way way, int wire, msdu__uneven_answer *answer, char *why,
                          size_t why_bytes)
{
    asked a = {.q = question, .speeds = speeds, .wire = wire, .why = why, .why_bytes = why_bytes};
    spread s = spread_of(speeds->of, speeds->count);
    *answer = (msdu__uneven_answer){.interval = 1};
    switch (way) {
    case MSDU__UNEVEN_EXACT:
        return together(&a, 1 / s.slowest, answer);
    case MSDU__UNEVEN_SHARES:
        return together(&a, 1 / s.mean, answer);
    case MSDU__UNEVEN_CLOCK:
        return by_clock(&a, &s, answer);
    case MSDU__UNEVEN_TWO_LEVELS:
    case MSDU__UNEVEN_WAYS:
        break;
    }
    return two_levels(&a, answer);
}
