/* SPDX-License-Identifier: Apache-2.0 */
/* The example trainer's parts: gradients, optimizers, sharding of samples, reading of idx files. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/batch.h"
#include "examples/idx.h"
#include "examples/net.h"
#include "examples/optim.h"
#include "suite.h"

#define SEED 7

/* --- network --- */

static double loss_of(struct net *net, const float *images, const uint8_t *labels)
{
    for (size_t l = 0; l < net->layer_count; l++) {
        net_forward(net, l, images);
    }
    return net_loss(net, labels);
}

/* Central difference of the loss along one parameter. */
static double slope(struct net *net, float *parameter, const float *images, const uint8_t *labels)
{
    const float saved = *parameter;
    const float step = 4e-3F;
    double up;
    double down;

    *parameter = saved + step;
    up = loss_of(net, images, labels);
    *parameter = saved - step;
    down = loss_of(net, images, labels);
    *parameter = saved;
    return (up - down) / (2 * (double)step);
}

static void check_slopes(struct net *net, float *values, const float *gradients, size_t count,
                         const float *images, const uint8_t *labels)
{
    for (size_t i = 0; i < count; i++) {
        const double wanted = slope(net, &values[i], images, labels);

        ck_assert_double_eq_tol((double)gradients[i], wanted, 1e-3);
    }
}

/* Widths and rows that no vector length divides, so that every loop's rest is used. */
START_TEST(backward_equals_central_differences)
{
    const size_t sizes[] = {5, 11, 9, 3};
    const size_t rows = 6;
    float images[6 * 5];
    const uint8_t labels[] = {0, 1, 2, 2, 1, 0};
    uint64_t state = SEED;
    struct net net;
    double largest = 0;

    for (size_t i = 0; i < rows * sizes[0]; i++) {
        images[i] = (float)random_real(&state);
    }
    ck_assert_int_eq(net_init(&net, sizes, 3, rows, SEED), 0);
    loss_of(&net, images, labels);
    for (size_t l = 3; l-- > 0;) {
        net_backward(&net, l, images);
    }
    for (size_t l = 0; l < 3; l++) {
        struct net_layer *layer = &net.layers[l];
        const size_t count = layer->inputs * layer->outputs;

        check_slopes(&net, layer->weight, layer->weight_gradient, count, images, labels);
        check_slopes(&net, layer->bias, layer->bias_gradient, layer->outputs, images, labels);
        largest = fmax(largest, fabs((double)layer->weight_gradient[0]));
    }
    ck_assert_double_gt(largest, 1e-3); /* else zeros would have been compared */
    net_free(&net);
}
END_TEST

START_TEST(loss_of_equal_outputs_is_log_of_classes)
{
    const size_t sizes[] = {2, 10};
    const float image[] = {1, 1};
    const uint8_t label[] = {3};
    struct net net;

    ck_assert_int_eq(net_init(&net, sizes, 1, 1, SEED), 0);
    memset(net.layers[0].weight, 0, 2 * 10 * sizeof(float));
    ck_assert_double_eq_tol(loss_of(&net, image, label), log(10), 1e-12);
    ck_assert_double_eq_tol((double)net.layers[0].error[3], 0.1 - 1, 1e-7);
    ck_assert_double_eq_tol((double)net.layers[0].error[4], 0.1, 1e-7);
    net_free(&net);
}
END_TEST

/* --- optimizers, against the textbook recursion in double --- */

#define UPDATES 25

static void run_optimizer(const struct optim *optim, float *value)
{
    float gradient = 0;
    struct optim_tensor tensor = {.value = value, .gradient = &gradient, .count = 1};

    ck_assert_int_eq(optim_init(optim, &tensor), 0);
    for (uint64_t step = 1; step <= UPDATES; step++) {
        gradient = 3 * *value - 1; /* of a parabola */
        optim_update(optim, step, 0.02 * (double)step / UPDATES, &tensor);
    }
    optim_free(&tensor);
}

static double sgd_reference(const struct optim *optim, double value)
{
    double trace = 0;

    for (int step = 1; step <= UPDATES; step++) {
        const double g = 3 * value - 1 + optim->weight_decay * value;

        trace = optim->momentum * trace + g;
        value -= 0.02 * step / UPDATES * (optim->is_nesterov ? g + optim->momentum * trace : trace);
    }
    return value;
}

