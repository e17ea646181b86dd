/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's connection to the hub, shared by the files that implement hub.h. */
#ifndef MSDU_RENDEZVOUS_IMPL_H
#define MSDU_RENDEZVOUS_IMPL_H

#include "find.h"
#include "server.h"

#include <pthread.h>

/* Lock order: watch_lock, lock. send_lock is a leaf. None is held across a call of the host. */
struct msdu__hub {
    const msdu_host *host;
    struct msdu__find find;
    struct msdu__server *server; /* rank 0 only */
    int fd;
    struct msdu__thread thread;
    char address[MSDU__NET_TEXT_BYTES];
    pthread_mutex_t send_lock;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool has_started;
    bool is_leaving; /* this rank said bye */
    bool is_over;    /* the connection ended */
    msdu_status status;
    char text[MSDU__HUB_TEXT_BYTES];
    bool *has_left;
    int32_t left_count;
    uint8_t nonce[MSDU__HUB_NONCE_BYTES];
    char key[MSDU__KEY_BYTES]; /* the key that is waited for, or "" */
    void *value;               /* its value; NULL: not there yet */
    size_t value_bytes;

    pthread_mutex_t watch_lock; /* guards the watch, also while it is called */
    const msdu__hub_watch *watch;
    bool has_reported;
    struct msdu__stall reported; /* the last stall told to the hub */
    uint64_t reported_ns;
    uint64_t wondered_ns; /* when the hub was asked last whether all mean the same operation */
};

/* client.c: start the thread that reads what the hub says. */
bool msdu__client_start(struct msdu__hub *hub);
/* Send one message; false if the connection is gone. */
bool msdu__client_say(struct msdu__hub *hub, uint32_t type, const void *body, size_t bytes);
/* Note why the group failed, unless that is known already, and tell the watch. */
void msdu__client_fail(struct msdu__hub *hub, msdu_status status, const char *text);
/* Wait for a change until a time; false if none came. Lock held. */
bool msdu__client_wait(struct msdu__hub *hub, uint64_t until_ns);

#endif
