/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of states that cannot be taken: every rank gets an error that names the cause, no context
 * is changed, and the good state can still be taken.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state_kit.h"
#include "suite.h"

#define AT    17
#define RANKS 3
#define TRIES 64 /* most attempts of a rank in one job */

/* --- attempts --- */

/* A rank's outcome of one msdu_state_set. */
typedef struct outcome {
    msdu_status status;
    char text[512];
} outcome;

struct trial;
/* Change the bytes of attempt `index`; they are a copy, *bytes may shrink. NULL: no state. */
typedef unsigned char *spoiler(const struct trial *trial, int rank, int index, unsigned char *state,
                               size_t *bytes);

/* What ranks do in one job: attempts with spoiled states, then the good one. */
typedef struct trial {
    const kit_save *save;
    const kit_save *other; /* a save to mix with */
    int attempts;
    spoiler *spoil;
    bool is_hopeless; /* the good state does not fit either */
    outcome outcomes[RANKS][TRIES];
} trial;

static void attempt(ranks_self *self, trial *t, int index)
{
    outcome *out = &t->outcomes[self->rank][index];
    const kit_rank *in = &t->save->rank[self->rank];
    size_t bytes = in->bytes;
    unsigned char *copy = malloc(bytes);
    unsigned char *state = copy;
    if (copy != NULL) {
        memcpy(copy, in->state, bytes);
        state = t->spoil == NULL ? copy : t->spoil(t, self->rank, index, copy, &bytes);
    }
    out->status = msdu_state_set(self->ctx, state, bytes);
    snprintf(out->text, sizeof(out->text), "%s", msdu_last_error());
    free(copy);
}

static void try_all(ranks_self *self)
{
    trial *t = self->job->user;
    for (int i = 0; i < t->attempts; i++) {
        attempt(self, t, i);
    }
    if (!t->is_hopeless) {
        kit_load(self, t->save);
    }
}

/* Run the trial; all but hopeless ones end with the same bits as a run without interruption. */
static void go(const ranks_job *job, trial *t)
{
    ranks_run run;
    ranks_run whole;
    ranks_job part = *job;
    part.first_step = t->is_hopeless ? job->steps : AT;
    part.is_unfinished = t->is_hopeless;
    part.started = try_all;
    part.user = t;
    ck_assert(ranks_go(&part, &run));
    if (!t->is_hopeless) {
        ck_assert(ranks_go(job, &whole));
        kit_check_equal(job, AT, &whole, &run);
        ranks_free(&whole);
    }
    ranks_free(&run);
}

static void check_one(const trial *t, int index, int rank, msdu_status status, const char *words)
{
    const outcome *out = &t->outcomes[rank][index];
    ck_assert_msg(out->status == status && strstr(out->text, words) != NULL,
                  "attempt %d, rank %d: %s: no '%s' in '%s'", index, rank,
                  msdu_status_name(out->status), words, out->text);
}

/* The rank that had a bad state says why; the others, that it had. */
static void check_outcome(const trial *t, int index, int bad, msdu_status status, const char *why)
{
    for (int rank = 0; rank < RANKS; rank++) {
        bool is_bad = rank == bad;
        check_one(t, index, rank, is_bad ? status : MSDU_ERR_MISMATCH,
                  is_bad ? why : "could not take its state");
    }
}

static void check_all(const trial *t, int ranks, msdu_status status, const char *words)
{
    for (int rank = 0; rank < ranks; rank++) {
        check_one(t, 0, rank, status, words);
    }
}

static ranks_job delayed_job(void)
{
    ranks_job job = kit_job("parameter", "delayed");
    job.config.wire = "int4";
    job.config.correct = "outer";
    job.steps = 26;
    return job;
}

/* Attempts with states of the delayed job, spoiled; the trial is that of this process. */
static const trial *spoil_all(int attempts, spoiler *spoil, int other_at)
{
    static trial t;
    kit_save save;
    kit_save other;
    ranks_job job = delayed_job();
    kit_interrupt(&job, AT, &save);
    kit_interrupt(&job, other_at, &other);
    t = (trial){.save = &save, .other = &other, .attempts = attempts, .spoil = spoil};
    go(&job, &t);
    t.save = t.other = NULL;
    kit_free(&save);
    kit_free(&other);
    return &t;
}

