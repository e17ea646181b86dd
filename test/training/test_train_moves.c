/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tensors whose memory moves between steps, against a reference that knows no memory. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

/* One tensor of several slices, reduced in place; small ones that are fused; 16-bit, widened. */
static const ranks_tensor model[] = {
    {.count = 5000},
    {.count = 7},
    {.count = 40},
    {.count = 300, .dtype = MSDU_FLOAT64},
    {.count = 500, .dtype = MSDU_BFLOAT16},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))

static bool set(ranks_self *self, uint32_t tensor, msdu_what what, void **memory)
{
    size_t bytes = self->job->tensors[tensor].count * 8; /* as ranks.c takes it, of every dtype */
    void *fresh = malloc(bytes);
    if (fresh == NULL || msdu_tensor_set(self->ctx, tensor, what, fresh) != MSDU_OK) {
        self->status = fresh == NULL ? MSDU_ERR_NO_MEMORY : MSDU_ERR_STATE;
        free(fresh);
        return false;
    }
    memcpy(fresh, *memory, bytes);
    memset(*memory, 0xff, bytes); /* whoever still reads the old place meets NaN */
    free(*memory);
    *memory = fresh;
    return true;
}

/* Another subset of tensors in every step, as frameworks that give memory anew do. */
static void move_gradients(ranks_self *self, int step)
{
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        if ((step + self->rank + (int)t) % 3 != 0 &&
            !set(self, t, MSDU_GRADIENT, &self->gradient[t])) {
            return;
        }
    }
}

static void move_parameters(ranks_self *self, int step)
{
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        if ((step + self->rank + (int)t) % 3 == 0 &&
            !set(self, t, MSDU_PARAMETER, &self->parameter[t])) {
            return;
        }
    }
}

static void move_all(ranks_self *self, int step)
{
    move_gradients(self, step);
    move_parameters(self, step);
}

static ranks_job moving_job(const char *domain)
{
    return (ranks_job){
        .ranks = 3,
        .steps = 14,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = {.domain = domain,
                   .interval = "fixed",
                   .interval_steps = 3,
                   .wire = "float32",
                   .slice_bytes = 4096,
                   .fuse_bytes = 2048,
                   .warmup_steps = 2,
                   .lr = 0.05,
                   .momentum = 0.9},
        .stepped = move_all,
    };
}

START_TEST(gradients_that_move_are_reduced_where_they_are)
{
    static const ranks_style styles[] = {RANKS_IN_ORDER, RANKS_SILENT, RANKS_THREADS};
    ranks_job job = moving_job("gradient");
    job.style = styles[_i];
    job.stepped = move_gradients;
    reference_check(&job, 0);
    job.config.commit = "tensor";
    reference_check(&job, 0);
}
END_TEST

START_TEST(gradients_that_move_travel_narrow)
{
    ranks_tensor single[] = {{.count = 5000}, {.count = 7}, {.count = 40}};
    ranks_job job = moving_job("gradient");
    job.tensors = single;
    job.tensor_count = 3;
    job.config.wire = "bfloat16";
    reference_check(&job, 0);
}
END_TEST

START_TEST(parameters_that_move_are_corrected_where_they_are)
{
    static const char *const overlaps[] = {"backward", "blocking", "delayed", "streamed"};
    static const char *const domains[] = {"parameter", "auto"};
    for (int k = 0; k < 2; k++) {
        ranks_job job = moving_job(domains[k]);
        job.config.overlap = overlaps[_i];
        job.config.fragments = 3;
        job.config.delay_steps = 1;
        job.config.interval_steps = 4;
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(shadowed_gradients_may_move)
{
    ranks_job job = moving_job("accumulated");
    job.config.optimizer = "sgd";
    job.config.weight_decay = 0;
    job.config.total_steps = job.steps;
    job.stepped = NULL;
    ranks_run still;
    ranks_run moved;
    ck_assert(ranks_go(&job, &still));
    job.stepped = move_gradients;
    ck_assert(ranks_go(&job, &moved));
    kit_check_equal(&job, 0, &still, &moved);
    ranks_free(&still);
    ranks_free(&moved);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_moves");
    TCase *tcase = suite_case(suite, "ranks", 60, NULL, NULL);
    tcase_add_loop_test(tcase, gradients_that_move_are_reduced_where_they_are, 0, 3);
    tcase_add_test(tcase, gradients_that_move_travel_narrow);
    tcase_add_loop_test(tcase, parameters_that_move_are_corrected_where_they_are, 0, 4);
    tcase_add_test(tcase, shadowed_gradients_may_move);
    return suite_run(suite);
}
