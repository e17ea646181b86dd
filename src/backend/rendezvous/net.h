/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets with deadlines, for the hub. No function logs or sets an error text. */
#ifndef MSDU_RENDEZVOUS_NET_H
#define MSDU_RENDEZVOUS_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/clock.h"

#define MSDU__NET_TEXT_BYTES 80 /* longest numeric address with port, with its zero */

#define MSDU__NET_ADDRESSES 8           /* most addresses of a host name that are tried */
#define MSDU__NET_NOBODY    "192.0.2.1" /* RFC 5737: an address outside that nobody has */

/* One socket address. */
struct msdu__address {
    struct sockaddr_storage any;
    socklen_t bytes;
};

/* Sleep; for back-off between attempts. */
void msdu__net_sleep(uint64_t span_ns);

/* Random bytes from the kernel; false if there are none. */
bool msdu__net_random(void *data, size_t bytes);

/* Copy HOST of HOST or [HOST]; false if it does not fit. */
bool msdu__net_host(const char *text, size_t length, char *host, size_t bytes);

/* Split HOST:PORT or [HOST]:PORT; false if it is neither or too long. A slash may follow. */
bool msdu__net_place(const char *text, char *host, size_t host_bytes, char *port,
                     size_t port_bytes);

/* Addresses of a host name; returns how many were found, 0 with cause written. The resolver is not
 * asked for localhost; where it does not know this machine's own name, its interfaces do. */
size_t msdu__net_resolve(const char *host, const char *port, struct msdu__address *addresses,
                         size_t capacity, const char **cause_out);

/* Own address, any port, by which a host is reached; nothing is sent. Of this machine's own name:
 * by which others are. False if there is no way. */
bool msdu__net_outward(const char *host, struct msdu__address *own_out);

/* Address of a network interface, IPv4 first; port in host order. */
bool msdu__net_interface(const char *name, uint16_t port, struct msdu__address *address_out);

/* The loopback address, any port. */
void msdu__net_loopback(struct msdu__address *address_out);

/* Set the port, in host order. */
void msdu__net_set_port(struct msdu__address *address, uint16_t port);

/* Write "127.0.0.1:29500" or "[::1]:29500"; without port if with_port is false. */
void msdu__net_text(const struct msdu__address *address, bool with_port,
                    char text[MSDU__NET_TEXT_BYTES]);

/* Own or peer's address of a connection. */
bool msdu__net_own(int fd, struct msdu__address *address_out);
bool msdu__net_peer(int fd, struct msdu__address *address_out);

/* Listen, non-blocking. Returns a descriptor, or -1 with errno set. */
int msdu__net_listen(const struct msdu__address *address);

/* Connect until a time, from `source` if it is not NULL. Returns a non-blocking descriptor, or -1
 * with errno set. */
int msdu__net_connect(const struct msdu__address *to, const struct msdu__address *source,
                      uint64_t until_ns);

/* The same in two parts, for who must not wait: begin, and ask once the descriptor can be written.
 * errno is set on failure; the descriptor of the second stays the caller's. */
int msdu__net_begin(const struct msdu__address *to, const struct msdu__address *source);
bool msdu__net_is_connected(int fd);

/* No delay, keepalive, and an end to unanswered data after the deadline. */
void msdu__net_tune(int fd, uint64_t deadline_ns);

/* Move exactly so many bytes until a time. False with errno set; 0 means closed by the peer. */
bool msdu__net_send(int fd, const void *data, size_t bytes, uint64_t until_ns);
bool msdu__net_recv(int fd, void *data, size_t bytes, uint64_t until_ns);

#endif
