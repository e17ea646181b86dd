/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0's hub is: discovery by TCP address, by a file in a shared folder, or by Redis. */
#ifndef MSDU_HUB_FIND_H
#define MSDU_HUB_FIND_H

#include "hub_auth.h"
#include "hub_net.h"

#include <limits.h>

#define MSDU__FIND_HOST_BYTES   256
#define MSDU__FIND_PORT_BYTES   8
#define MSDU__FIND_ADDRESSES    8   /* most addresses of a host name that are tried */
#define MSDU__FIND_NOTICE_BYTES 512 /* "msdu1 <host> <port> <id>" */

enum msdu__find_kind { MSDU__FIND_TCP, MSDU__FIND_FILE, MSDU__FIND_REDIS };

struct msdu__find {
    enum msdu__find_kind kind;
    char host[MSDU__FIND_HOST_BYTES]; /* tcp: rank 0; redis: the server */
    char port[MSDU__FIND_PORT_BYTES];
    char name[PATH_MAX];                  /* file: path; redis: key */
    char notice[MSDU__FIND_NOTICE_BYTES]; /* rank 0: what was published */
};

/* Where to connect to, as a rank other than 0 found it. */
struct msdu__found {
    struct msdu__address addresses[MSDU__FIND_ADDRESSES];
    size_t count;
    uint8_t id[MSDU__ID_BYTES];
    bool has_id; /* tcp has none */
};

/* Read host->rendezvous. Sets the error text by host->fail. */
msdu_status msdu__find_parse(const msdu_host *host, struct msdu__find *find_out);

/* Rank 0: the addresses to listen at, best first. Returns how many, 0 with the cause written. */
size_t msdu__find_own(const struct msdu__find *find, const msdu_host *host,
                      struct msdu__address addresses[MSDU__FIND_ADDRESSES],
                      char cause[MSDU__CAUSE_BYTES]);

/* Rank 0: tell the others; false with the cause written. */
bool msdu__find_publish(struct msdu__find *find, const struct msdu__address *address,
                        const uint8_t id[MSDU__ID_BYTES], char cause[MSDU__CAUSE_BYTES]);

/* Rank 0: take the notice back, if it still is ours. */
void msdu__find_withdraw(const struct msdu__find *find);

/* Others: look once; false with the cause written. */
bool msdu__find_lookup(const struct msdu__find *find, struct msdu__found *found_out,
                       char cause[MSDU__CAUSE_BYTES]);

/* hub_redis.c: one command each on a connection of its own; false with the cause written. */
bool msdu__redis_set(const char *host, const char *port, const char *key, const char *value,
                     char cause[MSDU__CAUSE_BYTES]);
bool msdu__redis_get(const char *host, const char *port, const char *key,
                     char value_out[MSDU__FIND_NOTICE_BYTES], char cause[MSDU__CAUSE_BYTES]);
void msdu__redis_delete(const char *host, const char *port, const char *key);
/* This machine's address as the Redis server sees it. */
bool msdu__redis_own(const char *host, const char *port, struct msdu__address *address_out,
                     char cause[MSDU__CAUSE_BYTES]);

#endif