static double adam_reference(const struct optim *optim, double value)
{
    double first = 0;
    double second = 0;

    for (int step = 1; step <= UPDATES; step++) {
        const double g = 3 * value - 1;
        const double lr = 0.02 * step / UPDATES;

        first = optim->beta1 * first + (1 - optim->beta1) * g;
        second = optim->beta2 * second + (1 - optim->beta2) * g * g;
        value -= lr * optim->weight_decay * value;
        value -= lr * (first / (1 - pow(optim->beta1, step))) /
                 (sqrt(second / (1 - pow(optim->beta2, step))) + optim->epsilon);
    }
    return value;
}

START_TEST(sgd_follows_its_recursion)
{
    const struct optim optim = {.kind = OPTIM_SGD,
                                .momentum = 0.9,
                                .weight_decay = _i >= 2 ? 0.1 : 0,
                                .is_nesterov = _i % 2 == 1};
    float value = 2;

    run_optimizer(&optim, &value);
    ck_assert_double_eq_tol((double)value, sgd_reference(&optim, 2), 1e-5);
}
END_TEST

START_TEST(adam_follows_its_recursion)
{
    const struct optim optim = {.kind = OPTIM_ADAM,
                                .weight_decay = _i == 1 ? 0.1 : 0,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-8};
    float value = 2;

    run_optimizer(&optim, &value);
    ck_assert_double_eq_tol((double)value, adam_reference(&optim, 2), 1e-5);
}
END_TEST

/* --- sharding --- */

START_TEST(every_epoch_gives_each_sample_to_at_most_one_rank)
{
    enum { SAMPLES = 103, RANKS = 4, ROWS = 5 };
    const size_t steps = batch_steps(SAMPLES, RANKS, ROWS);
    uint32_t order[SAMPLES] = {0};
    int seen[SAMPLES] = {0};

    ck_assert_uint_eq(steps, 5);
    batch_shuffle(SEED, (uint64_t)_i, order, SAMPLES);
    for (size_t step = 0; step < steps; step++) {
        for (size_t rank = 0; rank < RANKS; rank++) {
            const size_t first = batch_first(step, rank, RANKS, ROWS);

            for (size_t row = 0; row < ROWS; row++) {
                seen[order[first + row]]++;
            }
        }
    }
    for (size_t i = 0; i < steps * RANKS * ROWS; i++) {
        ck_assert_int_eq(seen[order[i]], 1);
    }
}
END_TEST

START_TEST(shuffle_depends_on_seed_and_epoch_alone)
{
    enum { SAMPLES = 64 };
    uint32_t a[SAMPLES] = {0};
    uint32_t b[SAMPLES] = {0};

    batch_shuffle(SEED, 3, a, SAMPLES);
    memset(b, 0xff, sizeof(b));
    batch_shuffle(SEED, 3, b, SAMPLES);
    ck_assert_mem_eq(a, b, sizeof(a));
    batch_shuffle(SEED, 4, b, SAMPLES);
    ck_assert_mem_ne(a, b, sizeof(a));
    batch_shuffle(SEED + 1, 3, b, SAMPLES);
    ck_assert_mem_ne(a, b, sizeof(a));
}
END_TEST

/* --- idx files --- */

static char folder[128];
static char images_path[192];
static char labels_path[192];

static const uint8_t good_images[] = {0, 0, 8, 3, 0, 0, 0,  2,   0,   0,   0,
                                      1, 0, 0, 0, 3, 0, 51, 102, 153, 204, 255};
static const uint8_t good_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 1};

static void write_bytes(const char *path, const uint8_t *bytes, size_t count)
{
    FILE *out = fopen(path, "wb");

    ck_assert_ptr_nonnull(out);
    ck_assert_uint_eq(fwrite(bytes, 1, count, out), count);
    ck_assert_int_eq(fclose(out), 0);
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "%s/idx-XXXXXX", suite_folder());
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(images_path, sizeof(images_path), "%s/train-images-idx3-ubyte", folder);
    snprintf(labels_path, sizeof(labels_path), "%s/train-labels-idx1-ubyte", folder);
    write_bytes(images_path, good_images, sizeof(good_images));
    write_bytes(labels_path, good_labels, sizeof(good_labels));
}

