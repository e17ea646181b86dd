/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test of the accumulated-gradient domain: trainers that see nothing but returned gradients end
 * where parameter-averaging local SGD with local momentum ends, at every call.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "correct/correct.h"
#include "suite.h"

#define WORKERS  4
#define PARAMS   12
#define SAMPLES  32 /* of each worker */
#define STEPS    60
#define INTERVAL 5

typedef struct trial {
    double momentum;
    double dampening;
    double decay;
    bool is_nesterov;
    bool is_cosine;
} trial;

static const trial trials[] = {
    {0.9, 0.0, 1e-3, false, false}, {0.9, 0.0, 1e-3, false, true}, {0.9, 0.0, 1e-3, true, false},
    {0.9, 0.0, 1e-3, true, true},   {0.9, 0.5, 1e-3, false, true}, {0.0, 0.0, 1e-2, false, true},
    {0.9, 0.0, 0.0, false, false},
};

#define TRIALS ((int)(sizeof(trials) / sizeof(trials[0])))

/* --- least squares, each worker with its own samples --- */

static double inputs[WORKERS][SAMPLES][PARAMS];
static double targets[WORKERS][SAMPLES];

static void setup(void)
{
    uint64_t state = 0x9e3779b97f4a7c15U;
    for (int k = 0; k < WORKERS; k++) {
        for (int j = 0; j < SAMPLES; j++) {
            targets[k][j] = (double)((j * 7 + k * 3) % 11) / 5.0 - 1.0;
            for (int i = 0; i < PARAMS; i++) {
                state = state * 6364136223846793005U + 1442695040888963407U;
                inputs[k][j][i] = (double)(state >> 33) / 1073741824.0 - 1.0;
            }
        }
    }
}

/* Gradient on a batch of four samples that moves with the step. */
static void gradient(int worker, int step, const double *param, double *out)
{
    memset(out, 0, PARAMS * sizeof(*out));
    for (int b = 0; b < 4; b++) {
        const int j = (4 * step + b) % SAMPLES;
        double error = -targets[worker][j];
        for (int i = 0; i < PARAMS; i++) {
            error += inputs[worker][j][i] * param[i];
        }
        for (int i = 0; i < PARAMS; i++) {
            out[i] += 0.25 * error * inputs[worker][j][i];
        }
    }
}

static double rate(const trial *t, int step)
{
    return t->is_cosine ? 0.025 * (1.0 + cos(3.14159265358979 * step / (STEPS + 5))) : 0.05;
}

/* --- the trainer: SGD as PyTorch defines it --- */

typedef struct trainer {
    double param[PARAMS];
    double buffer[PARAMS];
} trainer;

static double first_factor(const trial *t, int step)
{
    return step == 0 ? 1.0 : 1.0 - t->dampening; /* the buffer starts as the first gradient */
}

static void sgd(const trial *t, int step, const double *g, trainer *on)
{
    for (int i = 0; i < PARAMS; i++) {
        const double u = g[i] + t->decay * on->param[i];
        on->buffer[i] = t->momentum * on->buffer[i] + first_factor(t, step) * u;
        const double direction = t->is_nesterov ? u + t->momentum * on->buffer[i] : on->buffer[i];
        on->param[i] -= rate(t, step) * direction;
    }
}

/* --- reference: parameters are averaged --- */

static trainer plain[WORKERS];

static void reference_meet(void)
{
    for (int i = 0; i < PARAMS; i++) {
        double mean = 0.0;
        for (int k = 0; k < WORKERS; k++) {
            mean += plain[k].param[i] / WORKERS;
        }
        for (int k = 0; k < WORKERS; k++) {
            plain[k].param[i] = mean;
        }
    }
}

static void reference_step(const trial *t, int step)
{
    for (int k = 0; k < WORKERS; k++) {
        double g[PARAMS];
        gradient(k, step, plain[k].param, g);
        sgd(t, step, g, &plain[k]);
    }
    if ((step + 1) % INTERVAL == 0) {
        reference_meet();
    }
}

/* --- tried: trainers see gradients that the recursion returned --- */

typedef struct shadow {
    double drift[PARAMS];
    double velocity[PARAMS];
    double trace[PARAMS];
} shadow;

static trainer tried[WORKERS];
static shadow shadows[WORKERS];
static double g_all[WORKERS][PARAMS];
static double sent[WORKERS][PARAMS];

static msdu__recursion_args recursion_args(const trial *t, int step)
{
    return (msdu__recursion_args){.lr = rate(t, step),
                                  .momentum = t->momentum,
                                  .factor = first_factor(t, step),
                                  .weight_decay = t->decay,
                                  .is_nesterov = t->is_nesterov};
}