/* --- damage --- */

static unsigned char *cut_off(const trial *t, int rank, int index, unsigned char *state,
                              size_t *bytes)
{
    static const size_t kept[] = {0, 1, 8, 31, 32, 63, 64, 65};
    size_t whole = *bytes;
    (void)t;
    if (rank == 1) {
        *bytes = index < 8 ? kept[index] : index < 10 ? whole - 8 / (size_t)(index - 7) : whole / 2;
    }
    return rank == 1 && index == 11 ? NULL : state;
}

START_TEST(cut_off_states_are_refused)
{
    const trial *t = spoil_all(12, cut_off, AT);
    for (int i = 0; i < t->attempts; i++) {
        bool has_frame = i >= 6 && i != 11;
        check_outcome(t, i, 1, MSDU_ERR_INVALID, has_frame ? "were given" : "no state of msdu");
    }
}
END_TEST

/* Bits all over the state, the frame and the last byte included. */
static unsigned char *flip(const trial *t, int rank, int index, unsigned char *state, size_t *bytes)
{
    size_t at = index < 8 ? (size_t)index * 8 : (*bytes - 1) * (size_t)(index - 7) / (TRIES - 8);
    (void)t;
    if (rank == 2) {
        state[at] ^= (unsigned char)(128U >> (index % 8)); /* no other format that is read */
    }
    return state;
}

START_TEST(flipped_bits_are_found)
{
    const trial *t = spoil_all(TRIES, flip, AT);
    for (int i = 0; i < t->attempts; i++) {
        bool is_format = i == 1;
        check_outcome(t, i, 2, is_format ? MSDU_ERR_UNSUPPORTED : MSDU_ERR_INVALID,
                      is_format ? "has format " : "rank 2: ");
    }
}
END_TEST

/* --- states of others --- */

static unsigned char *exchange(const trial *t, int rank, int index, unsigned char *state,
                               size_t *bytes)
{
    const kit_rank *from = &t->save->rank[(rank + 1) % RANKS];
    (void)index;
    (void)state;
    *bytes = from->bytes;
    return from->state;
}

START_TEST(every_rank_takes_its_own_state)
{
    const trial *t = spoil_all(1, exchange, AT);
    for (int rank = 0; rank < RANKS; rank++) {
        char words[64];
        snprintf(words, sizeof(words), "rank %d: this is the state of rank %d", rank,
                 (rank + 1) % RANKS);
        check_one(t, 0, rank, MSDU_ERR_MISMATCH, words);
    }
}
END_TEST

static unsigned char *mix(const trial *t, int rank, int index, unsigned char *state, size_t *bytes)
{
    (void)index;
    if (rank != 2) {
        return state;
    }
    *bytes = t->other->rank[2].bytes;
    return t->other->rank[2].state;
}

START_TEST(all_states_are_of_one_step)
{
    check_all(spoil_all(1, mix, AT - 1), RANKS, MSDU_ERR_MISMATCH,
              "ranks 0 and 2 disagree: rank 0 has the state of step 17, rank 2 that of step 16");
}
END_TEST

START_TEST(all_states_are_of_one_run)
{
    check_all(spoil_all(1, mix, AT), RANKS, MSDU_ERR_MISMATCH,
              "ranks 0 and 2 disagree: their states of step 17 are of different runs");
}
END_TEST

/* --- other contexts --- */

static void check_job(const ranks_job *job, const char *words)
{
    kit_save save;
    static trial t;
    ranks_job saved = delayed_job();
    kit_interrupt(&saved, AT, &save);
    t = (trial){.save = &save, .attempts = 1, .is_hopeless = true};
    go(job, &t);
    check_all(&t, job->ranks, MSDU_ERR_MISMATCH, words);
    kit_free(&save);
}

