/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of buffers, such as running statistics: averaged as they are where parameters meet. */
#include <check.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "suite.h"

/* The model comes first, so that it is the same with and without buffers. */
static const ranks_tensor model[] = {
    {.count = 300},
    {.count = 1500},
    {.count = 20},
    {.count = 300, .role = MSDU_ROLE_BUFFER},
    {.count = 2000, .role = MSDU_ROLE_BUFFER},
    {.count = 40, .role = MSDU_ROLE_BUFFER, .dtype = MSDU_BFLOAT16},
    {.count = 9, .role = MSDU_ROLE_STATE, .dtype = MSDU_FLOAT64},
    {.count = 11, .role = MSDU_ROLE_BUFFER, .dtype = MSDU_FLOAT64},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))
#define PLAIN_COUNT 3

static ranks_job buffer_job(const char *domain, const char *overlap)
{
    ranks_job job = {
        .ranks = 3,
        .steps = 15,
        .tensors = model,
        .tensor_count = MODEL_COUNT,
        .config = ranks_config(domain, overlap),
    };
    job.config.delay_steps = 1;
    return job;
}

START_TEST(buffers_are_averaged_where_parameters_meet)
{
    static const char *const states[] = {"local", "average", "reset"};
    for (int k = 0; k < 3; k++) {
        ranks_job job = buffer_job("parameter", ranks_overlaps[_i]);
        job.config.state = states[k];
        reference_check(&job, 0);
        job.config.domain = "auto"; /* gradients first */
        reference_check(&job, 0);
    }
}
END_TEST

START_TEST(buffers_are_not_narrowed)
{
    ranks_job job = buffer_job("parameter", ranks_overlaps[_i]);
    job.config.wire = "bfloat16";
    reference_check(&job, 0);
}
END_TEST

/* With gradients they stay with their rank until the end; parameters stay equal throughout. */
START_TEST(buffers_are_left_alone_beside_gradients)
{
    ranks_run run;
    ranks_job job = buffer_job("gradient", ranks_overlaps[_i]);
    reference_check(&job, 0);
    ranks_run_well(&job, &run);
    const double *a = ranks_row(&run.selves[0], job.steps);
    const double *b = ranks_row(&run.selves[1], job.steps);
    uint64_t states = 9 + 11; /* the last two tensors; state stays local */
    ck_assert_mem_eq(a, b, (size_t)(run.selves[0].elements - states) * sizeof(double));
    a = ranks_row(&run.selves[0], job.steps - 1);
    b = ranks_row(&run.selves[1], job.steps - 1);
    ck_assert_mem_eq(a, b, 1820 * sizeof(double));
    ck_assert_mem_ne(a + 1820, b + 1820, 2300 * sizeof(double));
    ranks_free(&run);
}
END_TEST

START_TEST(buffers_meet_at_the_end_without_parameters_too)
{
    ranks_run run;
    ranks_job job = buffer_job(_i == 0 ? "gradient" : "accumulated", "backward");
    job.config.optimizer = "sgd";
    job.hides_parameters = true;
    ranks_run_well(&job, &run);
    const double *a = ranks_row(&run.selves[0], job.steps) + 1820;
    const double *b = ranks_row(&run.selves[2], job.steps) + 1820;
    ck_assert_mem_eq(a, b, 2340 * sizeof(double));
    ranks_free(&run);
}
END_TEST

START_TEST(buffers_are_no_part_of_the_statistics)
{
    ranks_run with;
    ranks_run without;
    ranks_job job = buffer_job("parameter", "backward");
    ranks_run_well(&job, &with);
    job.tensor_count = PLAIN_COUNT;
    ranks_run_well(&job, &without);
    const msdu_summary *a = &with.selves[1].summary;
    const msdu_summary *b = &without.selves[1].summary;
    ck_assert(a->drift > 0 && a->drift == b->drift && a->divergence == b->divergence);
    ck_assert_uint_eq(a->bytes_plain, b->bytes_plain);
    ck_assert_uint_gt(a->bytes_sent, b->bytes_sent);
    ranks_free(&with);
    ranks_free(&without);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_buffer");
    TCase *tcase = suite_case(suite, "ranks", 60, NULL, NULL);
    tcase_add_loop_test(tcase, buffers_are_averaged_where_parameters_meet, 0, 5);
    tcase_add_loop_test(tcase, buffers_are_not_narrowed, 0, 5);
    tcase_add_loop_test(tcase, buffers_are_left_alone_beside_gradients, 0, 2);
    tcase_add_loop_test(tcase, buffers_meet_at_the_end_without_parameters_too, 0, 2);
    tcase_add_test(tcase, buffers_are_no_part_of_the_statistics);
    return suite_run(suite);
}
