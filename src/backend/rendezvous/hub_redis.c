/* SPDX-License-Identifier: Apache-2.0 */
/* Three Redis commands over its text protocol, so that Redis works with every build of Gloo. */
#include "hub_find.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REDIS_WAIT_NS UINT64_C(2000000000) /* longest wait for the server; callers try again */
#define REPLY_BYTES   (MSDU__FIND_NOTICE_BYTES + 64)

static int redis_connect(const char *host, const char *port, char cause[MSDU__CAUSE_BYTES])
{
    struct msdu__address addresses[MSDU__FIND_ADDRESSES];
    const char *reason = "";
    size_t count = msdu__net_resolve(host, port, addresses, MSDU__FIND_ADDRESSES, &reason);
    int fd = -1;
    for (size_t i = 0; i < count && fd < 0; i++) {
        fd = msdu__net_connect(&addresses[i], NULL, msdu__net_now() + REDIS_WAIT_NS);
        reason = fd < 0 ? strerror(errno) : "";
    }
    if (fd < 0) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "Redis at %.80s:%s: %s", host, port, reason);
    }
    return fd;
}

/* Read one line, without its end. */
static bool read_line(int fd, char *line, size_t bytes, uint64_t until_ns)
{
    size_t used = 0;
    while (used + 1 < bytes) {
        if (!msdu__net_recv(fd, line + used, 1, until_ns)) {
            return false;
        }
        if (line[used] == '\n') {
            line[used > 0 && line[used - 1] == '\r' ? used - 1 : used] = '\0';
            return true;
        }
        used++;
    }
    return false;
}

/* Send a command of up to three words; the reply's first line goes to `line`. */
static bool redis_call(int fd, const char *const *words, size_t count, char *line)
{
    char text[PATH_MAX + 2 * MSDU__FIND_NOTICE_BYTES];
    uint64_t until_ns = msdu__net_now() + REDIS_WAIT_NS;
    int used = snprintf(text, sizeof(text), "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        used += snprintf(text + used, sizeof(text) - (size_t)used, "$%zu\r\n%s\r\n",
                         strlen(words[i]), words[i]);
        if ((size_t)used >= sizeof(text)) {
            return false;
        }
    }
    return msdu__net_send(fd, text, (size_t)used, until_ns) &&
           read_line(fd, line, REPLY_BYTES, until_ns);
}

bool msdu__redis_set(const char *host, const char *port, const char *key, const char *value,
                     char cause[MSDU__CAUSE_BYTES])
{
    char line[REPLY_BYTES] = "no answer";
    const char *words[] = {"SET", key, value};
    int fd = redis_connect(host, port, cause);
    if (fd < 0) {
        return false;
    }
    bool is_done = redis_call(fd, words, 3, line) && strcmp(line, "+OK") == 0;
    (void)close(fd);
    if (!is_done) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "Redis at %.80s:%s: %.60s", host, port, line);
    }
    return is_done;
}

bool msdu__redis_get(const char *host, const char *port, const char *key,
                     char value_out[MSDU__FIND_NOTICE_BYTES], char cause[MSDU__CAUSE_BYTES])
{
    char line[REPLY_BYTES] = "no answer";
    const char *words[] = {"GET", key};
    int fd = redis_connect(host, port, cause);
    if (fd < 0) {
        return false;
    }
    bool is_done = redis_call(fd, words, 2, line) && line[0] == '$';
    long length = is_done ? strtol(line + 1, NULL, 10) : -1;
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "Redis at %.80s:%s: %.60s", host, port,
                   is_done ? "no such key yet" : line);
    if (length < 0 || length >= MSDU__FIND_NOTICE_BYTES) {
        (void)close(fd);
        return false;
    }
    is_done = msdu__net_recv(fd, value_out, (size_t)length, msdu__net_now() + REDIS_WAIT_NS);
    value_out[length] = '\0';
    (void)close(fd);
    return is_done;
}

void msdu__redis_delete(const char *host, const char *port, const char *key)
{
    char line[REPLY_BYTES];
    char cause[MSDU__CAUSE_BYTES];
    const char *words[] = {"DEL", key};
    int fd = redis_connect(host, port, cause);
    if (fd >= 0) {
        (void)redis_call(fd, words, 2, line);
        (void)close(fd);
    }
}

bool msdu__redis_own(const char *host, const char *port, struct msdu__address *address_out,
                     char cause[MSDU__CAUSE_BYTES])
{
    int fd = redis_connect(host, port, cause);
    if (fd < 0) {
        return false;
    }
    bool is_known = msdu__net_own(fd, address_out);
    (void)close(fd);
    if (is_known) {
        msdu__net_set_port(address_out, 0);
    }
    return is_known;
}
