/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0's hub is: an address, or a notice in a shared folder, in Redis or in the caller's
 * store. */
#ifndef MSDU_RENDEZVOUS_FIND_H
#define MSDU_RENDEZVOUS_FIND_H

#include "auth.h"
#include "net.h"
#include "redis.h"

#include <limits.h>

#define MSDU__FIND_HOST_BYTES   256
#define MSDU__FIND_PORT_BYTES   8
#define MSDU__FIND_NOTICE_BYTES 512 /* "msdu1 <host> <port> <id>" */

enum msdu__find_kind { MSDU__FIND_TCP, MSDU__FIND_FILE, MSDU__FIND_REDIS, MSDU__FIND_STORE };

struct msdu__find {
    enum msdu__find_kind kind;
    char host[MSDU__FIND_HOST_BYTES]; /* tcp: the first place; store: rank 0; redis: the server */
    char port[MSDU__FIND_PORT_BYTES];
    char name[PATH_MAX];                  /* file: path; tcp: all places; else: key */
    char shown[PATH_MAX];                 /* the setting without what is secret */
    int32_t rank;                         /* this one, for texts */
    struct msdu__redis redis;             /* borrowed by: */
    msdu_store store;                     /* redis, store */
    char notice[MSDU__FIND_NOTICE_BYTES]; /* rank 0: what was published */
};

/* Where to connect to, as a rank other than 0 found it. */
struct msdu__rank0_place {
    struct msdu__address addresses[MSDU__NET_ADDRESSES];
    size_t count;
    uint8_t id[MSDU__ID_BYTES];
    bool has_id; /* tcp has none */
};

/* Read host->rendezvous; find_out stays where it is. Sets the error text by host->fail. */
msdu_status msdu__find_parse(const msdu_host *host, struct msdu__find *find_out);

/* Rank 0: the addresses to listen at, best first. Returns how many, 0 with the cause written. */
size_t msdu__find_own(const struct msdu__find *find, const msdu_host *host,
                      struct msdu__address addresses[MSDU__NET_ADDRESSES],
                      char cause[MSDU__CAUSE_BYTES]);

/* Rank 0: tell the others; false with the cause written. */
bool msdu__find_publish(struct msdu__find *find, const struct msdu__address *address,
                        const uint8_t id[MSDU__ID_BYTES], uint64_t timeout_ns,
                        char cause[MSDU__CAUSE_BYTES]);

/* Rank 0: take the notice back, if it still is ours. The caller's store is not asked any more. */
void msdu__find_withdraw(struct msdu__find *find);

/* Others: look once; the caller's store may wait for a while. MSDU_OK; MSDU_IN_PROGRESS with the
 * cause written: look again; a failure likewise: nobody will ever find it there. */
msdu_status msdu__find_lookup(struct msdu__find *find, uint64_t until_ns,
                              struct msdu__rank0_place *found_out, char cause[MSDU__CAUSE_BYTES]);

#endif
