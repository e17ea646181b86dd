/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's thread: a poll loop, never blocked by any one connection. */
#include "server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS   50                  /* longest time between looks at the clock */
#define FLUSH_NS  UINT64_C(500000000) /* longest time to send the last messages */
#define FIRST_FDS 2                   /* stop_fd and listen_fd come before connections */

/* Send what the socket takes. */
static void flush(struct msdu__server *server, struct msdu__conn *conn)
{
    while (conn->tx_used > 0) {
        ssize_t sent = send(conn->fd, conn->tx, conn->tx_used, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno == EAGAIN) {
            return;
        }
        if (sent <= 0) {
            msdu__serve_lost(server, conn, strerror(errno));
            return;
        }
        conn->tx_used -= (size_t)sent;
        memmove(conn->tx, conn->tx + sent, conn->tx_used);
    }
}

/* Read until the message is complete or the socket is empty. */
static bool read_some(struct msdu__server *server, struct msdu__conn *conn, size_t wanted)
{
    while (conn->rx_used < wanted) {
        if (!msdu__conn_reserve(&conn->rx, &conn->rx_capacity, wanted)) {
            msdu__serve_lost(server, conn, "no memory");
            return false;
        }
        ssize_t got =
            recv(conn->fd, conn->rx + conn->rx_used, wanted - conn->rx_used, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return false;
        }
        if (got <= 0) {
            msdu__serve_lost(server, conn, got == 0 ? "connection closed" : strerror(errno));
            return false;
        }
        conn->rx_used += (size_t)got;
    }
    return true;
}

/* Read and handle all complete messages of a rank. */
static void read_rank(struct msdu__server *server, struct msdu__conn *conn)
{
    struct msdu__head head;
    while (conn->state == MSDU__CONN_RANK && read_some(server, conn, sizeof(head))) {
        memcpy(&head, conn->rx, sizeof(head));
        if (head.bytes > MSDU__MESSAGE_BYTES) {
            msdu__serve_lost(server, conn, "it sent a malformed message");
            return;
        }
        if (!read_some(server, conn, sizeof(head) + head.bytes)) {
            return;
        }
        msdu__serve_read(server, conn);
        conn->rx_used = 0;
    }
}

static size_t fill_polls(const struct msdu__server *server, struct pollfd *polls)
{
    polls[0] = (struct pollfd){.fd = server->thread.stop_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = server->listen_fd, .events = POLLIN};
    for (size_t i = 0; i < server->conns_count; i++) {
        const struct msdu__conn *conn = &server->conns[i];
        short events = conn->tx_used > 0 ? POLLIN | POLLOUT : POLLIN;
        int fd = conn->state == MSDU__CONN_FREE ? -1 : conn->fd;
        polls[FIRST_FDS + i] = (struct pollfd){.fd = fd, .events = events};
    }
    return FIRST_FDS + server->conns_count;
}

static void handle_conn(struct msdu__server *server, struct msdu__conn *conn)
{
    if (conn->state == MSDU__CONN_RANK) {
        read_rank(server, conn);
    } else if (conn->state != MSDU__CONN_FREE) {
        msdu__admit_read(server, conn);
    }
}

static void flush_all(struct msdu__server *server)
{
    for (size_t i = 0; i < server->conns_count; i++) {
        if (server->conns[i].state == MSDU__CONN_RANK) {
            flush(server, &server->conns[i]);
        }
    }
}

static bool has_unsent(const struct msdu__server *server)
{
    for (size_t i = 0; i < server->conns_count; i++) {
        if (server->conns[i].state == MSDU__CONN_RANK && server->conns[i].tx_used > 0) {
            return true;
        }
    }
    return false;
}

/* Rank 0 leaves: its own connection has ended in peace, the others get the last messages. */
static void finish(struct msdu__server *server)
{
    uint64_t until_ns = msdu__clock_now() + FLUSH_NS;
    if (server->by_rank[0] != NULL) {
        handle_conn(server, server->by_rank[0]);
    }
    flush_all(server);
    while (has_unsent(server) && msdu__clock_now() < until_ns) {
        msdu__net_sleep(1000000);
        flush_all(server);
    }
}

