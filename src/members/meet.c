/* SPDX-License-Identifier: Apache-2.0 */
/* How newcomers and the job find each other: by the rendezvous that the launch had. */
#include "gather.h"
#include "impl.h"
#include "port.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEND_NS UINT64_C(1000000000)
#define HOLD_NS UINT64_C(3000000000) /* so long may a running job object to a new one */
#define LOOKERS 4                    /* members that look whether newcomers would find the job */
#define LOOK_NS UINT64_C(2000000000) /* longest look for the job */
#define GLANCE_NS                                                                                  \
    UINT64_C(200000000) /* the same for rank 0 of a launch, which may be the first                 \
                         */

/* To look again can wait until it is told where this process is. */
static void wish(struct msdu__members *members, enum msdu__wish what)
{
    (void)pthread_mutex_lock(&members->mail.lock);
    if (members->mail.wish != MSDU__WISH_PUBLISH) {
        members->mail.wish = what;
    }
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
    struct msdu__line *line = place->count > 0 ? msdu__line_new(place->has_id ? &id : NULL) : NULL;
    if (line != NULL) {
        memcpy(line->addresses, place->addresses, sizeof(line->addresses));
        line->addresses_count = place->count;
        line->next = standby->lines;
        standby->lines = line;
        standby->meeting = line;
    }
}

/* Where somebody else may stand that counts more. */
static const struct msdu__rank0_place *places_before(const struct msdu__standby *standby,
                                                     struct msdu__rank0_place *place)
{
    *place = standby->places;
    place->count = standby->meet_fd >= 0 ? standby->meet_at : place->count;
    return place;
}

/* Several places? Then somebody at one of them leaves the others free. */
static bool is_list(const struct msdu__members *members)
{
    return members->find.kind == MSDU__FIND_TCP && strchr(members->find.name, ',') != NULL;
}

/* The places before this one; all, if it is none of them. */
static size_t find_place(const struct msdu__standby *standby, const struct msdu__address *own)
{
    size_t i = 0;
    while (i < standby->places.count &&
           memcmp(&standby->places.addresses[i], own, sizeof(*own)) != 0) {
        i++;
    }
    return i;
}

/* A port of the rendezvous' own; false with errno set. */
static bool listen_there(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    bool is_taken = false;
    for (size_t i = 0; i < standby->meet_count && standby->meet_fd < 0; i++) {
        standby->meet_fd = msdu__port_note(msdu__net_listen(&standby->meet[i]));
        standby->meet_at = find_place(standby, &standby->meet[i]);
        is_taken = is_taken || (standby->meet_fd < 0 && errno == EADDRINUSE);
        if (is_taken && !is_list(members)) {
            return false; /* somebody is there */
        }
    }
    if (standby->meet_fd < 0 && is_taken) {
        errno = EADDRINUSE;
    }
    return standby->meet_fd >= 0;
}

static bool publish(struct msdu__members *members, char cause[MSDU__CAUSE_BYTES])
{
    return msdu__find_publish(&members->find, &members->standby.own,
                              members->standby.council.self.id.bytes, members->host->deadline_ns,
                              cause);
}

/* Where each process is a launch of its own, several may find no job, or a job may run whose rank 0
 * has just died. So such a launch stands for a while where newcomers look: whoever knows of a job,
 * or stands before it, tells it so. Others are waited for anyway. */
static void stand(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    uint64_t span_ns = HOLD_NS;
    if (standby->council.launch_ranks > 1 && !is_list(members)) {
        msdu__council_form(&standby->council);
        return;
    }
    if (standby->was_found) { /* in Redis or a store: no member can object before its epoch ends */
        span_ns = members->host->deadline_ns / 2;
    }
    if (span_ns > members->host->deadline_ns / 2) {
        span_ns = members->host->deadline_ns / 2;
    }
    standby->stand_ns = standby->now_ns + span_ns;
    standby->tend_ns = 0;
}

