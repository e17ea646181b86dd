/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of bad input among ranks: ranks that disagree or leave, values that are not finite. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ranks.h"
#include "ranks_place.h"
#include "reference.h"
#include "suite.h"

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

static void other_setting(const ranks_self *self, msdu_config *config)
{
    config->interval_steps = self->rank == 2 ? 5 : 4;
}

START_TEST(different_settings_are_named)
{
    ranks_job job = small_job(3);
    job.configured = other_setting;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "ranks 0 and 2|interval_steps 4|interval_steps 5");
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
        const char *words;
    } cases[] = {
        {other_count, "ranks 0 and 1|tensor1|300|299"},
        {other_dtype, "ranks 0 and 1|tensor2|float32|bfloat16"},
        {other_name, "ranks 0 and 1|tensor0|stranger"},
        {other_value, "ranks 0 and 1|tensor1|value|broadcast"},
    };
    ranks_job job = small_job(3);
    job.described = cases[_i].described;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, cases[_i].words);
}
END_TEST

static void one_more(ranks_self *self)
{
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "extra";
    desc.parameter = desc.gradient = *(void **)self->job->user;
    desc.count = 4;
    desc.place = ranks_place();
    if (self->rank == 1) {
        self->status = msdu_tensor_add(self->ctx, &desc, NULL);
    }
}

START_TEST(a_different_number_of_tensors_is_named)
{
    void *extra = ranks_place_take(4 * sizeof(float));
    ranks_job job = small_job(2);
    job.created = one_more;
    job.user = &extra;
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "ranks 0 and 1|tensors 3|tensors 4");
    ranks_place_give(extra);
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
        static const char *const words[] = {"rank 2|tensor0|step 4", "rank 2|tensor1|step 4",
                                            "rank 2|tensor2|step 4", "rank 2|tensor0|step 4"};
        poison p = {.rank = 2, .step = 4, .value = k < 2 ? NAN : INFINITY};
        p.tensor = (uint32_t)k % 3;
        ranks_job job = poisoned_job(&p, "gradient");
        job.config.wire = slow[k % 2];
        ranks_run_badly(&job, MSDU_ERR_NOT_FINITE, words[k]);
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
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE, "rank 1|tensor2|step 4");
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
    ranks_run_badly(&job, MSDU_ERR_NOT_FINITE, "rank 1|tensor0|end");
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

int main(void)
{
    Suite *suite = suite_create("train_input");
    TCase *tcase = suite_case(suite, "ranks", 60, NULL, NULL);
    tcase_add_test(tcase, different_settings_are_named);
    tcase_add_loop_test(tcase, different_tensors_are_named, 0, 4);
    tcase_add_test(tcase, a_different_number_of_tensors_is_named);
    tcase_add_test(tcase, a_bad_gradient_is_named_on_all_ranks);
    tcase_add_loop_test(tcase, a_bad_parameter_leaves_the_parameters_of_the_others, 0, 2);
    tcase_add_test(tcase, bad_values_pass_where_they_may);
    tcase_add_test(tcase, a_bad_parameter_at_the_end_is_named);
    tcase_add_test(tcase, a_rank_that_leaves_is_named);
    return suite_run(suite);
}