START_TEST(settings_are_those_of_the_state)
{
    ranks_job job = delayed_job();
    job.config.interval_steps = 6;
    check_job(&job,
              "the state was saved with 'interval_steps 5', this context has 'interval_steps 6'");
    job = delayed_job();
    job.config.wire = "int2";
    check_job(&job, "saved with 'wire int4', this context has 'wire int2'");
}
END_TEST

START_TEST(the_number_of_ranks_is_that_of_the_state)
{
    ranks_job job = delayed_job();
    job.ranks = 2;
    check_job(&job, "saved with 'ranks 3', this context has 'ranks 2'");
}
END_TEST

START_TEST(tensors_are_those_of_the_state)
{
    static const ranks_tensor larger[] = {
        {.count = 1}, {.count = 7}, {.count = 257}, {.count = 600}, {.count = 900},
    };
    ranks_job job = delayed_job();
    job.tensors = larger;
    check_job(&job, "saved with 'tensor 2 'tensor2' count 256 dtype float32 role model priority 0 "
                    "parameter gradient', this context has 'tensor 2 'tensor2' count 257 ");
    job = delayed_job();
    job.tensor_count--;
    check_job(&job, "saved with 'tensors 5', this context has 'tensors 4'");
}
END_TEST

START_TEST(some_settings_may_change)
{
    ranks_run whole;
    ranks_run run;
    kit_save save;
    ranks_job job = delayed_job();
    ck_assert(ranks_go(&job, &whole));
    kit_interrupt(&job, AT, &save);
    job.config.job = "another";
    job.config.window = 2;
    job.config.lanes = 1;
    job.config.total_steps = 1000;
    job.config.broadcast = "yes";
    job.config.check_finite = "no";
    ck_assert(kit_resume(&job, AT, &save, &run));
    kit_check_equal(&job, AT, &whole, &run);
    kit_free(&save);
    ranks_free(&run);
    ranks_free(&whole);
}
END_TEST

/* --- calls out of order --- */

typedef struct calls {
    unsigned char *state;
    size_t bytes;
    msdu_status before_start;
    msdu_status get_before_start;
    msdu_status in_a_step;
    msdu_status too_small;
    msdu_status set_later;
    char text[512];
} calls;

static void call_early(ranks_self *self)
{
    calls *c = self->job->user;
    size_t bytes = 77;
    c->before_start = msdu_state_set(self->ctx, c->state, c->bytes);
    c->get_before_start = msdu_state_get(self->ctx, NULL, 0, &bytes);
    ck_assert_uint_eq(bytes, 77);
}

static void call_between(ranks_self *self, int step)
{
    calls *c = self->job->user;
    size_t bytes = 77;
    if (step == 3) {
        unsigned char few[64];
        c->set_later = msdu_state_set(self->ctx, c->state, c->bytes);
        c->too_small = msdu_state_get(self->ctx, few, sizeof(few), &bytes);
        snprintf(c->text, sizeof(c->text), "%s", msdu_last_error());
        self->status = msdu_tensor_ready(self->ctx, 1, MSDU_GRADIENT);
        c->in_a_step = msdu_state_get(self->ctx, NULL, 0, &bytes);
        ck_assert_uint_eq(bytes, 77);
    }
}

START_TEST(calls_out_of_order_are_refused)
{
    ranks_run run;
    unsigned char nothing[8] = {0};
    calls c = {.state = nothing, .bytes = sizeof(nothing)};
    ranks_job job = kit_job("auto", "backward");
    job.ranks = 1;
    job.steps = 5;
    job.style = RANKS_SILENT;
    job.created = call_early;
    job.stepped = call_between;
    job.user = &c;
    ck_assert(ranks_go(&job, &run));
    ck_assert_msg(run.selves[0].status == MSDU_OK, "%s", run.selves[0].text);
    ck_assert_int_eq(c.before_start, MSDU_ERR_STATE);
    ck_assert_int_eq(c.get_before_start, MSDU_ERR_STATE);
    ck_assert_int_eq(c.set_later, MSDU_ERR_STATE);
    ck_assert_int_eq(c.in_a_step, MSDU_ERR_STATE);
    ck_assert_int_eq(c.too_small, MSDU_ERR_INVALID);
    ck_assert_msg(strstr(c.text, "there is room for 64") != NULL, "%s", c.text);
    ranks_free(&run);
}
END_TEST

