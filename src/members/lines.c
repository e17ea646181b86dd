/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's connections: who is asked, who asks, who is dead, who is silent. */
#include "impl.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_NS        UINT64_C(20000000)
#define UNANSWERED_MOST 16 /* requests under way on a line */
#define INCOMING_MOST   (MSDU__MEMBERS_MOST + 64)

static bool fill_address(struct msdu__line *line, const char *place)
{
    char host[MSDU__NET_TEXT_BYTES];
    char port[MSDU__FIND_PORT_BYTES];
    const char *cause = "";
    if (!msdu__net_place(place, host, sizeof(host), port, sizeof(port))) {
        return false;
    }
    line->addresses_count = msdu__net_resolve(host, port, line->addresses, 1, &cause);
    return line->addresses_count > 0;
}

struct msdu__line *msdu__lines_to(struct msdu__standby *standby, const struct msdu__member *to)
{
    for (struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        if (line->is_outgoing && line->has_id && line != standby->meeting &&
            msdu__member_is(to, &line->id)) {
            return line;
        }
    }
    struct msdu__line *line = msdu__line_new(&to->id);
    if (line == NULL || !fill_address(line, to->place)) {
        msdu__line_free(line);
        return NULL;
    }
    line->next = standby->lines;
    standby->lines = line;
    return line;
}

bool msdu__lines_has_room(struct msdu__line *line)
{
    if (line->state != MSDU__LINE_OPEN || line->fd < 0) {
        line->tx_used = 0;
        line->unanswered = 0;
    }
    return line->unanswered < UNANSWERED_MOST;
}

void msdu__lines_post(void *user, const struct msdu__member *to, const struct msdu__letter *letter)
{
    struct msdu__standby *standby = user;
    struct msdu__line *line = msdu__lines_to(standby, to);
    if (line != NULL && msdu__lines_has_room(line)) {
        msdu__line_say(line, MSDU__FRAME_REQUEST, letter);
    }
}

static size_t count_incoming(const struct msdu__standby *standby)
{
    size_t count = 0;
    for (const struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        count += !line->is_outgoing && line->fd >= 0;
    }
    return count;
}

/* Strays that hold all places: the one whose handshake has lasted longest must go. */
static void make_room(struct msdu__standby *standby)
{
    struct msdu__line *oldest = NULL;
    for (struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        bool is_pending = !line->is_outgoing && line->fd >= 0 && line->state != MSDU__LINE_OPEN;
        if (is_pending && (oldest == NULL || line->until_ns < oldest->until_ns)) {
            oldest = line;
        }
    }
    if (oldest != NULL) {
        msdu__line_hang_up(oldest);
    }
}

void msdu__lines_accept(struct msdu__standby *standby, int listen_fd)
{
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return;
        }
        if (count_incoming(standby) >= INCOMING_MOST) {
            make_room(standby);
        }
        struct msdu__line *line = msdu__line_accept(fd);
        if (line != NULL) {
            line->next = standby->lines;
            standby->lines = line;
        }
    }
}

/* Does another connection of the same process remain? */
static bool has_other(const struct msdu__standby *standby, const struct msdu__line *ended)
{
    for (const struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        if (line != ended && !line->is_outgoing && line->fd >= 0 && line->has_id &&
            memcmp(&line->id, &ended->id, sizeof(line->id)) == 0) {
            return true;
        }
    }
    return false;
}

static void warn_denied(const struct msdu__members *members, const struct msdu__line *line)
{
    const msdu_host *host = members->host;
    struct msdu__address peer;
    char place[MSDU__NET_TEXT_BYTES] = "an unknown address";
    char text[MSDU__HUB_TEXT_BYTES];
    if (msdu__net_peer(line->fd, &peer)) {
        msdu__net_text(&peer, true, place);
    }
    (void)snprintf(text, sizeof(text), "members: dropped connection from %s: %.160s", place,
                   line->cause);
    if (host->log != NULL) {
        host->log(host->user, MSDU_LOG_WARN, text);
    }
}

