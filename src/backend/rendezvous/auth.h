/* SPDX-License-Identifier: Apache-2.0 */
/* Admission to the hub: the fixed-size messages and the proof that both sides know the secret. */
#ifndef MSDU_RENDEZVOUS_AUTH_H
#define MSDU_RENDEZVOUS_AUTH_H

#include "hub.h"

#define MSDU__HUB_MAGIC   "msduhub" /* eight bytes with its zero */
#define MSDU__HUB_VERSION 1U
#define MSDU__AUTH_BYTES  32 /* nonce and HMAC-SHA256 */
#define MSDU__JOB_BYTES   256
#define MSDU__CAUSE_BYTES 192
#define MSDU__ID_BYTES    16 /* tells runs apart; public */

/*
 * The handshake, in native byte order (the data that follows later is native as well):
 *   rank -> hub  hello;  hub -> rank  challenge;  rank -> hub  proof;  hub -> rank  welcome.
 * Nothing else is read before the proof was checked. Without a secret its key is empty.
 */
struct msdu__hello {
    char magic[8];
    uint32_t version;
    uint32_t ranks;
    uint32_t rank;
    uint32_t has_secret;
    uint8_t nonce[MSDU__AUTH_BYTES];
    char job[MSDU__JOB_BYTES];
};

struct msdu__challenge {
    char magic[8];
    uint32_t version;
    uint32_t is_denied;
    uint8_t id[MSDU__ID_BYTES];
    uint8_t nonce[MSDU__AUTH_BYTES];
    char cause[MSDU__CAUSE_BYTES]; /* of a denial */
};

struct msdu__proof {
    uint8_t mac[MSDU__AUTH_BYTES];
};

struct msdu__welcome {
    uint32_t is_denied;
    uint32_t reserved;
    uint8_t mac[MSDU__AUTH_BYTES];
    char cause[MSDU__CAUSE_BYTES];
};

/* Fill a hello; false if there is no randomness. */
bool msdu__auth_hello(const msdu_host *host, struct msdu__hello *hello_out);

/* Does a secret go with this host? An empty one is none. */
bool msdu__auth_has_secret(const msdu_host *host);

/* HMAC-SHA256 of data. */
bool msdu__auth_sign(const void *key, size_t key_bytes, const void *data, size_t bytes,
                     uint8_t mac_out[MSDU__AUTH_BYTES]);

/* HMAC of one side ("client", "server") over the handshake so far. */
bool msdu__auth_mac(const char *secret, const char *side, const struct msdu__hello *hello,
                    const struct msdu__challenge *challenge, uint8_t mac_out[MSDU__AUTH_BYTES]);

/* Compare in constant time. */
bool msdu__auth_is_equal(const uint8_t left[MSDU__AUTH_BYTES],
                         const uint8_t right[MSDU__AUTH_BYTES]);

/*
 * A rank's side of the handshake on a connected socket. Returns MSDU_OK; ERR_DENIED with the cause
 * written, which is final; ERR_IO with the cause written, after which the caller may try again.
 * id: of the run that is meant, or NULL for any.
 */
msdu_status msdu__auth_client(int fd, const msdu_host *host, const uint8_t *id, uint64_t until_ns,
                              char cause[MSDU__CAUSE_BYTES]);

#endif
