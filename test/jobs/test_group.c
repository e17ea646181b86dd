/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes over gloo that train to the end: equal on all ranks, and the same as threads. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_checks.h"
#include "suite.h"

#define LIMIT_MS 30000 /* stands for "no hang" on a busy machine */
#define RANKS    4
#define PIXELS   4 /* of a side of a tiny image */
#define SAMPLES  64

static const char *const wires[] = {"float32", "bfloat16", "float16", "int8",
                                    "int4",    "int2",     "sparse"};
static const char *const overlaps[] = {"backward", "blocking", "delayed", "streamed"};
#define WIRES    ((int)(sizeof(wires) / sizeof(wires[0])))
#define OVERLAPS ((int)(sizeof(overlaps) / sizeof(overlaps[0])))

/* Settings under which results do not depend on measured times. */
static void set_modes(job *j, const char *domain, const char *wire, const char *overlap)
{
    job_set_modes(j, domain, overlap, wire);
    job_set_fragments(j);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=20000");
}

/* The same job over gloo, a process each, and over local, a thread each. */
static void compare_backends(const char *domain, const char *wire, const char *overlap)
{
    job *processes = job_new(RANKS);
    job *threads = job_new(1);
    job_set_threads(threads, RANKS);
    set_modes(processes, domain, wire, overlap);
    set_modes(threads, domain, wire, overlap);
    ck_assert(job_start(threads, 0));
    job_run(processes, LIMIT_MS);
    ck_assert(job_wait(threads, JOB_ALL, LIMIT_MS));
    for (int i = 0; i < RANKS; i++) {
        job_check_ok(processes, i, i);
        job_check_ok(threads, 0, i);
        ck_assert_str_eq(job_value(processes, i, i, "domain"), domain);
        ck_assert_str_eq(job_value(processes, i, i, "wire"), wire);
        /* every rank's way, step by step, and its end */
        ck_assert_str_eq(job_value(processes, i, i, "history"),
                         job_value(threads, 0, i, "history"));
        ck_assert_str_eq(job_value(processes, i, i, "hash"), job_value(threads, 0, i, "hash"));
        ck_assert_str_eq(job_value(processes, i, i, "hash"), job_value(processes, 0, 0, "hash"));
        ck_assert_str_eq(job_value(processes, i, i, "rounds"), job_value(threads, 0, i, "rounds"));
    }
    job_free(threads);
    job_free(processes);
}

START_TEST(parameters_end_as_over_local)
{
    compare_backends("parameter", wires[_i % WIRES], overlaps[_i / WIRES]);
}
END_TEST

START_TEST(gradients_end_as_over_local)
{
    compare_backends("gradient", wires[_i], overlaps[_i % 2]);
}
END_TEST

START_TEST(accumulated_gradients_end_as_over_local)
{
    compare_backends("accumulated", _i % 2 == 0 ? "float32" : "int8", overlaps[_i / 2]);
}
END_TEST

/* The default policy reads the clock: nothing to compare with, but ranks end equal. */
START_TEST(default_settings_end_equal)
{
    job *j = job_new(RANKS);
    job_argument(j, JOB_ALL, "steps=40");
    job_run(j, LIMIT_MS);
    for (int i = 0; i < RANKS; i++) {
        job_check_ok(j, i, i);
        ck_assert_str_eq(job_value(j, i, i, "hash"), job_value(j, 0, 0, "hash"));
    }
    job_free(j);
}
END_TEST

/* --- the example trainer --- */

static void write_number(FILE *file, unsigned number)
{
    for (int shift = 24; shift >= 0; shift -= 8) {
        (void)fputc((int)(number >> shift & 255U), file);
    }
}

