/* SPDX-License-Identifier: Apache-2.0 */
/* What `msdu bench overlap` measures of its link before the first step: rate, latency, processor
 * time of a slice. */
#include <math.h>
#include <time.h>

#include "overlap.h"

#define RUNS        7
#define LARGE       (4U << 20) /* elements */
#define LARGE_SMOKE (256U << 10)
#define PIECE       16 /* elements of the smallest slice */
#define PIECES      64
#define EXACT       "domain=gradient\ninterval=fixed\ninterval_steps=1\nwire=float32\n"
/* The message with the statistics of a round is not waited for. */
#define SMALL EXACT "commit=tensor\nslice_bytes=64\nfuse_bytes=0\nwire_block=16\n"

typedef struct probed {
    double best_ns;
    double cpu_ns; /* processor time of an exchange, all threads of this rank */
} probed;

static double process_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec * 1e9 + (double)spent.tv_nsec;
}

static bool exchange(msdu_ctx *ctx)
{
    return msdu_tensor_ready(ctx, 0, MSDU_GRADIENT) == MSDU_OK &&
           msdu_tensor_wait(ctx, 0, MSDU_GRADIENT) == MSDU_OK && msdu_step(ctx) == MSDU_OK;
}

/* The first exchange makes connections and fills caches. */
static bool run(msdu_ctx *ctx, probed *out)
{
    bool is_done = exchange(ctx);
    double cpu = process_ns();
    out->best_ns = (double)INFINITY;
    for (int i = 0; i < RUNS && is_done; i++) {
        double began = msdu__bench_now();
        is_done = exchange(ctx);
        out->best_ns = fmin(out->best_ns, msdu__bench_now() - began);
    }
    out->cpu_ns = (process_ns() - cpu) / RUNS;
    return is_done;
}

/* Exchanges of one tensor, in a context of their own. */
static bool probe(msdu__overlap_group *group, uint64_t count, const char *settings, probed *out)
{
    msdu_config config;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu_ctx *ctx = NULL;
    desc.name = "probe";
    desc.count = count;
    desc.gradient = msdu__bench_pages(count * sizeof(float));
    bool is_done = msdu__overlap_group_next(group, &config);
    config.settings = settings;
    is_done = is_done && msdu_create(&config, &ctx) == MSDU_OK &&
              msdu_tensor_add(ctx, &desc, NULL) == MSDU_OK && msdu_start(ctx) == MSDU_OK &&
              run(ctx, out) && msdu_finish(ctx) == MSDU_OK;
    msdu__bench_pages_free(desc.gradient, count * sizeof(float));
    if (is_done) {
        msdu_destroy(ctx);
    }
    return is_done;
}

/* Bytes that a rank sends, per ns: as given, or the best of whole exchanges. */
static bool find_rate(const msdu__overlap_plan *plan, msdu__overlap_group *group, double *rate_out)
{
    uint64_t count = plan->is_smoke ? LARGE_SMOKE : LARGE;
    probed large;
    *rate_out = plan->link_mbit * 1e6 / 8 / 1e9;
    if (plan->link_mbit > 0) {
        return true;
    }
    if (!probe(group, count, EXACT, &large)) {
        return false;
    }
    double bytes = (double)count * sizeof(float);
    *rate_out = msdu__bound_ring_bytes(bytes, (uint32_t)group->ranks) / large.best_ns;
    return true;
}

bool msdu__overlap_probe(const msdu__overlap_plan *plan, msdu__overlap_group *group,
                         msdu__overlap_facts *facts)
{
    double rate = 0;
    probed one;
    probed many;
    if (!find_rate(plan, group, &rate) || !probe(group, PIECE, SMALL, &one) ||
        !probe(group, (uint64_t)PIECE * PIECES, SMALL, &many)) {
        return false;
    }
    /* the rate is rank 0's, the others are means over ranks */
    double slice_cpu = fmax(0, many.cpu_ns - one.cpu_ns) / (PIECES - 1);
    double sums[3] = {group->rank == 0 ? rate : 0, one.best_ns / group->ranks,
                      slice_cpu / group->ranks};
    if (!msdu__overlap_group_sum(group, sums, 3)) {
        return false;
    }
    *facts = (msdu__overlap_facts){
        .link = {.bytes_per_ns = sums[0], .latency_ns = plan->latency_us * 1e3},
        .is_measured = plan->link_mbit == 0,
        .exchange_ns = sums[1],
        .slice_cpu_ns = sums[2],
        .ranks = group->ranks,
    };
    return true;
}
