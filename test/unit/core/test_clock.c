/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds by the clock (core/tick.h) in virtual time: four ranks over the backend "local", whose
 * progress engines one thread drives by hand. Ranks have speeds, bursts of slowness and evaluations
 * by chance. Beside them runs a plain reference, a parameter server that replays who came to which
 * round.
 */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/context.h"
#include "core/progress.h"
#include "pause.h"
#include "random.h"
#include "suite.h"

#define RANKS   4
#define TENSORS 3
#define MOST    40     /* elements of a rank */
#define ROUNDS  65536  /* remembered */
#define QUANTUM 100000 /* ns */
#define STEP    1000000

static uint64_t now_ns;

static uint64_t virtual_clock(void *user)
{
    (void)user;
    return now_ns;
}

/* Of each rank, where no two agree. */
static uint64_t ahead_ns[RANKS];

#define CLOCK_OF(RANK)                                                                             \
    static uint64_t clock_of_##RANK(void *user)                                                    \
    {                                                                                              \
        return virtual_clock(user) + ahead_ns[RANK];                                               \
    }
CLOCK_OF(0)
CLOCK_OF(1)
CLOCK_OF(2)
CLOCK_OF(3)

static uint64_t (*const clocks[RANKS])(void *) = {clock_of_0, clock_of_1, clock_of_2, clock_of_3};

/* --- ranks --- */

typedef struct rank {
    msdu_ctx *ctx;
    int index;
    msdu_status status;
    double wide[25];       /* tensors: float64, */
    float single[8];       /* float32, */
    uint16_t half[7];      /* bfloat16 */
    uint64_t step_ns;      /* of this rank where nothing slows it down */
    uint64_t next_ns;      /* end of its present step */
    double progress[MOST]; /* sum of all its steps, exact types only */
    uint64_t steps;
    uint64_t seen; /* rounds that ended */
    uint64_t missed_in_row;
    uint64_t missed_most;
} rank;

static const uint64_t counts[TENSORS] = {25, 8, 7};
static const int32_t dtypes[TENSORS] = {MSDU_FLOAT64, MSDU_FLOAT32, MSDU_BFLOAT16};

typedef struct world {
    rank ranks[RANKS];
    msdu_config config;
    uint64_t random;
    uint64_t slow; /* the last rank is so many times slower */
    bool has_bursts;
    bool has_jumps;           /* of each rank's own clock */
    bool is_curved;           /* gradients depend on parameters */
    uint64_t rounds;          /* ended on all ranks */
    uint64_t anchors[ROUNDS]; /* hashes of rank 0 */
} world;

static void *memory_of(rank *r, uint32_t tensor)
{
    return tensor == 0 ? (void *)r->wide : tensor == 1 ? (void *)r->single : (void *)r->half;
}

static void *start_rank(void *argument)
{
    static const char *const names[TENSORS] = {"wide", "single", "half"};
    rank *r = argument;
    for (uint32_t t = 0; r->status == MSDU_OK && t < TENSORS; t++) {
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = names[t];
        desc.parameter = memory_of(r, t);
        desc.count = counts[t];
        desc.dtype = dtypes[t];
        r->status = msdu_tensor_add(r->ctx, &desc, NULL);
    }
    r->status = r->status == MSDU_OK ? msdu_start(r->ctx) : r->status;
    msdu__worker_stop(&r->ctx->hand.worker); /* the test drives it */
    return NULL;
}

static void *finish_rank(void *argument)
{
    rank *r = argument;
    msdu__flag_set(&r->ctx->hand.worker.is_stopping, false);
    r->status = msdu__worker_start(&r->ctx->hand.worker);
    r->status = r->status == MSDU_OK ? msdu_finish(r->ctx) : r->status;
    return NULL;
}