/* Rank 0 of a launch found no job. */
static void form(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    char cause[MSDU__CAUSE_BYTES] = "";
    switch (members->find.kind) {
    case MSDU__FIND_TCP:
        if (listen_there(members)) {
            stand(members);
        } else if (errno != EADDRINUSE &&
                   (errno != EADDRNOTAVAIL || standby->council.launch_ranks > 1)) {
            fail_place(members, MSDU_ERR_IO, "rank 0 cannot listen there", strerror(errno));
        }
        break;
    case MSDU__FIND_FILE:
        if (publish(members, cause)) {
            stand(members);
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
           council->record.count == 0 && members->standby.stand_ns == 0;
}

/* Another one was there before: this process is a newcomer. */
static void give_way(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    standby->stand_ns = 0;
    if (standby->meet_fd >= 0) {
        msdu__port_close(standby->meet_fd);
        standby->meet_fd = -1;
    }
}

static bool is_own(const struct msdu__members *members, const struct msdu__rank0_place *place)
{
    return memcmp(place->id, &members->standby.council.self.id, sizeof(place->id)) == 0;
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
        stand(members);
    } else if (is_found) {
        members->standby.was_found =
            members->find.kind == MSDU__FIND_REDIS || members->find.kind == MSDU__FIND_STORE;
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

static void ask_meeting(struct msdu__standby *standby)
{
    msdu__council_join(&standby->council, &standby->out);
    if (msdu__lines_has_room(standby->meeting)) {
        msdu__line_say(standby->meeting, MSDU__FRAME_REQUEST, &standby->out);
    }
}

/* The notice that this process published; false: another one's is there, or the look goes on. */
static bool is_still_there(struct msdu__members *members)
{
    struct msdu__rank0_place place;
    char cause[MSDU__CAUSE_BYTES];
    bool is_found = false;
    if (members->find.kind == MSDU__FIND_FILE) {
        is_found = msdu__find_lookup(&members->find, 0, &place, cause) == MSDU_OK;
    } else if (!get_answer(&members->mail, &is_found, &place)) {
        wish(members, MSDU__WISH_PLACE);
        return false;
    }
    if (is_found && place.count == 0) { /* to a further WISH_PUBLISH */
        return false;
    }
    if (is_found && !is_own(members, &place)) {
        give_way(members);
        begin_meeting(members, &place);
    } else if (!is_found) { /* whoever stood here before took it away */
        form(members);
    }
    return is_found && members->standby.stand_ns != 0;
}

/* Where two jobs would begin at once, the first place counts. True once a look at those before this
 * process' own found nobody. */
static bool is_first(struct msdu__members *members, bool is_due)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__line *meeting = standby->meeting;
    struct msdu__rank0_place place;
    if (meeting != NULL && meeting->fd >= 0 && meeting->state == MSDU__LINE_OPEN) {
        if (msdu__member_is(&standby->council.self, &meeting->id)) {
            return true; /* by another address of this machine */
        }
        give_way(members);
        return false;
    }
    if (meeting == NULL && is_due && standby->tend_ns != 0) {
        return true;
    }
    if (meeting == NULL && standby->now_ns >= standby->tend_ns) {
        standby->tend_ns = standby->now_ns + TEND_NS;
        begin_meeting(members, places_before(standby, &place));
    }
    if (standby->meeting != NULL) {
        ask_meeting(standby);
    }
    return false;
}

/* This process stands where newcomers look. */
static void go_on_standing(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    bool is_due = standby->now_ns >= standby->stand_ns;
    bool is_so =
        members->find.kind == MSDU__FIND_TCP ? is_first(members, is_due) : is_still_there(members);
    if (is_so && is_due) {
        standby->stand_ns = 0;
        msdu__council_form(&standby->council);
    }
}

void msdu__meet_join(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__member *host = msdu__council_host(&standby->council);
    struct msdu__rank0_place place;
    bool is_found = false;
    if (host != NULL) {
        give_way(members);
        msdu__council_join(&standby->council, &standby->out);
        msdu__lines_post(standby, host, &standby->out);
    } else if (standby->stand_ns != 0) {
        go_on_standing(members);
    } else if (standby->meeting != NULL) {
        ask_meeting(standby);
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

/* Also the others of the lowest ranks: a newcomer may come while rank 0 is dead and a step lasts.
 */
static bool is_looker(const struct msdu__council *council)
{
    return council->rank < LOOKERS || council->is_short;
}

static void tend_port(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__rank0_place place;
    if (standby->meet_fd < 0) {
        (void)listen_there(members);
    }
    if (is_looker(&standby->council)) {
        tell_stranger(members, places_before(standby, &place));
    }
}

static void tend_file(struct msdu__members *members)
{
    struct msdu__rank0_place place;
    struct msdu__member_id id;
    char cause[MSDU__CAUSE_BYTES];
    const struct msdu__council *council = &members->standby.council;
    bool is_there = msdu__find_lookup(&members->find, 0, &place, cause) == MSDU_OK;
    memcpy(&id, place.id, sizeof(id));
    if (is_keeper(council) && !(is_there && is_own(members, &place))) {
        (void)publish(members, cause);
    }
    if (is_there && msdu__record_find(&council->record, &id) < 0) {
        tell_stranger(members, &place);
    }
}

void msdu__meet_tend(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__council *council = &standby->council;
    bool is_newcomer = council->phase == MSDU__PHASE_JOINING;
    if (is_newcomer && standby->meet_fd >= 0 && standby->stand_ns == 0) {
        give_way(members); /* the launch was one of a job that runs */
    }
    if (council->rank < 0 || standby->now_ns < standby->tend_ns) {
        return;
    }
    standby->tend_ns = is_looker(council) ? standby->now_ns + TEND_NS : UINT64_MAX;
    if (standby->meeting != NULL) {
        msdu__line_hang_up(standby->meeting);
        standby->meeting->asked_ns = 0;
        standby->meeting->has_id = false;
        standby->meeting = NULL;
    }
    if (members->find.kind == MSDU__FIND_TCP) {
        tend_port(members);
    } else if (members->find.kind == MSDU__FIND_FILE && is_looker(council)) {
        tend_file(members);
    } else if (members->find.kind != MSDU__FIND_FILE && council->is_short) {
        wish(members, MSDU__WISH_PUBLISH); /* the owner waits in next() */
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