static void mean_of_sent(double *mean)
{
    memset(mean, 0, PARAMS * sizeof(*mean));
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            mean[i] += sent[k][i] / WORKERS;
        }
    }
}

static void call(const msdu__recursion_args *args, bool is_meeting)
{
    const msdu_recursion c = msdu__recursion_numbers(args);
    double mean[PARAMS];
    for (int k = 0; k < WORKERS; k++) {
        const msdu_recursion_state state = {shadows[k].drift, shadows[k].velocity,
                                            shadows[k].trace};
        msdu__sums sums = {0};
        if (is_meeting) {
            msdu__recursion_capture(&c, &state, g_all[k], sent[k], PARAMS, MSDU_FLOAT64, &sums);
        } else {
            msdu__recursion_local(&c, &state, g_all[k], PARAMS, MSDU_FLOAT64, &sums);
        }
    }
    mean_of_sent(mean);
    for (int k = 0; k < WORKERS && is_meeting; k++) {
        const msdu_recursion_state state = {shadows[k].drift, shadows[k].velocity,
                                            shadows[k].trace};
        msdu__recursion_apply(&c, &state, mean, g_all[k], PARAMS, MSDU_FLOAT64);
    }
}

static void tried_step(const trial *t, int step)
{
    const msdu__recursion_args args = recursion_args(t, step);
    for (int k = 0; k < WORKERS; k++) {
        gradient(k, step, tried[k].param, g_all[k]);
    }
    call(&args, (step + 1) % INTERVAL == 0);
    for (int k = 0; k < WORKERS; k++) {
        sgd(t, step, g_all[k], &tried[k]);
    }
}

static void reset(void)
{
    memset(plain, 0, sizeof(plain));
    memset(tried, 0, sizeof(tried));
    memset(shadows, 0, sizeof(shadows));
    memset(sent, 0, sizeof(sent));
    memset(g_all, 0, sizeof(g_all));
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            plain[k].param[i] = 0.3 * (double)i - 1.0;
            tried[k].param[i] = plain[k].param[i];
        }
    }
}

static double largest_difference(void)
{
    double most = 0.0;
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            most = fmax(most, fabs(tried[k].param[i] - plain[k].param[i]));
        }
    }
    return most;
}

static double largest_disagreement(void)
{
    double most = 0.0;
    for (int k = 1; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            most = fmax(most, fabs(tried[k].param[i] - tried[0].param[i]));
        }
    }
    return most;
}

START_TEST(trainer_follows_parameter_averaging_at_every_call)
{
    reset();
    double apart = 0.0;
    for (int step = 0; step < STEPS; step++) {
        reference_step(&trials[_i], step);
        tried_step(&trials[_i], step);
        ck_assert_double_lt(largest_difference(), 1e-12);
        if ((step + 1) % INTERVAL == 0) {
            ck_assert_double_lt(largest_disagreement(), 1e-12);
        } else {
            apart = fmax(apart, largest_disagreement());
        }
    }
    ck_assert_double_gt(apart, 1e-3); /* the steps between were local */
}
END_TEST

START_TEST(trainer_stays_away_from_averaging_without_meetings)
{
    reset();
    for (int step = 0; step < STEPS; step++) {
        reference_step(&trials[0], step);
        const msdu__recursion_args args = recursion_args(&trials[0], step);
        for (int k = 0; k < WORKERS; k++) {
            gradient(k, step, tried[k].param, g_all[k]);
        }
        call(&args, false);
        for (int k = 0; k < WORKERS; k++) {
            sgd(&trials[0], step, g_all[k], &tried[k]);
        }
    }
    ck_assert_double_gt(largest_difference(), 1e-3); /* else the tests above could not fail */
}
END_TEST

START_TEST(a_rate_of_zero_keeps_the_drift_for_later)
{
    const trial t = {0.9, 0.0, 0.0, false, false};
    msdu__recursion_args args = recursion_args(&t, 1);
    reset();
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            shadows[k].drift[i] = (double)(k * i);
            tried[k].param[i] = (double)(k * i);
        }
    }
    args.lr = 0.0;
    call(&args, true);
    ck_assert_double_eq(shadows[2].drift[3], 6.0);
    ck_assert_double_eq(g_all[2][3], 0.0);
    args.lr = 0.05;
    call(&args, true);
    for (int k = 0; k < WORKERS; k++) {
        sgd(&t, 0, g_all[k], &tried[k]);
    }
    ck_assert_double_lt(largest_disagreement(), 1e-12);
    ck_assert_double_eq_tol(tried[0].param[2], 3.0, 1e-12);
}
END_TEST

/* --- float32, and 16 bits beside it --- */