static void *synchronize_rank(void *argument)
{
    rank *r = argument;
    msdu__flag_set(&r->ctx->hand.worker.is_stopping, false);
    r->status = msdu__worker_start(&r->ctx->hand.worker);
    r->status = r->status == MSDU_OK ? msdu_synchronize(r->ctx) : r->status;
    return NULL;
}

static void on_all(world *w, void *(*run)(void *))
{
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &w->ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
        ck_assert_msg(w->ranks[i].status == MSDU_OK, "rank %d: %s", i, msdu_last_error());
    }
}

static msdu_config config_of(const char *wire)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = RANKS;
    config.backend = "local";
    config.job = "clock";
    config.uneven = "clock";
    config.wire = wire;
    config.slice_bytes = 64;
    config.fuse_bytes = 32;
    config.wire_block = 16;
    return config;
}

static void world_make(world *w)
{
    now_ns = 1000000000;
    for (int i = 0; i < RANKS; i++) {
        rank *r = &w->ranks[i];
        w->config.rank = i;
        r->index = i;
        r->step_ns = STEP * (i == RANKS - 1 ? w->slow : 1);
        r->next_ns = now_ns + r->step_ns;
        ck_assert_int_eq(msdu_create(&w->config, &r->ctx), MSDU_OK);
        for (int k = 0; k < 25; k++) {
            r->wide[k] = k;
            r->single[k % 8] = (float)k;
        }
    }
}

static void world_start(world *w)
{
    world_make(w);
    for (int i = 0; i < RANKS; i++) {
        ahead_ns[i] = w->has_jumps ? (uint64_t)i * 3600000 * STEP : 0;
        w->ranks[i].ctx->job.clock = clocks[i];
    }
    on_all(w, start_rank);
}

static void world_end(world *w)
{
    for (int i = 0; i < RANKS; i++) {
        msdu_destroy(w->ranks[i].ctx);
    }
}

/* --- the reference: a server, and workers that push what they did and pull what is there --- */

typedef struct server {
    double theta[MOST];
    double given[2][RANKS][MOST]; /* by round: what came, zeros of who did not */
    double worker[RANKS][MOST];
    double shift[RANKS][MOST]; /* pulled and not yet taken, minus what was pushed */
} server;

static void server_start(server *s, const rank *r)
{
    memset(s, 0, sizeof(*s));
    for (int k = 0; k < 25; k++) {
        s->theta[k] = r->wide[k];
        for (int i = 0; i < RANKS; i++) {
            s->worker[i][k] = r->wide[k];
        }
    }
}

static void worker_pulls(server *s, int i)
{
    for (int k = 0; k < 25; k++) {
        s->worker[i][k] += s->shift[i][k];
        s->shift[i][k] = 0;
    }
}

static void worker_pushes(server *s, int i, uint64_t round, double share)
{
    worker_pulls(s, i);
    for (int k = 0; k < 25; k++) {
        s->shift[i][k] = s->theta[k] - s->worker[i][k];
        s->given[round & 1][i][k] = share != 1 ? s->shift[i][k] * share : s->shift[i][k];
    }
}

static void server_applies(server *s, uint64_t round)
{
    for (int k = 0; k < 25; k++) {
        double sum = 0;
        for (int i = 0; i < RANKS; i++) {
            sum += s->given[round & 1][i][k];
            s->given[round & 1][i][k] = 0;
        }
        double mean = sum / RANKS;
        s->theta[k] -= mean;
        for (int i = 0; i < RANKS; i++) {
            s->shift[i][k] -= mean;
        }
    }
}

/* --- virtual time --- */

/* Steps are multiples of 1/64, so all sums are exact; or SGD on a bowl of the rank's own. */
static void train(world *w, rank *r, server *s)
{
    for (int k = 0; k < 25; k++) {
        double step = (double)(int64_t)(random_next(&w->random) % 33) / 64 - 0.25;
        if (w->is_curved) {
            step = -0.05 * (r->wide[k] - 3 * r->index - k / 7.0);
            s->worker[r->index][k] += step;
        }
        r->wide[k] += step;
        r->progress[k] += step;
        if (k < 8) {
            float little = (float)((double)(int64_t)(random_next(&w->random) % 33) / 64 - 0.25);
            r->single[k] += little;
            r->progress[25 + k] += (double)little;
        }
    }
    r->steps++;
}

