/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of bad input: wrong calls, ranks that disagree, values that are not finite. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* --- one rank, wrong calls --- */

static float memory[4][8];
static msdu_ctx *ctx;

static msdu_status add(const char *name, void *parameter, void *gradient)
{
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = name;
    desc.parameter = parameter;
    desc.gradient = gradient;
    desc.count = 8;
    return msdu_tensor_add(ctx, &desc, NULL);
}

static void open_context(const char *domain)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 1;
    config.domain = domain;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    ck_assert_int_eq(add("a", memory[0], memory[1]), MSDU_OK);
    ck_assert_int_eq(add("b", memory[2], memory[3]), MSDU_OK);
}

static void expect(msdu_status got, msdu_status wanted, const char *word)
{
    ck_assert_msg(got == wanted, "%s instead of %s: %s", msdu_status_name(got),
                  msdu_status_name(wanted), msdu_last_error());
    ck_assert_msg(strstr(msdu_last_error(), word) != NULL, "'%s' not in: %s", word,
                  msdu_last_error());
}

START_TEST(calls_before_start_are_refused)
{
    open_context("gradient");
    expect(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_ERR_STATE, "start");
    expect(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_ERR_STATE, "start");
    expect(msdu_step(ctx), MSDU_ERR_STATE, "start");
    expect(msdu_finish(ctx), MSDU_ERR_STATE, "start");
    expect(msdu_rollback(ctx), MSDU_ERR_STATE, "round");
    msdu_destroy(ctx);
}
END_TEST

START_TEST(start_needs_tensors_and_happens_once)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 1;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    expect(msdu_start(ctx), MSDU_ERR_STATE, "no tensor");
    ck_assert_int_eq(add("a", memory[0], memory[1]), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect(msdu_start(ctx), MSDU_ERR_STATE, "before");
    expect(add("late", memory[2], memory[3]), MSDU_ERR_STATE, "before");
    msdu_destroy(ctx);
}
END_TEST