/* Two classes: bright above or bright below, with a little noise. */
static void write_set(const job *j, const char *prefix)
{
    char path[PATH_MAX + 64];
    (void)snprintf(path, sizeof(path), "%s/%s-images-idx3-ubyte", j->folder, prefix);
    FILE *images = fopen(path, "wb");
    (void)snprintf(path, sizeof(path), "%s/%s-labels-idx1-ubyte", j->folder, prefix);
    FILE *labels = fopen(path, "wb");
    ck_assert(images != NULL && labels != NULL);
    write_number(images, 0x803);
    write_number(images, SAMPLES);
    write_number(images, PIXELS);
    write_number(images, PIXELS);
    write_number(labels, 0x801);
    write_number(labels, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < PIXELS * PIXELS; k++) {
            int is_bright = (k < PIXELS * PIXELS / 2) == (i % 2 == 0);
            (void)fputc(is_bright * 180 + (i * 31 + k * 17) % 60, images);
        }
        (void)fputc(i % 2, labels);
    }
    ck_assert(fclose(images) == 0 && fclose(labels) == 0);
}

static job *new_trainer(int epochs)
{
    job *j = job_new(2);
    job_beside("../bin/trainer", j->program);
    write_set(j, "train");
    write_set(j, "t10k");
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=20000");
    job_argument(j, JOB_ALL, "--data=%s", j->folder);
    job_argument(j, JOB_ALL, "--layers=8");
    job_argument(j, JOB_ALL, "--epochs=%d", epochs);
    job_argument(j, JOB_ALL, "--batch=8");
    job_argument(j, JOB_ALL, "--progress");
    job_argument(j, JOB_ALL, "--params=%s/params.%%r", j->folder);
    job_argument(j, JOB_ALL, "--json=%s/result.json", j->folder);
    return j;
}

static size_t read_params(const job *j, int rank, unsigned char *bytes, size_t room)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof(path), "%s/params.%d", j->folder, rank);
    FILE *file = fopen(path, "rb");
    size_t used = file == NULL ? 0 : fread(bytes, 1, room, file);
    if (file != NULL) {
        (void)fclose(file);
    }
    return used;
}

START_TEST(example_trainer_ends_with_equal_ranks)
{
    static unsigned char first[65536];
    static unsigned char second[65536];
    job *j = new_trainer(3);
    job_run(j, LIMIT_MS);
    ck_assert_msg(job_exited(j, 0, 0) && job_exited(j, 1, 0), "%s%s", j->ranks[0].text,
                  j->ranks[1].text);
    size_t bytes = read_params(j, 0, first, sizeof(first));
    ck_assert_uint_eq(bytes, sizeof(float) * (PIXELS * PIXELS * 8 + 8 + 8 * 2 + 2));
    ck_assert_uint_eq(read_params(j, 1, second, sizeof(second)), bytes);
    ck_assert_int_eq(memcmp(first, second, bytes), 0);
    job_free(j);
}
END_TEST

START_TEST(example_trainer_says_who_was_lost)
{
    job *j = new_trainer(1000000);
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait_text(j, 0, "epoch", LIMIT_MS));
    ck_assert_int_eq(kill(j->ranks[1].pid, SIGKILL), 0);
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    ck_assert(job_exited(j, 0, EXIT_FAILURE));
    ck_assert_msg(job_lines(j, 0, "trainer: rank 0: ") == 1 && job_lines(j, 0, "rank 1 ") >= 1,
                  "%.2000s",
                  j->ranks[0].text + (j->ranks[0].used > 2000 ? j->ranks[0].used - 2000 : 0));
    job_free(j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *modes = suite_case(suite, "modes", 90, NULL, job_free_all);
    tcase_add_loop_test(modes, parameters_end_as_over_local, 0, WIRES * OVERLAPS);
    tcase_add_loop_test(modes, gradients_end_as_over_local, 0, WIRES);
    tcase_add_loop_test(modes, accumulated_gradients_end_as_over_local, 0, 4);
    tcase_add_test(modes, default_settings_end_equal);
    TCase *example = suite_case(suite, "example", 90, NULL, job_free_all);
    tcase_add_test(example, example_trainer_ends_with_equal_ranks);
    tcase_add_test(example, example_trainer_says_who_was_lost);
    return job_suite_run(suite);
}
