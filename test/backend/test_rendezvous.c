/* SPDX-License-Identifier: Apache-2.0 */
/* The hub: discovery, admission, strays, keys, lost and lagging ranks. */
#include "hub_fixture.h"
#include "suite.h"

#include "backend/rendezvous/auth.h"
#include "backend/rendezvous/net.h"
#include "backend/rendezvous/server.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define SCANS     50 /* fewer than may be pending at once */

/* Open all ranks but one, which is opened by job_complete(); returns the hub's port. */
static int job_begin(struct job *job, int32_t ranks, const char *secret)
{
    job_make(job, ranks);
    for (int32_t rank = 0; rank < ranks; rank++) {
        job->members[rank].host.secret = secret;
    }
    for (int32_t rank = 0; rank < ranks - 1; rank++) {
        member_open(&job->members[rank]);
    }
    return job_port(job);
}

static void job_complete(struct job *job)
{
    member_open(&job->members[job->ranks - 1]);
    for (int32_t rank = 0; rank < job->ranks; rank++) {
        member_admitted(&job->members[rank]);
    }
}

START_TEST(all_ranks_meet_by_a_file_and_share_keys)
{
    struct job job;
    void *value = NULL;
    size_t bytes = 0;
    job_make(&job, 5);
    job_open(&job);
    ck_assert_int_eq(msdu__hub_set(job.members[3].hub, "key", "value", 6), MSDU_OK);
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        ck_assert_int_eq(msdu__hub_get(job.members[rank].hub, "key", &value, &bytes), MSDU_OK);
        ck_assert_uint_eq(bytes, 6);
        ck_assert_str_eq(value, "value");
        free(value);
    }
    job_close(&job);
    ck_assert_int_eq(log_count(""), 0);
}
END_TEST

START_TEST(all_ranks_meet_by_an_address)
{
    struct job job;
    job_make(&job, 3);
    (void)snprintf(job.url, sizeof(job.url), "tcp://localhost:%d", free_port());
    job_open(&job);
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        const char *address = msdu__hub_address(job.members[rank].hub);
        ck_assert(strcmp(address, "127.0.0.1") == 0 || strcmp(address, "::1") == 0);
    }
    job_close(&job);
}
END_TEST

START_TEST(interface_binds_to_its_address)
{
    struct job job;
    job_make(&job, 2);
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        job.members[rank].host.interface = "lo";
    }
    job_open(&job);
    ck_assert_str_eq(msdu__hub_address(job.members[0].hub), "127.0.0.1");
    job_close(&job);
}
END_TEST