static void remove_folder(void)
{
    unlink(images_path);
    unlink(labels_path);
    rmdir(folder);
}

static void check_refused(const char *word)
{
    struct idx_set set = {0};
    char error[IDX_ERROR_BYTES] = "";

    ck_assert_int_eq(idx_load(folder, "train", &set, error), -1);
    ck_assert_msg(strstr(error, word) != NULL, "'%s' is not in: %s", word, error);
    ck_assert_ptr_null(set.images);
}

START_TEST(idx_files_are_read_scaled_to_one)
{
    struct idx_set set = {0};
    char error[IDX_ERROR_BYTES] = "";

    ck_assert_int_eq(idx_load(folder, "train", &set, error), 0);
    ck_assert_uint_eq(set.count, 2);
    ck_assert_uint_eq(set.pixels, 3);
    ck_assert_uint_eq(set.classes, 5);
    ck_assert_double_eq_tol((double)set.images[4], 0.8, 1e-6);
    ck_assert_uint_eq(set.labels[0], 4);
    idx_free(&set);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    unlink(_i == 0 ? images_path : labels_path);
    check_refused(_i == 0 ? "train-images-idx3-ubyte: No such file"
                          : "train-labels-idx1-ubyte: No such file");
}
END_TEST

/* Every cut of the file, the header's included. */
START_TEST(a_cut_file_is_refused)
{
    write_bytes(images_path, good_images, (size_t)_i);
    check_refused("train-images-idx3-ubyte: damaged");
}
END_TEST

START_TEST(a_longer_file_is_refused)
{
    uint8_t bytes[sizeof(good_labels) + 1] = {0};

    memcpy(bytes, good_labels, sizeof(good_labels));
    write_bytes(labels_path, bytes, sizeof(bytes));
    check_refused("train-labels-idx1-ubyte: damaged");
}
END_TEST

/* Magic number, element type, dimensions: none, and far too many. */
START_TEST(a_damaged_header_is_refused)
{
    static const size_t places[] = {0, 2, 3, 7, 4, 12};
    static const uint8_t values[] = {1, 9, 1, 0, 255, 128};
    uint8_t bytes[sizeof(good_images)];

    memcpy(bytes, good_images, sizeof(bytes));
    bytes[places[_i]] = values[_i];
    write_bytes(images_path, bytes, sizeof(bytes));
    check_refused("train-images-idx3-ubyte: damaged");
}
END_TEST

START_TEST(images_and_labels_must_be_equally_many)
{
    static const uint8_t one_label[] = {0, 0, 8, 1, 0, 0, 0, 1, 4};

    write_bytes(labels_path, one_label, sizeof(one_label));
    check_refused("another number of images");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trainer");
    TCase *net = suite_case(suite, "net", 0, NULL, NULL);
    TCase *idx = suite_case(suite, "idx", 0, make_folder, remove_folder);

    tcase_add_test(net, backward_equals_central_differences);
    tcase_add_test(net, loss_of_equal_outputs_is_log_of_classes);
    tcase_add_loop_test(net, sgd_follows_its_recursion, 0, 4);
    tcase_add_loop_test(net, adam_follows_its_recursion, 0, 2);
    tcase_add_loop_test(net, every_epoch_gives_each_sample_to_at_most_one_rank, 0, 5);
    tcase_add_test(net, shuffle_depends_on_seed_and_epoch_alone);
    tcase_add_test(idx, idx_files_are_read_scaled_to_one);
    tcase_add_loop_test(idx, a_missing_file_is_named, 0, 2);
    tcase_add_loop_test(idx, a_cut_file_is_refused, 0, (int)sizeof(good_images));
    tcase_add_test(idx, a_longer_file_is_refused);
    tcase_add_loop_test(idx, a_damaged_header_is_refused, 0, 6);
    tcase_add_test(idx, images_and_labels_must_be_equally_many);
    return suite_run(suite);
}
