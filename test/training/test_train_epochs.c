/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that come and go while the others train (setting ranks_least): ranks as threads, each with
 * a quadratic of its own, so that the model's way shows who took part in a step. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/context.h"
#include "council.h"
#include "suite.h"

#define TENSORS    3
#define ELEMENTS   4000
#define STEPS      60
#define RANKS_MOST 6
#define LR         0.1

static const uint64_t counts[TENSORS] = {2500, 700, 800};

typedef struct job job;

/* What a rank has for each element beside its parameter. */
typedef struct held {
    float own[ELEMENTS];  /* held back from its contributions */
    float mean[ELEMENTS]; /* and from the means of its shares */
    float momentum[ELEMENTS];
    float anchor[ELEMENTS];
    double scale;
} held;

/* A rank, by the number that it was launched with. */
typedef struct rank {
    const job *job;
    int number;
    int tensors; /* it adds so many */
    msdu_ctx *ctx;
    float parameter[ELEMENTS];
    float gradient[ELEMENTS];
    float seen[STEPS + 1][ELEMENTS]; /* after so many steps; by the steps of all */
    bool has[STEPS + 1];
    float before[ELEMENTS]; /* the latest call of the library */
    float left[ELEMENTS];   /* before the one in which the group changed first, */
    float after[ELEMENTS];  /* and after it */
    held held_before;       /* likewise */
    held held_left;
    held held_after;
    int dropped;   /* steps */
    int regrouped; /* times */
    msdu_status status;
    char text[512];
    msdu_summary summary;
} rank;

struct job {
    int ranks;
    int least;
    int dies;     /* this rank, before it ends ... */
    int dies_at;  /* this step; STEPS: none does */
    int joins;    /* ranks that join once ... */
    int joins_at; /* others have ended this step */
    int joiner_tensors;
    bool looks;  /* at what ranks hold back: nothing may be in flight between steps */
    bool is_nan; /* who dies tells it by a gradient */
    msdu_config config;
};

static atomic_int reached; /* steps of the farthest rank */

static float target(int number, uint64_t i)
{
    return (float)(sin(0.001 * (double)i) + number);
}

static void add_tensors(rank *r)
{
    uint64_t at = 0;
    for (int i = 0; i < r->tensors && i < TENSORS; i++) {
        char name[16];
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        (void)snprintf(name, sizeof(name), "t%d", i);
        desc.name = name;
        desc.parameter = r->parameter + at;
        desc.gradient = r->gradient + at;
        desc.count = counts[i];
        desc.priority = i;
        r->status = r->status == MSDU_OK ? msdu_tensor_add(r->ctx, &desc, NULL) : r->status;
        at += counts[i];
    }
}

static void look_at_slice(const rank *r, const msdu__run *run, const msdu__slice *cut, held *h)
{
    uint64_t at = 0;
    uint64_t share = run->share_start[msdu__outer_rank(&r->ctx->engine)];
    uint64_t shares = run->share_count[msdu__outer_rank(&r->ctx->engine)];
    for (uint32_t i = 0; i < cut->segments; i++) {
        const msdu__segment *part = &r->ctx->model.slicing.segments[cut->first_segment + i];
        uint64_t to = part->offset;
        for (uint32_t k = 0; k < part->tensor && k < TENSORS; k++) {
            to += counts[k];
        }
        for (uint64_t k = 0; k < part->count; k++, at++, to++) {
            bool is_own = at >= share && at < share + shares && run->has_residual;
            h->own[to] = run->has_residual ? run->residual[at] : 0;
            h->mean[to] = is_own ? run->owner_residual[at - share] : 0;
            h->momentum[to] = run->momentum != NULL ? ((const float *)run->momentum)[at] : 0;
            h->anchor[to] = run->anchor != NULL ? ((const float *)run->anchor)[at] : 0;
        }
    }
    h->scale = run->has_residual ? run->scale : h->scale;
}

/* Nothing is in flight. */
static void look(const rank *r, held *h)
{
    memset(h, 0, sizeof(*h));
    for (uint32_t i = 0; i < r->ctx->model.slicing.slice_count; i++) {
        look_at_slice(r, &r->ctx->engine.runs[i], &r->ctx->model.slicing.slices[i], h);
    }
}

