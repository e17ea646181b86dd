/* SPDX-License-Identifier: Apache-2.0 */
/* Work drawn by speed, by ranks that fetch ahead of training as they like: nobody asks another. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "caller/draw.h"
#include "random.h"
#include "suite.h"

#define RANKS_MOST 9
#define TOTAL_MOST 3000

/* One rank, without threads. */
typedef struct drawer {
    msdu__job job;
    msdu__handover hand;
    msdu__draw draw;
    msdu_work work;
    uint64_t fetch; /* pieces that its loader fetches early */
    uint64_t fetched;
    msdu_work pieces[MSDU__AHEAD_MOST + 1]; /* by step: fetched, not trained */
} drawer;

static uint64_t seed = 362436069;
static drawer *drawers;
static uint8_t seen[TOTAL_MOST];

static uint64_t below(uint64_t most)
{
    return random_next(&seed) % most;
}

static void before(void)
{
    drawers = calloc(RANKS_MOST, sizeof(*drawers));
    ck_assert_ptr_nonnull(drawers);
}

static void after(void)
{
    for (int i = 0; i < RANKS_MOST; i++) {
        msdu__draw_free(&drawers[i].draw);
    }
    free(drawers);
}

static void begin(int ranks, msdu_work work)
{
    for (int i = 0; i < ranks; i++) {
        drawer *d = &drawers[i];
        d->job.rank = i;
        d->job.ranks = ranks;
        ck_assert_int_eq(msdu__draw_prepare(&d->draw, &d->hand, ranks), MSDU_OK);
        d->work = work;
        d->fetch = work.ahead > 0 ? below(work.ahead + 1) : 0;
    }
}

static void end(int ranks)
{
    for (int i = 0; i < ranks; i++) {
        msdu__draw_free(&drawers[i].draw);
        memset(&drawers[i], 0, sizeof(drawers[i]));
    }
}

/* As a loader: pieces until it has enough for the step and those behind it; 1: the epoch is over.
 */
static bool fetch(drawer *d, uint64_t step)
{
    while (d->fetched <= step + d->fetch) {
        ck_assert_int_eq(msdu__draw_next(&d->draw, &d->job, step, &d->work), MSDU_OK);
        if (d->work.begin == d->work.total) {
            break;
        }
        d->pieces[d->fetched++ % (MSDU__AHEAD_MOST + 1)] = d->work;
    }
    return d->fetched == step;
}

static void take(const msdu_work *piece)
{
    for (uint64_t i = piece->begin; i < piece->end; i++) {
        ck_assert(seen[i] == 0);
        seen[i] = 1;
    }
}

/* Speeds wander, jump, stop, and are told by clocks of all kinds. */
static void wander(double *pace, double *step_ns, int ranks, const uint64_t *had)
{
    for (int i = 0; i < ranks; i++) {
        pace[i] *= exp(0.2 * random_signed(&seed));
        pace[i] = below(50) == 0 ? 1e6 * exp(5 * random_signed(&seed)) : pace[i];
        step_ns[i] = pace[i] * (double)(had[i] + below(5));
        step_ns[i] = below(40) == 0 ? 3.6e12 : below(40) == 0 ? 0 : step_ns[i];
    }
}

/* An epoch; true if every sample was trained with once, and all ranks ended with one step. */
static uint64_t train(int ranks, uint64_t step, double *pace)
{
    uint64_t had[RANKS_MOST];
    double step_ns[RANKS_MOST];
    uint64_t whole = drawers[0].work.batch * (uint64_t)ranks;
    memset(seen, 0, sizeof(seen));
    for (int i = 0; i < ranks; i++) {
        drawers[i].work.position = 0;
        drawers[i].work.step = 0;
        drawers[i].fetched = step;
    }
    for (uint64_t left = drawers[0].work.total;; step++) {
        uint64_t samples = 0;
        double weight = 0;
        int over = 0;
        for (int i = 0; i < ranks; i++) {
            over += fetch(&drawers[i], step) ? 1 : 0;
        }
        ck_assert_msg(over == 0 || over == ranks, "an epoch ends on %d of %d ranks", over, ranks);
        if (over > 0) {
            ck_assert_uint_eq(left, 0);
            return step;
        }
        for (int i = 0; i < ranks; i++) {
            const msdu_work *piece = &drawers[i].pieces[step % (MSDU__AHEAD_MOST + 1)];
            const msdu__piece *kept = msdu__draw_piece(&drawers[i].draw, step);
            take(piece);
            had[i] = piece->end - piece->begin;
            samples += had[i];
            ck_assert_uint_eq(kept->samples, had[i]);
            ck_assert_uint_eq(kept->check, msdu__draw_piece(&drawers[0].draw, step)->check);
            ck_assert(had[i] > 0 || (left < (uint64_t)ranks && piece->begin < piece->total));
            weight += (double)kept->samples / (double)kept->batch;
        }
        ck_assert_uint_eq(samples, left < whole ? left : whole);
        ck_assert_double_eq_tol(weight * (double)drawers[0].work.batch, (double)samples, 1e-6);
        left -= samples;
        wander(pace, step_ns, ranks, had);
        for (int i = 0; i < ranks; i++) {
            msdu__draw_count(&drawers[i].draw, step);
            if (step > 0) {
                msdu__draw_hear(&drawers[i].draw, &drawers[i].job, step, step - 1, step_ns);
            }
        }
    }
}