static uint64_t step_ns(world *w, const rank *r)
{
    uint64_t chance = random_next(&w->random);
    uint64_t jitter = r->step_ns / 2 + chance % r->step_ns;
    if (!w->has_bursts) {
        return r->step_ns;
    }
    return chance % 997 == 0 ? 40 * jitter : chance % 50 == 0 ? 5 * jitter : jitter;
}

static uint64_t gate_of(const rank *r)
{
    return msdu__cell_get(&r->ctx->hand.fragments[0].gate);
}

/* The end of a step; the reference does what the rank did. */
static void end_step(world *w, rank *r, server *s)
{
    uint64_t before = gate_of(r);
    uint64_t shifted = r->ctx->caller.shifted;
    train(w, r, s);
    ck_assert_int_eq(msdu_step(r->ctx), MSDU_OK);
    r->next_ns = now_ns + step_ns(w, r);
    uint64_t gate = gate_of(r);
    if (gate != before && gate % 4 == MSDU__GATE_TAKEN) {
        bool is_scaled = r->ctx->job.settings.clock_scale != 0;
        worker_pushes(s, r->index, gate / 4, is_scaled ? 1 / (1 + (double)r->missed_in_row) : 1);
        r->missed_in_row = 0;
    } else {
        /* whatever has arrived is taken, and nothing else */
        ck_assert_uint_eq(r->ctx->caller.shifted, r->seen > shifted ? r->seen : shifted);
        if (r->seen > shifted) {
            worker_pulls(s, r->index);
        }
    }
}

static uint64_t hash_anchors(const rank *r)
{
    uint64_t hash = 1;
    const msdu__engine *e = &r->ctx->engine;
    for (uint32_t i = 0; i < r->ctx->model.slicing.slice_count; i++) {
        const unsigned char *bytes = e->runs[i].anchor;
        uint64_t count = r->ctx->model.slicing.slices[i].count *
                         msdu__dtype_working_bytes(r->ctx->model.slicing.slices[i].dtype);
        for (uint64_t k = 0; k < count; k++) {
            hash = (hash ^ bytes[k]) * 1099511628211U;
        }
    }
    return hash;
}

/* A round that has ended left the same anchors on all ranks. */
static void look(world *w, rank *r)
{
    uint64_t done = msdu__cell_get(&r->ctx->hand.fragments[0].done);
    ck_assert_uint_le(done, r->seen + 1);
    if (done == r->seen) {
        return;
    }
    r->seen = done;
    ck_assert_uint_lt(done, ROUNDS);
    if (w->anchors[done] == 0) {
        w->anchors[done] = hash_anchors(r);
    }
    ck_assert_uint_eq(w->anchors[done], hash_anchors(r));
}

static void look_missed(rank *r, uint64_t before)
{
    if (gate_of(r) != before && gate_of(r) % 4 == MSDU__GATE_MISSED) {
        r->missed_in_row++;
        r->missed_most = r->missed_in_row > r->missed_most ? r->missed_in_row : r->missed_most;
    }
}

/* Everything that can happen without time. */
static void pump(world *w, server *s)
{
    uint64_t progress = UINT64_MAX;
    for (uint64_t last = 0; progress != last;) {
        last = progress;
        progress = 0;
        for (int i = 0; i < RANKS; i++) {
            uint64_t gate = gate_of(&w->ranks[i]);
            (void)msdu__engine_advance(&w->ranks[i].ctx->engine);
            ck_assert_msg(!msdu__handover_has_failed(&w->ranks[i].ctx->hand), "rank %d: %s", i,
                          w->ranks[i].ctx->hand.failure.text);
            look(w, &w->ranks[i]);
            look_missed(&w->ranks[i], gate);
            progress += msdu__cell_get(&w->ranks[i].ctx->hand.progress);
        }
        uint64_t least = w->ranks[0].seen;
        for (int i = 1; i < RANKS; i++) {
            least = w->ranks[i].seen < least ? w->ranks[i].seen : least;
        }
        for (; w->rounds < least; w->rounds++) {
            server_applies(s, w->rounds + 1);
        }
    }
}

