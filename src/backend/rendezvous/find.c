/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0's hub is: an address, or a notice in a shared folder, in Redis or in the caller's
 * store. */
#include "find.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOB_FILE_BYTES 200                  /* longest part of a file name made from a job name */
#define ASK_NS         UINT64_C(2000000000) /* longest single wait of a store; then it is asked again */

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

/* The URL as it may be shown: what is before the last @ may be a login. */
static void show(struct msdu__find *find, const char *url)
{
    const char *start = strstr(url, "://");
    const char *at = strrchr(url, '@');
    bool is_whole = start == NULL || at == NULL || at < start;
    (void)snprintf(find->shown, sizeof(find->shown), "%.*s%s",
                   is_whole ? 0 : (int)(start + 3 - url), url, is_whole ? url : at + 1);
}

static msdu_status parse_failed(const msdu_host *host, const struct msdu__find *find)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text),
                   "rendezvous \"%.200s\" is not tcp://HOST:PORT[,HOST:PORT...], file:///DIR, "
                   "redis://[USER:PASSWORD@]HOST:PORT[/DB] or store://[HOST]",
                   find->shown);
    return host->fail(MSDU_ERR_INVALID, text);
}

static msdu_status parse_redis(const msdu_host *host, const char *job, struct msdu__find *find)
{
    char text[MSDU__HUB_TEXT_BYTES];
    char cause[MSDU__CAUSE_BYTES];
    find->kind = MSDU__FIND_REDIS;
    (void)snprintf(find->name, sizeof(find->name), "msdu/%s", job);
    msdu_status status = msdu__redis_open(host->rendezvous, &find->redis, &find->store, cause);
    if (status == MSDU_OK) {
        memcpy(find->host, find->redis.host, sizeof(find->host));
        return MSDU_OK;
    }
    (void)snprintf(text, sizeof(text), "rendezvous %.160s: %s", find->shown, cause);
    return cause[0] == '\0' ? parse_failed(host, find) : host->fail(status, text);
}

static msdu_status parse_store(const msdu_host *host, const char *job, struct msdu__find *find)
{
    const char *place = host->rendezvous + strlen("store://");
    find->kind = MSDU__FIND_STORE;
    if (host->store == NULL) {
        return host->fail(MSDU_ERR_INVALID, "rendezvous store://: the program gave no store "
                                            "(msdu_config.store)");
    }
    find->store = *host->store;
    (void)snprintf(find->name, sizeof(find->name), "msdu/%s/%" PRIu64, job, find->store.epoch);
    return msdu__net_host(place, strlen(place), find->host, sizeof(find->host))
               ? MSDU_OK
               : parse_failed(host, find);
}

/* The next of the places in a list: its end; NULL: it is none. */
static const char *next_place(const char *at, char host[MSDU__FIND_HOST_BYTES],
                              char port[MSDU__FIND_PORT_BYTES])
{
    char one[MSDU__FIND_HOST_BYTES + MSDU__FIND_PORT_BYTES];
    size_t length = strcspn(at, ",");
    (void)snprintf(one, sizeof(one), "%.*s", (int)length, at);
    bool is_place = length < sizeof(one) &&
                    msdu__net_place(one, host, MSDU__FIND_HOST_BYTES, port, MSDU__FIND_PORT_BYTES);
    return is_place ? at + length : NULL;
}

static msdu_status parse_tcp(const msdu_host *host, struct msdu__find *find)
{
    char name[MSDU__FIND_HOST_BYTES];
    char port[MSDU__FIND_PORT_BYTES];
    find->kind = MSDU__FIND_TCP;
    (void)snprintf(find->name, sizeof(find->name), "%s", host->rendezvous + strlen("tcp://"));
    const char *at = next_place(find->name, find->host, find->port);
    while (at != NULL && *at == ',') {
        at = next_place(at + 1, name, port);
    }
    return at != NULL ? MSDU_OK : parse_failed(host, find);
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
    find_out->rank = host->rank;
    show(find_out, url);
    plain_name(host->job, job);
    if (strncmp(url, "redis://", 8) == 0) {
        return parse_redis(host, job, find_out);
    }
    if (strncmp(url, "store://", 8) == 0) {
        return parse_store(host, job, find_out);
    }
    if (strncmp(url, "tcp://", 6) == 0 && strlen(url) < PATH_MAX) {
        return parse_tcp(host, find_out);
    }
    if (strncmp(url, "file:///", 8) == 0 && strlen(url) < PATH_MAX - 2 * JOB_FILE_BYTES) {
        find_out->kind = MSDU__FIND_FILE;
        (void)snprintf(find_out->name, sizeof(find_out->name), "%s/%s.msdu", url + 7, job);
        return MSDU_OK;
    }
    return parse_failed(host, find_out);
}

/* Where nothing leads outside, all ranks are on this machine. */
static size_t own_for_store(const struct msdu__find *find, struct msdu__address *address_out)
{
    if ((find->host[0] == '\0' || !msdu__net_outward(find->host, address_out)) &&
        !msdu__net_outward(MSDU__NET_NOBODY, address_out)) {
        msdu__net_loopback(address_out);
    }
    return 1;
}