static float f_param[WORKERS][PARAMS];
static float f_buffer[WORKERS][PARAMS];
static float f_state[WORKERS][3][PARAMS];
static float f_gradient[WORKERS][PARAMS];
static float f_sent[WORKERS][PARAMS];

static void float_call(const msdu__recursion_args *args, bool is_meeting)
{
    const msdu_recursion c = msdu__recursion_numbers(args);
    float mean[PARAMS] = {0};
    for (int k = 0; k < WORKERS; k++) {
        const msdu_recursion_state state = {f_state[k][0], f_state[k][1], f_state[k][2]};
        msdu__sums sums = {0};
        if (is_meeting) {
            msdu__recursion_capture(&c, &state, f_gradient[k], f_sent[k], PARAMS, MSDU_FLOAT32,
                                    &sums);
        } else {
            msdu__recursion_local(&c, &state, f_gradient[k], PARAMS, MSDU_FLOAT32, &sums);
        }
        for (int i = 0; i < PARAMS; i++) {
            mean[i] += f_sent[k][i] / WORKERS;
        }
    }
    for (int k = 0; k < WORKERS && is_meeting; k++) {
        const msdu_recursion_state state = {f_state[k][0], f_state[k][1], f_state[k][2]};
        msdu__recursion_apply(&c, &state, mean, f_gradient[k], PARAMS, MSDU_FLOAT32);
    }
}

static void float_step(const trial *t, int step)
{
    const msdu__recursion_args args = recursion_args(t, step);
    for (int k = 0; k < WORKERS; k++) {
        double g[PARAMS];
        for (int i = 0; i < PARAMS; i++) {
            tried[k].param[i] = (double)f_param[k][i];
        }
        gradient(k, step, tried[k].param, g);
        for (int i = 0; i < PARAMS; i++) {
            f_gradient[k][i] = (float)g[i];
        }
    }
    float_call(&args, (step + 1) % INTERVAL == 0);
    const float mu = (float)t->momentum;
    for (int k = 0; k < WORKERS; k++) {
        for (int i = 0; i < PARAMS; i++) {
            const float u = f_gradient[k][i] + (float)t->decay * f_param[k][i];
            f_buffer[k][i] = mu * f_buffer[k][i] + (float)first_factor(t, step) * u;
            const float direction = t->is_nesterov ? u + mu * f_buffer[k][i] : f_buffer[k][i];
            f_param[k][i] -= (float)rate(t, step) * direction;
            tried[k].param[i] = (double)f_param[k][i];
        }
    }
}

START_TEST(float32_follows_to_rounding)
{
    reset();
    memset(f_state, 0, sizeof(f_state));
    memset(f_buffer, 0, sizeof(f_buffer));
    for (int i = 0; i < WORKERS * PARAMS; i++) {
        f_param[i / PARAMS][i % PARAMS] = (float)plain[i / PARAMS].param[i % PARAMS];
    }
    for (int step = 0; step < STEPS; step++) {
        reference_step(&trials[_i], step);
        float_step(&trials[_i], step);
        ck_assert_double_lt(largest_difference(), 2e-5);
    }
}
END_TEST

START_TEST(a_bad_gradient_is_reported)
{
    float state_memory[3][4] = {{0}};
    const msdu_recursion_state state = {state_memory[0], state_memory[1], state_memory[2]};
    const msdu__recursion_args args = {.lr = 0.1, .momentum = 0.9, .factor = 1.0};
    const msdu_recursion c = msdu__recursion_numbers(&args);
    uint16_t half[4] = {0x3c00, 0x3c00, 0x3c00, 0x3c00}; /* 1.0 as float16 */
    float send[4];
    msdu__sums sums = {0};
    msdu__recursion_local(&c, &state, half, 4, MSDU_FLOAT16, &sums);
    ck_assert(!sums.has_bad);
    ck_assert_double_eq(sums.update_sq, 4.0);
    ck_assert_uint_eq(half[3], 0x3c00);
    half[2] = 0x7c00;
    msdu__recursion_capture(&c, &state, half, send, 4, MSDU_FLOAT16, &sums);
    ck_assert(sums.has_bad);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recursion");
    TCase *cases = suite_case(suite, "recursion", 0, setup, NULL);
    tcase_add_loop_test(cases, trainer_follows_parameter_averaging_at_every_call, 0, TRIALS);
    tcase_add_test(cases, trainer_stays_away_from_averaging_without_meetings);
    tcase_add_test(cases, a_rate_of_zero_keeps_the_drift_for_later);
    tcase_add_loop_test(cases, float32_follows_to_rounding, 0, TRIALS);
    tcase_add_test(cases, a_bad_gradient_is_reported);
    return suite_run(suite);
}