static void check_server(const world *w, const server *s)
{
    for (int i = 0; i < RANKS; i++) {
        ck_assert_mem_eq(w->ranks[i].wide, s->worker[i], sizeof(w->ranks[i].wide));
    }
}

/* A machine that was paused: up to 200 steps of a rank's time are gone. */
static void jump(world *w)
{
    for (int i = 0; w->has_jumps && i < RANKS; i++) {
        uint64_t chance = random_next(&w->random);
        ahead_ns[i] += chance % 701 == 0 ? chance / 701 % (200 * STEP) : 0;
    }
}

static void run(world *w, server *s, uint64_t rounds)
{
    uint64_t began_ns = now_ns;
    double period = w->ranks[0].ctx->job.settings.clock_period;
    server_start(s, &w->ranks[0]);
    while (w->rounds < rounds) {
        now_ns += QUANTUM;
        jump(w);
        for (int i = 0; i < RANKS; i++) {
            if (w->ranks[i].next_ns <= now_ns) {
                end_step(w, &w->ranks[i], s);
            }
        }
        pump(w, s);
        if (w->is_curved) {
            check_server(w, s);
        }
    }
    /* rounds come at their period, and no faster; the first ones, until speeds are known */
    ck_assert_double_ge((double)(now_ns - began_ns), 0.9 * (double)rounds * period * STEP);
    for (int i = 0; i < RANKS; i++) {
        for (int t = 0; t < TENSORS; t++) { /* all memory is the trainer's, and not more than all */
            ck_assert_uint_eq(msdu__cell_get(&w->ranks[i].ctx->hand.leases[t].free[1]), 0);
        }
    }
}

/* --- cases --- */

/* Nothing that a rank did is lost, and nothing counts twice, in types that hold it exactly. */
static void check_conserved(const world *w)
{
    for (int k = 0; k < 25 + 8; k++) {
        double sum = 0;
        for (int i = 0; i < RANKS; i++) {
            sum += w->ranks[i].progress[k];
        }
        for (int i = 0; i < RANKS; i++) {
            const rank *r = &w->ranks[i];
            double first = k < 25 ? k : k == 25 ? 24 : k - 25 + 16;
            double now = k < 25 ? r->wide[k] : (double)r->single[k - 25];
            ck_assert_msg(now == first + sum / RANKS, "element %d of rank %d: %.17g, not %.17g", k,
                          i, now, first + sum / RANKS);
        }
    }
}

static world the_world;
static server the_server;

static world *world_new(const char *wire)
{
    memset(&the_world, 0, sizeof(the_world));
    the_world.config = config_of(wire);
    the_world.random = 4711;
    the_world.slow = 4;
    return &the_world;
}

START_TEST(nothing_is_lost_in_ten_thousand_rounds)
{
    world *w = world_new("float32");
    w->has_bursts = true;
    world_start(w);
    run(w, &the_server, 10000);
    ck_assert_uint_gt(w->ranks[RANKS - 1].missed_most, 3);
    on_all(w, finish_rank);
    check_conserved(w);
    msdu_summary summary = MSDU_SUMMARY_INIT;
    ck_assert_int_eq(msdu_summary_get(w->ranks[RANKS - 1].ctx, &summary), MSDU_OK);
    ck_assert_uint_gt(summary.missed, 1000);
    world_end(w);
}
END_TEST

