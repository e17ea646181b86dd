/* SPDX-License-Identifier: Apache-2.0 */
/* Redis as a store: its protocol by hiredis, over the rendezvous' own sockets with deadlines. */
#ifndef MSDU_RENDEZVOUS_REDIS_H
#define MSDU_RENDEZVOUS_REDIS_H

#include "auth.h"

#include <msdu/store.h>

/* A server, and who asks it. */
struct msdu__redis {
    char host[256];
    char port[8];
    char user[128]; /* "": the server's default user */
    char password[256];
    char db[12];
};

/*
 * Read redis://[[USER]:PASSWORD@]HOST:PORT[/DB], where USER and PASSWORD are percent-encoded, and
 * make the store. Returns MSDU_OK; ERR_INVALID; ERR_UNSUPPORTED with the cause written: this build
 * has no hiredis. store_out->get does not wait for a key. No text holds user or password.
 */
msdu_status msdu__redis_open(const char *url, struct msdu__redis *redis, msdu_store *store_out,
                             char cause[MSDU__CAUSE_BYTES]);

/* Delete a key if it still holds this text. */
void msdu__redis_delete(struct msdu__redis *redis, const char *key, const char *value);

#endif
