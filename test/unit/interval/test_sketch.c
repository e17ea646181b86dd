/* SPDX-License-Identifier: Apache-2.0 */
/* Sketch: the variance over ranks from 64 projections, against the variance itself. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "interval/sketch.h"
#include "simd/vec.h"
#include "suite.h"

#define RANKS 4
#define COUNT 5000

static uint64_t state = 7;

static float uniform(void)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (float)(state >> 40) / (float)(1 << 24) - 0.5F;
}

/* Vectors with a common part and a part of their own; the latter's variance over ranks is returned.
 */
static double make_vectors(float common, float own, float x[RANKS][COUNT])
{
    double variance = 0;
    for (int i = 0; i < COUNT; i++) {
        float shared = common * uniform();
        double mean = 0;
        for (int r = 0; r < RANKS; r++) {
            x[r][i] = shared + own * uniform();
            mean += (double)x[r][i] / RANKS;
        }
        for (int r = 0; r < RANKS; r++) {
            double d = (double)x[r][i] - mean;
            variance += d * d / RANKS;
        }
    }
    return variance;
}

typedef struct message {
    double weight;
    float sketch[MSDU__SKETCH];
} message;

static double estimate_weighted(float x[RANKS][COUNT], const double *weights, uint64_t seed)
{
    message messages[RANKS];
    memset(messages, 0, sizeof(messages));
    for (int r = 0; r < RANKS; r++) {
        messages[r].weight = weights[r];
        msdu__vec_get()->project(x[r], COUNT, seed, messages[r].sketch);
    }
    return msdu__sketch_variance(messages[0].sketch, &messages[0].weight, sizeof(message), RANKS);
}

static double estimate(float x[RANKS][COUNT], uint64_t seed)
{
    double weights[RANKS];
    for (int r = 0; r < RANKS; r++) {
        weights[r] = 1;
    }
    return estimate_weighted(x, weights, seed);
}

static float vectors[RANKS][COUNT];

START_TEST(estimates_the_variance_without_bias)
{
    double truth = make_vectors(1.0F, 0.5F, vectors);
    double mean = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        mean += estimate(vectors, seed) / 400;
    }
    ck_assert_double_le(fabs(mean / truth - 1), 0.03);
}
END_TEST

START_TEST(one_estimate_is_near_even_where_the_common_part_dominates)
{
    double truth = make_vectors(100.0F, 0.5F, vectors);
    for (uint64_t seed = 0; seed < 50; seed++) {
        double ratio = estimate(vectors, seed) / truth;
        ck_assert_double_ge(ratio, 0.5);
        ck_assert_double_le(ratio, 1.7);
    }
}
END_TEST

START_TEST(equal_vectors_have_no_variance)
{
    for (int i = 0; i < COUNT; i++) {
        vectors[0][i] = uniform();
    }
    for (int r = 1; r < RANKS; r++) {
        memcpy(vectors[r], vectors[0], sizeof(vectors[0]));
    }
    ck_assert_double_le(estimate(vectors, 3), 1e-9);
}
END_TEST

/* A rank of weight 2 counts as two ranks, one of weight 0 not at all. */
START_TEST(weights_count_ranks)
{
    double weights[RANKS];
    double mean = 0;
    double truth = 0;
    double sum = 0;
    (void)make_vectors(1.0F, 0.5F, vectors);
    for (int r = 0; r < RANKS; r++) {
        weights[r] = r % 3;
        sum += weights[r];
    }
    for (int i = 0; i < COUNT; i++) {
        double common = 0;
        for (int r = 0; r < RANKS; r++) {
            common += weights[r] * (double)vectors[r][i] / sum;
        }
        for (int r = 0; r < RANKS; r++) {
            double far = (double)vectors[r][i] - common;
            truth += weights[r] * far * far / sum;
        }
    }
    for (uint64_t seed = 0; seed < 400; seed++) {
        mean += estimate_weighted(vectors, weights, seed) / 400;
    }
    ck_assert_double_le(fabs(mean / truth - 1), 0.03);
}
END_TEST

START_TEST(uses_every_element_of_any_length)
{
    float x[200];
    for (uint64_t count = 1; count <= 200; count++) {
        float sketch[MSDU__SKETCH] = {0};
        double sum = 0;
        memset(x, 0, sizeof(x));
        x[count - 1] = 3.0F;
        msdu__vec_get()->project(x, count, count, sketch);
        for (int k = 0; k < MSDU__SKETCH; k++) {
            sum += (double)sketch[k] * (double)sketch[k];
        }
        ck_assert_double_eq(sum, 9.0);
    }
}
END_TEST

/* Ranks on different CPUs compare their sketches. */
START_TEST(variants_give_the_same_bits)
{
    float x[1000];
    for (int i = 0; i < 1000; i++) {
        x[i] = uniform();
    }
    for (uint64_t count = 0; count <= 1000; count += count < 140 ? 1 : 43) {
        float want[MSDU__SKETCH] = {1.0F};
        msdu__vec_get()->project(x, count, 9, want);
        for (uint32_t v = 0; msdu__vec_variant(v) != NULL; v++) {
            float sketch[MSDU__SKETCH] = {1.0F};
            msdu__vec_variant(v)->project(x, count, 9, sketch);
            ck_assert_mem_eq(sketch, want, sizeof(want));
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sketch");
    TCase *cases = suite_case(suite, "sketch", 0, NULL, NULL);
    tcase_add_test(cases, estimates_the_variance_without_bias);
    tcase_add_test(cases, one_estimate_is_near_even_where_the_common_part_dominates);
    tcase_add_test(cases, equal_vectors_have_no_variance);
    tcase_add_test(cases, weights_count_ranks);
    tcase_add_test(cases, uses_every_element_of_any_length);
    tcase_add_test(cases, variants_give_the_same_bits);
    return suite_run(suite);
}
