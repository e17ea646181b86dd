/* SPDX-License-Identifier: Apache-2.0 */
/* One rank process of `msdu bench allreduce`: both paths, run by run in turn. */
#include "allreduce.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <msdu/msdu.h>

#include "gloo_whole.h"
#include "harness/count_alloc.h"
#include "wire/wire.h"

#define QUIET_ROUNDS 12   /* a choice comes after 8 at most */
#define PERIOD       1000 /* values are small integers, so that sums are exact */

#define NARROW_ROUNDS  16     /* whose mean is checked; */
#define SPARSE_ROUNDS  256    /* where an element waits for its turn */
#define HALF_PRECISION 0x1p-9 /* bfloat16's */

typedef struct rank_state {
    msdu__allreduce *shared;
    int rank;
    const msdu__gloo_whole *gloo;
    void *group;
    msdu_ctx *ctx;
    float *values[MSDU__PATHS];
    uint64_t count;
} rank_state;

static bool fail(rank_state *s, const char *what, const char *why)
{
    snprintf(s->shared->error[s->rank], sizeof(s->shared->error[0]), "%s: %s", what, why);
    return false;
}

/* --- the whole one --- */

static bool load_gloo(rank_state *s)
{
    char path[PATH_MAX + 64];
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    snprintf(path, sizeof(path), "%s/../lib/%s", own, MSDU__GLOO_WHOLE_FILE);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module == NULL) {
        return fail(s, "the peer is not there (configure with MSDU_WITH_GLOO)", dlerror());
    }
    s->gloo = dlsym(module, MSDU__GLOO_WHOLE_SYMBOL);
    return s->gloo != NULL || fail(s, MSDU__GLOO_WHOLE_FILE, dlerror());
}

static bool make_folder(rank_state *s, const char *name, char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/%s", s->shared->folder, name);
    mkdir(path, 0700); /* the other rank may have been first */
    struct stat status;
    return stat(path, &status) == 0 || fail(s, path, "cannot be made");
}

static bool open_gloo(rank_state *s)
{
    char folder[128];
    char why[256] = "";
    if (!load_gloo(s) || !make_folder(s, "whole", folder, sizeof(folder))) {
        return false;
    }
    s->group = s->gloo->open(s->rank, MSDU__ALLREDUCE_RANKS, folder, s->shared->interface, why,
                             sizeof(why));
    return s->group != NULL || fail(s, "gloo", why);
}

static bool run_whole(rank_state *s)
{
    char why[256] = "";
    return s->gloo->allreduce(s->group, s->values[MSDU__WHOLE], s->count, why, sizeof(why)) == 0 ||
           fail(s, "gloo", why);
}

/* --- the sliced one --- */

static bool open_context(rank_state *s, uint32_t size)
{
    char folder[128];
    char url[160];
    char name[24];
    snprintf(name, sizeof(name), "sliced%u", size);
    if (!make_folder(s, name, folder, sizeof(folder))) {
        return false;
    }
    snprintf(url, sizeof(url), "file://%s", folder);
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = s->shared->backend;
    config.job = "bench allreduce";
    config.rendezvous = url;
    config.interface = s->shared->interface;
    config.ranks = MSDU__ALLREDUCE_RANKS;
    config.rank = s->rank;
    config.domain = "gradient";
    config.interval = "fixed";
    config.interval_steps = 1;
    config.wire = s->shared->wire;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "gradient";
    desc.gradient = s->values[MSDU__SLICED];
    desc.count = s->count;
    bool is_open = msdu_create(&config, &s->ctx) == MSDU_OK &&
                   msdu_tensor_add(s->ctx, &desc, NULL) == MSDU_OK && msdu_start(s->ctx) == MSDU_OK;
    return is_open || fail(s, "msdu", msdu_last_error());
}

static bool run_sliced(rank_state *s)
{
    bool is_done = msdu_tensor_ready(s->ctx, 0, MSDU_GRADIENT) == MSDU_OK &&
                   msdu_tensor_wait(s->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT) == MSDU_OK &&
                   msdu_step(s->ctx) == MSDU_OK;
    return is_done || fail(s, "msdu", msdu_last_error());
}

static bool close_context(rank_state *s)
{
    bool is_closed = msdu_finish(s->ctx) == MSDU_OK || fail(s, "msdu", msdu_last_error());
    msdu_destroy(s->ctx);
    s->ctx = NULL;
    return is_closed;
}

/* --- runs --- */

static void fill(rank_state *s, int path)
{
    for (uint64_t i = 0; i < s->count; i++) {
        s->values[path][i] = (float)(i % PERIOD) + (float)s->rank;
    }
}

/* Elements that do not hold the sum of the whole path, or the mean of the sliced one. */
static uint64_t count_wrong(const rank_state *s, int path)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < s->count; i++) {
        float mean = (float)(i % PERIOD) + 0.5F;
        float wanted = path == MSDU__WHOLE ? 2.0F * mean : mean;
        wrong += s->values[path][i] != wanted ? 1 : 0;
    }
    return wrong;
}

