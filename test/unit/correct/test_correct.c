/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of correction: chains of rules, one pass for every dtype, and the rules in training. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "correct/correct.h"
#include "random.h"
#include "simd/vec.h"
#include "suite.h"

#define MOST (2 * MSDU__CHUNK + 37)

static uint64_t random_state = 0x2545f4914f6cdd1dU;

static double uniform(void)
{
    return random_signed(&random_state);
}

static msdu__chain parsed(const char *text, bool is_delayed)
{
    msdu__chain chain;
    char why[128] = "";
    ck_assert_msg(msdu__chain_parse(text, is_delayed, &chain, why, sizeof(why)), "%s", why);
    return chain;
}

/* --- chains --- */

START_TEST(a_chain_is_read_in_order)
{
    const msdu__chain chain = parsed(" clip, outer ,delayed", false);
    ck_assert_uint_eq(chain.count, 3);
    ck_assert_str_eq(chain.rules[0]->name, "clip");
    ck_assert_str_eq(chain.rules[1]->name, "outer");
    ck_assert_str_eq(chain.rules[2]->name, "delayed");
    ck_assert_uint_eq(chain.needs, MSDU__NEEDS_NORM | MSDU__NEEDS_MOMENTUM | MSDU__NEEDS_SNAPSHOT);
}
END_TEST

START_TEST(a_chain_without_merge_gets_one)
{
    ck_assert_str_eq(parsed("outer", false).rules[1]->name, "average");
    ck_assert_str_eq(parsed("outer", true).rules[1]->name, "delayed");
    ck_assert_str_eq(parsed("", false).rules[0]->name, "average");
}
END_TEST

static const char *const bad_chains[][2] = {
    {"average,clip", "\"clip\" follows a merge rule"}, {"average,elastic", "\"elastic\" follows"},
    {"clip,clip", "\"clip\" is given twice"},          {"meen", "\"meen\" is not a correction"},
    {"clip,,average", "\"\" is not a correction"},     {"Average", "\"Average\" is not"},
};

START_TEST(a_bad_chain_is_refused_by_name)
{
    msdu__chain chain = {.count = 77};
    char why[128] = "";
    ck_assert(!msdu__chain_parse(bad_chains[_i][0], false, &chain, why, sizeof(why)));
    ck_assert_msg(strstr(why, bad_chains[_i][1]) != NULL, "%s", why);
    ck_assert_uint_eq(chain.count, 77);
}
END_TEST

START_TEST(every_rule_is_listed_with_a_help_line)
{
    uint32_t count = 0;
    for (; msdu__rule_at(count) != NULL; count++) {
        ck_assert_uint_gt(strlen(msdu__rule_at(count)->help), 10);
        ck_assert_str_eq(parsed(msdu__rule_at(count)->name, false).rules[0]->name,
                         msdu__rule_at(count)->name);
    }
    ck_assert_uint_eq(count, 6);
}
END_TEST

/* --- one pass, every dtype --- */

/* Arrays of one slice in every type, and the same in double for the reference. */
typedef struct slice {
    double param[MOST];
    double anchor[MOST];
    double update[MOST];
    double momentum[MOST];
    double snapshot[MOST];
    float f[5][MOST];
    uint16_t half[MOST];
} slice;

static slice s;

/* Fill for a dtype, so that double and working type hold the same values. */
static msdu_arrays fill(int32_t dtype)
{
    double *const arrays[5] = {s.param, s.anchor, s.update, s.momentum, s.snapshot};
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < MOST; i++) {
            s.f[k][i] = (float)uniform();
        }
    }
    if (dtype == MSDU_FLOAT16 || dtype == MSDU_BFLOAT16) {
        msdu__vec_narrow(s.f[0], dtype, s.half, MOST);
        msdu__vec_widen(s.half, dtype, s.f[0], MOST);
    }
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < MOST; i++) {
            arrays[k][i] = (double)s.f[k][i];
        }
    }
    msdu_arrays out = {.param = s.f[0],
                       .anchor = s.f[1],
                       .update = s.f[2],
                       .momentum = s.f[3],
                       .snapshot = s.f[4]};
    if (dtype == MSDU_FLOAT64) {
        out = (msdu_arrays){s.param, s.anchor, s.update, s.momentum, s.snapshot};
    } else if (dtype != MSDU_FLOAT32) {
        out.param = s.half;
    }
    return out;
}

static void apply(const msdu__chain *chain, const msdu__correct_args *args,
                  const msdu_arrays *arrays, uint64_t count, int32_t dtype, msdu__sums *sums)
{
    const msdu_rules rules = msdu__chain_numbers(chain, args, arrays->snapshot == NULL);
    msdu__correct_apply(&rules, arrays, count, dtype, sums);
}