/* Clocks say when a rank takes part, and nothing else. */
START_TEST(clocks_that_differ_and_jump_lose_nothing)
{
    world *w = world_new("float32");
    w->has_jumps = true;
    world_start(w);
    run(w, &the_server, 2000);
    on_all(w, finish_rank);
    check_conserved(w);
    world_end(w);
}
END_TEST

/* Anchors have equal bits whatever the wire makes of contributions (see look()). */
START_TEST(narrow_rounds_agree)
{
    static const char *const wires[] = {"int8", "int4", "int2", "sparse", "bfloat16"};
    world *w = world_new(wires[_i]);
    w->has_bursts = true;
    world_start(w);
    run(w, &the_server, 500);
    on_all(w, finish_rank);
    for (int i = 1; i < RANKS; i++) {
        ck_assert_mem_eq(w->ranks[i].single, w->ranks[0].single, sizeof(w->ranks[0].single));
        ck_assert_mem_eq(w->ranks[i].half, w->ranks[0].half, sizeof(w->ranks[0].half));
    }
    world_end(w);
}
END_TEST

typedef struct mode {
    double period;
    double grace;
    int64_t bound;
    const char *scale;
    uint64_t slow;
} mode;

static const mode modes[] = {
    {1, 1, -1, "no", 4},   /* the defaults */
    {0, 0.1, -1, "no", 4}, /* asynchronous (ASP): as fast as the network is */
    {1, 1, -1, "yes", 4},  /* scaled by staleness */
    {1, 1, 2, "no", 8},    /* stale synchronous parallel, SSP(2) */
    {1, 1, 0, "no", 4},    /* bulk synchronous: all wait for all; n-soft (4) */
    {3, 1, -1, "no", 2},   /* longer rounds: local SGD */
    {1, 1000000, -1, "no", 3},
};
#define MODES ((int)(sizeof(modes) / sizeof(modes[0])))

START_TEST(a_server_that_replays_who_came_has_the_same_bits)
{
    const mode *m = &modes[_i];
    world *w = world_new("float32");
    char lines[200];
    (void)snprintf(lines, sizeof(lines),
                   "clock_period = %g\nclock_grace = %g\nclock_bound = %d\nclock_scale = %s\n",
                   m->period, m->grace, m->bound < 0 ? 1000000 : (int)m->bound, m->scale);
    w->config.settings = lines;
    w->slow = m->slow;
    w->is_curved = true;
    world_start(w);
    run(w, &the_server, 400);
    uint64_t missed = w->ranks[RANKS - 1].missed_most;
    if (m->bound >= 0) {
        ck_assert_uint_eq(missed, (uint64_t)m->bound);
    } else if (m->grace > 1000) {
        ck_assert_uint_eq(missed, 0);
    } else if (m->period < 2) {
        ck_assert_uint_ge(missed, m->slow - 2);
    }
    on_all(w, finish_rank);
    for (int i = 1; i < RANKS; i++) {
        ck_assert_mem_eq(w->ranks[i].wide, w->ranks[0].wide, sizeof(w->ranks[0].wide));
    }
    world_end(w);
}
END_TEST

/* --- real threads, real time --- */

/* Trains for two epochs of a length of its own, with an average of all ranks between them. */
static void *live(void *argument)
{
    rank *r = argument;
    uint64_t random = (uint64_t)r->index + 1;
    for (int epoch = 0; epoch < 2 && r->status == MSDU_OK; epoch++) {
        uint64_t batches = 60 + random_next(&random) % 60;
        for (uint64_t i = 0; i < batches && r->status == MSDU_OK; i++) {
            pause_us((long)(random_next(&random) % 200) * (r->index == RANKS - 1 ? 5 : 1));
            for (int k = 0; k < 25; k++) {
                double step = (double)(int64_t)(random_next(&random) % 33) / 64 - 0.25;
                r->wide[k] += step;
                r->progress[k] += step;
            }
            r->status = msdu_step(r->ctx);
            if (r->status == MSDU_OK) {
                r->status = msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
            }
        }
        if (r->status == MSDU_OK) {
            r->status = epoch == 0 ? msdu_join(r->ctx) : msdu_synchronize(r->ctx);
        }
    }
    r->status = r->status == MSDU_OK ? msdu_finish(r->ctx) : r->status;
    return NULL;
}