static void *serve(void *argument)
{
    struct msdu__server *server = argument;
    struct pollfd *polls = calloc(FIRST_FDS + server->conns_count, sizeof(*polls));
    while (polls != NULL) {
        size_t count = fill_polls(server, polls);
        if (poll(polls, (nfds_t)count, TICK_MS) < 0 && errno != EINTR) {
            break;
        }
        if (polls[0].revents != 0) {
            break;
        }
        for (size_t i = 0; i < server->conns_count; i++) {
            if (polls[FIRST_FDS + i].fd >= 0 && polls[FIRST_FDS + i].revents != 0) {
                handle_conn(server, &server->conns[i]);
            }
        }
        /* After the reading, so that no slot changes hands between poll and its look-up. */
        if (polls[1].revents != 0) {
            msdu__admit_accept(server);
        }
        uint64_t now_ns = msdu__clock_now();
        msdu__admit_expire(server, now_ns);
        msdu__serve_tick(server, now_ns);
        flush_all(server);
    }
    finish(server);
    free(polls);
    return NULL;
}

static void server_free(struct msdu__server *server)
{
    for (size_t i = 0; server->conns != NULL && i < server->conns_count; i++) {
        msdu__conn_close(&server->conns[i]);
    }
    if (server->listen_fd >= 0) {
        (void)close(server->listen_fd);
    }
    msdu__serve_free(server);
    free(server->conns);
    free(server->by_rank);
    free(server->was_admitted);
    free(server->has_left);
    free(server->heres);
    free(server->has_here);
    free(server);
}

static bool server_fill(struct msdu__server *server)
{
    size_t ranks = (size_t)server->host->ranks;
    server->conns_count = ranks + MSDU__PENDING_MAX;
    server->conns = calloc(server->conns_count, sizeof(*server->conns));
    server->by_rank = calloc(ranks, sizeof(struct msdu__conn *));
    server->was_admitted = calloc(ranks, sizeof(bool));
    server->has_left = calloc(ranks, sizeof(bool));
    server->heres = calloc(ranks * MSDU__STALLS_MAX, sizeof(*server->heres));
    server->has_here = calloc(ranks * MSDU__STALLS_MAX, sizeof(bool));
    return server->conns != NULL && server->by_rank != NULL && server->was_admitted != NULL &&
           server->has_left != NULL && server->heres != NULL && server->has_here != NULL &&
           msdu__net_random(server->nonce, sizeof(server->nonce));
}

msdu_status msdu__server_start(const msdu_host *host, int listen_fd, int self_fd,
                               const uint8_t id[MSDU__ID_BYTES], struct msdu__server **server_out)
{
    struct msdu__server *server = calloc(1, sizeof(*server));
    if (server == NULL) {
        (void)close(listen_fd);
        (void)close(self_fd);
        return host->fail(MSDU_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    server->host = host;
    server->lost = msdu__serve_lost;
    server->listen_fd = listen_fd;
    memcpy(server->id, id, sizeof(server->id));
    server->join_until_ns = msdu__clock_now() + host->deadline_ns;
    server->remind_ns = msdu__clock_now() + MSDU__REMIND_NS;
    if (!server_fill(server) || !msdu__conn_open(&server->conns[0], self_fd)) {
        (void)close(self_fd);
        server_free(server);
        return host->fail(MSDU_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    server->conns[0].state = MSDU__CONN_RANK;
    server->by_rank[0] = &server->conns[0];
    server->was_admitted[0] = true;
    msdu__serve_admitted(server, &server->conns[0]);
    if (!msdu__thread_start(&server->thread, serve, server)) {
        server_free(server);
        return host->fail(MSDU_ERR_NO_MEMORY, "no thread for the rendezvous");
    }
    *server_out = server;
    return MSDU_OK;
}

void msdu__server_stop(struct msdu__server *server)
{
    if (server != NULL) {
        msdu__thread_stop(&server->thread);
        server_free(server);
    }
}