/* One element of "clip,outer,<merge>" in long form. */
static void reference(const msdu__correct_args *args, const char *merge, const double in[5],
                      double out[3])
{
    double d = in[2] * args->clip_scale;
    const double u = args->outer_momentum * in[3] + d;
    d = args->outer_lr * (args->outer_is_nesterov ? d + args->outer_momentum * u : u);
    const double mean = in[1] - d;
    const double s2 = 2.0 * (double)args->staleness;
    const double n = (double)args->groups;
    double w = mean;
    if (strcmp(merge, "elastic") == 0) {
        w = in[0] - args->elastic_alpha * (in[0] - mean);
    } else if (strcmp(merge, "delayed") == 0) {
        w = mean + args->delayed_keep * (in[0] - in[4]);
    } else if (strcmp(merge, "blend") == 0) {
        w = (s2 * in[0] + n * mean) / (s2 + n);
    }
    out[0] = w;
    out[1] = mean;
    out[2] = u;
}

static const char *const merges[] = {"average", "elastic", "delayed", "blend"};
static const double tolerance[4] = {2e-6, 1e-13, 2e-3, 1.6e-2}; /* by dtype */

/* The value of element i of the k-th array (param, anchor, momentum) after a pass. */
static double result(int32_t dtype, int k, int i)
{
    static const int column[3] = {0, 1, 3};
    double *const arrays[3] = {s.param, s.anchor, s.momentum};
    if (dtype == MSDU_FLOAT64) {
        return arrays[k][i];
    }
    if (k == 0 && dtype != MSDU_FLOAT32) {
        float wide;
        msdu__vec_widen(&s.half[i], dtype, &wide, 1);
        return (double)wide;
    }
    return (double)s.f[column[k]][i];
}

