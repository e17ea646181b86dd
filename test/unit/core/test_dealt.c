/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work drawn by the clock, by ranks that are threads over the backend "local": whoever comes takes
 * the next batch, and every sample of an epoch has one rank.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/context.h"
#include "suite.h"

#define RANKS      4
#define COUNT      16
#define EPOCHS     4
#define TOTAL_MOST 8000
#define FETCH_MOST 8
#define STEP_NS    1000000

typedef struct rank {
    msdu_ctx *ctx;
    int index;
    msdu_status status;
    char error[512];
    char lines[4096];
    float parameter[COUNT];
    float gradient[COUNT];
    uint64_t samples;
    uint64_t steps;
    uint64_t clocked; /* step by which rounds were by the clock; 0: never */
    msdu_work work;
    msdu_work fetched[FETCH_MOST + 1]; /* by a loader, before their steps */
    int first;
    int count;
} rank;

typedef struct job {
    rank ranks[RANKS];
    const char *settings;
    uint64_t (*step_ns)(int index, uint64_t step);
    msdu_work work;
    int fetch;      /* pieces that a loader fetches early */
    uint64_t other; /* samples that rank 2 has more */
    uint8_t seen[EPOCHS][TOTAL_MOST];
    pthread_mutex_t lock;
} job;

static job the_job = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep_line(void *user, msdu_log_level level, const char *text)
{
    rank *r = user;
    (void)level;
    (void)pthread_mutex_lock(&the_job.lock);
    size_t used = strlen(r->lines);
    (void)snprintf(r->lines + used, sizeof(r->lines) - used, "%s\n", text);
    (void)pthread_mutex_unlock(&the_job.lock);
}

static msdu_status start(rank *r)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = RANKS;
    config.rank = r->index;
    config.backend = "local";
    config.job = "dealt";
    config.settings = the_job.settings;
    config.log = keep_line;
    config.log_user = r;
    config.log_level = MSDU_LOG_INFO;
    msdu_status status = msdu_create(&config, &r->ctx);
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "w";
    desc.parameter = r->parameter;
    desc.gradient = r->gradient;
    desc.count = COUNT;
    if (status == MSDU_OK) {
        status = msdu_tensor_add(r->ctx, &desc, NULL);
    }
    return status == MSDU_OK ? msdu_start(r->ctx) : status;
}

static msdu_status step(rank *r)
{
    struct timespec pause = {.tv_nsec = (long)the_job.step_ns(r->index, r->steps)};
    (void)nanosleep(&pause, NULL);
    msdu_status status = msdu_tensor_wait(r->ctx, 0, MSDU_PARAMETER);
    for (int k = 0; k < COUNT; k++) {
        r->gradient[k] = r->parameter[k] - (float)(r->index + k);
    }
    if (status == MSDU_OK) {
        status = msdu_tensor_ready(r->ctx, 0, MSDU_GRADIENT);
        status = status == MSDU_OK ? msdu_tensor_wait(r->ctx, 0, MSDU_GRADIENT) : status;
    }
    for (int k = 0; k < COUNT && status == MSDU_OK; k++) {
        r->parameter[k] -= 0.05F * r->gradient[k];
    }
    status = status == MSDU_OK ? msdu_step(r->ctx) : status;
    r->steps++;
    msdu_summary summary = MSDU_SUMMARY_INIT;
    if (status == MSDU_OK && msdu_summary_get(r->ctx, &summary) == MSDU_OK && r->clocked == 0) {
        r->clocked = strcmp(summary.state, "clock") == 0 ? r->steps : 0;
    }
    return status == MSDU_OK ? msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER) : status;
}

static void see(rank *r, int epoch, const msdu_work *piece)
{
    (void)pthread_mutex_lock(&the_job.lock);
    for (uint64_t i = piece->begin; i < piece->end; i++) {
        the_job.seen[epoch][i]++;
    }
    (void)pthread_mutex_unlock(&the_job.lock);
    r->samples += piece->end - piece->begin;
}