static void start(rank *r)
{
    msdu_config config = r->job->config;
    char settings[256];
    (void)snprintf(settings, sizeof(settings), "ranks_least = %d\n%s", r->job->least,
                   config.settings != NULL ? config.settings : "");
    config.size = sizeof(config);
    config.backend = "local";
    config.settings = settings;
    config.ranks = r->job->ranks;
    config.rank = r->number < r->job->ranks ? r->number : 0;
    config.deadline_ms = 20000;
    r->status = msdu_create(&config, &r->ctx);
    if (r->status == MSDU_OK) {
        r->ctx->epochs.membership = &council;
        add_tensors(r);
        r->status = r->status == MSDU_OK ? msdu_start(r->ctx) : r->status;
        if (r->status == MSDU_OK && r->job->looks) {
            look(r, &r->held_after); /* of one that joins: what it was given */
        }
    }
}

static uint64_t steps_of(rank *r)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    r->status = r->status == MSDU_OK ? msdu_summary_get(r->ctx, &summary) : r->status;
    return summary.steps;
}

/* Is it the group's change, and no failure? */
static bool has_changed(rank *r)
{
    bool has = r->status == MSDU_REGROUPED;
    if (has && r->regrouped++ == 0) {
        memcpy(r->left, r->before, sizeof(r->left));
        memcpy(r->after, r->parameter, sizeof(r->after));
        r->held_left = r->held_before;
        look(r, &r->held_after);
    }
    r->status = has ? MSDU_OK : r->status;
    return has;
}

static void keep(rank *r, uint64_t step)
{
    if (step <= STEPS) {
        memcpy(r->seen[step], r->parameter, sizeof(r->parameter));
        r->has[step] = true;
    }
}

static void rest_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* One step; false: it died in it. */
static bool train_step(rank *r, uint64_t step)
{
    bool dies = r->number == r->job->dies && (int)step == r->job->dies_at;
    rest_ms(1);
    if (r->job->looks) {
        look(r, &r->held_before);
    }
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        r->gradient[i] = r->parameter[i] - target(r->number, i);
    }
    r->gradient[1] = dies && r->job->is_nan ? NAN : r->gradient[1];
    for (int i = r->tensors; i-- > 0;) {
        if (dies && !r->job->is_nan && i == 0) {
            rest_ms(20); /* the others wait for it */
            return false;
        }
        r->status = msdu_tensor_ready(r->ctx, (uint32_t)i, MSDU_GRADIENT);
        if (r->status != MSDU_OK) {
            return true;
        }
    }
    memcpy(r->before, r->parameter, sizeof(r->before));
    r->status = msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT);
    if (has_changed(r)) {
        r->dropped++;
        return true;
    }
    for (uint64_t i = 0; r->status == MSDU_OK && i < ELEMENTS; i++) {
        r->parameter[i] -= (float)LR * r->gradient[i];
    }
    memcpy(r->before, r->parameter, sizeof(r->before));
    r->status = r->status == MSDU_OK ? msdu_step(r->ctx) : r->status;
    (void)has_changed(r);
    return true;
}

static void *train(void *argument)
{
    rank *r = argument;
    bool lives = true;
    start(r);
    for (uint64_t step = steps_of(r); r->status == MSDU_OK && lives && step < STEPS;
         step = steps_of(r)) {
        r->status = msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
        if (has_changed(r)) {
            continue;
        }
        if (r->status == MSDU_OK) {
            keep(r, step);
            int far = atomic_load(&reached);
            while (far < (int)step && !atomic_compare_exchange_weak(&reached, &far, (int)step)) {
            }
            lives = train_step(r, step);
        }
    }
    if (r->status == MSDU_OK && lives) {
        r->status = msdu_finish(r->ctx);
        keep(r, STEPS);
    }
    (void)snprintf(r->text, sizeof(r->text), "%s", r->status < 0 ? msdu_last_error() : "");
    r->summary = (msdu_summary)MSDU_SUMMARY_INIT;
    if (r->ctx != NULL && msdu_summary_get(r->ctx, &r->summary) != MSDU_OK) {
        r->summary.ranks = -1;
    }
    msdu_destroy(r->ctx);
    return NULL;
}

