/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection between two members' standby ports: handshake, then frames in both directions. It
 * never blocks; whoever has the descriptor in poll() calls msdu__line_go_on().
 *
 * Who connects asks, the other side answers: a frame of a request goes one way, its reply back.
 */
#ifndef MSDU_MEMBERS_LINE_H
#define MSDU_MEMBERS_LINE_H

#include "council.h"

#include "backend/rendezvous/auth.h"
#include "backend/rendezvous/net.h"

enum msdu__frame {
    MSDU__FRAME_REQUEST = 1, /* a letter */
    MSDU__FRAME_REPLY,       /* a letter */
    MSDU__FRAME_VALUE,       /* key, zero, value */
    MSDU__FRAME_HAS_VALUE,   /* key, zero: the reply */
};

enum msdu__line_state {
    MSDU__LINE_CONNECTING, /* outgoing */
    MSDU__LINE_CHALLENGE,  /* outgoing: said hello */
    MSDU__LINE_WELCOME,    /* outgoing: sent the proof */
    MSDU__LINE_HELLO,      /* incoming */
    MSDU__LINE_PROOF,      /* incoming */
    MSDU__LINE_OPEN,
};

enum msdu__line_end {
    MSDU__LINE_GOES_ON,
    MSDU__LINE_REFUSED, /* nobody listens there, or another process does: who did is dead */
    MSDU__LINE_BROKEN,  /* anything else */
    MSDU__LINE_DENIED,  /* the other side turned this one away; `cause` says why */
};

struct msdu__line;

/* What all lines of a process have in common. */
struct msdu__line_setup {
    msdu_host host; /* its job is that of the handshake */
    struct msdu__member_id id;
    void *user;
    /* A whole frame came. */
    void (*take)(void *user, struct msdu__line *line, uint32_t type, const unsigned char *body,
                 size_t bytes);
};

struct msdu__line {
    struct msdu__line *next;
    enum msdu__line_state state;
    int fd; /* -1: none at present */
    bool is_outgoing;
    bool has_id;
    struct msdu__member_id id; /* of the other side; outgoing: of whom is meant */
    struct msdu__address addresses[MSDU__NET_ADDRESSES]; /* outgoing: to be tried in turn */
    size_t addresses_count;
    size_t address_at;
    uint64_t until_ns; /* end of the handshake; fd -1: time of the next attempt */
    uint64_t asked_ns; /* since when no answer has come to what was asked; 0: nothing was asked */
    uint32_t unanswered;
    char cause[MSDU__CAUSE_BYTES];
    struct msdu__hello hello;
    struct msdu__challenge challenge;
    unsigned char *rx;
    size_t rx_used;
    size_t rx_capacity;
    unsigned char *tx;
    size_t tx_used;
    size_t tx_capacity;
};

/* A line to be connected; NULL: no memory. id: who is meant, or NULL. */
struct msdu__line *msdu__line_new(const struct msdu__member_id *id);
/* A line that was accepted; owns fd, also on failure. */
struct msdu__line *msdu__line_accept(int fd);
void msdu__line_free(struct msdu__line *line);

/* Connect to the next of its addresses, from the interface if one is set. */
enum msdu__line_end msdu__line_connect(struct msdu__line *line,
                                       const struct msdu__line_setup *setup);
/* Close the descriptor; what was not sent is gone. */
void msdu__line_hang_up(struct msdu__line *line);

/* What to wait for in poll(). */
short msdu__line_events(const struct msdu__line *line);
/* Read and write what can be. */
enum msdu__line_end msdu__line_go_on(struct msdu__line *line, const struct msdu__line_setup *setup);

/* Queue a frame, or nothing if there is no memory; before the line is open it is kept. */
void msdu__line_send(struct msdu__line *line, uint32_t type, const void *body, size_t bytes);

/* Queue a letter; and read one: false if it cannot be one. */
void msdu__line_say(struct msdu__line *line, uint32_t type, const struct msdu__letter *letter);
bool msdu__line_read(const unsigned char *body, size_t bytes, struct msdu__letter *letter_out);

#endif
