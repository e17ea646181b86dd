/* SPDX-License-Identifier: Apache-2.0 */
/* The council's events: what came, and what became of other processes. Pure. */
#include "council.h"

#include "gather.h"

#include <string.h>

void msdu__council_init(struct msdu__council *council, const struct msdu__post *post,
                        const struct msdu__rules *rules, const struct msdu__member *self,
                        int32_t launch_rank, int32_t launch_ranks)
{
    memset(council, 0, sizeof(*council));
    council->post = *post;
    council->rules = *rules;
    council->self = *self;
    council->launch_rank = launch_rank;
    council->launch_ranks = launch_ranks;
    council->phase = MSDU__PHASE_JOINING;
    council->rank = -1;
    council->pinged = -1;
}

static bool is_member(const struct msdu__council *council)
{
    return council->rank >= 0 && council->phase != MSDU__PHASE_STOPPED;
}

/* The peer of a process; NULL: it is none, or this process itself. */
static struct msdu__peer *find_peer(struct msdu__council *council, const struct msdu__member_id *id)
{
    int32_t rank = msdu__record_find(&council->record, id);
    return rank < 0 || rank == council->rank ? NULL : &council->peers[rank];
}

static uint32_t rank_of(const struct msdu__council *council, const struct msdu__peer *peer)
{
    return (uint32_t)(peer - council->peers);
}

/* --- launch --- */

static void tell_all(struct msdu__council *council)
{
    for (uint32_t i = 0; i < council->record.count; i++) {
        const struct msdu__peer *peer = &council->peers[i];
        if ((int32_t)i != council->rank && !peer->is_told && peer->seen != MSDU__SEEN_DEAD) {
            msdu__gather_send(council, MSDU__SAY_COMMIT, i);
        }
    }
}

/* FORMING: `waiting` holds the others by rank. The first epoch begins with the last of them. */
static void form(struct msdu__council *council)
{
    struct msdu__record *first = &council->proposal;
    if (council->waiting_count + 1 < (uint32_t)council->launch_ranks) {
        return;
    }
    memset(first, 0, sizeof(*first));
    first->number = 1;
    first->count = (uint32_t)council->launch_ranks;
    first->members[0] = council->self;
    for (uint32_t i = 1; i < first->count; i++) {
        first->members[i] = council->waiting[i].member;
    }
    for (uint32_t i = 0; i < first->count; i++) {
        first->members[i].since = 1;
    }
    memset(council->waiting, 0, sizeof(council->waiting));
    council->waiting_count = 0;
    msdu__gather_adopt(council, first, false);
    council->is_teller = true;
    tell_all(council);
}

void msdu__council_form(struct msdu__council *council)
{
    council->phase = MSDU__PHASE_FORMING;
    form(council);
}

/* Returns the kind of the reply. */
static uint32_t take_launch(struct msdu__council *council, const struct msdu__letter *in)
{
    if (in->ranks != council->launch_ranks || in->rank < 1 || in->rank >= in->ranks) {
        return MSDU__SAY_DENIED;
    }
    struct msdu__waiting *place = &council->waiting[in->rank];
    if (place->member.place[0] != '\0') {
        return msdu__member_is(&place->member, &in->from) ? MSDU__SAY_LIST : MSDU__SAY_DENIED;
    }
    place->member.id = in->from;
    memcpy(place->member.place, in->place, sizeof(in->place));
    council->waiting_count++;
    form(council);
    return council->phase == MSDU__PHASE_FORMING ? MSDU__SAY_LIST : MSDU__SAY_PAST;
}

/* --- newcomers --- */

static void take_newcomer(struct msdu__council *council, const struct msdu__letter *in)
{
    for (uint32_t i = 0; i < council->waiting_count; i++) {
        if (msdu__member_is(&council->waiting[i].member, &in->from)) {
            return;
        }
    }
    if (council->waiting_count < MSDU__MEMBERS_MOST) {
        struct msdu__waiting *place = &council->waiting[council->waiting_count++];
        place->member.id = in->from;
        memcpy(place->member.place, in->place, sizeof(in->place));
    }
}

/* Returns the kind of the reply. */
static uint32_t take_join(struct msdu__council *council, const struct msdu__letter *in)
{
    if (council->phase == MSDU__PHASE_FORMING) {
        return take_launch(council, in);
    }
    if (msdu__record_find(&council->record, &in->from) >= 0) {
        return MSDU__SAY_PAST;
    }
    if (is_member(council)) {
        take_newcomer(council, in);
    }
    return MSDU__SAY_LIST;
}