static rank *run(const job *j)
{
    rank *ranks = calloc(RANKS_MOST, sizeof(*ranks));
    pthread_t threads[RANKS_MOST];
    council_reset();
    atomic_store(&reached, 0);
    for (int i = 0; i < j->ranks + j->joins; i++) {
        rank *r = &ranks[i];
        r->job = j;
        r->number = i;
        r->tensors = i >= j->ranks && j->joiner_tensors > 0 ? j->joiner_tensors : TENSORS;
        for (uint64_t k = 0; k < ELEMENTS && i >= j->ranks; k++) {
            r->parameter[k] = 7; /* nothing that others have */
        }
        while (i >= j->ranks && atomic_load(&reached) < j->joins_at) {
            rest_ms(1);
        }
        ck_assert_int_eq(pthread_create(&threads[i], NULL, train, r), 0);
    }
    for (int i = 0; i < j->ranks + j->joins; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    return ranks;
}

static void check_well(const rank *r, int ranks)
{
    ck_assert_msg(r->status == MSDU_OK, "rank %d: %s: %s", r->number, msdu_status_name(r->status),
                  r->text);
    ck_assert_int_eq(r->summary.ranks, ranks);
    ck_assert_uint_eq(r->summary.steps, STEPS);
}

/* After a step both were at: the same bits, if training is exact. */
static void check_alike(const rank *a, const rank *b, int from)
{
    int both = 0;
    for (int step = from; step <= STEPS; step++) {
        if (a->has[step] && b->has[step]) {
            both++;
            ck_assert_msg(memcmp(a->seen[step], b->seen[step], sizeof(a->parameter)) == 0,
                          "ranks %d and %d differ after step %d", a->number, b->number, step);
        }
    }
    ck_assert_int_gt(both, 0);
}

/* What SGD makes of the mean gradient of ranks first .. first + 2 .. from one step to another. */
static void descend(double *x, const bool *is_in, int steps)
{
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        double mean = 0;
        int count = 0;
        for (int k = 0; k < RANKS_MOST; k++) {
            mean += is_in[k] ? (double)target(k, i) : 0;
            count += is_in[k] ? 1 : 0;
        }
        for (int step = 0; step < steps; step++) {
            x[i] -= LR * (x[i] - mean / count);
        }
    }
}

static void check_near(const float *is, const double *should, double within)
{
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        ck_assert_double_le(fabs((double)is[i] - should[i]), within);
    }
}

static job fixed(int ranks)
{
    return (job){.ranks = ranks,
                 .least = 1,
                 .dies = -1,
                 .dies_at = STEPS,
                 .config = {.interval = "fixed", .interval_steps = 1, .wire = "float32"}};
}

START_TEST(exact_training_goes_on_without_a_rank)
{
    job j = fixed(4);
    j.dies = _i; /* rank 0 as any other */
    j.dies_at = 20;
    rank *ranks = run(&j);
    const rank *first = &ranks[_i == 0 ? 1 : 0];
    bool is_in[RANKS_MOST] = {true, true, true, true};
    static double x[ELEMENTS];
    memset(x, 0, sizeof(x));
    descend(x, is_in, 20);
    is_in[_i] = false;
    descend(x, is_in, STEPS - 20);
    for (int i = 0; i < 4; i++) {
        if (i == _i) {
            ck_assert_int_eq(ranks[i].status, MSDU_OK);
            continue;
        }
        check_well(&ranks[i], 3);
        ck_assert_uint_eq(ranks[i].summary.epoch, 2);
        ck_assert_uint_eq(ranks[i].summary.ranks_lost, 1);
        ck_assert_int_eq(ranks[i].dropped, 1);
        check_alike(first, &ranks[i], 0);
        check_near(ranks[i].seen[STEPS], x, 1e-5);
    }
    free(ranks);
}
END_TEST

/* Parameters are then the mean of what the ranks left had, in which no local step is lost. */
START_TEST(local_steps_of_the_others_are_kept)
{
    static const char *const overlaps[] = {"blocking", "delayed", "streamed"};
    job j = fixed(4);
    j.config.interval_steps = 8;
    j.config.overlap = overlaps[_i];
    j.config.domain = "parameter";
    j.config.fragments = 2;
    j.dies = 1;
    j.dies_at = 20;
    rank *ranks = run(&j);
    static double mean[ELEMENTS];
    memset(mean, 0, sizeof(mean));
    for (int i = 0; i < 4; i++) {
        if (i != 1) {
            check_well(&ranks[i], 3);
            ck_assert_int_eq(ranks[i].regrouped, 1);
            check_alike(&ranks[0], &ranks[i], STEPS);
            ck_assert_mem_eq(ranks[i].after, ranks[0].after, sizeof(ranks[i].after));
            for (uint64_t k = 0; k < ELEMENTS; k++) {
                mean[k] += (double)ranks[i].left[k] / 3;
            }
        }
    }
    if (_i == 0) { /* in the others a mean may be on its way */
        check_near(ranks[0].after, mean, 1e-5);
    }
    memset(mean, 0, sizeof(mean));
    bool is_in[RANKS_MOST] = {true, false, true, true};
    descend(mean, is_in, 400);
    check_near(ranks[0].seen[STEPS], mean, 0.1);
    free(ranks);
}
END_TEST