START_TEST(every_sample_has_one_rank_in_every_epoch)
{
    uint64_t versions = 0;
    for (int trial = 0; trial < 1000; trial++) {
        int ranks = 1 + (int)below(RANKS_MOST);
        double pace[RANKS_MOST];
        msdu_work work = {.size = sizeof(work), .batch = 1 + below(30)};
        uint64_t steps = work.batch * (uint64_t)ranks * 40;
        work.total = 1 + below(trial % 4 == 0 ? 12 : steps < TOTAL_MOST ? steps : TOTAL_MOST);
        work.ahead = trial % 3 == 0 ? 0 : below(MSDU__AHEAD_MOST + 1);
        for (int i = 0; i < ranks; i++) {
            pace[i] = 1e6 * exp(2 * random_signed(&seed));
        }
        begin(ranks, work);
        uint64_t step = below(3);
        for (int epoch = 0; epoch < 3; epoch++) {
            step = train(ranks, step, pace);
        }
        versions += drawers[0].draw.versions;
        end(ranks);
    }
    ck_assert_uint_gt(versions, 3000); /* shares did move meanwhile */
}
END_TEST

START_TEST(shares_follow_speed)
{
    double pace[4] = {1e6, 1e6, 1e6, 4e6};
    begin(4, (msdu_work){.size = sizeof(msdu_work), .batch = 32, .total = 1, .ahead = 4});
    for (uint64_t step = 0; step < 400; step++) {
        double step_ns[4];
        for (int i = 0; i < 4; i++) {
            drawers[i].work.position = 0;
            drawers[i].work.total = 100000;
            ck_assert_int_eq(
                msdu__draw_next(&drawers[i].draw, &drawers[i].job, step, &drawers[i].work),
                MSDU_OK);
            step_ns[i] = pace[i] * (double)(drawers[i].work.end - drawers[i].work.begin);
        }
        for (int i = 0; i < 4; i++) {
            msdu__draw_hear(&drawers[i].draw, &drawers[i].job, step, step, step_ns);
        }
    }
    ck_assert_uint_ge(drawers[3].work.end - drawers[3].work.begin, 9); /* 128 / 13 = 9.8 */
    ck_assert_uint_le(drawers[3].work.end - drawers[3].work.begin, 10);
    end(4);
}
END_TEST

/* A run that goes on from the middle of an epoch trains with the rest of it. */
START_TEST(a_position_kept_is_gone_on_from)
{
    begin(3, (msdu_work){.size = sizeof(msdu_work), .batch = 7, .total = 100});
    memset(seen, 0, sizeof(seen));
    for (uint64_t step = 0; step < 2; step++) {
        for (int i = 0; i < 3; i++) {
            (void)fetch(&drawers[i], step);
            take(&drawers[i].work);
        }
    }
    uint64_t kept = drawers[0].work.position;
    end(3);
    ck_assert_uint_eq(kept, 42);
    begin(3, (msdu_work){.size = sizeof(msdu_work), .batch = 7, .total = 100, .position = kept});
    for (uint64_t step = 2; step < 5; step++) {
        for (int i = 0; i < 3; i++) {
            drawers[i].fetched = step;
            (void)fetch(&drawers[i], step);
            take(&drawers[i].work);
        }
    }
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(seen[i], 1);
    }
    end(3);
}
END_TEST

START_TEST(more_than_ahead_is_refused_and_changes_nothing)
{
    begin(2, (msdu_work){.size = sizeof(msdu_work), .batch = 4, .total = 100, .ahead = 2});
    drawer *d = &drawers[1];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(msdu__draw_next(&d->draw, &d->job, 5, &d->work), MSDU_OK);
    }
    msdu_work before_it = d->work;
    ck_assert_int_eq(msdu__draw_next(&d->draw, &d->job, 5, &d->work), MSDU_ERR_STATE);
    ck_assert_mem_eq(&before_it, &d->work, sizeof(before_it));
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "rank 1: a piece for step 8 is drawn before "
                                                    "step 5, and ahead is 2"));
    ck_assert_int_eq(msdu__draw_next(&d->draw, &d->job, 6, &d->work), MSDU_OK);
    end(2);
}
END_TEST

static const msdu_work bad[] = {
    {.total = 0, .batch = 1},
    {.total = 9, .batch = 0},
    {.total = 9, .batch = 1, .ahead = MSDU__AHEAD_MOST + 1},
    {.total = 9, .batch = 1, .position = 10},
    {.total = UINT64_MAX, .batch = 1},
    {.total = 9, .batch = UINT64_MAX / 2},
};

START_TEST(work_that_makes_no_sense_is_refused)
{
    msdu__job job = {.rank = 2, .ranks = 3};
    ck_assert_int_eq(msdu__draw_check(&job, &bad[_i]), MSDU_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "rank 2: total "));
}
END_TEST

START_TEST(settings_that_know_no_common_step_are_refused)
{
    const msdu_work work = {.total = 9, .batch = 1};
    msdu__job job = {.ranks = 3};
    ck_assert_int_eq(msdu__draw_check(&job, &work), MSDU_OK);
    job = (msdu__job){.ranks = 3, .settings = {.commit_tensor = true}};
    ck_assert_int_eq(msdu__draw_check(&job, &work), MSDU_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "commit = tensor"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("draw");
    TCase *cases = suite_case(suite, "draw", 0, before, after);
    tcase_add_test(cases, every_sample_has_one_rank_in_every_epoch);
    tcase_add_test(cases, shares_follow_speed);
    tcase_add_test(cases, a_position_kept_is_gone_on_from);
    tcase_add_test(cases, more_than_ahead_is_refused_and_changes_nothing);
    suite_table(cases, work_that_makes_no_sense_is_refused, bad);
    tcase_add_test(cases, settings_that_know_no_common_step_are_refused);
    return suite_run(suite);
}
