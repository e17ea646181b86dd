/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose ranks are threads that share a hub, with its log, and connections that do not belong.
 */
#include "hub_fixture.h"
#include "pause.h"
#include "suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_lines[JOB_LOG_BYTES];
static _Thread_local char error_text[MSDU__HUB_TEXT_BYTES];

static msdu_status host_fail(msdu_status status, const char *text)
{
    (void)snprintf(error_text, sizeof(error_text), "%s", text);
    return status;
}

static void host_log(void *user, msdu_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_lines);
    (void)snprintf(log_lines + used, sizeof(log_lines) - used, "%s\n", text);
    (void)pthread_mutex_unlock(&log_lock);
}

int log_count(const char *part)
{
    int count = 0;
    (void)pthread_mutex_lock(&log_lock);
    for (const char *line = log_lines; *line != '\0';) {
        const char *end = strchr(line, '\n');
        char one[MSDU__HUB_TEXT_BYTES];
        (void)snprintf(one, sizeof(one), "%.*s", (int)(end - line), line);
        count += strstr(one, part) != NULL;
        line = end + 1;
    }
    (void)pthread_mutex_unlock(&log_lock);
    return count;
}

int log_wait(const char *part, int wanted)
{
    for (int i = 0; i < 2000 && log_count(part) < wanted; i++) {
        pause_us(10000);
    }
    return log_count(part);
}

static void fill_host(const struct job *job, int32_t rank, msdu_host *host)
{
    memset(host, 0, sizeof(*host));
    host->size = sizeof(*host);
    host->rank = rank;
    host->ranks = job->ranks;
    host->job = "digits";
    host->rendezvous = job->url;
    host->deadline_ns = UINT64_C(20000000000);
    host->log = host_log;
    host->fail = host_fail;
}

void job_make(struct job *job, int32_t ranks)
{
    memset(job, 0, sizeof(*job));
    log_lines[0] = '\0';
    job->ranks = ranks;
    (void)snprintf(job->folder, sizeof(job->folder), "%s/hub-XXXXXX", suite_folder());
    ck_assert_ptr_nonnull(mkdtemp(job->folder));
    (void)snprintf(job->url, sizeof(job->url), "file://%s", job->folder);
    for (int32_t rank = 0; rank < ranks; rank++) {
        fill_host(job, rank, &job->members[rank].host);
    }
}

struct member stranger(const struct job *job, int32_t rank)
{
    struct member member;
    memset(&member, 0, sizeof(member));
    fill_host(job, rank, &member.host);
    return member;
}

static void *open_member(void *argument)
{
    struct member *member = argument;
    error_text[0] = '\0';
    member->status = msdu__hub_open(&member->host, &member->hub);
    memcpy(member->text, error_text, sizeof(member->text));
    return NULL;
}

void member_open(struct member *member)
{
    ck_assert_int_eq(pthread_create(&member->thread, NULL, open_member, member), 0);
}

void member_join(struct member *member)
{
    ck_assert_int_eq(pthread_join(member->thread, NULL), 0);
}

void member_admitted(struct member *member)
{
    member_join(member);
    ck_assert_msg(member->status == MSDU_OK, "rank %d: %s", (int)member->host.rank, member->text);
}

void job_open(struct job *job)
{
    for (int32_t rank = 0; rank < job->ranks; rank++) {
        member_open(&job->members[rank]);
    }
    for (int32_t rank = 0; rank < job->ranks; rank++) {
        member_admitted(&job->members[rank]);
    }
}

static void *say_bye(void *argument)
{
    struct member *member = argument;
    msdu__hub_bye(member->hub, UINT64_C(10000000000));
    msdu__hub_close(member->hub);
    return NULL;
}

void job_close(struct job *job)
{
    for (int32_t rank = 0; rank < job->ranks; rank++) {
        struct member *member = &job->members[rank];
        ck_assert_int_eq(pthread_create(&member->thread, NULL, say_bye, member), 0);
    }
    for (int32_t rank = 0; rank < job->ranks; rank++) {
        member_join(&job->members[rank]);
    }
    ck_assert_int_eq(rmdir(job->folder), 0);
}

void job_drop(struct job *job)
{
    for (int32_t rank = job->ranks - 1; rank >= 0; rank--) {
        msdu__hub_close(job->members[rank].hub);
    }
    ck_assert_int_eq(rmdir(job->folder), 0);
}

int job_port(const struct job *job)
{
    char path[128];
    int port = 0;
    (void)snprintf(path, sizeof(path), "%s/digits.msdu", job->folder);
    for (int i = 0; i < 2000 && port == 0; i++) {
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            pause_us(10000);
            continue;
        }
        char line[128] = "";
        const char *start = "msdu1 127.0.0.1 ";
        if (fgets(line, sizeof(line), file) != NULL && strncmp(line, start, strlen(start)) == 0) {
            port = (int)strtol(line + strlen(start), NULL, 10);
        }
        (void)fclose(file);
    }
    ck_assert_int_gt(port, 0);
    return port;
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return address;
}

int connect_raw(int port)
{
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

int free_port(void)
{
    struct sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

void expect_refused(const struct member *member, msdu_status status, const char *part)
{
    ck_assert_msg(member->status == status && strstr(member->text, part) != NULL,
                  "status %d, text \"%s\" instead of %d and \"%s\"", (int)member->status,
                  member->text, (int)status, part);
}

void member_refused(struct member *member, msdu_status status, const char *part)
{
    member_open(member);
    member_join(member);
    expect_refused(member, status, part);
}

void expect_verdict(const struct member *member, msdu_status wanted, const char *part)
{
    char text[MSDU__HUB_TEXT_BYTES];
    msdu_status status = msdu__hub_verdict(member->hub, 10 * SECOND_NS, text);
    ck_assert_msg(status == wanted && strstr(text, part) != NULL,
                  "status %d, text \"%s\" instead of %d and \"%s\"", (int)status, text, (int)wanted,
                  part);
}
