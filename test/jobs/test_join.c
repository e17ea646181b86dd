/* SPDX-License-Identifier: Apache-2.0 */
/* How real processes find each other over gloo, and how they fail to: who comes in, who does not.
 */
#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expect.h"
#include "job_checks.h"
#include "pause.h"
#include "suite.h"

#define LIMIT_MS    20000 /* stands for "no hang" on a busy machine */
#define DEADLINE_MS 2500  /* where a deadline is what ends the wait */
#define STRAYS      6

static job *new_job(int count)
{
    job *j = job_new(count);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=10000");
    job_argument(j, JOB_ALL, "steps=3");
    return j;
}

static void check_trained(const job *j)
{
    for (int i = 0; i < j->count; i++) {
        job_check_ok(j, i, i);
        ck_assert(job_exited(j, i, 0));
        ck_assert_str_eq(job_value(j, i, i, "step"), "3");
        ck_assert_str_eq(job_value(j, i, i, "hash"), job_value(j, 0, 0, "hash"));
    }
}

/* A rank failed in `where` with one line that has the words. */
static void check_failed(const job *j, int rank, const char *where, const char *status,
                         const char *words)
{
    job_check_failed(j, rank, rank, status, words);
    ck_assert_str_eq(job_value(j, rank, rank, "where"), where);
    ck_assert_str_eq(job_value(j, rank, rank, "params"), "kept");
}

/* --- ranks that disagree --- */

static const struct disagreement {
    const char *fault;   /* of rank 2 */
    const char *setting; /* or a setting of rank 2 */
    const char *words;   /* what the error names */
} disagreements[] = {
    {"rename", NULL, "layer1.weight|another.name"},
    {"recount", NULL, "count 33 |count 32 "},
    {"retype", NULL, "float32|bfloat16"},
    {"add", NULL, "tensors 5|tensors 6"},
    {"remove", NULL, "tensors 5|tensors 4"},
    {"value", NULL, "layer1.weight|value"},
    {"", "MSDU_SLICE_BYTES=8192", "slice_bytes|8192"},
    {"", "MSDU_INTERVAL_STEPS=9", "interval_steps|9"},
    {"", "MSDU_WIRE=int4", "wire|int4"},
    {"", "MSDU_OVERLAP=blocking", "overlap|blocking"},
};
#define DISAGREEMENTS ((int)(sizeof(disagreements) / sizeof(disagreements[0])))

START_TEST(disagreement_is_shown_to_all_ranks)
{
    const struct disagreement *d = &disagreements[_i];
    job *j = new_job(3);
    job_argument(j, 2, "fault=%s", d->fault);
    if (d->setting != NULL) {
        job_set(j, 2, "%s", d->setting);
    }
    job_run(j, LIMIT_MS);
    for (int i = 0; i < 3; i++) {
        if (i != 2 || strcmp(d->fault, "value") != 0) {
            check_failed(j, i, "start", "MSDU_ERR_MISMATCH", d->words);
        }
        expect_words(job_value(j, i, i, "error"), "ranks 0 and 2");
        ck_assert_str_eq(job_value(j, i, i, "error"), job_value(j, 0, 0, "error"));
    }
    job_free(j);
}
END_TEST

START_TEST(broadcast_makes_values_equal)
{
    job *j = new_job(3);
    job_argument(j, 2, "fault=value");
    job_set(j, JOB_ALL, "MSDU_BROADCAST=yes");
    job_run(j, LIMIT_MS);
    check_trained(j);
    job_free(j);
}
END_TEST

START_TEST(wrong_number_of_ranks_is_refused)
{
    job *j = new_job(3);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=%d", DEADLINE_MS);
    job_set(j, 2, "MSDU_RANKS=4");
    job_run(j, LIMIT_MS);
    check_failed(j, 2, "start", "MSDU_ERR_DENIED", "rank 2|ranks");
    check_failed(j, 0, "start", "MSDU_ERR_TIMEOUT", "rank 2");
    check_failed(j, 1, "start", "MSDU_ERR_TIMEOUT", "rank 2");
    job_free(j);
}
END_TEST

/* --- modules --- */