static bool has_waiting(const struct msdu__council *council, uint32_t i)
{
    return council->waiting[i].member.place[0] != '\0';
}

/* Where a newcomer stands in `waiting`; MSDU__MEMBERS_MOST: nowhere. */
static uint32_t find_waiting(const struct msdu__council *council, const struct msdu__member_id *id)
{
    uint32_t i = 0;
    while (i < MSDU__MEMBERS_MOST &&
           !(has_waiting(council, i) && msdu__member_is(&council->waiting[i].member, id))) {
        i++;
    }
    return i;
}

/* A record that names a newcomer which is gone is made anew. */
static void drop_waiting(struct msdu__council *council, const struct msdu__member_id *id)
{
    uint32_t at = find_waiting(council, id);
    if (at == MSDU__MEMBERS_MOST) {
        return;
    }
    bool is_named = council->phase == MSDU__PHASE_PROPOSING && council->best == 0 &&
                    msdu__record_find(&council->proposal, id) >= 0;
    uint32_t last = council->phase == MSDU__PHASE_FORMING ? at : council->waiting_count - 1;
    memmove(&council->waiting[at], &council->waiting[at + 1],
            (last - at) * sizeof(council->waiting[0]));
    memset(&council->waiting[last], 0, sizeof(council->waiting[0]));
    council->waiting_count--;
    if (is_named) {
        msdu__gather_reopen(council);
    }
}

/* --- decisions of others --- */

/* JOINING: who the members are, in order to ask them. */
static void take_list(struct msdu__council *council, const struct msdu__record *record)
{
    if (record->number > council->record.number) {
        council->record = *record;
        memset(council->peers, 0, sizeof(council->peers));
    }
}

static void take_record(struct msdu__council *council, const struct msdu__letter *in)
{
    const struct msdu__record *record = &in->record;
    uint32_t number = council->record.number;
    bool is_named = msdu__record_find(record, &council->self.id) >= 0;
    bool is_forming = council->phase == MSDU__PHASE_FORMING;
    if (is_forming && record->count > 0) { /* the job runs already: this launch is a newcomer */
        council->phase = MSDU__PHASE_JOINING;
        memset(council->waiting, 0, sizeof(council->waiting));
        council->waiting_count = 0;
    }
    if (council->phase == MSDU__PHASE_JOINING || is_forming) {
        if (is_named) {
            msdu__gather_adopt(council, record, in->is_over);
        } else {
            take_list(council, record);
        }
    } else if (is_member(council) && record->number > number) {
        if (is_named && council->has_left && record->number == number + 1) {
            msdu__gather_adopt(council, record, in->is_over);
        } else {
            msdu__gather_stop(council, MSDU__STOP_PUT_OUT);
        }
    }
}

/* --- requests --- */

/* A process that answers or asks is not silent. While a record is proposed, that comes too late. */
static void note_alive(const struct msdu__council *council, struct msdu__peer *peer)
{
    if (peer->seen == MSDU__SEEN_SILENT && council->phase != MSDU__PHASE_PROPOSING) {
        peer->seen = MSDU__SEEN_NOTHING;
    } else if (peer->seen == MSDU__SEEN_SILENT) {
        peer->is_back = true;
    }
}

static void promise(struct msdu__council *council, const struct msdu__letter *in)
{
    council->promised = in->ballot;
    msdu__gather_reopen(council);
}

static uint32_t take_prepare(struct msdu__council *council, const struct msdu__letter *in,
                             uint32_t rank, struct msdu__letter *reply)
{
    if ((int32_t)rank > council->rank) {
        return MSDU__SAY_ALIVE; /* this process is the one that gathers */
    }
    if (in->ballot < council->promised) {
        reply->ballot = council->promised;
        return MSDU__SAY_REFUSE;
    }
    promise(council, in);
    reply->ballot = in->ballot;
    reply->report = council->report;
    reply->accepted = council->accepted;
    reply->record = council->accepted_record;
    return MSDU__SAY_PROMISE;
}

static uint32_t take_accept(struct msdu__council *council, const struct msdu__letter *in,
                            struct msdu__letter *reply)
{
    if (in->ballot < council->promised) {
        reply->ballot = council->promised;
        return MSDU__SAY_REFUSE;
    }
    promise(council, in);
    council->accepted = in->ballot;
    council->accepted_record = in->record;
    reply->ballot = in->ballot;
    return MSDU__SAY_ACCEPTED;
}

