/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of calls out of order and with bad arguments, on one rank. */
#include <check.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <msdu/msdu.h>

#include "expect.h"
#include "suite.h"

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

START_TEST(calls_before_start_are_refused)
{
    open_context("gradient");
    expect_status(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_ERR_STATE, "start");
    expect_status(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_ERR_STATE, "start");
    expect_status(msdu_step(ctx), MSDU_ERR_STATE, "start");
    expect_status(msdu_finish(ctx), MSDU_ERR_STATE, "start");
    expect_status(msdu_rollback(ctx), MSDU_ERR_STATE, "round");
    msdu_destroy(ctx);
}
END_TEST

START_TEST(start_needs_tensors_and_happens_once)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 1;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    expect_status(msdu_start(ctx), MSDU_ERR_STATE, "no tensor");
    ck_assert_int_eq(add("a", memory[0], memory[1]), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect_status(msdu_start(ctx), MSDU_ERR_STATE, "before");
    expect_status(add("late", memory[2], memory[3]), MSDU_ERR_STATE, "before");
    msdu_destroy(ctx);
}
END_TEST

START_TEST(wrong_ids_and_kinds_are_refused)
{
    open_context("gradient");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    expect_status(msdu_tensor_ready(ctx, 2, MSDU_GRADIENT), MSDU_ERR_INVALID, "no tensor 2");
    expect_status(msdu_tensor_ready(ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT), MSDU_ERR_INVALID,
                  "no tensor");
    expect_status(msdu_tensor_ready(ctx, 0, (msdu_what)3), MSDU_ERR_INVALID, "3");
    expect_status(msdu_tensor_wait(ctx, 2, MSDU_GRADIENT), MSDU_ERR_INVALID, "no tensor 2");
    expect_status(msdu_tensor_wait(ctx, 0, (msdu_what)4), MSDU_ERR_INVALID, "4");
    expect_status(msdu_tensor_wait(ctx, 0, (msdu_what)0), MSDU_ERR_INVALID, "0");
    expect_status(msdu_set_lr(ctx, -1), MSDU_ERR_INVALID, "lr");
    expect_status(msdu_set_lr(ctx, (double)NAN), MSDU_ERR_INVALID, "lr");
    expect_status(msdu_set_loss(ctx, (double)INFINITY), MSDU_ERR_INVALID, "loss");
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK); /* none of it did error */
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(a_tensor_is_announced_once_a_step)
{
    open_context("gradient");
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    expect_status(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_ERR_INVALID,
                  "'a' was announced twice");
    ck_assert_int_eq(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    expect_status(msdu_tensor_ready(ctx, 1, MSDU_GRADIENT), MSDU_ERR_INVALID, "'b'");
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER), MSDU_OK);
    expect_status(msdu_finish(ctx), MSDU_ERR_STATE, "msdu_step");
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
    expect_status(msdu_step(ctx), MSDU_ERR_STATE, "finish");
    expect_status(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER), MSDU_ERR_STATE, "finish");
    expect_status(msdu_tensor_wait(ctx, 0, MSDU_PARAMETER), MSDU_ERR_STATE, "finish");
    expect_status(msdu_finish(ctx), MSDU_ERR_STATE, "finish");
    ck_assert_int_eq(msdu_summary_get(ctx, &summary), MSDU_OK);
    ck_assert_uint_eq(summary.steps, 1);
    ck_assert_uint_gt(summary.cpu_ns, 0);
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
    msdu_tensor_desc bad[12];
    static const char *const words[12] = {"name",  "name",  "count",     "dtype",
                                          "dtype", "needs", "aligned",   "role",
                                          "role",  "role",  "too large", "too large"};
    char long_name[300];
    memset(long_name, 'x', sizeof(long_name));
    long_name[256] = '\0';
    for (int i = 0; i < 12; i++) {
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
    bad[8].role = MSDU_ROLE_BUFFER;
    bad[8].parameter = NULL;
    bad[9].role = 4;
    bad[10].count = UINT64_C(1) << 62; /* times 4 bytes: 0 */
    bad[11].count = UINT64_C(1) << 53; /* the one that is there, and this: a byte too many */
    open_context("gradient");
    for (int i = 0; i < 12; i++) {
        expect_status(msdu_tensor_add(ctx, &bad[i], NULL), MSDU_ERR_INVALID, words[i]);
    }
    expect_status(add("a", memory[0], memory[1]), MSDU_ERR_INVALID, "twice");
    ck_assert_int_eq(msdu_tensor_add(ctx, &good, NULL), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

/* An event has 26 bits for a slice; and the number of slices was kept in 32. */
START_TEST(too_many_slices_are_refused)
{
    const uint64_t counts[] = {UINT64_C(1) << 34, UINT64_C(1) << 50};
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    config.slice_bytes = 64;
    config.wire_block = 16;
    config.domain = "gradient";
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    ck_assert_int_eq(add("small", memory[0], memory[1]), MSDU_OK);
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "huge";
    desc.gradient = memory[0]; /* nothing is read of it */
    desc.count = counts[_i];
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_OK);
    expect_status(msdu_start(ctx), MSDU_ERR_INVALID, "'huge'|slice_bytes");
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
    expect_status(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_ERR_INVALID, "MSDU_TENSOR_INIT");
    newer.desc.size = sizeof(newer);
    newer.more[3] = 1;
    expect_status(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_ERR_UNSUPPORTED, "newer");
    newer.more[3] = 0;
    ck_assert_int_eq(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_OK);
    newer.desc.name = "older";
    newer.desc.size = offsetof(msdu_tensor_desc, priority);
    newer.desc.priority = 77; /* not his: not read */
    ck_assert_int_eq(msdu_tensor_add(ctx, &newer.desc, NULL), MSDU_OK);
    expect_status(msdu_summary_get(ctx, &summary), MSDU_ERR_INVALID, "MSDU_SUMMARY_INIT");
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
    expect_status(msdu_create(NULL, NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_tensor_add(NULL, &desc, NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_tensor_add(ctx, NULL, NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_start(NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_tensor_ready(NULL, 0, MSDU_GRADIENT), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_tensor_wait(NULL, 0, MSDU_GRADIENT), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_step(NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_set_lr(NULL, 1), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_set_loss(NULL, 1), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_finish(NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_rollback(NULL), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_summary_get(NULL, &summary), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_summary_get(ctx, NULL), MSDU_ERR_INVALID, "NULL");
    msdu_destroy(NULL);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(memory_moves_only_while_it_is_the_trainers)
{
    float other[8] = {0};
    open_context("gradient");
    expect_status(msdu_tensor_set(NULL, 0, MSDU_GRADIENT, other), MSDU_ERR_INVALID, "NULL");
    expect_status(msdu_tensor_set(ctx, 2, MSDU_GRADIENT, other), MSDU_ERR_INVALID, "no tensor 2");
    expect_status(msdu_tensor_set(ctx, 0, (msdu_what)3, other), MSDU_ERR_INVALID, "3");
    expect_status(msdu_tensor_set(ctx, 0, MSDU_GRADIENT, NULL), MSDU_ERR_INVALID, "'a'");
    expect_status(msdu_tensor_set(ctx, 0, MSDU_PARAMETER, (char *)other + 2), MSDU_ERR_INVALID,
                  "aligned");
    ck_assert_int_eq(add("c", NULL, memory[1]), MSDU_OK);
    expect_status(msdu_tensor_set(ctx, 2, MSDU_PARAMETER, other), MSDU_ERR_INVALID, "'c'");
    ck_assert_int_eq(msdu_tensor_set(ctx, 0, MSDU_GRADIENT, other), MSDU_OK);
    ck_assert_int_eq(msdu_start(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    /* its round cannot end before 'b' is there */
    expect_status(msdu_tensor_set(ctx, 0, MSDU_GRADIENT, memory[1]), MSDU_ERR_STATE, "'a'");
    ck_assert_int_eq(msdu_tensor_set(ctx, 0, MSDU_PARAMETER, memory[0]), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_set(ctx, 0, MSDU_GRADIENT, memory[1]), MSDU_OK);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK);
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_calls");
    TCase *tcase = suite_case(suite, "calls", 30, NULL, NULL);
    tcase_add_test(tcase, calls_before_start_are_refused);
    tcase_add_test(tcase, start_needs_tensors_and_happens_once);
    tcase_add_test(tcase, wrong_ids_and_kinds_are_refused);
    tcase_add_test(tcase, a_tensor_is_announced_once_a_step);
    tcase_add_test(tcase, nothing_but_summary_rollback_and_destroy_after_finish);
    tcase_add_test(tcase, bad_tensors_are_refused);
    tcase_add_loop_test(tcase, too_many_slices_are_refused, 0, 2);
    tcase_add_test(tcase, structs_of_other_sizes_are_taken_or_refused);
    tcase_add_test(tcase, null_is_refused_everywhere);
    tcase_add_test(tcase, memory_moves_only_while_it_is_the_trainers);
    return suite_run(suite);
}