static void check_apply(const char *merge, int32_t dtype, bool is_nesterov)
{
    static slice before;
    char text[64];
    (void)snprintf(text, sizeof(text), "clip,outer,%s", merge);
    const msdu__chain chain = parsed(text, false);
    const msdu__correct_args args = {.elastic_alpha = 0.3,
                                     .outer_lr = 0.7,
                                     .outer_momentum = 0.6,
                                     .outer_is_nesterov = is_nesterov,
                                     .delayed_keep = 0.8,
                                     .clip_scale = 0.9,
                                     .staleness = 3,
                                     .groups = 4};
    const msdu_arrays arrays = fill(dtype);
    memcpy(&before, &s, sizeof(s));
    msdu__sums sums = {0};
    apply(&chain, &args, &arrays, MOST, dtype, &sums);
    double update_sq = 0.0;
    double weight_sq = 0.0;
    int wrong = 0;
    for (int i = 0; i < MOST; i++) {
        const double in[5] = {before.param[i], before.anchor[i], before.update[i],
                              before.momentum[i], before.snapshot[i]};
        double out[3];
        reference(&args, merge, in, out);
        for (int k = 0; k < 3; k++) {
            const double within = k == 0 ? tolerance[dtype] : fmin(tolerance[dtype], 2e-6);
            wrong += !(fabs(result(dtype, k, i) - out[k]) <= within);
        }
        update_sq += in[2] * in[2];
        weight_sq += out[1] * out[1];
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_double_eq_tol(sums.update_sq, update_sq, 1e-9 * update_sq);
    ck_assert_double_eq_tol(sums.weight_sq, weight_sq, 1e-5 * weight_sq);
    ck_assert(!sums.has_bad);
}

START_TEST(a_chain_equals_its_formula_for_every_dtype)
{
    for (int32_t dtype = MSDU_FLOAT32; dtype <= MSDU_BFLOAT16; dtype++) {
        check_apply(merges[_i], dtype, false);
        check_apply(merges[_i], dtype, true);
    }
}
END_TEST

START_TEST(capture_takes_difference_snapshot_and_sums)
{
    const int32_t dtype = _i;
    msdu_arrays arrays = fill(dtype);
    static double kept[MOST];
    msdu__sums sums = {0};
    arrays.snapshot = kept;
    msdu__correct_capture(&arrays, MOST, dtype, &sums);
    double update_sq = 0.0;
    double weight_sq = 0.0;
    const float *narrow = (const float *)(const void *)kept;
    int wrong = 0;
    for (int i = 0; i < MOST; i++) {
        const double d = s.anchor[i] - s.param[i];
        const double got = dtype == MSDU_FLOAT64 ? s.update[i] : (double)s.f[2][i];
        wrong += !(fabs(got - d) < 1e-6);
        wrong += (dtype == MSDU_FLOAT64 ? kept[i] : (double)narrow[i]) != s.param[i];
        update_sq += got * got;
        weight_sq += s.anchor[i] * s.anchor[i];
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_double_eq_tol(sums.update_sq, update_sq, 1e-9 * update_sq);
    ck_assert_double_eq_tol(sums.weight_sq, weight_sq, 1e-9 * weight_sq);
    ck_assert(!sums.has_bad);
}
END_TEST

START_TEST(capture_reports_a_bad_parameter)
{
    const msdu_arrays arrays = fill(MSDU_FLOAT32);
    msdu__sums sums = {0};
    s.f[0][MOST - 1] = _i == 0 ? NAN : INFINITY;
    msdu__correct_capture(&arrays, MOST, MSDU_FLOAT32, &sums);
    ck_assert(sums.has_bad);
}
END_TEST

/* --- equalities (algorithms 6.8 (1)) --- */

/* Apply a chain to fresh, equal arrays; param and anchor afterwards are left in s. */
static void apply_fresh(const char *text, const msdu__correct_args *args, int32_t dtype,
                        bool has_snapshot)
{
    random_state = 99;
    msdu_arrays arrays = fill(dtype);
    memset(s.momentum, 0, sizeof(s.momentum));
    memset(s.f[3], 0, sizeof(s.f[3]));
    s.f[2][5] = -0.0F;
    s.f[1][5] = -0.0F;
    s.update[5] = -0.0;
    s.anchor[5] = -0.0;
    arrays.snapshot = has_snapshot ? arrays.snapshot : NULL;
    msdu__sums sums = {0};
    const msdu__chain chain = parsed(text, false);
    apply(&chain, args, &arrays, MOST, dtype, &sums);
}

static const struct {
    const char *text;
    msdu__correct_args args;
} neutral[] = {
    {"outer,average", {.outer_lr = 1.0, .clip_scale = 1.0}},
    {"outer,average", {.outer_lr = 1.0, .outer_is_nesterov = true, .clip_scale = 1.0}},
    {"clip,average", {.clip_scale = 1.0}},
    {"delayed", {.delayed_keep = 1.0, .clip_scale = 1.0}},
    {"clip,outer,delayed", {.outer_lr = 1.0, .delayed_keep = 0.8, .clip_scale = 1.0}},
};

START_TEST(neutral_settings_equal_the_plain_average_bit_for_bit)
{
    static slice average;
    for (int32_t dtype = MSDU_FLOAT32; dtype <= MSDU_BFLOAT16; dtype++) {
        const msdu__correct_args args = {.clip_scale = 1.0};
        apply_fresh("average", &args, dtype, false);
        memcpy(&average, &s, sizeof(s));
        apply_fresh(neutral[_i].text, &neutral[_i].args, dtype, false);
        ck_assert_mem_eq(average.param, s.param, sizeof(s.param));
        ck_assert_mem_eq(average.anchor, s.anchor, sizeof(s.anchor));
        ck_assert_mem_eq(average.f[0], s.f[0], sizeof(s.f[0]));
        ck_assert_mem_eq(average.f[1], s.f[1], sizeof(s.f[1]));
        ck_assert_mem_eq(average.half, s.half, sizeof(s.half));
    }
}
END_TEST

/* --- rules in training: workers on noisy quadratics --- */

#define WORKERS 8
#define PARAMS  32

typedef struct world {
    double param[WORKERS][PARAMS];
    double anchor[WORKERS][PARAMS];
    double snapshot[WORKERS][PARAMS];
    double momentum[WORKERS][PARAMS];
    double mean[PARAMS]; /* pseudo-gradient in flight */
} world;

static world all;

/* Gradient of 1/2 c (w - 1)^2 with curvatures c from 0.1 to 1, and noise. */
static void local_step(double lr)
{
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            const double c = 0.1 + 0.9 * (double)i / (PARAMS - 1);
            all.param[k][i] -= lr * (c * (all.param[k][i] - 1.0) + 0.3 * uniform());
        }
    }
}

static msdu_arrays worker_arrays(int k, double *update)
{
    return (msdu_arrays){.param = all.param[k],
                         .anchor = all.anchor[k],
                         .update = update,
                         .momentum = all.momentum[k],
                         .snapshot = all.snapshot[k]};
}

static void capture_all(void)
{
    double update[PARAMS];
    memset(all.mean, 0, sizeof(all.mean));
    for (int k = 0; k < WORKERS; k++) {
        const msdu_arrays arrays = worker_arrays(k, update);
        msdu__sums sums = {0};
        msdu__correct_capture(&arrays, PARAMS, MSDU_FLOAT64, &sums);
        for (int i = 0; i < PARAMS; i++) {
            all.mean[i] += update[i] / WORKERS;
        }
    }
}

static void apply_all(const msdu__chain *chain, const msdu__correct_args *args)
{
    double update[PARAMS];
    for (int k = 0; k < WORKERS; k++) {
        memcpy(update, all.mean, sizeof(update));
        const msdu_arrays arrays = worker_arrays(k, update);
        msdu__sums sums = {0};
        apply(chain, args, &arrays, PARAMS, MSDU_FLOAT64, &sums);
    }
}

