/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of the hub: their memory, and what waits to be sent. */
#include "server.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNSENT_BYTES ((size_t)64 << 20) /* a rank that does not read this much is lost */

void msdu__conn_close(struct msdu__conn *conn)
{
    if (conn->state != MSDU__CONN_FREE) {
        (void)close(conn->fd);
    }
    free(conn->rx);
    free(conn->tx);
    memset(conn, 0, sizeof(*conn));
}

bool msdu__conn_open(struct msdu__conn *conn, int fd)
{
    memset(conn, 0, sizeof(*conn));
    conn->rx_capacity = sizeof(struct msdu__hello);
    conn->rx = malloc(conn->rx_capacity);
    conn->fd = fd;
    conn->state = conn->rx != NULL ? MSDU__CONN_HELLO : MSDU__CONN_FREE;
    conn->until_ns = msdu__clock_now() + MSDU__HANDSHAKE_NS;
    return conn->rx != NULL;
}

bool msdu__conn_reserve(unsigned char **buf, size_t *capacity, size_t wanted)
{
    if (wanted <= *capacity) {
        return true;
    }
    size_t larger = *capacity < 4096 ? 4096 : *capacity;
    while (larger < wanted) {
        larger *= 2;
    }
    unsigned char *grown = realloc(*buf, larger);
    if (grown == NULL) {
        return false;
    }
    *buf = grown;
    *capacity = larger;
    return true;
}

void msdu__server_send(struct msdu__server *server, struct msdu__conn *conn, uint32_t type,
                       const void *body, size_t bytes)
{
    struct msdu__head head = {.type = type, .bytes = (uint32_t)bytes};
    size_t wanted = conn->tx_used + sizeof(head) + bytes;
    if (conn->state != MSDU__CONN_RANK) {
        return;
    }
    if (wanted > UNSENT_BYTES || !msdu__conn_reserve(&conn->tx, &conn->tx_capacity, wanted)) {
        server->lost(server, conn, "it does not read");
        return;
    }
    memcpy(conn->tx + conn->tx_used, &head, sizeof(head));
    if (bytes > 0) {
        memcpy(conn->tx + conn->tx_used + sizeof(head), body, bytes);
    }
    conn->tx_used = wanted;
}

void msdu__server_send_all(struct msdu__server *server, uint32_t type, const void *body,
                           size_t bytes)
{
    for (int32_t rank = 0; rank < server->host->ranks; rank++) {
        if (server->by_rank[rank] != NULL) {
            msdu__server_send(server, server->by_rank[rank], type, body, bytes);
        }
    }
}