/* A request about the present epoch, from one of its members. Returns the kind of the reply. */
static uint32_t take_request(struct msdu__council *council, const struct msdu__letter *in,
                             struct msdu__peer *peer, struct msdu__letter *reply)
{
    uint32_t rank = rank_of(council, peer);
    note_alive(council, peer);
    council->is_awaited = true;
    if (in->kind == MSDU__SAY_PING) {
        reply->is_patient = !council->has_left || msdu__council_is_patient(council);
        msdu__gather_ask(council, rank);
        return MSDU__SAY_ALIVE;
    }
    if (!council->has_left) {
        return MSDU__SAY_TRAINING;
    }
    return in->kind == MSDU__SAY_PREPARE ? take_prepare(council, in, rank, reply)
                                         : take_accept(council, in, reply);
}

/* Returns the kind of the reply, 0: none. */
static uint32_t take(struct msdu__council *council, const struct msdu__letter *in,
                     struct msdu__letter *reply)
{
    bool is_newcomer = council->phase == MSDU__PHASE_JOINING;
    if (in->kind == MSDU__SAY_COMMIT) {
        take_record(council, in);
        return MSDU__SAY_KNOWN;
    }
    if (in->kind == MSDU__SAY_JOIN) {
        return take_join(council, in);
    }
    if (is_newcomer && in->kind == MSDU__SAY_ACCEPT) {
        reply->ballot = in->ballot;
        return MSDU__SAY_ACCEPTED;
    }
    if (is_newcomer || in->number > council->record.number) {
        return MSDU__SAY_BEHIND;
    }
    if (in->number < council->record.number) {
        return MSDU__SAY_PAST;
    }
    struct msdu__peer *peer = find_peer(council, &in->from);
    return peer == NULL ? 0 : take_request(council, in, peer, reply);
}

bool msdu__council_answer(struct msdu__council *council, const struct msdu__letter *in,
                          struct msdu__letter *reply_out)
{
    if (council->phase == MSDU__PHASE_STOPPED) {
        return false;
    }
    msdu__gather_letter(council, 0, reply_out);
    uint32_t kind = take(council, in, reply_out);
    reply_out->kind = kind;
    reply_out->number = council->record.number;
    if (kind == MSDU__SAY_PAST || kind == MSDU__SAY_LIST) {
        reply_out->record = council->record;
        reply_out->is_over = council->has_left;
    }
    msdu__gather_settle(council);
    return kind != 0;
}

/* --- replies --- */

/* To PREPARE or ACCEPT, about the present epoch. */
static void hear_vote(struct msdu__council *council, const struct msdu__letter *reply,
                      struct msdu__peer *peer)
{
    bool is_gathering = council->phase == MSDU__PHASE_GATHERING;
    bool is_proposing = council->phase == MSDU__PHASE_PROPOSING;
    if (reply->kind == MSDU__SAY_TRAINING) {
        bool is_news = is_gathering && peer->seen == MSDU__SEEN_NOTHING;
        peer->seen = is_news ? MSDU__SEEN_TRAINING : peer->seen;
    } else if (reply->kind == MSDU__SAY_REFUSE && (is_gathering || is_proposing) &&
               reply->ballot > council->promised) {
        msdu__gather_outbid(council, reply->ballot);
    } else if (reply->ballot != council->ballot) {
        return; /* of an earlier ballot */
    } else if (reply->kind == MSDU__SAY_PROMISE && is_gathering) {
        peer->seen = MSDU__SEEN_PROMISED;
        peer->report = reply->report;
        msdu__gather_consider(council, reply->accepted, &reply->record);
    } else if (reply->kind == MSDU__SAY_ACCEPTED && is_proposing) {
        peer->has_accepted = true;
    }
}

static void hear_member(struct msdu__council *council, const struct msdu__letter *reply,
                        struct msdu__peer *peer)
{
    note_alive(council, peer);
    if (reply->kind == MSDU__SAY_BEHIND) {
        msdu__gather_send(council, MSDU__SAY_COMMIT, rank_of(council, peer));
    } else if (reply->kind == MSDU__SAY_KNOWN) {
        peer->is_told = true;
        msdu__gather_ask(council, rank_of(council, peer));
    } else if (reply->number != council->record.number) {
        return;
    } else if (reply->kind == MSDU__SAY_ALIVE) {
        council->is_patient = reply->is_patient;
    } else {
        hear_vote(council, reply, peer);
    }
}

