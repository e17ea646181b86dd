/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that meet by Redis: a real server, with and without logins, and what only looks like one.
 */
#include "backend/rendezvous/net.h"
#include "backend/rendezvous/redis.h"
#include "hub_fixture.h"
#include "suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define PASSWORD  "open:sesame@40"

static pid_t server;

static void start_server(int port, const char *folder)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", port);
    server = fork();
    ck_assert_int_ge(server, 0);
    if (server == 0) {
        int null = open("/dev/null", O_WRONLY);
        (void)dup2(null, 1);
        (void)execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1", "--dir",
                     folder, "--save", "", "--requirepass", PASSWORD, "--user", "rank", "on",
                     "~msdu/*", "+get", "+set", "+del", "+select", ">" PASSWORD, (char *)NULL);
        _exit(127);
    }
}

static int try_port(int port)
{
    struct msdu__address address;
    msdu__net_loopback(&address);
    msdu__net_set_port(&address, (uint16_t)port);
    return msdu__net_connect(&address, NULL, msdu__clock_now() + SECOND_NS);
}

/* Rank 0 does not wait for a server that is still starting. Without one the case is skipped. */
static bool has_server(int port, const struct job *job)
{
    int fd = -1;
    start_server(port, job->folder);
    for (int i = 0; i < 500 && fd < 0; i++) {
        fd = try_port(port);
        if (fd < 0 && waitpid(server, NULL, WNOHANG) == server) {
            (void)printf("redis: skipped: redis-server does not start\n");
            server = 0;
            ck_assert_int_eq(rmdir(job->folder), 0);
            return false;
        }
        msdu__net_sleep(SECOND_NS / 50);
    }
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    return true;
}

static void stop_server(void)
{
    if (server > 0) {
        (void)kill(server, SIGKILL);
        (void)waitpid(server, NULL, 0);
    }
    server = 0;
}

static const struct {
    const char *login;
    const char *db;
    const char *cause; /* of rank 0; NULL: all meet */
} logins[] = {
    {":open%3asesame%4040@", "", NULL},
    {":" PASSWORD "@", "/3", NULL},
    {"rank:open:sesame%4040@", "/", NULL},
    {"", "", "NOAUTH"},
    {":open%20sesame@", "", "it refuses the login (WRONGPASS)"},
    {"nobody:" PASSWORD "@", "", "it refuses the login (WRONGPASS)"},
    {":" PASSWORD "@", "/99", "DB index is out of range"},
};

START_TEST(ranks_meet_by_redis_with_the_right_login_only)
{
    struct job job;
    int port = free_port();
    job_make(&job, 3);
    if (!has_server(port, &job)) {
        return;
    }
    (void)snprintf(job.url, sizeof(job.url), "redis://%s127.0.0.1:%d%s", logins[_i].login, port,
                   logins[_i].db);
    if (logins[_i].cause == NULL) {
        job_open(&job);
        for (int32_t rank = 0; rank < job.ranks; rank++) {
            ck_assert_str_eq(msdu__hub_address(job.members[rank].hub), "127.0.0.1");
        }
        job_close(&job);
    } else {
        for (int32_t rank = 0; rank < 2; rank++) { /* no rank waits for what will not change */
            member_refused(&job.members[rank], MSDU_ERR_IO, logins[_i].cause);
            ck_assert_ptr_null(strstr(job.members[rank].text, "sesame"));
        }
        ck_assert_int_eq(rmdir(job.folder), 0);
    }
    ck_assert_int_eq(log_count("sesame"), 0);
}
END_TEST

/* Something at a port that takes connections and says the same to everybody. */
struct speaker {
    int listen_fd;
    const char *text;
    pthread_t thread;
    int stop[2];
};

static void *speak(void *argument)
{
    const struct speaker *speaker = argument;
    int fds[64];
    int count = 0;
    char byte = 0;
    while (read(speaker->stop[0], &byte, 1) != 0 && count < 64) {
        int fd = accept(speaker->listen_fd, NULL, NULL);
        if (fd < 0) {
            msdu__net_sleep(SECOND_NS / 100);
            continue;
        }
        (void)send(fd, speaker->text, strlen(speaker->text), MSG_NOSIGNAL);
        fds[count++] = fd;
    }
    for (int i = 0; i < count; i++) {
        (void)close(fds[i]);
    }
    return NULL;
}

