/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0's hub is: discovery by TCP address, by a file in a shared folder, or by Redis. */
#include "hub_find.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOB_FILE_BYTES 200 /* longest part of a file name made from a job name */

/* Job names are free text; file names and keys are not. */
static void plain_name(const char *job, char name[JOB_FILE_BYTES])
{
    size_t used = 0;
    for (; job[used] != '\0' && used + 1 < JOB_FILE_BYTES; used++) {
        unsigned char one = (unsigned char)job[used];
        bool is_plain = isalnum(one) || one == '-' || one == '_' || (one == '.' && used > 0);
        name[used] = is_plain ? (char)one : '_';
    }
    name[used] = '\0';
}

/* Split "HOST:PORT" or "[HOST]:PORT". */
static bool parse_place(const char *text, struct msdu__find *find)
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text || strlen(colon + 1) >= sizeof(find->port)) {
        return false;
    }
    char *end = NULL;
    long port = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || (*end != '\0' && *end != '/') || port < 1 || port > 65535) {
        return false;
    }
    size_t length = (size_t)(colon - text);
    if (text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof(find->host)) {
        return false;
    }
    (void)snprintf(find->host, sizeof(find->host), "%.*s", (int)length, text);
    (void)snprintf(find->port, sizeof(find->port), "%ld", port);
    return true;
}

static msdu_status parse_failed(const msdu_host *host)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text),
                   "rendezvous \"%.200s\" is not tcp://HOST:PORT, file:///DIR or "
                   "redis://HOST:PORT",
                   host->rendezvous);
    return host->fail(MSDU_ERR_INVALID, text);
}

msdu_status msdu__find_parse(const msdu_host *host, struct msdu__find *find_out)
{
    char job[JOB_FILE_BYTES];
    const char *url = host->rendezvous;
    if (url == NULL || url[0] == '\0') {
        return host->fail(MSDU_ERR_INVALID,
                          "no rendezvous: set MSDU_RENDEZVOUS to file:///DIR (a folder that all "
                          "ranks see) or tcp://HOST:PORT (rank 0 listens there)");
    }
    memset(find_out, 0, sizeof(*find_out));
    plain_name(host->job, job);
    if (strncmp(url, "tcp://", 6) == 0) {
        find_out->kind = MSDU__FIND_TCP;
        return parse_place(url + 6, find_out) ? MSDU_OK : parse_failed(host);
    }
    if (strncmp(url, "redis://", 8) == 0) {
        find_out->kind = MSDU__FIND_REDIS;
        (void)snprintf(find_out->name, sizeof(find_out->name), "msdu/%s", job);
        return parse_place(url + 8, find_out) ? MSDU_OK : parse_failed(host);
    }
    if (strncmp(url, "file:///", 8) == 0 && strlen(url) < PATH_MAX - 2 * JOB_FILE_BYTES) {
        find_out->kind = MSDU__FIND_FILE;
        (void)snprintf(find_out->name, sizeof(find_out->name), "%s/%s.msdu", url + 7, job);
        return MSDU_OK;
    }
    return parse_failed(host);
}

size_t msdu__find_own(const struct msdu__find *find, const msdu_host *host,
                      struct msdu__address addresses[MSDU__FIND_ADDRESSES],
                      char cause[MSDU__CAUSE_BYTES])
{
    uint16_t port = (uint16_t)(find->kind == MSDU__FIND_TCP ? strtol(find->port, NULL, 10) : 0);
    if (host->interface != NULL && host->interface[0] != '\0') {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "interface %.80s has no address", host->interface);
        return msdu__net_interface(host->interface, port, &addresses[0]);
    }
    if (find->kind == MSDU__FIND_FILE) {
        msdu__net_loopback(&addresses[0]);
        return 1;
    }
    if (find->kind == MSDU__FIND_REDIS) {
        return msdu__redis_own(find->host, find->port, &addresses[0], cause);
    }
    const char *reason = "";
    size_t count =
        msdu__net_resolve(find->host, find->port, addresses, MSDU__FIND_ADDRESSES, &reason);
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.120s: %s", find->host, reason);
    return count;
}

static void make_notice(struct msdu__find *find, const struct msdu__address *address,
                        const uint8_t id[MSDU__ID_BYTES])
{
    char hex[2 * MSDU__ID_BYTES + 1];
    char host[MSDU__NET_TEXT_BYTES];
    for (size_t i = 0; i < MSDU__ID_BYTES; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned)id[i]);
    }
    msdu__net_text(address, false, host);
    bool is_v6 = address->any.ss_family == AF_INET6;
    uint16_t port =
        ntohs(is_v6 ? ((const struct sockaddr_in6 *)(const void *)&address->any)->sin6_port
                    : ((const struct sockaddr_in *)(const void *)&address->any)->sin_port);
    (void)snprintf(find->notice, sizeof(find->notice), "msdu1 %s %u %s\n", host, (unsigned)port,
                   hex);
}