/* Squared distance of the workers' mean to the optimum after a run. */
static double train(const char *text, int interval, int tau, double keep)
{
    const msdu__chain chain = parsed(text, tau > 0);
    const msdu__correct_args args = {.delayed_keep = keep,
                                     .clip_scale = 1.0,
                                     .outer_lr = 1.0,
                                     .staleness = (uint32_t)tau,
                                     .groups = WORKERS};
    memset(&all, 0, sizeof(all));
    random_state = 7;
    for (int step = 1; step <= 64; step++) {
        local_step(0.05);
        if (step % interval == 0) {
            capture_all();
        }
        if (step > tau && (step - tau) % interval == 0) {
            apply_all(&chain, &args);
        }
    }
    double distance = 0.0;
    for (int i = 0; i < PARAMS; i++) {
        double mean = 0.0;
        for (int k = 0; k < WORKERS; k++) {
            mean += all.param[k][i] / WORKERS;
        }
        distance += (mean - 1.0) * (mean - 1.0);
        ck_assert_double_eq(all.anchor[0][i], all.anchor[WORKERS - 1][i]);
    }
    return distance;
}

START_TEST(average_equals_parameter_averaging)
{
    (void)train("outer,delayed", 4, 0, 1.0);
    static double param[WORKERS][PARAMS];
    memset(param, 0, sizeof(param));
    random_state = 7;
    for (int step = 1; step <= 64; step++) {
        memcpy(all.snapshot, all.param, sizeof(param)); /* keep the result of train() */
        for (int i = 0; i < WORKERS * PARAMS; i++) {
            double *w = &param[i / PARAMS][i % PARAMS];
            const double c = 0.1 + 0.9 * (double)(i % PARAMS) / (PARAMS - 1);
            *w -= 0.05 * (c * (*w - 1.0) + 0.3 * uniform());
        }
        for (int i = 0; i < PARAMS && step % 4 == 0; i++) {
            double mean = 0.0;
            for (int k = 0; k < WORKERS; k++) {
                mean += param[k][i] / WORKERS;
            }
            for (int k = 0; k < WORKERS; k++) {
                param[k][i] = mean;
            }
        }
    }
    for (int i = 0; i < WORKERS * PARAMS; i++) {
        ck_assert_double_eq_tol(all.param[i / PARAMS][i % PARAMS], param[i / PARAMS][i % PARAMS],
                                1e-13);
    }
}
END_TEST

/* algorithms 6.8 (3): overwriting throws away the overlapped steps, keeping them does not. */
START_TEST(keeping_overlapped_steps_survives_any_delay_and_overwriting_does_not)
{
    const int interval = 8;
    const double prompt = train("delayed", interval, 0, 0.8);
    ck_assert_double_lt(train("delayed", interval, interval / 4, 0.8), 1.15 * prompt);
    ck_assert_double_lt(train("delayed", interval, interval - 1, 0.8), 1.8 * prompt);
    ck_assert_double_gt(train("average", interval, interval / 4, 0.8), 1.3 * prompt);
    ck_assert_double_gt(train("average", interval, interval - 1, 0.8), 4.0 * prompt);
}
END_TEST

START_TEST(elastic_and_blend_leave_a_part_of_the_difference)
{
    (void)train("blend", 8, 2, 0.8);
    const double blended = fabs(all.param[0][3] - all.param[1][3]);
    (void)train("average", 8, 2, 0.8);
    ck_assert_double_gt(blended, 0.0);
    ck_assert(all.param[0][3] != all.param[1][3]); /* 64 is between an arrival and the next */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("correct");
    TCase *cases = suite_case(suite, "correct", 0, NULL, NULL);
    tcase_add_test(cases, a_chain_is_read_in_order);
    tcase_add_test(cases, a_chain_without_merge_gets_one);
    suite_table(cases, a_bad_chain_is_refused_by_name, bad_chains);
    tcase_add_test(cases, every_rule_is_listed_with_a_help_line);
    tcase_add_loop_test(cases, a_chain_equals_its_formula_for_every_dtype, 0, 4);
    tcase_add_loop_test(cases, capture_takes_difference_snapshot_and_sums, 0, 4);
    tcase_add_loop_test(cases, capture_reports_a_bad_parameter, 0, 2);
    suite_table(cases, neutral_settings_equal_the_plain_average_bit_for_bit, neutral);
    tcase_add_test(cases, average_equals_parameter_averaging);
    tcase_add_test(cases, keeping_overlapped_steps_survives_any_delay_and_overwriting_does_not);
    tcase_add_test(cases, elastic_and_blend_leave_a_part_of_the_difference);
    return suite_run(suite);
}