START_TEST(unknown_interface_is_an_error)
{
    struct job job;
    job_make(&job, 2);
    job.members[0].host.interface = "nonesuch0";
    member_refused(&job.members[0], MSDU_ERR_IO, "interface nonesuch0 has no address");
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

/* What is refused: a change to a stranger that would otherwise be rank 1, and the cause. */
static const struct {
    const char *job;
    const char *secret;
    int32_t rank;
    int32_t ranks;
    const char *cause;
} refusals[] = {
    {"other", "open sesame", 1, 3, "wrong job name \"other\""},
    {"digits", "open barley", 1, 3, "wrong secret"},
    {"digits", NULL, 1, 3, "wrong secret"},
    {"digits", "open sesame", 1, 4, "4 ranks, rank 0 has 3"},
    {"digits", "open sesame", 5, 3, "rank 5 is out of range"},
    {"digits", "open sesame", 1, 3, "rank 1 is taken"},
};

START_TEST(process_that_does_not_belong_is_refused_with_the_cause)
{
    struct job job;
    int port = job_begin(&job, 3, "open sesame");
    struct member other = stranger(&job, refusals[_i].rank);
    other.host.job = refusals[_i].job;
    other.host.secret = refusals[_i].secret;
    other.host.ranks = refusals[_i].ranks;
    char url[JOB_RANKS_MAX * 8];
    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", port);
    other.host.rendezvous = url;
    if (strstr(refusals[_i].cause, "taken") != NULL) {
        job_complete(&job); /* only then it is certain who is rank 1 */
    }
    member_refused(&other, MSDU_ERR_DENIED, refusals[_i].cause);
    if (strstr(refusals[_i].cause, "taken") == NULL) {
        job_complete(&job);
    }
    ck_assert_int_eq(log_wait("dropped connection from 127.0.0.1:", 1), 1);
    ck_assert_int_eq(log_count(refusals[_i].cause), 1);
    job_close(&job);
    ck_assert_int_eq(log_count(""), 1);
}
END_TEST

START_TEST(garbage_is_dropped_with_one_line)
{
    struct job job;
    char garbage[2000];
    memset(garbage, 'G', sizeof(garbage));
    int fd = connect_raw(job_begin(&job, 2, NULL));
    ck_assert_int_eq(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
    ck_assert_int_eq(log_wait("not a rank of a job", 1), 1);
    job_complete(&job);
    job_close(&job);
    (void)close(fd);
    ck_assert_int_eq(log_count(""), 1);
}
END_TEST

START_TEST(slow_stray_holds_nobody_up_and_is_dropped)
{
    struct job job;
    int fd = connect_raw(job_begin(&job, 3, NULL));
    ck_assert_int_eq(send(fd, MSDU__HUB_MAGIC, 3, MSG_NOSIGNAL), 3);
    job_complete(&job);
    ck_assert_int_eq(log_count(""), 0); /* the job stands before the stray's time is over */
    ck_assert_int_eq(log_wait("the handshake took too long", 1), 1);
    job_close(&job);
    (void)close(fd);
    ck_assert_int_eq(log_count(""), 1);
}
END_TEST

START_TEST(port_scan_during_rendezvous_is_logged_and_harmless)
{
    struct job job;
    int port = job_begin(&job, 4, NULL);
    for (int i = 0; i < SCANS; i++) {
        (void)close(connect_raw(port));
    }
    job_complete(&job);
    ck_assert_int_eq(log_wait("", SCANS), SCANS);
    job_close(&job);
    ck_assert_int_eq(log_count("closed during the handshake"), SCANS);
    ck_assert_int_eq(log_count(""), SCANS);
}
END_TEST

START_TEST(more_strays_than_places_do_not_keep_ranks_out)
{
    struct job job;
    int fds[2 * MSDU__PENDING_MAX];
    int port = job_begin(&job, 2, NULL);
    for (int i = 0; i < 2 * MSDU__PENDING_MAX; i++) {
        fds[i] = connect_raw(port);
    }
    job_complete(&job);
    job_close(&job);
    for (int i = 0; i < 2 * MSDU__PENDING_MAX; i++) {
        (void)close(fds[i]);
    }
    ck_assert_int_ge(log_count("too many connections"), MSDU__PENDING_MAX);
}
END_TEST

START_TEST(malformed_message_of_an_admitted_rank_ends_the_group)
{
    struct job job;
    char cause[MSDU__CAUSE_BYTES] = "";
    struct msdu__head head = {.type = 77, .bytes = UINT32_MAX};
    job_make(&job, 2);
    member_open(&job.members[0]);
    int fd = connect_raw(job_port(&job));
    uint64_t until_ns = msdu__clock_now() + 5 * SECOND_NS;
    ck_assert_int_eq(msdu__auth_client(fd, &job.members[1].host, NULL, until_ns, cause), MSDU_OK);
    member_admitted(&job.members[0]);
    ck_assert(msdu__net_send(fd, &head, sizeof(head), until_ns));
    expect_verdict(&job.members[0], MSDU_ERR_PEER_LOST, "rank 1 was lost (it sent a malformed");
    msdu__hub_close(job.members[0].hub);
    (void)close(fd);
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

/* A process that pretends to be the hub and writes down what it is told. */
struct impostor {
    int listen_fd;
    struct msdu__hello hello;
    struct msdu__proof proof;
};

static void *pretend(void *argument)
{
    struct impostor *impostor = argument;
    struct msdu__challenge challenge = {.magic = MSDU__HUB_MAGIC, .version = MSDU__HUB_VERSION};
    struct msdu__welcome welcome = {.is_denied = 0};
    uint64_t until_ns = msdu__clock_now() + 10 * SECOND_NS;
    int fd = -1;
    while (fd < 0 && msdu__clock_now() < until_ns) {
        fd = accept(impostor->listen_fd, NULL, NULL);
    }
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    (void)msdu__net_recv(fd, &impostor->hello, sizeof(impostor->hello), until_ns);
    (void)msdu__net_send(fd, &challenge, sizeof(challenge), until_ns);
    (void)msdu__net_recv(fd, &impostor->proof, sizeof(impostor->proof), until_ns);
    (void)msdu__net_send(fd, &welcome, sizeof(welcome), until_ns);
    (void)close(fd);
    return NULL;
}

START_TEST(impostor_hub_is_not_trusted_and_does_not_learn_the_secret)
{
    struct job job;
    struct impostor impostor;
    struct msdu__address address;
    pthread_t thread;
    int port = free_port();
    job_make(&job, 2);
    memset(&impostor, 0, sizeof(impostor));
    msdu__net_loopback(&address);
    msdu__net_set_port(&address, (uint16_t)port);
    impostor.listen_fd = msdu__net_listen(&address);
    ck_assert_int_ge(impostor.listen_fd, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, pretend, &impostor), 0);
    (void)snprintf(job.url, sizeof(job.url), "tcp://127.0.0.1:%d", port);
    job.members[1].host.secret = "open sesame";
    member_open(&job.members[1]);
    member_join(&job.members[1]);
    (void)pthread_join(thread, NULL);
    expect_refused(&job.members[1], MSDU_ERR_DENIED, "does not know the secret");
    ck_assert_ptr_null(memmem(&impostor.hello, sizeof(impostor.hello), "sesame", 6));
    ck_assert_ptr_null(memmem(&impostor.proof, sizeof(impostor.proof), "sesame", 6));
    (void)close(impostor.listen_fd);
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

START_TEST(unreachable_address_is_named_with_its_cause)
{
    struct job job;
    char place[64];
    int port = free_port();
    job_make(&job, 2);
    (void)snprintf(job.url, sizeof(job.url), "tcp://127.0.0.1:%d", port);
    (void)snprintf(place, sizeof(place), "127.0.0.1:%d: Connection refused", port);
    job.members[1].host.deadline_ns = SECOND_NS / 2;
    member_refused(&job.members[1], MSDU_ERR_TIMEOUT, place);
    expect_refused(&job.members[1], MSDU_ERR_TIMEOUT, "was not reached within 500 ms");
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

/* Begin with what a rank 0 that is gone would have left behind; rank 0 comes after rank 1 has
 * looked there. */
static void meet_after(int stale_port, int lines)
{
    struct job job;
    char path[128];
    job_make(&job, 2);
    (void)snprintf(path, sizeof(path), "%s/digits.msdu", job.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fprintf(file, "msdu1 127.0.0.1 %d 00112233445566778899aabbccddeeff\n", stale_port);
    (void)fclose(file);
    member_open(&job.members[1]);
    msdu__net_sleep(SECOND_NS / 10);
    ck_assert_int_ge(log_wait("dropped", lines), lines); /* by an old run's hub */
    member_open(&job.members[0]);
    member_admitted(&job.members[0]);
    member_admitted(&job.members[1]);
    job_close(&job);
}

START_TEST(stale_file_is_waited_out)
{
    meet_after(free_port(), 0);
}
END_TEST

START_TEST(stale_file_that_leads_to_another_run_is_waited_out)
{
    struct job old;
    meet_after(job_begin(&old, 2, NULL), 1);
    job_complete(&old);
    job_close(&old);
}
END_TEST

START_TEST(notice_is_for_its_user_only)
{
    struct job job;
    struct stat about;
    char path[128];
    (void)job_begin(&job, 2, NULL);
    (void)snprintf(path, sizeof(path), "%s/digits.msdu", job.folder);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_uint_eq(about.st_mode & 0777, 0600);
    job_complete(&job);
    job_close(&job);
}
END_TEST

static const struct {
    const char *url;
    const char *cause;
    msdu_status status;
} bad_urls[] = {
    {NULL, "no rendezvous: set MSDU_RENDEZVOUS", MSDU_ERR_INVALID},
    {"", "no rendezvous", MSDU_ERR_INVALID},
    {"http://127.0.0.1:80", "is not tcp://HOST:PORT", MSDU_ERR_INVALID},
    {"tcp://127.0.0.1", "is not tcp://HOST:PORT", MSDU_ERR_INVALID},
    {"tcp://127.0.0.1:99999", "is not tcp://HOST:PORT", MSDU_ERR_INVALID},
    {"tcp://:80", "is not tcp://HOST:PORT", MSDU_ERR_INVALID},
    {"store://node0", "the program gave no store (msdu_config.store)", MSDU_ERR_INVALID},
    {"file://relative/folder", "is not tcp://HOST:PORT", MSDU_ERR_INVALID},
    {"file:///nonesuch/folder", "No such file or directory", MSDU_ERR_IO},
};

START_TEST(bad_rendezvous_is_an_error_with_advice)
{
    struct job job;
    job_make(&job, 2);
    job.members[0].host.rendezvous = bad_urls[_i].url;
    member_refused(&job.members[0], bad_urls[_i].status, bad_urls[_i].cause);
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

static void add_admission(Suite *suite)
{
    TCase *admission = suite_case(suite, "admission", 60, NULL, NULL);
    tcase_add_test(admission, all_ranks_meet_by_a_file_and_share_keys);
    tcase_add_test(admission, all_ranks_meet_by_an_address);
    tcase_add_test(admission, interface_binds_to_its_address);
    tcase_add_test(admission, unknown_interface_is_an_error);
    suite_table(admission, process_that_does_not_belong_is_refused_with_the_cause, refusals);
    tcase_add_test(admission, garbage_is_dropped_with_one_line);
    tcase_add_test(admission, slow_stray_holds_nobody_up_and_is_dropped);
    tcase_add_test(admission, port_scan_during_rendezvous_is_logged_and_harmless);
    tcase_add_test(admission, more_strays_than_places_do_not_keep_ranks_out);
    tcase_add_test(admission, malformed_message_of_an_admitted_rank_ends_the_group);
    tcase_add_test(admission, impostor_hub_is_not_trusted_and_does_not_learn_the_secret);
    tcase_add_test(admission, unreachable_address_is_named_with_its_cause);
    tcase_add_test(admission, stale_file_is_waited_out);
    tcase_add_test(admission, stale_file_that_leads_to_another_run_is_waited_out);
    tcase_add_test(admission, notice_is_for_its_user_only);
    suite_table(admission, bad_rendezvous_is_an_error_with_advice, bad_urls);
}

int main(void)
{
    Suite *suite = suite_create("rendezvous");
    add_admission(suite);
    suite_add_tcase(suite, hub_life());
    suite_add_tcase(suite, hub_redis());
    suite_add_tcase(suite, hub_store());
    return suite_run(suite);
}