static void set_again(ranks_self *self)
{
    trial *t = self->job->user;
    kit_load(self, t->save);
    attempt(self, t, 0);
}

START_TEST(a_state_is_set_once)
{
    ranks_run run;
    kit_save save;
    ranks_job job = delayed_job();
    static trial t;
    kit_interrupt(&job, AT, &save);
    t = (trial){.save = &save};
    job.first_step = AT;
    job.started = set_again;
    job.user = &t;
    ck_assert(ranks_go(&job, &run));
    check_all(&t, RANKS, MSDU_ERR_STATE, "a state is set once");
    ck_assert_int_eq(ranks_failed(&run, RANKS), -1);
    ranks_free(&run);
    kit_free(&save);
}
END_TEST

/* --- taking a state is not seen in the training --- */

static void get_now(ranks_self *self, int step)
{
    size_t bytes = 0;
    if (self->rank == step % RANKS) {
        msdu_status status = msdu_state_get(self->ctx, NULL, 0, &bytes);
        unsigned char *state = malloc(bytes);
        if (status == MSDU_OK && state != NULL) {
            status = msdu_state_get(self->ctx, state, bytes, &bytes);
        }
        free(state);
        self->status = status;
    }
}

START_TEST(taking_a_state_changes_nothing)
{
    for (int domain = 0; domain < 2; domain++) {
        ranks_run whole;
        ranks_run run;
        ranks_job job = kit_job(domain == 0 ? "auto" : "parameter", ranks_overlaps[_i]);
        job.config.wire = "int4";
        ck_assert(ranks_go(&job, &whole));
        job.stepped = get_now;
        ck_assert(ranks_go(&job, &run));
        kit_check_equal(&job, 0, &whole, &run);
        ranks_free(&run);
        ranks_free(&whole);
    }
}
END_TEST

/* --- a rank that does not come --- */

static void only_some(ranks_self *self)
{
    trial *t = self->job->user;
    if (self->rank != 2) {
        attempt(self, t, 0);
    }
}

START_TEST(a_rank_that_does_not_set_is_waited_for_in_vain)
{
    ranks_run run;
    kit_save save;
    ranks_job job = delayed_job();
    static trial t;
    kit_interrupt(&job, AT, &save);
    t = (trial){.save = &save};
    job.config.deadline_ms = 700;
    job.started = only_some;
    job.user = &t;
    ck_assert(ranks_go(&job, &run));
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_msg(t.outcomes[rank][0].status < 0, "rank %d took it alone", rank);
        ck_assert_msg(strstr(t.outcomes[rank][0].text, "rank") != NULL, "%s",
                      t.outcomes[rank][0].text);
    }
    ck_assert_int_lt(run.selves[2].status, 0);
    ranks_free(&run);
    kit_free(&save);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_bad");
    TCase *tcase = suite_case(suite, "state_bad", 100, NULL, NULL);
    tcase_add_test(tcase, cut_off_states_are_refused);
    tcase_add_test(tcase, flipped_bits_are_found);
    tcase_add_test(tcase, every_rank_takes_its_own_state);
    tcase_add_test(tcase, all_states_are_of_one_step);
    tcase_add_test(tcase, all_states_are_of_one_run);
    tcase_add_test(tcase, settings_are_those_of_the_state);
    tcase_add_test(tcase, the_number_of_ranks_is_that_of_the_state);
    tcase_add_test(tcase, tensors_are_those_of_the_state);
    tcase_add_test(tcase, some_settings_may_change);
    tcase_add_test(tcase, calls_out_of_order_are_refused);
    tcase_add_test(tcase, a_state_is_set_once);
    tcase_add_loop_test(tcase, taking_a_state_changes_nothing, 0, 5);
    tcase_add_test(tcase, a_rank_that_does_not_set_is_waited_for_in_vain);
    return suite_run(suite);
}