static bool parse_notice(const char *notice, struct msdu__found *found, char *cause)
{
    char host[64];
    char port[MSDU__FIND_PORT_BYTES];
    char hex[2 * MSDU__ID_BYTES + 1];
    const char *reason = "";
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "the notice of rank 0 is not readable");
    if (sscanf(notice, "msdu1 %63s %7s %32s", host, port, hex) != 3 || strlen(hex) != 32) {
        return false;
    }
    for (size_t i = 0; i < MSDU__ID_BYTES; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        char *end = NULL;
        found->id[i] = (uint8_t)strtoul(digits, &end, 16);
        if (*end != '\0') {
            return false;
        }
    }
    found->has_id = true;
    found->count = msdu__net_resolve(host, port, found->addresses, MSDU__FIND_ADDRESSES, &reason);
    return found->count > 0;
}

/* Write a new file beside the target and rename it, so that nobody reads half of it. */
static bool write_file(const char *path, const char *notice, char *cause)
{
    char draft[PATH_MAX + 32];
    (void)snprintf(draft, sizeof(draft), "%s.%ld", path, (long)getpid());
    (void)unlink(draft);
    int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    size_t length = strlen(notice);
    bool is_done = fd >= 0 && write(fd, notice, length) == (ssize_t)length;
    if (fd >= 0) {
        is_done = close(fd) == 0 && is_done;
    }
    is_done = is_done && rename(draft, path) == 0;
    if (!is_done) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.140s: %s", path, strerror(errno));
        (void)unlink(draft);
    }
    return is_done;
}

/* In a folder where anybody may write, only our own file or root's is to be believed. */
static bool read_file(const char *path, char notice[MSDU__FIND_NOTICE_BYTES], char *cause)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.140s: %s", path, strerror(errno));
        return false;
    }
    ssize_t length = -1;
    bool is_ours = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                   (about.st_uid == geteuid() || about.st_uid == 0);
    if (is_ours) {
        length = read(fd, notice, MSDU__FIND_NOTICE_BYTES - 1);
    }
    (void)close(fd);
    notice[length > 0 ? length : 0] = '\0';
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.140s: %s", path,
                   is_ours ? "empty" : "belongs to another user");
    return length > 0;
}

bool msdu__find_publish(struct msdu__find *find, const struct msdu__address *address,
                        const uint8_t id[MSDU__ID_BYTES], char cause[MSDU__CAUSE_BYTES])
{
    make_notice(find, address, id);
    if (find->kind == MSDU__FIND_FILE) {
        return write_file(find->name, find->notice, cause);
    }
    if (find->kind == MSDU__FIND_REDIS) {
        return msdu__redis_set(find->host, find->port, find->name, find->notice, cause);
    }
    return true;
}

void msdu__find_withdraw(const struct msdu__find *find)
{
    char notice[MSDU__FIND_NOTICE_BYTES];
    char cause[MSDU__CAUSE_BYTES];
    if (find->notice[0] == '\0') {
        return;
    }
    if (find->kind == MSDU__FIND_FILE && read_file(find->name, notice, cause) &&
        strcmp(notice, find->notice) == 0) {
        (void)unlink(find->name);
    }
    if (find->kind == MSDU__FIND_REDIS &&
        msdu__redis_get(find->host, find->port, find->name, notice, cause) &&
        strcmp(notice, find->notice) == 0) {
        msdu__redis_delete(find->host, find->port, find->name);
    }
}

bool msdu__find_lookup(const struct msdu__find *find, struct msdu__found *found_out,
                       char cause[MSDU__CAUSE_BYTES])
{
    char notice[MSDU__FIND_NOTICE_BYTES];
    memset(found_out, 0, sizeof(*found_out));
    if (find->kind == MSDU__FIND_FILE) {
        return read_file(find->name, notice, cause) && parse_notice(notice, found_out, cause);
    }
    if (find->kind == MSDU__FIND_REDIS) {
        return msdu__redis_get(find->host, find->port, find->name, notice, cause) &&
               parse_notice(notice, found_out, cause);
    }
    const char *reason = "";
    found_out->count = msdu__net_resolve(find->host, find->port, found_out->addresses,
                                         MSDU__FIND_ADDRESSES, &reason);
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.120s: %s", find->host, reason);
    return found_out->count > 0;
}