static void end_incoming(struct msdu__members *members, struct msdu__line *line,
                         enum msdu__line_end end)
{
    if (end == MSDU__LINE_DENIED) {
        warn_denied(members, line);
    }
    msdu__line_hang_up(line);
    if (line->has_id && !has_other(&members->standby, line)) {
        msdu__council_forget(&members->standby.council, &line->id);
    }
}

void msdu__lines_ended(struct msdu__members *members, struct msdu__line *line,
                       enum msdu__line_end end)
{
    struct msdu__standby *standby = &members->standby;
    if (!line->is_outgoing) {
        end_incoming(members, line, end);
        return;
    }
    msdu__line_hang_up(line);
    line->until_ns = standby->now_ns + RETRY_NS;
    bool has_more = line->address_at < line->addresses_count && end != MSDU__LINE_DENIED;
    if (line == standby->meeting && has_more) {
        line->until_ns = standby->now_ns;
        line->asked_ns = standby->now_ns;
    } else if (line == standby->meeting) {
        standby->meeting = NULL;
        line->asked_ns = 0;
        line->addresses_count = 0;
        standby->met = end;
        memcpy(standby->met_cause, line->cause, sizeof(standby->met_cause));
    } else if (end == MSDU__LINE_REFUSED) {
        line->asked_ns = 0;
        msdu__council_dead(&standby->council, &line->id);
    }
}

/* Whoever was asked and has not answered: connect again, or take it for silent. */
static void look_at(struct msdu__members *members, struct msdu__line *line)
{
    struct msdu__standby *standby = &members->standby;
    uint64_t now_ns = standby->now_ns;
    enum msdu__line_end end = MSDU__LINE_GOES_ON;
    if (line->fd >= 0 && line->state != MSDU__LINE_OPEN && now_ns >= line->until_ns) {
        end = MSDU__LINE_BROKEN;
    } else if (line->fd < 0 && line->is_outgoing && line->asked_ns != 0 &&
               now_ns >= line->until_ns) {
        end = msdu__line_connect(line, &standby->setup);
    }
    if (end != MSDU__LINE_GOES_ON) {
        msdu__lines_ended(members, line, end);
    }
    if (line->is_outgoing && line != standby->meeting && line->asked_ns != 0 &&
        now_ns >= line->asked_ns + members->settings.silence_ns) {
        msdu__council_silent(&standby->council, &line->id);
    }
}

void msdu__lines_look(struct msdu__members *members)
{
    /* Lines that are made meanwhile come before the first one. */
    for (struct msdu__line *line = members->standby.lines; line != NULL; line = line->next) {
        look_at(members, line);
    }
}

uint64_t msdu__lines_next(const struct msdu__members *members)
{
    const struct msdu__standby *standby = &members->standby;
    uint64_t next_ns = UINT64_MAX;
    for (const struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        bool is_pending = line->fd >= 0 && line->state != MSDU__LINE_OPEN;
        bool is_resting = line->fd < 0 && line->is_outgoing && line->asked_ns != 0;
        uint64_t silent_ns = line->asked_ns + members->settings.silence_ns;
        if ((is_pending || is_resting) && line->until_ns < next_ns) {
            next_ns = line->until_ns;
        }
        if (line->is_outgoing && line->asked_ns != 0 && silent_ns > standby->now_ns &&
            silent_ns < next_ns) {
            next_ns = silent_ns;
        }
    }
    return next_ns;
}

/* Only the members of the present epoch are worth an idle connection. */
static bool is_needed(const struct msdu__standby *standby, const struct msdu__line *line)
{
    if (line == standby->meeting) {
        return true;
    }
    if (!line->is_outgoing) {
        return line->fd >= 0;
    }
    bool is_member = msdu__record_find(&standby->council.record, &line->id) >= 0;
    bool is_asked = line->asked_ns != 0;
    return is_member ? is_asked || line->fd >= 0
                     : is_asked && standby->council.phase != MSDU__PHASE_TRAINING;
}

void msdu__lines_sweep(struct msdu__standby *standby, bool all)
{
    struct msdu__line **at = &standby->lines;
    while (*at != NULL) {
        struct msdu__line *line = *at;
        if (!all && is_needed(standby, line)) {
            at = &line->next;
        } else {
            *at = line->next;
            msdu__line_free(line);
        }
    }
    standby->meeting = all ? NULL : standby->meeting;
}