static const struct {
    const char *text;
    msdu_status status;
    const char *cause;
} speeches[] = {
    {"", MSDU_ERR_TIMEOUT, "Connection timed out"},
    {"HTTP/1.1 400 Bad Request\r\n\r\n", MSDU_ERR_IO, "its answer is not Redis'"},
    {"*1000000000\r\n", MSDU_ERR_IO, "its answer is not Redis'"},
    {"$4000\r\n", MSDU_ERR_IO, "its answer is not Redis'"},
    {"$3\r\nabc\r\n", MSDU_ERR_TIMEOUT, "the notice of rank 0 is not readable"},
    {":7\r\n", MSDU_ERR_IO, "the key is somebody else's"},
    {"-ERR no such\033[2J command\r\n", MSDU_ERR_IO, "ERR no such?[2J command"},
    {"-LOADING the data set\r\n", MSDU_ERR_TIMEOUT, "LOADING the data set"},
};

START_TEST(what_is_no_redis_is_an_error_within_the_deadline)
{
    struct job job;
    struct speaker speaker;
    struct msdu__address address;
    char text[8192];
    int port = free_port();
    job_make(&job, 2);
    bool is_long = strncmp(speeches[_i].text, "$4", 2) == 0;
    (void)snprintf(text, sizeof(text), "%s%*s", speeches[_i].text, is_long ? 4000 : 0, "");
    speaker.text = text;
    msdu__net_loopback(&address);
    msdu__net_set_port(&address, (uint16_t)port);
    speaker.listen_fd = msdu__net_listen(&address);
    ck_assert_int_eq(pipe2(speaker.stop, O_NONBLOCK), 0);
    ck_assert_int_eq(pthread_create(&speaker.thread, NULL, speak, &speaker), 0);
    (void)snprintf(job.url, sizeof(job.url), "redis://127.0.0.1:%d", port);
    job.members[1].host.deadline_ns = SECOND_NS / 2;
    member_refused(&job.members[1], speeches[_i].status, speeches[_i].cause);
    expect_refused(&job.members[1], speeches[_i].status, job.url);
    (void)close(speaker.stop[1]);
    (void)pthread_join(speaker.thread, NULL);
    (void)close(speaker.stop[0]);
    (void)close(speaker.listen_fd);
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

static const char *const bad_urls[] = {
    "redis://host:port",         "redis://:@host:1",
    "redis://alone@host:1",      "redis://a:sesame%4@host:1",
    "redis://a:b%00@h:1",        "redis://a:sesame@host",
    "redis://a:sesame@host:1/x", "redis://a:b@host:1/1234567890123",
};

START_TEST(bad_address_of_redis_is_refused_without_its_password)
{
    struct job job;
    job_make(&job, 2);
    job.members[0].host.rendezvous = bad_urls[_i];
    member_refused(&job.members[0], MSDU_ERR_INVALID, "is not tcp://HOST:PORT");
    ck_assert_ptr_null(strstr(job.members[0].text, "sesame"));
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

TCase *hub_redis(void)
{
    TCase *redis = tcase_create("redis");
    struct msdu__redis parsed;
    msdu_store store;
    char cause[MSDU__CAUSE_BYTES];
    if (msdu__redis_open("redis://localhost:1", &parsed, &store, cause) == MSDU_ERR_UNSUPPORTED) {
        (void)printf("redis: skipped: %s\n", cause);
        return redis;
    }
    tcase_set_timeout(redis, 60);
    tcase_add_checked_fixture(redis, NULL, stop_server);
    suite_table(redis, ranks_meet_by_redis_with_the_right_login_only, logins);
    suite_table(redis, what_is_no_redis_is_an_error_within_the_deadline, speeches);
    suite_table(redis, bad_address_of_redis_is_refused_without_its_password, bad_urls);
    return redis;
}
