/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of ranks: nothing but fixed-size messages is read before the proof was checked. */
#include "server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DROP_LINGER_READ 256 /* bytes thrown away so that a refusal is not lost by a reset */

/* Close a connection that was not admitted, with one line of log. */
static void drop(struct msdu__server *server, struct msdu__conn *conn, const char *cause)
{
    char text[MSDU__HUB_TEXT_BYTES];
    unsigned char rest[DROP_LINGER_READ];
    (void)snprintf(text, sizeof(text), "rendezvous: dropped connection from %s: %s", conn->peer,
                   cause);
    (void)recv(conn->fd, rest, sizeof(rest), MSG_DONTWAIT);
    msdu__conn_close(conn);
    if (server->host->log != NULL) {
        server->host->log(server->host->user, MSDU_LOG_WARN, text);
    }
}

/* A reply of the handshake is small enough for an empty socket buffer. */
static bool reply(struct msdu__conn *conn, const void *data, size_t bytes)
{
    return send(conn->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static void refuse_hello(struct msdu__server *server, struct msdu__conn *conn, const char *cause)
{
    conn->challenge.is_denied = 1;
    (void)snprintf(conn->challenge.cause, sizeof(conn->challenge.cause), "%s", cause);
    (void)reply(conn, &conn->challenge, sizeof(conn->challenge));
    drop(server, conn, cause);
}

static void refuse_proof(struct msdu__server *server, struct msdu__conn *conn, const char *cause)
{
    struct msdu__welcome welcome = {.is_denied = 1};
    (void)snprintf(welcome.cause, sizeof(welcome.cause), "%s", cause);
    (void)reply(conn, &welcome, sizeof(welcome));
    drop(server, conn, cause);
}

/* What is wrong with a hello; false if nothing. */
static bool find_fault(const struct msdu__server *server, const struct msdu__hello *hello,
                       char cause[MSDU__CAUSE_BYTES])
{
    const msdu_host *host = server->host;
    if (hello->version != MSDU__HUB_VERSION) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "protocol version %" PRIu32 " instead of %u",
                       hello->version, MSDU__HUB_VERSION);
    } else if (strncmp(hello->job, host->job, sizeof(hello->job)) != 0) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "wrong job name \"%.64s\"", hello->job);
    } else if (hello->ranks != (uint32_t)host->ranks) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "it has %" PRIu32 " ranks, rank 0 has %" PRId32,
                       hello->ranks, host->ranks);
    } else if (hello->rank == 0 || hello->rank >= hello->ranks) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES,
                       hello->rank == 0 ? "rank %" PRIu32 " is taken"
                                        : "rank %" PRIu32 " is out of range",
                       hello->rank);
    } else if ((hello->has_secret != 0) != msdu__auth_has_secret(host)) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES,
                       hello->has_secret != 0 ? "wrong secret: this job has none"
                                              : "wrong secret: this job has one");
    } else {
        return false;
    }
    return true;
}

