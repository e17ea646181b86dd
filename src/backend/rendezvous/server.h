/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side of the hub: one thread that admits ranks and passes messages between them. */
#ifndef MSDU_RENDEZVOUS_SERVER_H
#define MSDU_RENDEZVOUS_SERVER_H

#include "auth.h"
#include "net.h"
#include "thread.h"

#include <pthread.h>

/* Messages after admission: this head, then `bytes` of body, in native byte order. */
struct msdu__head {
    uint32_t type;
    uint32_t bytes;
};

enum msdu__message {
    MSDU__SAY_SET = 1, /* rank -> hub: key, zero, value */
    MSDU__SAY_GET,     /* rank -> hub: key, zero */
    MSDU__SAY_ABORT,   /* rank -> hub: why, zero */
    MSDU__SAY_STALL,   /* rank -> hub: msdu__stall */
    MSDU__SAY_HERE,    /* rank -> hub: msdu__here, answer to ASK */
    MSDU__SAY_BYE,     /* rank -> hub: nothing */
    MSDU__SAY_START,   /* hub -> rank: nonce; all ranks are there */
    MSDU__SAY_VALUE,   /* hub -> rank: key, zero, value */
    MSDU__SAY_VERDICT, /* hub -> rank: msdu__verdict */
    MSDU__SAY_ASK,     /* hub -> rank: msdu__stall; how far are you? */
    MSDU__SAY_LEFT,    /* hub -> rank: uint32_t rank that said bye */
    MSDU__SAY_WONDER,  /* rank -> hub: msdu__stall; it takes long, do all mean the same? */
};

struct msdu__stall {
    uint32_t index; /* of the question; the hub's */
    uint32_t lane;
    uint64_t sequence;
};

struct msdu__here {
    uint32_t index;
    uint32_t print;   /* what operation it is on this rank, 0 if not known */
    uint64_t started; /* operations started in the channel */
};

struct msdu__verdict {
    int32_t status;
    char text[MSDU__HUB_TEXT_BYTES - sizeof(int32_t)];
};

#define MSDU__KEY_BYTES     512
#define MSDU__MESSAGE_BYTES (MSDU__KEY_BYTES + MSDU__HUB_VALUE_BYTES) /* longest body */
#define MSDU__PENDING_MAX   64                    /* most connections not yet admitted */
#define MSDU__STORE_BYTES   ((size_t)256 << 20)   /* most bytes of all values */
#define MSDU__STALLS_MAX    8                     /* most questions about stalls at once */
#define MSDU__HANDSHAKE_NS  UINT64_C(5000000000)  /* longest handshake */
#define MSDU__REMIND_NS     UINT64_C(10000000000) /* rank 0 says once who is missing */
#define MSDU__WONDER_NS     UINT64_C(1000000000)  /* an operation that takes longer is compared */
#define MSDU__COLLECT_NS    UINT64_C(1000000000)  /* longest wait for answers to ASK */

enum msdu__conn_state { MSDU__CONN_FREE, MSDU__CONN_HELLO, MSDU__CONN_PROOF, MSDU__CONN_RANK };

struct msdu__conn {
    enum msdu__conn_state state;
    int fd;
    int32_t rank;
    uint64_t until_ns; /* end of the handshake */
    char peer[MSDU__NET_TEXT_BYTES];
    struct msdu__hello hello;
    struct msdu__challenge challenge;
    unsigned char *rx; /* bytes of the message being read */
    size_t rx_used;
    size_t rx_capacity;
    unsigned char *tx; /* bytes not yet sent */
    size_t tx_used;
    size_t tx_capacity;
};

struct msdu__entry {
    struct msdu__entry *next;
    size_t bytes; /* of the value */
    char *key;
    unsigned char *value;
};

struct msdu__waiter {
    struct msdu__waiter *next;
    int32_t rank;
    char key[MSDU__KEY_BYTES];
};

/* Touched by the hub's thread only, except `thread` and what is set before the thread starts. */
struct msdu__server {
    const msdu_host *host;
    /* A rank does not read: msdu__serve_lost(). */
    void (*lost)(struct msdu__server *server, struct msdu__conn *conn, const char *cause);
    int listen_fd;
    struct msdu__thread thread;
    uint8_t id[MSDU__ID_BYTES];
    uint8_t nonce[MSDU__HUB_NONCE_BYTES];
    uint64_t join_until_ns;
    uint64_t remind_ns; /* when to say who has not joined yet */
    bool has_started;   /* all ranks were admitted */
    bool has_verdict;
    struct msdu__verdict verdict;
    struct msdu__conn *conns; /* ranks + MSDU__PENDING_MAX */
    size_t conns_count;
    struct msdu__conn **by_rank; /* NULL: not admitted, or gone */
    bool *was_admitted;
    bool *has_left;
    struct msdu__entry *entries;
    size_t entries_bytes;
    struct msdu__waiter *waiters;
    uint64_t stall_until_ns; /* 0: no question open */
    uint32_t stalls_count;
    struct msdu__stall stalls[MSDU__STALLS_MAX];
    struct msdu__here *heres; /* answers, question by question, rank by rank */
    bool *has_here;
    struct msdu__stall wonder; /* the latest question whether ranks mean the same operation */
    uint64_t wondered_ns;
    struct msdu__here wonder_first; /* the first answer with a fingerprint; its print 0: none yet */
    int32_t wonder_rank;
};

/* server.c: start the thread; self_fd is rank 0's own, already admitted connection. Owns both
 * descriptors from here on, also on failure. */
msdu_status msdu__server_start(const msdu_host *host, int listen_fd, int self_fd,
                               const uint8_t id[MSDU__ID_BYTES], struct msdu__server **server_out);
/* Send what is left to be sent, for at most half a second, and end. NULL is allowed. */
void msdu__server_stop(struct msdu__server *server);

/* conn.c */
bool msdu__conn_open(struct msdu__conn *conn, int fd);
void msdu__conn_close(struct msdu__conn *conn);
/* Room for `wanted` bytes. */
bool msdu__conn_reserve(unsigned char **buf, size_t *capacity, size_t wanted);
/* Queue a message; the connection is lost if it does not keep up. */
void msdu__server_send(struct msdu__server *server, struct msdu__conn *conn, uint32_t type,
                       const void *body, size_t bytes);
/* To all ranks that are there. */
void msdu__server_send_all(struct msdu__server *server, uint32_t type, const void *body,
                           size_t bytes);

/* admit.c: bytes of a connection that is not admitted yet. */
void msdu__admit_accept(struct msdu__server *server);
void msdu__admit_read(struct msdu__server *server, struct msdu__conn *conn);
void msdu__admit_expire(struct msdu__server *server, uint64_t now_ns);

/* serve.c: messages of admitted ranks. */
void msdu__serve_read(struct msdu__server *server, struct msdu__conn *conn);
void msdu__serve_lost(struct msdu__server *server, struct msdu__conn *conn, const char *cause);
void msdu__serve_tick(struct msdu__server *server, uint64_t now_ns);
void msdu__serve_free(struct msdu__server *server);
/* A rank was admitted: all may start if it was the last, or it learns of an earlier failure. */
void msdu__serve_admitted(struct msdu__server *server, struct msdu__conn *conn);

#endif