static void *start_live(void *argument)
{
    rank *r = argument;
    (void)start_rank(r);
    msdu__flag_set(&r->ctx->hand.worker.is_stopping, false);
    r->status = r->status == MSDU_OK ? msdu__worker_start(&r->ctx->hand.worker) : r->status;
    return NULL;
}

/* Who still has input when others have none counts for more, so no sum is known beforehand. */
START_TEST(threads_end_with_equal_bits)
{
    world *w = world_new("float32");
    world_make(w);
    on_all(w, start_live);
    on_all(w, live);
    for (int i = 1; i < RANKS; i++) {
        ck_assert_mem_eq(w->ranks[i].wide, w->ranks[0].wide, sizeof(w->ranks[0].wide));
    }
    world_end(w);
}
END_TEST

/* --- bad input --- */

START_TEST(what_does_not_go_with_the_clock_is_refused)
{
    static const char *const lines[][2] = {
        {"domain = gradient", "uneven clock averages parameters"},
        {"overlap = blocking", "uneven clock: means are always late"},
        {"correct = outer", "uneven clock: correct 'outer'"},
        {"interval = divergence", "interval must be fixed"},
        {"state = reset", "uneven clock does not go with state reset"},
    };
    world *w = world_new("float32");
    w->config.settings = lines[_i][0];
    ck_assert_int_eq(msdu_create(&w->config, &w->ranks[0].ctx), MSDU_ERR_INVALID);
    ck_assert_msg(strstr(msdu_last_error(), lines[_i][1]) != NULL, "%s", msdu_last_error());
}
END_TEST

/* --- states --- */

typedef struct saved {
    unsigned char state[65536];
    size_t bytes;
    uint64_t anchors; /* their hash */
    rank kept;        /* what the trainer saves */
} saved;

static saved the_saved[RANKS];

static void *save_rank(void *argument)
{
    rank *r = argument;
    saved *to = &the_saved[r->index];
    r->status = msdu_state_get(r->ctx, to->state, sizeof(to->state), &to->bytes);
    to->anchors = hash_anchors(r);
    to->kept = *r;
    return NULL;
}

/* The parameters come last, as msdu_state_set() says. */
static void *load_rank(void *argument)
{
    rank *r = argument;
    const saved *from = &the_saved[r->index];
    msdu__flag_set(&r->ctx->hand.worker.is_stopping, false);
    r->status = msdu__worker_start(&r->ctx->hand.worker);
    r->status = r->status == MSDU_OK ? msdu_state_set(r->ctx, from->state, from->bytes) : r->status;
    memcpy(r->wide, from->kept.wide, sizeof(r->wide));
    memcpy(r->single, from->kept.single, sizeof(r->single));
    memcpy(r->half, from->kept.half, sizeof(r->half));
    memcpy(r->progress, from->kept.progress, sizeof(r->progress));
    msdu__worker_stop(&r->ctx->hand.worker);
    return NULL;
}