static void clean_text(char *text, size_t bytes)
{
    text[bytes - 1] = '\0';
    for (size_t i = 0; text[i] != '\0'; i++) {
        text[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
    }
}

static void take_hello(struct msdu__server *server, struct msdu__conn *conn)
{
    char cause[MSDU__CAUSE_BYTES];
    memcpy(&conn->hello, conn->rx, sizeof(conn->hello));
    conn->rx_used = 0;
    struct msdu__challenge *challenge = &conn->challenge;
    memcpy(challenge->magic, MSDU__HUB_MAGIC, sizeof(challenge->magic));
    challenge->version = MSDU__HUB_VERSION;
    memcpy(challenge->id, server->id, sizeof(challenge->id));
    if (find_fault(server, &conn->hello, cause)) {
        clean_text(cause, sizeof(cause));
        refuse_hello(server, conn, cause);
    } else if (!msdu__net_random(challenge->nonce, sizeof(challenge->nonce)) ||
               !reply(conn, challenge, sizeof(*challenge))) {
        drop(server, conn, "the handshake could not be answered");
    } else {
        conn->state = MSDU__CONN_PROOF;
    }
}

static void admit(struct msdu__server *server, struct msdu__conn *conn)
{
    int32_t rank = conn->rank;
    conn->state = MSDU__CONN_RANK;
    server->by_rank[rank] = conn;
    server->was_admitted[rank] = true;
    msdu__net_tune(conn->fd, server->host->deadline_ns);
    msdu__serve_admitted(server, conn);
}

static void take_proof(struct msdu__server *server, struct msdu__conn *conn)
{
    uint8_t wanted[MSDU__AUTH_BYTES];
    char cause[MSDU__CAUSE_BYTES];
    const char *secret = server->host->secret;
    struct msdu__welcome welcome = {.is_denied = 0};
    conn->rx_used = 0;
    conn->rank = (int32_t)conn->hello.rank;
    if (!msdu__auth_mac(secret, "client", &conn->hello, &conn->challenge, wanted) ||
        !msdu__auth_is_equal(wanted, conn->rx)) {
        refuse_proof(server, conn, "wrong secret");
    } else if (server->was_admitted[conn->rank]) {
        (void)snprintf(cause, sizeof(cause), "rank %" PRId32 " is taken", conn->rank);
        refuse_proof(server, conn, cause);
    } else if (!msdu__auth_mac(secret, "server", &conn->hello, &conn->challenge, welcome.mac) ||
               !reply(conn, &welcome, sizeof(welcome))) {
        drop(server, conn, "the handshake could not be answered");
    } else {
        admit(server, conn);
    }
}

/* As soon as its first bytes cannot be a hello, a stray is sent away. */
static bool is_stray(const struct msdu__conn *conn)
{
    size_t known = sizeof(conn->hello.magic);
    size_t bytes = conn->rx_used < known ? conn->rx_used : known;
    return conn->state == MSDU__CONN_HELLO && memcmp(conn->rx, MSDU__HUB_MAGIC, bytes) != 0;
}

void msdu__admit_read(struct msdu__server *server, struct msdu__conn *conn)
{
    size_t wanted =
        conn->state == MSDU__CONN_HELLO ? sizeof(struct msdu__hello) : sizeof(struct msdu__proof);
    ssize_t got = recv(conn->fd, conn->rx + conn->rx_used, wanted - conn->rx_used, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (got <= 0) {
        drop(server, conn, got == 0 ? "closed during the handshake" : strerror(errno));
        return;
    }
    conn->rx_used += (size_t)got;
    if (is_stray(conn)) {
        drop(server, conn, "not a rank of a job");
    } else if (conn->rx_used == wanted && conn->state == MSDU__CONN_HELLO) {
        take_hello(server, conn);
    } else if (conn->rx_used == wanted) {
        take_proof(server, conn);
    }
}

/* A free place; if strays hold them all, the one that has been silent longest must go. */
static struct msdu__conn *free_place(struct msdu__server *server)
{
    struct msdu__conn *oldest = NULL;
    size_t pending = 0;
    struct msdu__conn *place = NULL;
    for (size_t i = 0; i < server->conns_count; i++) {
        struct msdu__conn *conn = &server->conns[i];
        if (conn->state == MSDU__CONN_FREE) {
            place = conn;
        } else if (conn->state != MSDU__CONN_RANK) {
            pending++;
            oldest = oldest == NULL || conn->until_ns < oldest->until_ns ? conn : oldest;
        }
    }
    if (oldest != NULL && (place == NULL || pending >= MSDU__PENDING_MAX)) {
        drop(server, oldest, "too many connections");
        return oldest;
    }
    return place;
}

void msdu__admit_accept(struct msdu__server *server)
{
    for (;;) {
        struct msdu__address peer;
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return; /* none left, or the peer is gone already */
        }
        struct msdu__conn *conn = free_place(server);
        if (conn == NULL || !msdu__conn_open(conn, fd)) {
            (void)close(fd);
            continue;
        }
        (void)snprintf(conn->peer, sizeof(conn->peer), "an unknown address");
        if (msdu__net_peer(fd, &peer)) {
            msdu__net_text(&peer, true, conn->peer);
        }
    }
}

void msdu__admit_expire(struct msdu__server *server, uint64_t now_ns)
{
    for (size_t i = 0; i < server->conns_count; i++) {
        struct msdu__conn *conn = &server->conns[i];
        bool is_pending = conn->state == MSDU__CONN_HELLO || conn->state == MSDU__CONN_PROOF;
        if (is_pending && now_ns >= conn->until_ns) {
            drop(server, conn, "the handshake took too long");
        }
    }
}