/* Of gradients: the next contributions have it. What a round that failed left out does not count.
 */
START_TEST(held_back_gradients_are_sent_later)
{
    job j = fixed(4);
    j.config.wire = "int4";
    j.config.domain = "gradient";
    j.config.overlap = "blocking";
    j.looks = true;
    j.dies = 1;
    j.dies_at = 20;
    rank *ranks = run(&j);
    for (int i = 0; i < 4; i++) {
        const held *was = &ranks[i].held_left;
        const held *is = &ranks[i].held_after;
        double sum = 0;
        for (uint64_t k = 0; i != 1 && k < ELEMENTS; k++) {
            sum += fabs((double)was->own[k]) + fabs((double)was->mean[k]);
            ck_assert(is->own[k] == was->own[k] + 3 * was->mean[k]);
            ck_assert(is->mean[k] == 0);
        }
        ck_assert(i == 1 || sum > 0);
        if (i != 1) {
            check_well(&ranks[i], 3);
            check_alike(&ranks[0], &ranks[i], 0);
        }
    }
    free(ranks);
}
END_TEST

/* Of pseudo-gradients: the mean of parameters has it, where a rank was lost or joins. */
START_TEST(held_back_steps_get_into_parameters)
{
    job j = fixed(4);
    j.config.wire = "int2";
    j.config.interval_steps = 3;
    j.config.domain = "parameter";
    j.config.overlap = "blocking";
    j.looks = true;
    j.dies = _i == 0 ? 1 : -1;
    j.dies_at = 20;
    j.joins = _i == 0 ? 0 : 1;
    j.joins_at = 10;
    int old = _i == 0 ? 3 : 4;
    rank *ranks = run(&j);
    static double mean[ELEMENTS];
    memset(mean, 0, sizeof(mean));
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        const held *was = &ranks[i].held_left;
        for (uint64_t k = 0; i != j.dies && k < ELEMENTS; k++) {
            double back = was->scale * ((double)was->own[k] / 4 + (double)was->mean[k]);
            mean[k] += (double)ranks[i].left[k] / old - back;
            sum += fabs(back);
            ck_assert(ranks[i].held_after.own[k] == 0);
        }
        if (i != j.dies) {
            check_well(&ranks[i], old + j.joins);
            ck_assert_mem_eq(ranks[i].after, ranks[0].after, sizeof(ranks[i].after));
        }
    }
    ck_assert_double_gt(sum / ELEMENTS, 1e-4);
    check_near(ranks[0].after, mean, 1e-5);
    free(ranks);
}
END_TEST

START_TEST(outer_momentum_goes_on)
{
    job j = fixed(3);
    j.config.interval_steps = 2;
    j.config.correct = "outer";
    j.config.overlap = "blocking";
    j.looks = true;
    j.dies = _i == 0 ? 1 : -1;
    j.dies_at = 20;
    j.joins = _i;
    j.joins_at = 10;
    rank *ranks = run(&j);
    double sum = 0;
    for (int i = 0; i < 3 + j.joins; i++) {
        if (i == j.dies) {
            continue;
        }
        check_well(&ranks[i], _i == 0 ? 2 : 4);
        check_alike(&ranks[0], &ranks[i], STEPS);
        const held *should = _i == 0 ? &ranks[0].held_left : &ranks[0].held_after;
        for (uint64_t k = 0; k < ELEMENTS; k++) {
            sum += fabs((double)should->momentum[k]);
            ck_assert(ranks[i].held_after.momentum[k] == should->momentum[k]);
        }
    }
    ck_assert_double_gt(sum / ELEMENTS, 1e-4);
    free(ranks);
}
END_TEST

