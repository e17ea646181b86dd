/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets with deadlines, for the hub. No function logs or sets an error text. */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)
#define BACKLOG   256

void msdu__net_sleep(uint64_t span_ns)
{
    struct timespec span = msdu__clock_spec(span_ns);
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
}

bool msdu__net_random(void *data, size_t bytes)
{
    unsigned char *at = data;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno != EINTR) {
            return false;
        }
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}

/* A socket address as the type that the socket calls take. */
static const struct sockaddr *generic(const struct msdu__address *address)
{
    return (const struct sockaddr *)(const void *)&address->any;
}

void msdu__net_set_port(struct msdu__address *address, uint16_t port)
{
    if (address->any.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)&address->any)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)(void *)&address->any)->sin_port = htons(port);
    }
}

void msdu__net_text(const struct msdu__address *address, bool with_port,
                    char text[MSDU__NET_TEXT_BYTES])
{
    char host[64];
    char port[8];
    if (getnameinfo(generic(address), address->bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        (void)snprintf(text, MSDU__NET_TEXT_BYTES, "?");
        return;
    }
    bool is_v6 = address->any.ss_family == AF_INET6;
    if (with_port) {
        (void)snprintf(text, MSDU__NET_TEXT_BYTES, is_v6 ? "[%s]:%s" : "%s:%s", host, port);
    } else {
        (void)snprintf(text, MSDU__NET_TEXT_BYTES, "%s", host);
    }
}

bool msdu__net_own(int fd, struct msdu__address *address_out)
{
    memset(address_out, 0, sizeof(*address_out));
    address_out->bytes = sizeof(address_out->any);
    return getsockname(fd, (struct sockaddr *)(void *)&address_out->any, &address_out->bytes) == 0;
}

bool msdu__net_peer(int fd, struct msdu__address *address_out)
{
    memset(address_out, 0, sizeof(*address_out));
    address_out->bytes = sizeof(address_out->any);
    return getpeername(fd, (struct sockaddr *)(void *)&address_out->any, &address_out->bytes) == 0;
}

static void close_keeping_errno(int fd)
{
    int cause = errno;
    (void)close(fd);
    errno = cause;
}

int msdu__net_listen(const struct msdu__address *address)
{
    int fd = socket(address->any.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int yes = 1;
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, generic(address), address->bytes) != 0 || listen(fd, BACKLOG) != 0) {
        close_keeping_errno(fd);
        return -1;
    }
    return fd;
}

/* Wait until a descriptor is ready for `events`. False with ETIMEDOUT once the time is over. */
static bool wait_ready(int fd, short events, uint64_t until_ns)
{
    for (;;) {
        uint64_t now_ns = msdu__clock_now();
        if (now_ns >= until_ns) {
            errno = ETIMEDOUT;
            return false;
        }
        struct pollfd one = {.fd = fd, .events = events};
        uint64_t left_ms = (until_ns - now_ns) / NS_PER_MS + 1;
        int count = poll(&one, 1, left_ms > 60000 ? 60000 : (int)left_ms);
        if (count > 0) {
            return true;
        }
        if (count < 0 && errno != EINTR) {
            return false;
        }
    }
}

/* On loopback a connection to a free port of the ephemeral range may be met by itself. */
static bool is_met_by_itself(int fd)
{
    struct msdu__address own;
    struct msdu__address peer;
    return msdu__net_own(fd, &own) && msdu__net_peer(fd, &peer) && own.bytes == peer.bytes &&
           memcmp(&own.any, &peer.any, own.bytes) == 0;
}

int msdu__net_begin(const struct msdu__address *to, const struct msdu__address *source)
{
    int fd = socket(to->any.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    if ((source != NULL && bind(fd, generic(source), source->bytes) != 0) ||
        (connect(fd, generic(to), to->bytes) != 0 && errno != EINPROGRESS)) {
        close_keeping_errno(fd);
        return -1;
    }
    return fd;
}

bool msdu__net_is_connected(int fd)
{
    int cause = 0;
    socklen_t bytes = sizeof(cause);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &bytes) != 0) {
        return false;
    }
    if (cause == 0 && is_met_by_itself(fd)) {
        cause = ECONNREFUSED;
    }
    errno = cause;
    return cause == 0;
}

int msdu__net_connect(const struct msdu__address *to, const struct msdu__address *source,
                      uint64_t until_ns)
{
    int fd = msdu__net_begin(to, source);
    if (fd >= 0 && (!wait_ready(fd, POLLOUT, until_ns) || !msdu__net_is_connected(fd))) {
        close_keeping_errno(fd);
        return -1;
    }
    return fd;
}

void msdu__net_tune(int fd, uint64_t deadline_ns)
{
    int yes = 1;
    uint64_t deadline_ms = deadline_ns / NS_PER_MS;
    unsigned user_ms = deadline_ms > 3600000 ? 3600000 : (unsigned)deadline_ms;
    int idle_s = user_ms > 12000 ? (int)(user_ms / 4000) : 3;
    int probes = 3;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

bool msdu__net_send(int fd, const void *data, size_t bytes, uint64_t until_ns)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if ((errno != EINTR && errno != EAGAIN) || !wait_ready(fd, POLLOUT, until_ns)) {
            return false;
        }
    }
    return true;
}

bool msdu__net_recv(int fd, void *data, size_t bytes, uint64_t until_ns)
{
    unsigned char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (got == 0) {
            errno = 0;
            return false;
        } else if ((errno != EINTR && errno != EAGAIN) || !wait_ready(fd, POLLIN, until_ns)) {
            return false;
        }
    }
    return true;
}
