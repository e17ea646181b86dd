/* SPDX-License-Identifier: Apache-2.0 */
/* A connection between two members' standby ports. */
#include "line.h"

#include "port.h"

#include "backend/rendezvous/server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNSENT_BYTES ((size_t)16 << 20) /* who does not read this much is hung up on */

struct msdu__line *msdu__line_new(const struct msdu__member_id *id)
{
    struct msdu__line *line = calloc(1, sizeof(*line));
    if (line != NULL) {
        line->fd = -1;
        line->is_outgoing = true;
        line->has_id = id != NULL;
        if (id != NULL) {
            line->id = *id;
        }
    }
    return line;
}

struct msdu__line *msdu__line_accept(int fd)
{
    struct msdu__line *line = calloc(1, sizeof(*line));
    if (line == NULL) {
        (void)close(fd);
        return NULL;
    }
    line->fd = msdu__port_note(fd);
    line->state = MSDU__LINE_HELLO;
    line->until_ns = msdu__clock_now() + MSDU__HANDSHAKE_NS;
    return line;
}

void msdu__line_hang_up(struct msdu__line *line)
{
    msdu__port_close(line->fd);
    line->fd = -1;
    line->rx_used = 0;
    line->tx_used = 0;
    line->unanswered = 0;
}

void msdu__line_free(struct msdu__line *line)
{
    if (line != NULL) {
        msdu__line_hang_up(line);
        free(line->rx);
        free(line->tx);
        free(line);
    }
}

enum msdu__line_end msdu__line_connect(struct msdu__line *line,
                                       const struct msdu__line_setup *setup)
{
    struct msdu__address source;
    const char *interface = setup->host.interface;
    bool has_source =
        interface != NULL && interface[0] != '\0' && msdu__net_interface(interface, 0, &source);
    if (line->addresses_count == 0) {
        return MSDU__LINE_BROKEN;
    }
    line->address_at %= line->addresses_count;
    line->state = MSDU__LINE_CONNECTING;
    line->until_ns = msdu__clock_now() + MSDU__HANDSHAKE_NS;
    line->fd = msdu__port_note(
        msdu__net_begin(&line->addresses[line->address_at++], has_source ? &source : NULL));
    if (line->fd >= 0) {
        return MSDU__LINE_GOES_ON;
    }
    return errno == ECONNREFUSED ? MSDU__LINE_REFUSED : MSDU__LINE_BROKEN;
}

/* --- what is sent --- */

static bool put(struct msdu__line *line, const void *data, size_t bytes)
{
    size_t wanted = line->tx_used + bytes;
    if (wanted > UNSENT_BYTES || !msdu__conn_reserve(&line->tx, &line->tx_capacity, wanted)) {
        return false;
    }
    if (bytes > 0) {
        memcpy(line->tx + line->tx_used, data, bytes);
    }
    line->tx_used = wanted;
    return true;
}