/* The trainer may change parameters as soon as it is told: they are the next anchors already. */
START_TEST(parameters_are_the_trainers_after_a_change)
{
    job j = fixed(4);
    j.config.interval_steps = 3;
    j.config.overlap = "blocking";
    j.looks = true;
    j.dies = 1;
    j.dies_at = 15 + _i % 5;
    rank *ranks = run(&j);
    for (int i = 0; i < 4; i++) {
        if (i != 1) {
            check_well(&ranks[i], 3);
            ck_assert_mem_eq(ranks[i].held_after.anchor, ranks[i].after, sizeof(ranks[i].after));
        }
    }
    free(ranks);
}
END_TEST

START_TEST(a_rank_joins)
{
    static const char *const settings[] = {"", "interval_steps = 6\n", "uneven = clock\n",
                                           "interval_steps = 600\ntotal_steps = 60\n"};
    job j = fixed(2);
    j.joins = 1;
    j.joins_at = 10;
    j.config.settings = settings[_i];
    rank *ranks = run(&j);
    for (int i = 0; i < 3; i++) {
        check_well(&ranks[i], 3);
        ck_assert_uint_eq(ranks[i].summary.epoch, 2);
        ck_assert_uint_eq(ranks[i].summary.ranks_joined, 1);
        ck_assert_int_eq(ranks[i].summary.was_given, i == 2);
        ck_assert(_i >= 2 || ranks[i].summary.rank == i); /* else steps differ */
        check_alike(&ranks[0], &ranks[i], _i == 0 ? 0 : STEPS);
        /* by the clock and in long rounds the epoch ends at once, else behind a step */
        ck_assert(_i >= 2 || ranks[i].dropped == 0);
    }
    free(ranks);
}
END_TEST

START_TEST(down_to_one_and_up_again)
{
    job j = fixed(2);
    j.dies = 0;
    j.dies_at = 5;
    j.joins = 3;
    j.joins_at = 12;
    rank *ranks = run(&j);
    for (int i = 1; i < 5; i++) {
        check_well(&ranks[i], 4);
        check_alike(&ranks[1], &ranks[i], 0);
    }
    ck_assert_uint_eq(ranks[1].summary.ranks_lost, 1);
    ck_assert_uint_eq(ranks[1].summary.ranks_joined, 3);
    free(ranks);
}
END_TEST

START_TEST(too_few_are_left)
{
    job j = fixed(2);
    j.least = 2;
    j.dies = 1;
    j.dies_at = 5;
    rank *ranks = run(&j);
    ck_assert_int_eq(ranks[0].status, MSDU_ERR_PEER_LOST);
    ck_assert_ptr_nonnull(strstr(ranks[0].text, "too few"));
    free(ranks);
}
END_TEST

/* A value that all ranks see is no rank that was lost. */
START_TEST(a_bad_gradient_ends_the_job)
{
    job j = fixed(3);
    j.is_nan = true;
    j.dies = 1;
    j.dies_at = 5;
    rank *ranks = run(&j);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ranks[i].status, MSDU_ERR_NOT_FINITE);
    }
    free(ranks);
}
END_TEST

START_TEST(another_model_is_not_let_in)
{
    job j = fixed(2);
    j.joins = 1;
    j.joins_at = 10;
    j.joiner_tensors = 2;
    rank *ranks = run(&j);
    ck_assert_int_eq(ranks[2].status, MSDU_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(ranks[2].text, "tensors"));
    for (int i = 0; i < 2; i++) {
        check_well(&ranks[i], 2);
        check_alike(&ranks[0], &ranks[i], 0);
    }
    free(ranks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_epochs");
    TCase *tcase = suite_case(suite, "train_epochs", 60, NULL, NULL);

    tcase_add_loop_test(tcase, exact_training_goes_on_without_a_rank, 0, 4);
    tcase_add_loop_test(tcase, local_steps_of_the_others_are_kept, 0, 3);
    tcase_add_test(tcase, held_back_gradients_are_sent_later);
    tcase_add_loop_test(tcase, held_back_steps_get_into_parameters, 0, 2);
    tcase_add_loop_test(tcase, outer_momentum_goes_on, 0, 2);
    tcase_add_loop_test(tcase, parameters_are_the_trainers_after_a_change, 0, 10);
    tcase_add_loop_test(tcase, a_rank_joins, 0, 4);
    tcase_add_test(tcase, down_to_one_and_up_again);
    tcase_add_test(tcase, too_few_are_left);
    tcase_add_test(tcase, a_bad_gradient_ends_the_job);
    tcase_add_test(tcase, another_model_is_not_let_in);
    return suite_run(suite);
}