/* All places of a list, or this host's interface with their ports. */
static size_t own_of_list(const struct msdu__find *find, const char *interface,
                          struct msdu__address addresses[MSDU__NET_ADDRESSES], char *cause)
{
    size_t count = 0;
    char host[MSDU__FIND_HOST_BYTES];
    char port[MSDU__FIND_PORT_BYTES];
    const char *reason = "";
    bool has_interface = interface != NULL && interface[0] != '\0';
    const char *at = find->name;
    while (at != NULL && count < MSDU__NET_ADDRESSES) {
        const char *end = next_place(at, host, port);
        struct msdu__address *to = &addresses[count];
        if (end != NULL && has_interface) {
            uint16_t number = (uint16_t)strtol(port, NULL, 10);
            (void)snprintf(cause, MSDU__CAUSE_BYTES, "interface %.80s has no address", interface);
            count += msdu__net_interface(interface, number, to) ? 1 : 0;
        } else if (end != NULL) {
            count += msdu__net_resolve(host, port, to, MSDU__NET_ADDRESSES - count, &reason);
            (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.120s: %s", host, reason);
        }
        at = end != NULL && *end == ',' ? end + 1 : NULL;
    }
    return count;
}

size_t msdu__find_own(const struct msdu__find *find, const msdu_host *host,
                      struct msdu__address addresses[MSDU__NET_ADDRESSES],
                      char cause[MSDU__CAUSE_BYTES])
{
    if (find->kind == MSDU__FIND_TCP) {
        return own_of_list(find, host->interface, addresses, cause);
    }
    if (host->interface != NULL && host->interface[0] != '\0') {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "interface %.80s has no address", host->interface);
        return msdu__net_interface(host->interface, 0, &addresses[0]);
    }
    if (find->kind == MSDU__FIND_FILE) {
        msdu__net_loopback(&addresses[0]);
        return 1;
    }
    if (find->kind == MSDU__FIND_STORE) {
        return own_for_store(find, &addresses[0]);
    }
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "there is no way to %.120s", find->host);
    return msdu__net_outward(find->host, &addresses[0]);
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

static bool parse_notice(const char *notice, struct msdu__rank0_place *found, char *cause)
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
    found->count = msdu__net_resolve(host, port, found->addresses, MSDU__NET_ADDRESSES, &reason);
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

/* --- by a store --- */

/* What a store says, whoever wrote it, as one line of text. */
static void take_why(const struct msdu__find *find, char *why, const char *what, char *cause)
{
    why[MSDU_STORE_WHY_BYTES - 1] = '\0';
    for (char *at = why; *at != '\0'; at++) {
        *at = *at < ' ' || *at > '~' ? '?' : *at;
    }
    if (find->kind == MSDU__FIND_REDIS) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.180s", why);
    } else {
        (void)snprintf(cause, MSDU__CAUSE_BYTES,
                       "rank %" PRId32 ": the store's %s \"%.48s\"%s%.90s", find->rank, what,
                       find->name, why[0] == '\0' ? " failed" : ": ", why);
    }
}

static bool write_store(const struct msdu__find *find, uint64_t timeout_ns, char *cause)
{
    char why[MSDU_STORE_WHY_BYTES] = "";
    const msdu_store *store = &find->store;
    if (store->set(store->user, find->name, find->notice, strlen(find->notice), timeout_ns, why) ==
        MSDU_OK) {
        return true;
    }
    take_why(find, why, "set of", cause);
    return false;
}

static msdu_status read_store(const struct msdu__find *find, uint64_t until_ns,
                              char notice[MSDU__FIND_NOTICE_BYTES], char *cause)
{
    char why[MSDU_STORE_WHY_BYTES] = "";
    const msdu_store *store = &find->store;
    size_t bytes = MSDU__FIND_NOTICE_BYTES - 1;
    uint64_t now_ns = msdu__clock_now();
    uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    msdu_status status = store->get(store->user, find->name, notice, &bytes,
                                    left_ns < ASK_NS ? left_ns : ASK_NS, why);
    bool is_long = status == MSDU_OK && bytes >= MSDU__FIND_NOTICE_BYTES;
    notice[status == MSDU_OK && !is_long ? bytes : 0] = '\0';
    if (status != MSDU_OK) {
        take_why(find, why, "get of", cause);
    }
    return status == MSDU_ERR_TIMEOUT ? MSDU_IN_PROGRESS : status == MSDU_OK ? status : MSDU_ERR_IO;
}

bool msdu__find_publish(struct msdu__find *find, const struct msdu__address *address,
                        const uint8_t id[MSDU__ID_BYTES], uint64_t timeout_ns,
                        char cause[MSDU__CAUSE_BYTES])
{
    make_notice(find, address, id);
    switch (find->kind) {
    case MSDU__FIND_FILE:
        return write_file(find->name, find->notice, cause);
    case MSDU__FIND_REDIS:
    case MSDU__FIND_STORE:
        return write_store(find, timeout_ns, cause);
    case MSDU__FIND_TCP:
        break;
    }
    return true;
}

void msdu__find_withdraw(struct msdu__find *find)
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
    if (find->kind == MSDU__FIND_REDIS) {
        msdu__redis_delete(&find->redis, find->name, find->notice);
    }
}

msdu_status msdu__find_lookup(struct msdu__find *find, uint64_t until_ns,
                              struct msdu__rank0_place *found_out, char cause[MSDU__CAUSE_BYTES])
{
    char notice[MSDU__FIND_NOTICE_BYTES] = "";
    memset(found_out, 0, sizeof(*found_out));
    if (find->kind == MSDU__FIND_TCP) {
        found_out->count = own_of_list(find, NULL, found_out->addresses, cause);
        return found_out->count > 0 ? MSDU_OK : MSDU_IN_PROGRESS;
    }
    msdu_status status = MSDU_IN_PROGRESS;
    if (find->kind != MSDU__FIND_FILE) {
        status = read_store(find, until_ns, notice, cause);
    } else if (read_file(find->name, notice, cause)) {
        status = MSDU_OK;
    }
    return status == MSDU_OK && !parse_notice(notice, found_out, cause) ? MSDU_IN_PROGRESS : status;
}
