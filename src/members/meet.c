/* SPDX-License-Identifier: Apache-2.0 */
/* How newcomers and the job find each other: by the rendezvous that the launch had. */
#include "gather.h"
#include "impl.h"
#include "port.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEND_NS UINT64_C(2000000000)
#define LOOK_NS UINT64_C(2000000000) /* longest look for the job */
#define GLANCE_NS                                                                                  \
    UINT64_C(200000000) /* the same for rank 0 of a launch, which may be the first                 \
                         */

static void wish(struct msdu__members *members, enum msdu__wish what)
{
    (void)pthread_mutex_lock(&members->mail.lock);
    members->mail.wish = what;
    (void)pthread_cond_broadcast(&members->mail.changed);
    (void)pthread_mutex_unlock(&members->mail.lock);
}

static void fail_place(struct msdu__members *members, msdu_status status, const char *what,
                       const char *cause)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "rendezvous %.160s: %s: %.200s", members->find.shown, what,
                   cause);
    msdu__mail_fail(members, status, text);
}

/* To whoever answers there. */
static void begin_meeting(struct msdu__members *members, const struct msdu__rank0_place *place)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__member_id id;
    memcpy(&id, place->id, sizeof(id));
    struct msdu__line *line = msdu__line_new(place->has_id ? &id : NULL);
    if (line != NULL) {
        memcpy(line->addresses, place->addresses, sizeof(line->addresses));
        line->addresses_count = place->count;
        line->next = standby->lines;
        standby->lines = line;
        standby->meeting = line;
    }
}

/* The rendezvous' own port; false with errno set. */
static bool listen_there(struct msdu__standby *standby)
{
    for (size_t i = 0; i < standby->meet_count && standby->meet_fd < 0; i++) {
        standby->meet_fd = msdu__port_note(msdu__net_listen(&standby->meet[i]));
        if (standby->meet_fd < 0 && errno == EADDRINUSE) {
            return false; /* somebody is there */
        }
    }
    return standby->meet_fd >= 0;
}

static bool publish(struct msdu__members *members, char cause[MSDU__CAUSE_BYTES])
{
    return msdu__find_publish(&members->find, &members->standby.own,
                              members->standby.council.self.id.bytes, members->host->deadline_ns,
                              cause);
}

/* Rank 0 of a launch found no job. */
static void form(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    char cause[MSDU__CAUSE_BYTES] = "";
    switch (members->find.kind) {
    case MSDU__FIND_TCP:
        if (listen_there(standby)) {
            msdu__council_form(&standby->council);
        } else if (errno != EADDRINUSE) {
            fail_place(members, MSDU_ERR_IO, "rank 0 cannot listen there", strerror(errno));
        }
        break;
    case MSDU__FIND_FILE:
        if (publish(members, cause)) {
            msdu__council_form(&standby->council);
        } else {
            fail_place(members, MSDU_ERR_IO, "rank 0 cannot tell its address", cause);
        }
        break;
    case MSDU__FIND_REDIS:
    case MSDU__FIND_STORE:
        wish(members, MSDU__WISH_PUBLISH);
        break;
    }
}

static bool may_form(const struct msdu__members *members)
{
    const struct msdu__council *council = &members->standby.council;
    return council->phase == MSDU__PHASE_JOINING && council->launch_rank == 0 &&
           council->record.count == 0;
}

/* What the owner found. */
static void take_answer(struct msdu__members *members, bool is_found,
                        const struct msdu__rank0_place *place)
{
    struct msdu__council *council = &members->standby.council;
    if (council->phase != MSDU__PHASE_JOINING || members->standby.meeting != NULL) {
        return;
    }
    if (is_found && place->count == 0) { /* to WISH_PUBLISH */
        msdu__council_form(council);
    } else if (is_found) {
        begin_meeting(members, place);
        msdu__meet_join(members);
    } else if (may_form(members)) {
        form(members);
    }
}

static bool get_answer(struct msdu__mail *mail, bool *is_found_out, struct msdu__rank0_place *place)
{
    (void)pthread_mutex_lock(&mail->lock);
    bool has_answer = mail->has_answer;
    *is_found_out = mail->is_found;
    *place = mail->place;
    mail->has_answer = false;
    (void)pthread_mutex_unlock(&mail->lock);
    return has_answer;
}