/* Before the rest, which waits for the end of the handshake. */
static bool send_now(const struct msdu__line *line, const void *data, size_t bytes)
{
    return send(line->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

void msdu__line_send(struct msdu__line *line, uint32_t type, const void *body, size_t bytes)
{
    struct msdu__head head = {.type = type, .bytes = (uint32_t)bytes};
    size_t before = line->tx_used;
    if (!put(line, &head, sizeof(head)) || !put(line, body, bytes)) {
        line->tx_used = before;
        return;
    }
    if (line->is_outgoing) {
        line->unanswered++;
        line->asked_ns = line->asked_ns == 0 ? msdu__clock_now() : line->asked_ns;
    }
}

static bool flush(struct msdu__line *line)
{
    size_t done = 0;
    while (done < line->tx_used) {
        ssize_t sent =
            send(line->fd, line->tx + done, line->tx_used - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent <= 0) {
            break;
        }
        done += (size_t)sent;
    }
    bool is_alive = done == line->tx_used || errno == EAGAIN;
    line->tx_used -= done;
    if (done > 0) {
        memmove(line->tx, line->tx + done, line->tx_used);
    }
    return is_alive;
}

/* --- handshake --- */

static bool say_hello(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    if (!msdu__auth_hello(&setup->host, &line->hello)) {
        return false;
    }
    line->state = MSDU__LINE_CHALLENGE;
    return send_now(line, &line->hello, sizeof(line->hello));
}

static enum msdu__line_end deny(struct msdu__line *line, char *cause, size_t bytes)
{
    cause[bytes - 1] = '\0';
    (void)snprintf(line->cause, sizeof(line->cause), "%s", cause);
    return MSDU__LINE_DENIED;
}

static enum msdu__line_end take_challenge(struct msdu__line *line,
                                          const struct msdu__line_setup *setup)
{
    struct msdu__challenge *challenge = &line->challenge;
    struct msdu__proof proof;
    memcpy(challenge, line->rx, sizeof(*challenge));
    if (memcmp(challenge->magic, MSDU__HUB_MAGIC, sizeof(challenge->magic)) != 0) {
        return MSDU__LINE_BROKEN;
    }
    if (line->has_id && memcmp(challenge->id, &line->id, sizeof(line->id)) != 0) {
        return MSDU__LINE_REFUSED; /* its port belongs to another process now */
    }
    if (challenge->is_denied != 0) {
        return deny(line, challenge->cause, sizeof(challenge->cause));
    }
    memcpy(&line->id, challenge->id, sizeof(line->id));
    if (!msdu__auth_mac(setup->host.secret, "client", &line->hello, challenge, proof.mac) ||
        !send_now(line, &proof, sizeof(proof))) {
        return MSDU__LINE_BROKEN;
    }
    line->state = MSDU__LINE_WELCOME;
    return MSDU__LINE_GOES_ON;
}

static enum msdu__line_end take_welcome(struct msdu__line *line,
                                        const struct msdu__line_setup *setup)
{
    struct msdu__welcome welcome;
    uint8_t wanted[MSDU__AUTH_BYTES];
    memcpy(&welcome, line->rx, sizeof(welcome));
    if (welcome.is_denied != 0) {
        return deny(line, welcome.cause, sizeof(welcome.cause));
    }
    if (!msdu__auth_mac(setup->host.secret, "server", &line->hello, &line->challenge, wanted) ||
        !msdu__auth_is_equal(wanted, welcome.mac)) {
        (void)snprintf(line->cause, sizeof(line->cause), "it does not know the secret of this job");
        return MSDU__LINE_DENIED;
    }
    line->has_id = true;
    line->state = MSDU__LINE_OPEN;
    return MSDU__LINE_GOES_ON;
}

/* What is wrong with a hello, NULL: nothing. */
static const char *find_fault(const struct msdu__hello *hello, const struct msdu__line_setup *setup)
{
    if (memcmp(hello->magic, MSDU__HUB_MAGIC, sizeof(hello->magic)) != 0) {
        return "not a member of a job";
    }
    if (hello->version != MSDU__HUB_VERSION) {
        return "another version of the protocol";
    }
    if (strncmp(hello->job, setup->host.job, sizeof(hello->job)) != 0) {
        return "wrong job name: a job whose ranks come and go runs here";
    }
    if ((hello->has_secret != 0) != msdu__auth_has_secret(&setup->host)) {
        return hello->has_secret != 0 ? "wrong secret: this job has none"
                                      : "wrong secret: this job has one";
    }
    return NULL;
}

static enum msdu__line_end take_hello(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    struct msdu__challenge *challenge = &line->challenge;
    memcpy(&line->hello, line->rx, sizeof(line->hello));
    memset(challenge, 0, sizeof(*challenge));
    memcpy(challenge->magic, MSDU__HUB_MAGIC, sizeof(challenge->magic));
    challenge->version = MSDU__HUB_VERSION;
    memcpy(challenge->id, &setup->id, sizeof(challenge->id));
    const char *cause = find_fault(&line->hello, setup);
    challenge->is_denied = cause != NULL;
    (void)snprintf(challenge->cause, sizeof(challenge->cause), "%s", cause == NULL ? "" : cause);
    if (!msdu__net_random(challenge->nonce, sizeof(challenge->nonce)) ||
        !send_now(line, challenge, sizeof(*challenge)) || cause != NULL) {
        (void)snprintf(line->cause, sizeof(line->cause), "%s", cause == NULL ? "" : cause);
        return cause == NULL ? MSDU__LINE_BROKEN : MSDU__LINE_DENIED;
    }
    line->state = MSDU__LINE_PROOF;
    return MSDU__LINE_GOES_ON;
}

static enum msdu__line_end take_proof(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    struct msdu__welcome welcome = {.is_denied = 0};
    uint8_t wanted[MSDU__AUTH_BYTES];
    const char *secret = setup->host.secret;
    if (!msdu__auth_mac(secret, "client", &line->hello, &line->challenge, wanted) ||
        !msdu__auth_is_equal(wanted, line->rx)) {
        welcome.is_denied = 1;
        (void)snprintf(welcome.cause, sizeof(welcome.cause), "wrong secret");
        (void)send_now(line, &welcome, sizeof(welcome));
        return deny(line, welcome.cause, sizeof(welcome.cause));
    }
    if (!msdu__auth_mac(secret, "server", &line->hello, &line->challenge, welcome.mac) ||
        !send_now(line, &welcome, sizeof(welcome))) {
        return MSDU__LINE_BROKEN;
    }
    line->state = MSDU__LINE_OPEN;
    return MSDU__LINE_GOES_ON;
}

/* --- what comes --- */

static size_t wanted_bytes(const struct msdu__line *line)
{
    struct msdu__head head;
    switch (line->state) {
    case MSDU__LINE_CHALLENGE:
        return sizeof(struct msdu__challenge);
    case MSDU__LINE_WELCOME:
        return sizeof(struct msdu__welcome);
    case MSDU__LINE_HELLO:
        return sizeof(struct msdu__hello);
    case MSDU__LINE_PROOF:
        return sizeof(struct msdu__proof);
    case MSDU__LINE_CONNECTING:
    case MSDU__LINE_OPEN:
        break;
    }
    if (line->rx_used < sizeof(head)) {
        return sizeof(head);
    }
    memcpy(&head, line->rx, sizeof(head));
    return sizeof(head) + head.bytes;
}

static enum msdu__line_end take_frame(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    struct msdu__head head;
    memcpy(&head, line->rx, sizeof(head));
    if (head.bytes > sizeof(struct msdu__letter) + MSDU__KEY_BYTES) {
        return MSDU__LINE_BROKEN;
    }
    if (line->rx_used < sizeof(head) + head.bytes) {
        return MSDU__LINE_GOES_ON;
    }
    line->rx_used = 0;
    if (line->is_outgoing) {
        line->unanswered -= line->unanswered > 0;
        line->asked_ns = line->unanswered > 0 ? msdu__clock_now() : 0;
    }
    setup->take(setup->user, line, head.type, line->rx + sizeof(head), head.bytes);
    return MSDU__LINE_GOES_ON;
}

static enum msdu__line_end take_whole(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    enum msdu__line_end (*take)(struct msdu__line *, const struct msdu__line_setup *) = NULL;
    switch (line->state) {
    case MSDU__LINE_CHALLENGE:
        take = take_challenge;
        break;
    case MSDU__LINE_WELCOME:
        take = take_welcome;
        break;
    case MSDU__LINE_HELLO:
        take = take_hello;
        break;
    case MSDU__LINE_PROOF:
        take = take_proof;
        break;
    case MSDU__LINE_CONNECTING:
    case MSDU__LINE_OPEN:
        return take_frame(line, setup);
    }
    enum msdu__line_end end = take(line, setup);
    line->rx_used = 0;
    return end;
}

/* As soon as its first bytes cannot be a hello, a stray is sent away. */
static bool is_stray(const struct msdu__line *line)
{
    size_t known = sizeof(line->hello.magic);
    size_t bytes = line->rx_used < known ? line->rx_used : known;
    return line->state == MSDU__LINE_HELLO && memcmp(line->rx, MSDU__HUB_MAGIC, bytes) != 0;
}

/* Until the socket is empty. The line stays where it is when a frame is taken. */
static enum msdu__line_end read_all(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    enum msdu__line_end end = MSDU__LINE_GOES_ON;
    while (end == MSDU__LINE_GOES_ON) {
        size_t wanted = wanted_bytes(line);
        if (wanted > sizeof(struct msdu__letter) + 2 * MSDU__KEY_BYTES ||
            !msdu__conn_reserve(&line->rx, &line->rx_capacity, wanted)) {
            return MSDU__LINE_BROKEN;
        }
        ssize_t got =
            recv(line->fd, line->rx + line->rx_used, wanted - line->rx_used, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return MSDU__LINE_GOES_ON;
        }
        if (got <= 0) {
            return MSDU__LINE_BROKEN;
        }
        line->rx_used += (size_t)got;
        if (is_stray(line)) {
            return MSDU__LINE_BROKEN;
        }
        if (line->rx_used == wanted) {
            end = take_whole(line, setup);
        }
    }
    return end;
}

short msdu__line_events(const struct msdu__line *line)
{
    bool is_open = line->state == MSDU__LINE_OPEN;
    if (line->state == MSDU__LINE_CONNECTING) {
        return POLLOUT;
    }
    return is_open && line->tx_used > 0 ? POLLIN | POLLOUT : POLLIN;
}

enum msdu__line_end msdu__line_go_on(struct msdu__line *line, const struct msdu__line_setup *setup)
{
    if (line->state == MSDU__LINE_CONNECTING) {
        if (!msdu__net_is_connected(line->fd)) {
            return errno == ECONNREFUSED ? MSDU__LINE_REFUSED : MSDU__LINE_BROKEN;
        }
        msdu__net_tune(line->fd, setup->host.deadline_ns);
        return say_hello(line, setup) ? MSDU__LINE_GOES_ON : MSDU__LINE_BROKEN;
    }
    enum msdu__line_end end = read_all(line, setup);
    if (end == MSDU__LINE_GOES_ON && line->state == MSDU__LINE_OPEN && !flush(line)) {
        return MSDU__LINE_BROKEN;
    }
    return end;
}

/* --- letters --- */

/* In native byte order, as the handshake; the members that a record does not have are left out. */
void msdu__line_say(struct msdu__line *line, uint32_t type, const struct msdu__letter *letter)
{
    size_t bytes = offsetof(struct msdu__letter, record.members) +
                   letter->record.count * sizeof(letter->record.members[0]);
    msdu__line_send(line, type, letter, bytes);
}

static bool is_flag(const unsigned char *body, size_t at)
{
    return body[at] <= 1;
}

bool msdu__line_read(const unsigned char *body, size_t bytes, struct msdu__letter *letter_out)
{
    size_t least = offsetof(struct msdu__letter, record.members);
    uint32_t count = 0;
    if (bytes < least || !is_flag(body, offsetof(struct msdu__letter, is_over)) ||
        !is_flag(body, offsetof(struct msdu__letter, is_patient)) ||
        !is_flag(body, offsetof(struct msdu__letter, report.has_state)) ||
        !is_flag(body, offsetof(struct msdu__letter, report.is_leaving))) {
        return false;
    }
    memcpy(&count, body + offsetof(struct msdu__letter, record.count), sizeof(count));
    if (count > MSDU__MEMBERS_MOST || bytes != least + count * sizeof(struct msdu__member)) {
        return false;
    }
    memset(letter_out, 0, sizeof(*letter_out));
    memcpy(letter_out, body, bytes);
    letter_out->place[MSDU__PLACE_BYTES - 1] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        letter_out->record.members[i].place[MSDU__PLACE_BYTES - 1] = '\0';
    }
    return true;
}