/* As a loader does, until it has enough or the epoch is over. */
static msdu_status fetch(rank *r, bool *is_over)
{
    msdu_status status = MSDU_OK;
    int most = r->index == 1 ? the_job.fetch / 2 : the_job.fetch; /* as fast as its loader is */
    while (status == MSDU_OK && r->count <= most && !*is_over) {
        status = msdu_next(r->ctx, &r->work);
        if (status == MSDU_OK && r->work.begin < r->work.total) {
            r->fetched[(r->first + r->count++) % (FETCH_MOST + 1)] = r->work;
        } else {
            *is_over = true;
        }
    }
    return status;
}

static msdu_status train(rank *r, int epoch)
{
    bool is_over = false;
    r->work.position = 0;
    msdu_status status = fetch(r, &is_over);
    while (status == MSDU_OK && r->count > 0) {
        see(r, epoch, &r->fetched[r->first]);
        r->first = (r->first + 1) % (FETCH_MOST + 1);
        r->count--;
        status = step(r);
        status = status == MSDU_OK ? fetch(r, &is_over) : status;
    }
    if (status == MSDU_OK) { /* asked again it says the same */
        status = msdu_next(r->ctx, &r->work);
        bool is_end = r->work.begin == r->work.total && r->work.position == r->work.total;
        status = status == MSDU_OK && !is_end ? MSDU_ERR_STATE : status;
    }
    return status;
}

static void *run_rank(void *argument)
{
    rank *r = argument;
    r->status = start(r);
    r->work = the_job.work;
    r->work.total += r->index == 2 ? the_job.other : 0;
    for (int epoch = 0; epoch < EPOCHS && r->status == MSDU_OK; epoch++) {
        r->status = train(r, epoch);
        if (r->status == MSDU_OK && epoch == 1) { /* as before an evaluation: all of them meet */
            r->status = msdu_synchronize(r->ctx);
        }
    }
    r->status = r->status == MSDU_OK ? msdu_finish(r->ctx) : r->status;
    (void)snprintf(r->error, sizeof(r->error), "%s", msdu_last_error());
    return NULL;
}