void msdu__meet_join(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__member *host = msdu__council_host(&standby->council);
    struct msdu__letter *join = &standby->out;
    struct msdu__rank0_place place;
    bool is_found = false;
    msdu__council_join(&standby->council, join);
    if (host != NULL) {
        msdu__lines_post(standby, host, join);
    } else if (standby->meeting != NULL) {
        if (msdu__lines_has_room(standby->meeting)) {
            msdu__line_say(standby->meeting, MSDU__FRAME_REQUEST, join);
        }
    } else if (get_answer(&members->mail, &is_found, &place)) {
        take_answer(members, is_found, &place);
    } else {
        wish(members, MSDU__WISH_PLACE);
    }
}

void msdu__meet_ended(struct msdu__members *members)
{
    char what[64];
    struct msdu__standby *standby = &members->standby;
    bool is_denied = standby->met == MSDU__LINE_DENIED;
    standby->met = MSDU__LINE_GOES_ON;
    if (standby->council.phase != MSDU__PHASE_JOINING) {
        return;
    }
    if (is_denied) {
        (void)snprintf(what, sizeof(what), "it refused rank %" PRId32, members->host->rank);
        fail_place(members, MSDU_ERR_DENIED, what, standby->met_cause);
    } else if (may_form(members)) {
        form(members);
    }
}

/* Another process is where newcomers look: a launch that found nobody while this job changed. */
static void tell_stranger(struct msdu__members *members, const struct msdu__rank0_place *place)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__letter *commit = &standby->out;
    begin_meeting(members, place);
    if (standby->meeting != NULL) {
        msdu__gather_letter(&standby->council, MSDU__SAY_COMMIT, commit);
        commit->record = standby->council.record;
        msdu__line_say(standby->meeting, MSDU__FRAME_REQUEST, commit);
    }
}

/* Rank 0 keeps the place where newcomers look, or who waits for them. */
static bool is_keeper(const struct msdu__council *council)
{
    return council->rank == 0 || council->is_short;
}

static void tend_port(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__rank0_place place = {.count = standby->meet_count};
    if (standby->meet_fd < 0 && !listen_there(standby) && errno == EADDRINUSE &&
        is_keeper(&standby->council)) {
        memcpy(place.addresses, standby->meet, sizeof(place.addresses));
        tell_stranger(members, &place);
    }
}

static void tend_file(struct msdu__members *members)
{
    struct msdu__rank0_place place;
    char cause[MSDU__CAUSE_BYTES];
    const struct msdu__council *council = &members->standby.council;
    if (!is_keeper(council)) {
        return;
    }
    bool is_there = msdu__find_lookup(&members->find, 0, &place, cause) == MSDU_OK;
    if (!is_there || memcmp(place.id, &council->self.id, sizeof(place.id)) != 0) {
        (void)publish(members, cause);
        if (is_there) {
            tell_stranger(members, &place);
        }
    }
}

void msdu__meet_tend(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__council *council = &standby->council;
    bool is_newcomer = council->phase == MSDU__PHASE_JOINING;
    if (is_newcomer && standby->meet_fd >= 0) { /* the launch was one of a job that runs */
        msdu__port_close(standby->meet_fd);
        standby->meet_fd = -1;
    }
    if (council->rank < 0 || standby->now_ns < standby->tend_ns) {
        return;
    }
    standby->tend_ns = is_keeper(council) ? standby->now_ns + TEND_NS : UINT64_MAX;
    if (standby->meeting != NULL) {
        msdu__line_hang_up(standby->meeting);
        standby->meeting->asked_ns = 0;
        standby->meeting->has_id = false;
        standby->meeting = NULL;
    }
    if (members->find.kind == MSDU__FIND_TCP) {
        tend_port(members);
    } else if (members->find.kind == MSDU__FIND_FILE) {
        tend_file(members);
    }
}

void msdu__meet_grant(struct msdu__members *members)
{
    struct msdu__mail *mail = &members->mail;
    enum msdu__wish what = mail->wish;
    struct msdu__rank0_place place;
    char cause[MSDU__CAUSE_BYTES] = "";
    bool is_found = false;
    memset(&place, 0, sizeof(place));
    mail->wish = MSDU__WISH_NONE;
    (void)pthread_mutex_unlock(&mail->lock);
    if (what == MSDU__WISH_PUBLISH) {
        is_found = publish(members, cause);
    } else {
        uint64_t span_ns = members->host->rank == 0 ? GLANCE_NS : LOOK_NS;
        is_found = msdu__find_lookup(&members->find, msdu__clock_now() + span_ns, &place, cause) ==
                   MSDU_OK;
    }
    (void)pthread_mutex_lock(&mail->lock);
    mail->has_answer = true;
    mail->is_found = is_found;
    mail->place = place;
}