static bool run_once(rank_state *s, int path)
{
    return path == MSDU__WHOLE ? run_whole(s) : run_sliced(s);
}

/*
 * A compressed wire is right in the mean over rounds: error feedback brings what a round left out.
 * All elements are wrong where the means of as many rounds are farther from the truth, relative to
 * it, than what the format may still hold back.
 */
static bool check_narrow(rank_state *s, uint32_t size, const msdu__wire *wire)
{
    /* held back by two phases, at the beginning and at the end of the rounds; the values of a block
     * are all positive, which is harder than noise */
    const int rounds = wire->residual_ratio > 1 ? SPARSE_ROUNDS : NARROW_ROUNDS;
    const double bound = 16 * sqrt(wire->residual_ratio) / rounds + 4 * HALF_PRECISION;
    double *sums = calloc(s->count, sizeof(*sums));
    double far = 0;
    double norm = 0;
    bool is_done = sums != NULL || fail(s, "check", "out of memory");
    for (int round = 0; round < rounds && is_done; round++) {
        fill(s, MSDU__SLICED);
        is_done = run_sliced(s);
        for (uint64_t i = 0; i < s->count && is_done; i++) {
            sums[i] += (double)s->values[MSDU__SLICED][i] / rounds;
        }
    }
    for (uint64_t i = 0; i < s->count && is_done; i++) {
        double wanted = (double)(i % PERIOD) + 0.5;
        far += (sums[i] - wanted) * (sums[i] - wanted);
        norm += wanted * wanted;
    }
    free(sums);
    s->shared->wrong[size][MSDU__SLICED][s->rank] = far > bound * bound * norm ? s->count : 0;
    return is_done;
}

static bool check(rank_state *s, uint32_t size, int path)
{
    const msdu__wire *wire = msdu__wire_at(msdu__wire_find(s->shared->wire));
    if (path == MSDU__SLICED && wire->bits < 32) {
        return check_narrow(s, size, wire);
    }
    fill(s, path);
    if (!run_once(s, path)) {
        return false;
    }
    s->shared->wrong[size][path][s->rank] = count_wrong(s, path);
    return true;
}

static bool measure(rank_state *s, uint32_t size, uint32_t run, int path)
{
    uint32_t iterations = s->shared->iterations[size];
    bool is_done = true;
    fill(s, path); /* the sums of the whole path double each time */
    pthread_barrier_wait(&s->shared->barrier);
    msdu__count_alloc_begin();
    double cpu = msdu__bench_cpu();
    double began = msdu__bench_now();
    for (uint32_t i = 0; i < iterations && is_done; i++) {
        is_done = run_once(s, path);
    }
    double spent = msdu__bench_now() - began;
    uint64_t allocations = msdu__count_alloc_end();
    s->shared->cpu_ns[size][path][s->rank] += msdu__bench_cpu() - cpu;
    s->shared->run_ns[size][path][run][s->rank] = spent / iterations;
    if (path == MSDU__SLICED && s->rank == 0) {
        s->shared->allocations[size] += allocations;
    }
    return is_done;
}

/* The size of slices follows from what the first rounds take, on both ranks in the same step. */
static bool settle(rank_state *s)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    uint32_t cuts = 0;
    bool is_done = true;
    for (uint32_t quiet = 0; quiet < QUIET_ROUNDS && is_done; quiet++) {
        fill(s, MSDU__SLICED); /* else a narrow wire would code its own output again and again */
        is_done = run_sliced(s) && (msdu_summary_get(s->ctx, &summary) == MSDU_OK);
        quiet = summary.slice_cuts != cuts ? 0 : quiet;
        cuts = summary.slice_cuts;
    }
    return is_done;
}

static bool run_size(rank_state *s, uint32_t size)
{
    s->count = s->shared->bytes[size] / sizeof(float);
    bool is_done = open_context(s, size) && settle(s) && check(s, size, MSDU__SLICED) &&
                   check(s, size, MSDU__WHOLE);
    for (uint32_t run = 0; run < s->shared->runs && is_done; run++) {
        int first = (int)(run % 2); /* neither path is always the one after the other */
        is_done = measure(s, size, run, first) && measure(s, size, run, 1 - first);
    }
    return is_done && close_context(s);
}

bool msdu__allreduce_rank(msdu__allreduce *shared, int rank)
{
    rank_state s = {.shared = shared, .rank = rank};
    uint64_t most = 0;
    for (uint32_t i = 0; i < shared->sizes; i++) {
        most = shared->bytes[i] > most ? shared->bytes[i] : most;
    }
    for (int path = 0; path < MSDU__PATHS; path++) {
        s.values[path] = msdu__bench_pages(most);
    }
    bool is_done = open_gloo(&s);
    for (uint32_t i = 0; i < shared->sizes && is_done; i++) {
        is_done = run_size(&s, i);
    }
    if (s.group != NULL && is_done) {
        s.gloo->close(s.group);
    }
    return is_done;
}