static void run(const char *settings, uint64_t (*step_ns)(int index, uint64_t step), msdu_work work,
                int fetch_count)
{
    pthread_t threads[RANKS];
    the_job.settings = settings;
    the_job.step_ns = step_ns;
    the_job.work = work;
    the_job.fetch = fetch_count;
    memset(the_job.seen, 0, sizeof(the_job.seen));
    for (int i = 0; i < RANKS; i++) {
        the_job.ranks[i] = (rank){.index = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_rank, &the_job.ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static void check_run(void)
{
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        ck_assert_msg(r->status == MSDU_OK, "rank %d: %s", i, r->error);
        ck_assert_mem_eq(r->parameter, the_job.ranks[0].parameter, sizeof(r->parameter));
    }
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (uint64_t i = 0; i < the_job.work.total; i++) {
            ck_assert_msg(the_job.seen[epoch][i] == 1, "epoch %d: sample %d was drawn %d times",
                          epoch, (int)i, the_job.seen[epoch][i]);
        }
    }
}

static void end(void)
{
    for (int i = 0; i < RANKS; i++) {
        msdu_destroy(the_job.ranks[i].ctx);
    }
}

/* --- cases --- */

static uint64_t last_is_slow(int index, uint64_t step)
{
    (void)step;
    return index == RANKS - 1 ? 5 * STEP_NS : STEP_NS;
}

static uint64_t last_is_very_slow(int index, uint64_t step)
{
    (void)step;
    return index == RANKS - 1 ? 50 * STEP_NS : STEP_NS / 2;
}

/* Another rank in each step, so shares are of no use. */
static uint64_t slow_in_turn(int index, uint64_t step)
{
    return index == (int)(step % RANKS) ? 5 * STEP_NS : STEP_NS;
}

static const struct {
    uint64_t total;
    uint64_t batch;
    uint64_t ahead;
    int fetch;
} works[] = {
    {1003, 4, 0, 0}, {1003, 4, 8, 7}, {1003, 4, 16, 2}, {7, 4, 3, 1}, {64, 1, 64, 8},
};

START_TEST(by_the_clock_every_sample_has_one_rank)
{
    msdu_work work = MSDU_WORK_INIT;
    work.total = works[_i].total;
    work.batch = works[_i].batch;
    work.ahead = works[_i].ahead;
    run(_i % 2 == 0 ? "uneven = clock" : "uneven = clock\nclock_bound = 0", last_is_slow, work,
        works[_i].fetch);
    check_run();
    for (int i = 0; i < RANKS; i++) { /* of data that anyone may have */
        ck_assert_ptr_null(strstr(the_job.ranks[i].lines, "its data count less"));
    }
    if (work.total > 1000 && _i % 2 == 0) { /* who is fast has more of it, and nobody waits */
        ck_assert_uint_gt(the_job.ranks[0].samples, 2 * the_job.ranks[RANKS - 1].samples);
    }
    end();
}
END_TEST

START_TEST(where_shares_do_not_help_the_clock_comes)
{
    msdu_work work = MSDU_WORK_INIT;
    work.total = 7989; /* 125 steps */
    work.batch = 16;
    work.ahead = _i == 0 ? 0 : 5; /* as far as may be */
    run("uneven = auto", slow_in_turn, work, _i == 0 ? 0 : 5);
    check_run();
    for (int i = 0; i < RANKS; i++) {
        ck_assert_uint_gt(the_job.ranks[i].clocked, 0);
        ck_assert_uint_eq(the_job.ranks[i].clocked, the_job.ranks[0].clocked);
        ck_assert_ptr_nonnull(strstr(the_job.ranks[i].lines, "rounds by the clock from here on"));
    }
    end();
}
END_TEST

/* An epoch is drawn to its end, and of one work. */
START_TEST(work_that_changes_by_the_clock_is_refused)
{
    rank *r = &the_job.ranks[0];
    msdu_work work = MSDU_WORK_INIT;
    work.total = 40;
    work.batch = 4;
    run("uneven = clock", last_is_slow, work, 0);
    check_run();
    r->ctx->caller.is_finished = false;
    const msdu_work last = r->work;
    for (int i = 0; i < 3; i++) {
        work = last;
        work.position = i == 0 ? 4 : 0;
        work.total += i == 1 ? 1 : 0;
        work.batch += i == 2 ? 1 : 0;
        msdu_work before = work;
        ck_assert_int_eq(msdu_next(r->ctx, &work), MSDU_ERR_STATE);
        ck_assert_mem_eq(&work, &before, sizeof(work));
        ck_assert_ptr_nonnull(
            strstr(msdu_last_error(), "work is drawn to its end: total 40, batch 4"));
    }
    r->ctx->caller.is_finished = true;
    end();
}
END_TEST

START_TEST(ranks_that_draw_from_different_work_are_told)
{
    msdu_work work = MSDU_WORK_INIT;
    work.total = 400;
    work.batch = 4;
    the_job.other = 1;
    run("uneven = clock", last_is_slow, work, 0);
    the_job.other = 0;
    for (int i = 0; i < RANKS; i++) {
        ck_assert_int_eq(the_job.ranks[i].status, MSDU_ERR_MISMATCH);
        ck_assert_msg(strstr(the_job.ranks[i].error, "asked msdu_next() for other work") != NULL,
                      "%s", the_job.ranks[i].error);
    }
    end();
}
END_TEST

/* A hundred times slower than the others: it has the batch that it trains with, and one more. */
START_TEST(a_very_slow_rank_loses_nothing)
{
    msdu_work work = MSDU_WORK_INIT;
    work.total = 3000;
    work.batch = 4;
    run("uneven = clock\ndeadline_ms = 1000", last_is_very_slow, work, 0);
    check_run();
    ck_assert_uint_gt(the_job.ranks[0].samples, 10 * the_job.ranks[RANKS - 1].samples);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dealt");
    TCase *tcase = suite_case(suite, "dealt", 60, NULL, NULL);
    suite_table(tcase, by_the_clock_every_sample_has_one_rank, works);
    tcase_add_loop_test(tcase, where_shares_do_not_help_the_clock_comes, 0, 2);
    tcase_add_test(tcase, ranks_that_draw_from_different_work_are_told);
    tcase_add_test(tcase, a_very_slow_rank_loses_nothing);
    tcase_add_test(tcase, work_that_changes_by_the_clock_is_refused);
    return suite_run(suite);
}