START_TEST(missing_module_names_the_places)
{
    job *j = new_job(1);
    job_set(j, 0, "MSDU_RANKS=2");
    job_set(j, 0, "MSDU_BACKEND=nosuch");
    job_set(j, 0, "MSDU_MODULE_PATH=%s", j->folder);
    job_run(j, LIMIT_MS);
    check_failed(j, 0, "create", "MSDU_ERR_NOT_FOUND", "nosuch");
    expect_words(job_value(j, 0, 0, "error"), j->folder);
    job_free(j);
}
END_TEST

START_TEST(damaged_module_is_refused)
{
    char path[PATH_MAX + 64];
    job *j = new_job(1);
    (void)snprintf(path, sizeof(path), "%s/libmsdu_damaged.so", j->folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 1000; i++) {
        (void)fprintf(file, "%s", i == 0 ? "\177ELF\2\1\1" : "damaged ");
    }
    ck_assert_int_eq(fclose(file), 0);
    job_set(j, 0, "MSDU_RANKS=2");
    job_set(j, 0, "MSDU_BACKEND=damaged");
    job_set(j, 0, "MSDU_MODULE_PATH=%s", j->folder);
    job_run(j, LIMIT_MS);
    ck_assert_str_ne(job_value(j, 0, 0, "status"), "MSDU_OK");
    check_failed(j, 0, "create", job_value(j, 0, 0, "status"), "libmsdu_damaged.so");
    job_free(j);
}
END_TEST

/* --- places that are not there --- */

static void check_unreachable(int rank, const char *url, const char *status, const char *words)
{
    job *j = new_job(1);
    job_set(j, 0, "MSDU_RANKS=2");
    job_set(j, 0, "MSDU_RANK=%d", rank);
    job_set(j, 0, "MSDU_DEADLINE_MS=%d", DEADLINE_MS / 4);
    job_set(j, 0, "MSDU_RENDEZVOUS=%s", url);
    job_run(j, LIMIT_MS);
    job_check_failed(j, 0, rank, status, words);
    job_free(j);
}

START_TEST(closed_port_is_named_by_deadline)
{
    char url[64];
    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", job_free_port());
    check_unreachable(1, url, "MSDU_ERR_TIMEOUT", url);
}
END_TEST

START_TEST(address_of_another_machine_is_no_place_to_listen)
{
    check_unreachable(0, "tcp://192.0.2.1:29555", "MSDU_ERR_IO", "192.0.2.1");
}
END_TEST

START_TEST(missing_folder_is_named)
{
    check_unreachable(0, "file:///nonexistent/folder", "MSDU_ERR_IO", "/nonexistent/folder");
    check_unreachable(1, "file:///nonexistent/folder", "MSDU_ERR_TIMEOUT", "/nonexistent/folder");
}
END_TEST

START_TEST(bad_url_is_invalid)
{
    check_unreachable(1, "carrier-pigeon://roof", "MSDU_ERR_INVALID", "carrier-pigeon://roof");
    check_unreachable(1, "tcp://127.0.0.1:port", "MSDU_ERR_INVALID", "tcp://127.0.0.1:port");
    check_unreachable(0, "", "MSDU_ERR_INVALID", "MSDU_RENDEZVOUS");
}
END_TEST

/* --- who does not belong --- */

START_TEST(wrong_secret_is_denied)
{
    job *j = new_job(3);
    job_set(j, JOB_ALL, "MSDU_DEADLINE_MS=%d", DEADLINE_MS);
    job_set(j, JOB_ALL, "MSDU_JOB_SECRET=the right one");
    job_set(j, 2, "MSDU_JOB_SECRET=the wrong one");
    job_run(j, LIMIT_MS);
    check_failed(j, 2, "start", "MSDU_ERR_DENIED", "secret|rank 2");
    check_failed(j, 0, "start", "MSDU_ERR_TIMEOUT", "rank 2");
    check_failed(j, 1, "start", "MSDU_ERR_TIMEOUT", "rank 2");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(job_lines(j, i, "the right one") + job_lines(j, i, "the wrong one"), 0);
    }
    job_free(j);
}
END_TEST

START_TEST(right_secret_lets_in)
{
    job *j = new_job(2);
    job_set(j, JOB_ALL, "MSDU_JOB_SECRET=the right one");
    job_run(j, LIMIT_MS);
    check_trained(j);
    job_free(j);
}
END_TEST

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int tries = 0; fd >= 0 && tries < 500; tries++) {
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
            return fd;
        }
        pause_us(10000);
    }
    return -1;
}