/* In a job of its own that begins with other parameters, and without a step lost. */
START_TEST(a_state_goes_on)
{
    static const char *const wires[] = {"float32", "int4"};
    world *w = world_new(wires[_i]);
    size_t bytes = 0;
    w->has_bursts = true;
    world_start(w);
    run(w, &the_server, 200);
    ck_assert_int_eq(msdu_state_get(w->ranks[0].ctx, NULL, 0, &bytes), MSDU_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "call msdu_synchronize() before"));
    on_all(w, synchronize_rank);
    on_all(w, save_rank);
    world_end(w);
    w = world_new(wires[_i]);
    w->has_bursts = true;
    world_start(w);
    on_all(w, load_rank);
    for (int i = 0; i < RANKS; i++) {
        msdu_summary summary = MSDU_SUMMARY_INIT;
        ck_assert_int_eq(msdu_summary_get(w->ranks[i].ctx, &summary), MSDU_OK);
        ck_assert_str_eq(summary.state, "clock");
        ck_assert_uint_eq(summary.steps, the_saved[i].kept.steps);
        ck_assert_uint_eq(hash_anchors(&w->ranks[i]), the_saved[i].anchors);
    }
    run(w, &the_server, 200);
    on_all(w, finish_rank);
    if (_i == 0) {
        check_conserved(w);
    }
    for (int i = 1; i < RANKS; i++) {
        ck_assert_mem_eq(w->ranks[i].wide, w->ranks[0].wide, sizeof(w->ranks[0].wide));
        ck_assert_mem_eq(w->ranks[i].single, w->ranks[0].single, sizeof(w->ranks[0].single));
    }
    world_end(w);
}
END_TEST

/* Its communication thread could go on for ever with zeros. */
START_TEST(a_trainer_that_stands_still_is_told_at_the_deadline)
{
    world *w = world_new("float32");
    w->config.deadline_ms = 1000;
    world_start(w);
    run(w, &the_server, 50);
    msdu_ctx *last = w->ranks[RANKS - 1].ctx;
    for (int i = 0; i < 20000 && !msdu__handover_has_failed(&last->hand); i++) {
        now_ns += QUANTUM;
        for (int k = 0; k < RANKS; k++) {
            if (k < RANKS - 1 && w->ranks[k].next_ns <= now_ns) {
                end_step(w, &w->ranks[k], &the_server);
            }
            (void)msdu__engine_advance(&w->ranks[k].ctx->engine);
        }
    }
    ck_assert(msdu__handover_has_failed(&last->hand));
    ck_assert_msg(strstr(last->hand.failure.text, "rank 3: its trainer has ended no step for more "
                                                  "than 1000 ms (setting deadline_ms)") != NULL,
                  "%s", last->hand.failure.text);
    world_end(w);
}
END_TEST

/* Back to the anchor, and what the shift owed is gone. */
START_TEST(rollback_goes_to_the_anchor)
{
    world *w = world_new("float32");
    world_start(w);
    run(w, &the_server, 50);
    on_all(w, finish_rank);
    double end[25];
    memcpy(end, w->ranks[0].wide, sizeof(end));
    w->ranks[0].wide[3] += 1;
    double *shift = w->ranks[0].ctx->engine.runs[0].snapshot;
    shift[0] = 7;
    ck_assert_int_eq(msdu_rollback(w->ranks[0].ctx), MSDU_OK);
    ck_assert_mem_eq(w->ranks[0].wide, end, sizeof(end));
    ck_assert_double_eq(shift[0], 0);
    world_end(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clock");
    TCase *cases = suite_case(suite, "virtual time", 60, NULL, NULL);
    tcase_add_test(cases, nothing_is_lost_in_ten_thousand_rounds);
    tcase_add_test(cases, clocks_that_differ_and_jump_lose_nothing);
    tcase_add_loop_test(cases, narrow_rounds_agree, 0, 5);
    tcase_add_loop_test(cases, a_server_that_replays_who_came_has_the_same_bits, 0, MODES);
    tcase_add_test(cases, threads_end_with_equal_bits);
    tcase_add_loop_test(cases, what_does_not_go_with_the_clock_is_refused, 0, 5);
    tcase_add_loop_test(cases, a_state_goes_on, 0, 2);
    tcase_add_test(cases, a_trainer_that_stands_still_is_told_at_the_deadline);
    tcase_add_test(cases, rollback_goes_to_the_anchor);
    return suite_run(suite);
}