START_TEST(wrong_ids_and_kinds_are_refused)
{
    open_context("gradient");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect(msdu_tensor_ready(ctx, 2, MSDU_GRADIENT), MSDU_ERR_INVALID, "no tensor 2");
    expect(msdu_tensor_ready(ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT), MSDU_ERR_INVALID, "no tensor");
    expect(msdu_tensor_ready(ctx, 0, (msdu_what)3), MSDU_ERR_INVALID, "3");
    expect(msdu_tensor_wait(ctx, 2, MSDU_GRADIENT), MSDU_ERR_INVALID, "no tensor 2");
    expect(msdu_tensor_wait(ctx, 0, (msdu_what)4), MSDU_ERR_INVALID, "4");
    expect(msdu_tensor_wait(ctx, 0, (msdu_what)0), MSDU_ERR_INVALID, "0");
    expect(msdu_set_lr(ctx, -1), MSDU_ERR_INVALID, "lr");
    expect(msdu_set_lr(ctx, (double)NAN), MSDU_ERR_INVALID, "lr");
    expect(msdu_set_loss(ctx, (double)INFINITY), MSDU_ERR_INVALID, "loss");
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK); /* none of it did harm */
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(a_tensor_is_announced_once_a_step)
{
    open_context("gradient");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    expect(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_ERR_INVALID, "'a' was announced twice");
    ck_assert_int_eq(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    expect(msdu_tensor_ready(ctx, 1, MSDU_GRADIENT), MSDU_ERR_INVALID, "'b'");
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER), MSDU_OK);
    expect(msdu_finish(ctx), MSDU_ERR_STATE, "msdu_step");
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(nothing_but_summary_rollback_and_destroy_after_finish)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    open_context("parameter");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    expect(msdu_step(ctx), MSDU_ERR_STATE, "finish");
    expect(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER), MSDU_ERR_STATE, "finish");
    expect(msdu_tensor_wait(ctx, 0, MSDU_PARAMETER), MSDU_ERR_STATE, "finish");
    expect(msdu_finish(ctx), MSDU_ERR_STATE, "finish");
    ck_assert_int_eq(msdu_summary_get(ctx, &summary), MSDU_OK);
    ck_assert_uint_eq(summary.steps, 1);
    ck_assert_str_eq(summary.domain, "parameter");
    ck_assert_int_eq(msdu_rollback(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(bad_tensors_are_refused)
{
    msdu_tensor_desc good = MSDU_TENSOR_INIT;
    good.name = "c";
    good.parameter = memory[0];
    good.gradient = memory[1];
    good.count = 8;
    msdu_tensor_desc bad[8];
    static const char *const words[8] = {"name",  "name",  "count",   "dtype",
                                         "dtype", "needs", "aligned", "role"};
    char long_name[300];
    memset(long_name, 'x', sizeof(long_name));
    long_name[256] = '\0';
    for (int i = 0; i < 8; i++) {
        bad[i] = good;
    }
    bad[0].name = NULL;
    bad[1].name = long_name;
    bad[2].count = 0;
    bad[3].dtype = 4;
    bad[4].dtype = -1;
    bad[5].parameter = bad[5].gradient = NULL;
    bad[6].parameter = (char *)memory[0] + 2;
    bad[7].role = MSDU_ROLE_STATE;
    bad[7].parameter = NULL;
    open_context("gradient");
    for (int i = 0; i < 8; i++) {
        expect(msdu_tensor_add(ctx, &bad[i], NULL), MSDU_ERR_INVALID, words[i]);
    }
    expect(add("a", memory[0], memory[1]), MSDU_ERR_INVALID, "twice");
    ck_assert_int_eq(msdu_tensor_add(ctx, &good, NULL), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(structs_of_other_sizes_are_taken_or_refused)
{
    struct {
        msdu_tensor_desc desc;
        unsigned char more[16];
    } newer;
    msdu_summary summary = {0};
    memset(&newer, 0, sizeof(newer));
    newer.desc.name = "newer";
    newer.desc.parameter = memory[0];
    newer.desc.gradient = memory[1];
    newer.desc.count = 8;
    open_context("gradient");
    expect(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_ERR_INVALID, "MSDU_TENSOR_INIT");
    newer.desc.size = sizeof(newer);
    newer.more[3] = 1;
    expect(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_ERR_UNSUPPORTED, "newer");
    newer.more[3] = 0;
    ck_assert_int_eq(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_OK);
    newer.desc.name = "older";
    newer.desc.size = offsetof(msdu_tensor_desc, priority);
    newer.desc.priority = 77; /* not his: not read */
    ck_assert_int_eq(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_OK);
    expect(msdu_summary_get(ctx, &summary), MSDU_ERR_INVALID, "MSDU_SUMMARY_INIT");
    summary.size = offsetof(msdu_summary, rounds);
    summary.rounds = 4711;
    ck_assert_int_eq(msdu_summary_get(ctx, &summary), MSDU_OK);
    ck_assert_uint_eq(summary.rounds, 4711);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(null_is_refused_everywhere)
{
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu_summary summary = MSDU_SUMMARY_INIT;
    open_context("gradient");
    expect(msdu_create(NULL, NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_tensor_add(NULL, &desc, NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_tensor_add(ctx, NULL, NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_start(NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_tensor_ready(NULL, 0, MSDU_GRADIENT), MSDU_ERR_INVALID, "NULL");
    expect(msdu_tensor_wait(NULL, 0, MSDU_GRADIENT), MSDU_ERR_INVALID, "NULL");
    expect(msdu_step(NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_set_lr(NULL, 1), MSDU_ERR_INVALID, "NULL");
    expect(msdu_set_loss(NULL, 1), MSDU_ERR_INVALID, "NULL");
    expect(msdu_finish(NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_rollback(NULL), MSDU_ERR_INVALID, "NULL");
    expect(msdu_summary_get(NULL, &summary), MSDU_ERR_INVALID, "NULL");
    expect(msdu_summary_get(ctx, NULL), MSDU_ERR_INVALID, "NULL");
    msdu_destroy(NULL);
    msdu_destroy(ctx);
}
END_TEST

/* --- ranks that disagree --- */

static const ranks_tensor model[] = {{.count = 5}, {.count = 300}, {.count = 40}};

static ranks_job small_job(int ranks)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = 6,
        .tensors = model,
        .tensor_count = 3,
        .config = {.domain = "gradient",
                   .interval = "fixed",
                   .interval_steps = 3,
                   .wire = "float32",
                   .slice_bytes = 256,
                   .warmup_steps = 1,
                   .lr = 0.05},
    };
}

/* Every rank fails with this status, and with a text that has all the words. */
static void expect_all(const ranks_job *job, msdu_status status, const char *const words[4])
{
    ranks_run run;
    ck_assert(ranks_go(job, &run));
    for (int rank = 0; rank < job->ranks; rank++) {
        const ranks_self *self = &run.selves[rank];
        ck_assert_msg(self->status == status, "rank %d: %s: %s", rank,
                      msdu_status_name(self->status), self->text);
        for (int i = 0; i < 4 && words[i] != NULL; i++) {
            ck_assert_msg(strstr(self->text, words[i]) != NULL, "rank %d: '%s' not in: %s", rank,
                          words[i], self->text);
        }
    }
    ranks_free(&run);
}

static void other_setting(const ranks_self *self, msdu_config *config)
{
    config->interval_steps = self->rank == 2 ? 5 : 4;
}

START_TEST(different_settings_are_named)
{
    ranks_job job = small_job(3);
    job.configured = other_setting;
    expect_all(&job, MSDU_ERR_MISMATCH,
               (const char *const[4]){"ranks 0 and 2", "interval_steps 4", "interval_steps 5"});
}
END_TEST

static void other_count(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc)
{
    desc->count -= self->rank == 1 && tensor == 1 ? 1 : 0;
}

static void other_dtype(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc)
{
    desc->dtype = self->rank == 1 && tensor == 2 ? MSDU_BFLOAT16 : MSDU_FLOAT32;
}

static void other_name(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc)
{
    desc->name = self->rank == 1 && tensor == 0 ? "stranger" : desc->name;
}

static void other_value(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc)
{
    if (self->rank == 1 && tensor == 1) {
        ((float *)desc->parameter)[299] += 1.0F;
    }
}

START_TEST(different_tensors_are_named)
{
    static const struct {
        void (*described)(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc);
        const char *words[4];
    } cases[] = {
        {other_count, {"ranks 0 and 1", "tensor1", "300", "299"}},
        {other_dtype, {"ranks 0 and 1", "tensor2", "float32", "bfloat16"}},
        {other_name, {"ranks 0 and 1", "tensor0", "stranger", NULL}},
        {other_value, {"ranks 0 and 1", "tensor1", "value", "broadcast"}},
    };
    ranks_job job = small_job(3);
    job.described = cases[_i].described;
    expect_all(&job, MSDU_ERR_MISMATCH, cases[_i].words);
}
END_TEST

static void one_more(ranks_self *self)
{
    static float extra[4];
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "extra";
    desc.parameter = desc.gradient = extra;
    desc.count = 4;
    if (self->rank == 1) {
        self->status = msdu_tensor_add(self->ctx, &desc, NULL);
    }
}

START_TEST(a_different_number_of_tensors_is_named)
{
    ranks_job job = small_job(2);
    job.created = one_more;
    expect_all(&job, MSDU_ERR_MISMATCH,
               (const char *const[4]){"ranks 0 and 1", "tensors 3", "tensors 4"});
}
END_TEST

/* --- values that are not finite --- */

typedef struct poison {
    int rank;
    int step;
    uint32_t tensor;
    float value;
    float left[RANKS_MOST][300]; /* tensor 1 after the failure, and after a rollback */
    float back[RANKS_MOST][300];
} poison;

static void spoil(ranks_self *self, int step)
{
    const poison *p = self->job->user;
    if (self->rank == p->rank && step == p->step) {
        ((float *)self->parameter[p->tensor])[3] = p->value;
    }
}

static void note_what_is_left(ranks_self *self)
{
    poison *p = self->job->user;
    memcpy(p->left[self->rank], self->parameter[1], sizeof(p->left[0]));
    if (msdu_rollback(self->ctx) == MSDU_OK) {
        memcpy(p->back[self->rank], self->parameter[1], sizeof(p->back[0]));
    }
}

static ranks_job poisoned_job(poison *p, const char *domain)
{
    ranks_job job = small_job(3);
    job.config.domain = domain;
    job.stepped = spoil;
    job.failed = note_what_is_left;
    job.user = p;
    return job;
}

START_TEST(a_bad_gradient_is_named_on_all_ranks)
{
    static const char *const slow[] = {"float32", "int8"};
    for (int k = 0; k < 4; k++) {
        static const char *const names[] = {"tensor0", "tensor1", "tensor2", "tensor0"};
        poison p = {.rank = 2, .step = 4, .value = k < 2 ? NAN : INFINITY};
        p.tensor = (uint32_t)k % 3;
        ranks_job job = poisoned_job(&p, "gradient");
        job.config.wire = slow[k % 2];
        expect_all(&job, MSDU_ERR_NOT_FINITE, (const char *const[4]){"rank 2", names[k], "step 4"});
    }
}
END_TEST

/* Rounds end with steps 0, 1, 4: step 3 spoils, step 4 tells. */
START_TEST(a_bad_parameter_leaves_the_parameters_of_the_others)
{
    ranks_run good;
    poison p = {.rank = 1, .step = 3, .tensor = 2, .value = NAN};
    ranks_job job = poisoned_job(&p, "parameter");
    job.config.overlap = _i == 0 ? "backward" : "blocking";
    expect_all(&job, MSDU_ERR_NOT_FINITE, (const char *const[4]){"rank 1", "tensor2", "step 4"});
    job.stepped = NULL;
    ck_assert(ranks_go(&job, &good));
    for (int rank = 0; rank < 3; rank++) {
        double velocity = 0;
        const double *before = ranks_row(&good.selves[rank], 4);
        const double *met = ranks_row(&good.selves[0], 2);
        for (uint64_t i = 0; i < 300; i++) {
            uint64_t at = 5 + i;
            double g = ranks_gradient(&job, rank, 4, MSDU_FLOAT32, at, before[at]);
            double own = ranks_update(&job, 4, MSDU_FLOAT32, before[at], g, &velocity);
            if ((double)p.left[rank][i] != own || (double)p.back[rank][i] != met[at]) {
                ck_abort_msg("rank %d element %d", rank, (int)i);
            }
            velocity = 0;
        }
    }
    ranks_free(&good);
}
END_TEST

START_TEST(bad_values_pass_where_they_may)
{
    ranks_run run;
    poison p = {.rank = 1, .step = 3, .tensor = 2, .value = NAN};
    ranks_job job = poisoned_job(&p, "gradient");
    job.config.check_finite = "no";
    job.is_unfinished = true;
    ck_assert(ranks_go(&job, &run));
    ck_assert(isnan(ranks_row(&run.selves[0], 4)[5 + 300 + 3]));
    ck_assert(!isnan(ranks_row(&run.selves[0], 4)[5 + 300 + 4]));
    ranks_free(&run);
}
END_TEST

START_TEST(a_bad_parameter_at_the_end_is_named)
{
    poison p = {.rank = 1, .step = 5, .tensor = 0, .value = INFINITY};
    ranks_job job = poisoned_job(&p, "parameter");
    job.config.interval_steps = 60;
    job.steps = 6;
    expect_all(&job, MSDU_ERR_NOT_FINITE, (const char *const[4]){"rank 1", "tensor0", "end"});
}
END_TEST

/* --- ranks that leave --- */

static void leave(ranks_self *self, int step)
{
    if (self->rank == 1 && step == 3) {
        self->status = MSDU_ERR_STATE;
        snprintf(self->text, sizeof(self->text), "rank 1 was lost on purpose");
        msdu_destroy(self->ctx);
        self->ctx = NULL; /* every further call fails: the rank leaves its loop */
    }
}

START_TEST(a_rank_that_leaves_is_named)
{
    ranks_run run;
    ranks_job job = small_job(3);
    job.stepped = leave;
    ck_assert(ranks_go(&job, &run));
    for (int rank = 0; rank < 3; rank += 2) {
        ck_assert_int_eq(run.selves[rank].status, MSDU_ERR_PEER_LOST);
        ck_assert_ptr_nonnull(strstr(run.selves[rank].text, "rank 1"));
    }
    ranks_free(&run);
}
END_TEST

static TCase *calls_of_one_rank(void)
{
    TCase *tcase = tcase_create("calls");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, calls_before_start_are_refused);
    tcase_add_test(tcase, start_needs_tensors_and_happens_once);
    tcase_add_test(tcase, wrong_ids_and_kinds_are_refused);
    tcase_add_test(tcase, a_tensor_is_announced_once_a_step);
    tcase_add_test(tcase, nothing_but_summary_rollback_and_destroy_after_finish);
    tcase_add_test(tcase, bad_tensors_are_refused);
    tcase_add_test(tcase, structs_of_other_sizes_are_taken_or_refused);
    tcase_add_test(tcase, null_is_refused_everywhere);
    return tcase;
}

static TCase *ranks_together(void)
{
    TCase *tcase = tcase_create("ranks");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, different_settings_are_named);
    tcase_add_loop_test(tcase, different_tensors_are_named, 0, 4);
    tcase_add_test(tcase, a_different_number_of_tensors_is_named);
    tcase_add_test(tcase, a_bad_gradient_is_named_on_all_ranks);
    tcase_add_loop_test(tcase, a_bad_parameter_leaves_the_parameters_of_the_others, 0, 2);
    tcase_add_test(tcase, bad_values_pass_where_they_may);
    tcase_add_test(tcase, a_bad_parameter_at_the_end_is_named);
    tcase_add_test(tcase, a_rank_that_leaves_is_named);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("train_input");
    suite_add_tcase(suite, calls_of_one_rank());
    suite_add_tcase(suite, ranks_together());
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