/* Garbage, a web browser, silence, half a hello that goes on slowly, and nothing at all. */
static void send_stray(int fd, int kind)
{
    static const char *const words[STRAYS] = {
        "\377\376\375\374 garbage", "GET / HTTP/1.1\r\n\r\n", "", "msduhub", "msdu", ""};
    if (words[kind][0] != '\0') {
        (void)send(fd, words[kind], strlen(words[kind]) + 1, MSG_NOSIGNAL);
    }
    if (kind == STRAYS - 1) {
        (void)close(fd);
    }
}

START_TEST(strays_do_not_disturb_the_start)
{
    int fds[STRAYS];
    int port = job_free_port();
    job *j = new_job(3);
    job_set(j, JOB_ALL, "MSDU_RENDEZVOUS=tcp://127.0.0.1:%d", port);
    job_argument(j, JOB_ALL, "pause_ms=100");
    ck_assert(job_start(j, 0));
    for (int i = 0; i < STRAYS; i++) {
        fds[i] = connect_to(port);
        ck_assert_int_ge(fds[i], 0);
        send_stray(fds[i], i);
    }
    ck_assert(job_start(j, 1));
    ck_assert(job_start(j, 2));
    ck_assert(job_wait(j, JOB_ALL, LIMIT_MS));
    check_trained(j);
    /* the silent ones may outlive a short job */
    ck_assert_int_ge(job_lines(j, 0, "rendezvous: dropped connection from 127.0.0.1"), 4);
    ck_assert_int_le(job_lines(j, 0, "rendezvous: dropped connection from 127.0.0.1"), STRAYS);
    for (int i = 0; i < STRAYS - 1; i++) {
        (void)close(fds[i]);
    }
    job_free(j);
}
END_TEST

/* --- launchers --- */

static const struct launcher {
    const char *rank;
    const char *ranks;
    bool has_master;
} launchers[] = {
    {"RANK", "WORLD_SIZE", true},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
    {"PMI_RANK", "PMI_SIZE", false},
    {"SLURM_PROCID", "SLURM_NTASKS", true},
};

START_TEST(launcher_variables_start_a_job)
{
    const struct launcher *l = &launchers[_i];
    job *j = new_job(2);
    job_set(j, JOB_ALL, "MSDU_RANKS=");
    job_set(j, JOB_ALL, "MSDU_RANK=");
    job_set(j, JOB_ALL, "%s=2", l->ranks);
    for (int i = 0; i < 2; i++) {
        job_set(j, i, "%s=%d", l->rank, i);
    }
    if (l->has_master) {
        job_set(j, JOB_ALL, "MSDU_RENDEZVOUS=");
        job_set(j, JOB_ALL, "MASTER_ADDR=127.0.0.1");
        job_set(j, JOB_ALL, "MASTER_PORT=%d", job_free_port());
    }
    job_run(j, LIMIT_MS);
    check_trained(j);
    job_free(j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("join");
    TCase *agree = suite_case(suite, "agree", 60, NULL, job_free_all);
    tcase_add_loop_test(agree, disagreement_is_shown_to_all_ranks, 0, DISAGREEMENTS);
    tcase_add_test(agree, broadcast_makes_values_equal);
    tcase_add_test(agree, wrong_number_of_ranks_is_refused);
    TCase *places = suite_case(suite, "places", 60, NULL, job_free_all);
    tcase_add_test(places, missing_module_names_the_places);
    tcase_add_test(places, damaged_module_is_refused);
    tcase_add_test(places, closed_port_is_named_by_deadline);
    tcase_add_test(places, address_of_another_machine_is_no_place_to_listen);
    tcase_add_test(places, missing_folder_is_named);
    tcase_add_test(places, bad_url_is_invalid);
    TCase *guests = suite_case(suite, "guests", 60, NULL, job_free_all);
    tcase_add_test(guests, wrong_secret_is_denied);
    tcase_add_test(guests, right_secret_lets_in);
    tcase_add_test(guests, strays_do_not_disturb_the_start);
    suite_table(guests, launcher_variables_start_a_job, launchers);
    return job_suite_run(suite);
}