void msdu__council_hear(struct msdu__council *council, const struct msdu__letter *reply)
{
    struct msdu__peer *peer = find_peer(council, &reply->from);
    bool is_newcomer = council->phase == MSDU__PHASE_JOINING;
    if (council->phase == MSDU__PHASE_STOPPED) {
        return;
    }
    if (reply->kind == MSDU__SAY_PAST || (reply->kind == MSDU__SAY_LIST && is_newcomer)) {
        take_record(council, reply);
    } else if (reply->kind == MSDU__SAY_DENIED && is_newcomer) {
        msdu__gather_stop(council, MSDU__STOP_DENIED);
    } else if (is_member(council) && peer != NULL) {
        hear_member(council, reply, peer);
    } else if (reply->kind == MSDU__SAY_ACCEPTED && reply->ballot == council->ballot) {
        uint32_t at = find_waiting(council, &reply->from);
        if (at < MSDU__MEMBERS_MOST) {
            council->waiting[at].has_accepted = true;
        }
    }
    msdu__gather_settle(council);
}

/* --- what became of others --- */

void msdu__council_leave(struct msdu__council *council, const struct msdu__report *report)
{
    council->report = *report;
    council->has_left = true;
    council->phase = MSDU__PHASE_WAITING;
    council->pinged = -1;
    msdu__gather_settle(council);
}

static void lose(struct msdu__council *council, const struct msdu__member_id *id, uint32_t seen)
{
    struct msdu__peer *peer = find_peer(council, id);
    if (peer == NULL || peer->seen == MSDU__SEEN_DEAD || peer->seen == seen) {
        return;
    }
    bool is_named = council->phase == MSDU__PHASE_PROPOSING && council->best == 0 &&
                    msdu__record_find(&council->proposal, id) >= 0;
    bool is_missed = seen == MSDU__SEEN_DEAD || !peer->has_accepted;
    peer->seen = seen;
    if (is_named && is_missed) {
        msdu__gather_reopen(council); /* gather again without it */
    }
}

void msdu__council_dead(struct msdu__council *council, const struct msdu__member_id *id)
{
    drop_waiting(council, id);
    lose(council, id, MSDU__SEEN_DEAD);
    msdu__gather_settle(council);
}

void msdu__council_silent(struct msdu__council *council, const struct msdu__member_id *id)
{
    drop_waiting(council, id);
    lose(council, id, MSDU__SEEN_SILENT);
    msdu__gather_settle(council);
}

void msdu__council_forget(struct msdu__council *council, const struct msdu__member_id *id)
{
    drop_waiting(council, id);
    msdu__gather_settle(council);
}

void msdu__council_waited(struct msdu__council *council)
{
    council->rules.has_patience = false;
    msdu__gather_settle(council);
}

void msdu__council_was_away(struct msdu__council *council)
{
    council->away = council->record.number;
}

void msdu__council_fence_is_old(struct msdu__council *council)
{
    council->is_fence_old = true;
}

void msdu__council_tick(struct msdu__council *council)
{
    if (!is_member(council)) {
        return;
    }
    council->pinged = -1;
    for (uint32_t i = 0; i < council->record.count; i++) {
        msdu__gather_ask(council, i);
    }
    if (council->is_teller) {
        tell_all(council);
    }
    msdu__gather_settle(council);
}

/* --- questions --- */

const struct msdu__member *msdu__council_host(const struct msdu__council *council)
{
    const struct msdu__member *found = NULL;
    for (uint32_t i = council->record.count; i-- > 0;) {
        uint32_t seen = council->peers[i].seen;
        if (seen != MSDU__SEEN_DEAD && seen != MSDU__SEEN_SILENT) {
            found = &council->record.members[i];
        }
    }
    return found;
}

void msdu__council_join(const struct msdu__council *council, struct msdu__letter *join_out)
{
    msdu__gather_letter(council, MSDU__SAY_JOIN, join_out);
    join_out->rank = council->launch_rank;
    join_out->ranks = council->launch_ranks;
    memcpy(join_out->place, council->self.place, sizeof(join_out->place));
}

bool msdu__council_has_newcomer(const struct msdu__council *council)
{
    return council->rank == 0 && council->phase != MSDU__PHASE_STOPPED &&
           council->waiting_count > 0 && council->record.count < council->rules.most;
}

bool msdu__council_is_patient(const struct msdu__council *council)
{
    if (council->phase == MSDU__PHASE_WAITING) {
        return council->is_patient;
    }
    for (uint32_t i = 0; i < council->record.count; i++) {
        if ((int32_t)i != council->rank && council->peers[i].seen == MSDU__SEEN_TRAINING) {
            return true;
        }
    }
    return council->is_short;
}
