/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of role FIXED: equal at the start, never touched afterwards. */
#include <check.h>
#include <string.h>

#include "ranks.h"
#include "ranks_place.h"
#include "reference.h"
#include "suite.h"

#define RANKS 3
#define COUNT 7

/* The kit has memory of its own for the last one; described() puts the table in its place. */
static const ranks_tensor model[] = {
    {.count = 5},
    {.count = 300},
    {.count = COUNT, .dtype = MSDU_FLOAT16, .role = MSDU_ROLE_STATE},
};

/* Of each rank: not numbers, but whatever bytes a table may have; some of them are NaNs. */
static uint16_t *tables[RANKS];

static void fill_tables(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        tables[rank] = ranks_place_take(COUNT * sizeof(*tables[rank]));
        ck_assert_ptr_nonnull(tables[rank]);
        for (int i = 0; i < COUNT; i++) {
            tables[rank][i] = (uint16_t)(0xffff - 100 * rank - i);
        }
    }
}

static void drop_tables(void)
{
    for (int rank = 0; rank < RANKS; rank++) {
        ranks_place_give(tables[rank]);
    }
}

static void describe_table(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc)
{
    if (tensor == 2) {
        desc->name = "table";
        desc->parameter = tables[self->rank];
        desc->role = MSDU_ROLE_FIXED;
    }
}

static ranks_job table_job(const char *domain, const char *state)
{
    return (ranks_job){
        .ranks = RANKS,
        .steps = 9,
        .tensors = model,
        .tensor_count = 3,
        .described = describe_table,
        .config = {.domain = domain,
                   .state = state,
                   .broadcast = "yes",
                   .interval = "fixed",
                   .interval_steps = 3,
                   .wire = "float32",
                   .warmup_steps = 1,
                   .lr = 0.05},
    };
}

START_TEST(a_fixed_tensor_has_rank_0s_bytes_and_keeps_them)
{
    static const char *const domains[] = {"gradient", "parameter", "auto"};
    static const char *const states[] = {"local", "average", "reset"};
    ranks_run run;
    uint16_t wanted[COUNT];
    ranks_job job = table_job(domains[_i / 3], states[_i % 3]);
    memcpy(wanted, tables[0], sizeof(wanted));
    ranks_run_well(&job, &run);
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_mem_eq(tables[rank], wanted, sizeof(wanted));
    }
    ranks_free(&run);
}
END_TEST

START_TEST(fixed_tensors_that_differ_are_named)
{
    ranks_job job = table_job("gradient", "local");
    job.config.broadcast = "no";
    ranks_run_badly(&job, MSDU_ERR_MISMATCH, "'table'");
}
END_TEST

START_TEST(a_fixed_tensor_needs_a_parameter)
{
    msdu_ctx *ctx = NULL;
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    desc.name = "table";
    desc.gradient = tables[0];
    desc.count = COUNT;
    desc.dtype = MSDU_FLOAT16;
    desc.role = MSDU_ROLE_FIXED;
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_ERR_INVALID);
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_fixed");
    TCase *tcase = suite_case(suite, "fixed", 60, fill_tables, drop_tables);
    tcase_add_loop_test(tcase, a_fixed_tensor_has_rank_0s_bytes_and_keeps_them, 0, 9);
    tcase_add_test(tcase, fixed_tensors_that_differ_are_named);
    tcase_add_test(tcase, a_fixed_tensor_needs_a_parameter);
    return suite_run(suite);
}
