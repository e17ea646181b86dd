/* SPDX-License-Identifier: Apache-2.0 */
/* The gatherer's part of the council, and how a decision or a stop is taken over. Pure. */
#include "gather.h"

#include <string.h>

#define TRIES_MOST  64U /* most ballots of one process for one epoch */
#define BALLOT_BITS 16  /* of its rank, counted from 1; the rest counts tries */

static int32_t ballot_owner(uint64_t ballot)
{
    return (int32_t)(ballot & ((UINT64_C(1) << BALLOT_BITS) - 1)) - 1;
}

void msdu__gather_letter(const struct msdu__council *council, uint32_t kind,
                         struct msdu__letter *letter_out)
{
    memset(letter_out, 0, sizeof(*letter_out));
    letter_out->kind = kind;
    letter_out->number = council->record.number;
    letter_out->from = council->self.id;
}

static void compose(struct msdu__council *council, uint32_t kind)
{
    struct msdu__letter *letter = &council->outgoing;
    msdu__gather_letter(council, kind, letter);
    if (kind == MSDU__SAY_PREPARE || kind == MSDU__SAY_ACCEPT) {
        letter->ballot = council->ballot;
    }
    if (kind == MSDU__SAY_ACCEPT) {
        letter->record = council->proposal;
    } else if (kind == MSDU__SAY_COMMIT) {
        letter->record = council->record;
        letter->is_over = council->has_left;
    }
}

void msdu__gather_send(struct msdu__council *council, uint32_t kind, uint32_t rank)
{
    compose(council, kind);
    council->post.send(council->post.user, &council->record.members[rank], &council->outgoing);
}

void msdu__gather_stop(struct msdu__council *council, enum msdu__stop cause)
{
    council->phase = MSDU__PHASE_STOPPED;
    council->stop = cause;
}

static bool is_absent(const struct msdu__peer *peer)
{
    return peer->seen == MSDU__SEEN_DEAD || peer->seen == MSDU__SEEN_SILENT;
}

static bool is_self(const struct msdu__council *council, uint32_t rank)
{
    return (int32_t)rank == council->rank;
}

void msdu__gather_ask(struct msdu__council *council, uint32_t rank)
{
    const struct msdu__peer *peer = &council->peers[rank];
    if (is_self(council, rank) || peer->seen == MSDU__SEEN_DEAD) {
        return;
    }
    if (council->phase == MSDU__PHASE_GATHERING && peer->seen != MSDU__SEEN_PROMISED) {
        msdu__gather_send(council, MSDU__SAY_PREPARE, rank);
    } else if (council->phase == MSDU__PHASE_PROPOSING && peer->seen == MSDU__SEEN_PROMISED &&
               !peer->has_accepted) {
        msdu__gather_send(council, MSDU__SAY_ACCEPT, rank);
    }
}

void msdu__gather_consider(struct msdu__council *council, uint64_t ballot,
                           const struct msdu__record *record)
{
    /* A record of this process' own making that it has not decided nobody will decide. */
    bool is_own = ballot_owner(ballot) == council->rank && record->origin == ballot;
    if (ballot > council->best && !is_own) {
        council->best = ballot;
        council->proposal = *record;
    }
}

void msdu__gather_reopen(struct msdu__council *council)
{
    council->phase = MSDU__PHASE_WAITING;
    for (uint32_t i = 0; i < council->record.count; i++) {
        struct msdu__peer *peer = &council->peers[i];
        if (peer->is_back && peer->seen == MSDU__SEEN_SILENT) {
            peer->seen = MSDU__SEEN_NOTHING;
        }
        peer->is_back = false;
    }
}

void msdu__gather_outbid(struct msdu__council *council, uint64_t ballot)
{
    int32_t owner = ballot_owner(ballot);
    if (owner >= 0 && owner < (int32_t)council->record.count) {
        council->peers[owner].is_back = true;
    }
    council->promised = ballot; /* so that the next one is higher */
    msdu__gather_reopen(council);
}

static void begin(struct msdu__council *council)
{
    if (++council->tries > TRIES_MOST) {
        msdu__gather_stop(council, MSDU__STOP_TRIES);
        return;
    }
    uint64_t tried = (council->promised >> BALLOT_BITS) + 1;
    council->ballot = tried << BALLOT_BITS | (uint64_t)(council->rank + 1);
    council->promised = council->ballot;
    council->phase = MSDU__PHASE_GATHERING;
    council->best = 0;
    council->is_short = false;
    msdu__gather_consider(council, council->accepted, &council->accepted_record);
    for (uint32_t i = 0; i < council->waiting_count; i++) {
        council->waiting[i].has_accepted = false;
    }
    for (uint32_t i = 0; i < council->record.count; i++) {
        struct msdu__peer *peer = &council->peers[i];
        peer->has_accepted = false;
        peer->seen = is_absent(peer) ? peer->seen : MSDU__SEEN_NOTHING;
        msdu__gather_ask(council, i);
    }
}

/* --- phase 1 --- */

/* How many reported, with this process, and how many are silent, or may have gone on before they
 * died; false: some may still report. */
static bool count_reports(const struct msdu__council *council, uint32_t *reported_out,
                          uint32_t *silent_out)
{
    bool was_away = council->away != 0 && council->away == council->record.number;
    *reported_out = 0;
    *silent_out = 0;
    for (uint32_t i = 0; i < council->record.count; i++) {
        uint32_t seen = is_self(council, i) ? MSDU__SEEN_PROMISED : council->peers[i].seen;
        *reported_out += seen == MSDU__SEEN_PROMISED;
        *silent_out += seen == MSDU__SEEN_SILENT || (was_away && seen == MSDU__SEEN_DEAD) ? 1 : 0;
        if (seen != MSDU__SEEN_PROMISED && !is_absent(&council->peers[i])) {
            return false;
        }
    }
    return true;
}

/* Silent members may be alive, and agree among themselves as well: only a majority cannot be
 * matched by another one. */
static bool has_majority(const struct msdu__council *council, uint32_t count)
{
    return 2 * count > council->record.count && count >= council->rules.least;
}

/* Silent members of an earlier epoch may go on with it once all others of that epoch are dead. */
static bool is_fenced(const struct msdu__council *council)
{
    uint32_t fence = council->record.fence;
    if (fence == 0 || council->is_fence_old) {
        return false;
    }
    for (uint32_t i = 0; i < council->record.count; i++) {
        bool is_here = is_self(council, i) || council->peers[i].seen == MSDU__SEEN_PROMISED;
        if (is_here && council->record.members[i].since <= fence) {
            return false;
        }
    }
    return true;
}

/* A record of those who reported and of newcomers. Returns false if none can be made: then this
 * process has stopped. */
static bool make_record(struct msdu__council *council, bool has_silent)
{
    struct msdu__candidate candidates[2 * MSDU__MEMBERS_MOST];
    struct msdu__record *next = &council->proposal;
    const struct msdu__record *last = &council->record;
    uint32_t count = 0;
    for (uint32_t i = 0; i < last->count; i++) {
        const struct msdu__peer *peer = &council->peers[i];
        if (is_self(council, i) || peer->seen == MSDU__SEEN_PROMISED) {
            candidates[count++] = (struct msdu__candidate){
                &last->members[i], is_self(council, i) ? &council->report : &peer->report};
        }
    }
    for (uint32_t i = 0; i < council->waiting_count; i++) {
        candidates[count++] = (struct msdu__candidate){&council->waiting[i].member, NULL};
    }
    if (!msdu__record_make(last, candidates, count, council->rules.most, next)) {
        msdu__gather_stop(council, MSDU__STOP_STATELESS);
        return false;
    }
    next->fence = council->is_fence_old ? 0 : last->fence;
    if (has_silent && next->fence == 0) {
        next->fence = last->number;
    }
    next->origin = council->ballot;
    return true;
}

static void propose(struct msdu__council *council)
{
    council->phase = MSDU__PHASE_PROPOSING;
    council->accepted = council->ballot;
    council->accepted_record = council->proposal;
    for (uint32_t i = 0; i < council->record.count; i++) {
        msdu__gather_ask(council, i);
    }
    for (uint32_t i = 0; i < council->waiting_count && council->best == 0; i++) {
        const struct msdu__member *member = &council->waiting[i].member;
        if (msdu__record_find(&council->proposal, &member->id) >= 0) {
            compose(council, MSDU__SAY_ACCEPT);
            council->post.send(council->post.user, member, &council->outgoing);
        }
    }
}

static void check_reports(struct msdu__council *council)
{
    uint32_t reported = 0;
    uint32_t silent = 0;
    if (!count_reports(council, &reported, &silent)) {
        return;
    }
    if (silent > 0 && !has_majority(council, reported)) {
        bool was_away = council->away == council->record.number;
        msdu__gather_stop(council, was_away ? MSDU__STOP_AWAY : MSDU__STOP_MINORITY);
    } else if (is_fenced(council)) {
        msdu__gather_stop(council, MSDU__STOP_FENCED);
    } else if (council->best != 0) {
        propose(council); /* it may have been decided: nothing else can be */
    } else if (make_record(council, silent > 0)) {
        council->is_short = council->proposal.count < council->rules.least;
        if (!council->is_short) {
            propose(council);
        } else if (!council->rules.has_patience) {
            msdu__gather_stop(council, MSDU__STOP_FEW);
        }
    }
}

/* --- phase 2 --- */

/* A new record counts once all that it names have accepted it. One that is taken over names some
 * who are dead. */
static bool have_newcomers_accepted(const struct msdu__council *council)
{
    for (uint32_t i = 0; i < council->waiting_count && council->best == 0; i++) {
        const struct msdu__waiting *waiting = &council->waiting[i];
        if (!waiting->has_accepted &&
            msdu__record_find(&council->proposal, &waiting->member.id) >= 0) {
            return false;
        }
    }
    return true;
}

static void decide(struct msdu__council *council)
{
    bool is_over = false;
    for (uint32_t i = 0; i < council->record.count; i++) {
        is_over =
            is_over || (!is_self(council, i) && is_absent(&council->peers[i]) &&
                        msdu__record_find(&council->proposal, &council->record.members[i].id) >= 0);
    }
    msdu__gather_adopt(council, &council->proposal, is_over);
    if (council->phase != MSDU__PHASE_STOPPED) {
        council->is_teller = true;
        for (uint32_t i = 0; i < council->record.count; i++) {
            if (!is_self(council, i)) {
                msdu__gather_send(council, MSDU__SAY_COMMIT, i);
            }
        }
    }
}

static void check_accepted(struct msdu__council *council)
{
    uint32_t accepted = 1;
    bool has_silent = false;
    for (uint32_t i = 0; i < council->record.count; i++) {
        const struct msdu__peer *peer = &council->peers[i];
        if (!is_self(council, i) && !peer->has_accepted && !is_absent(peer)) {
            return;
        }
        accepted += !is_self(council, i) && peer->has_accepted && peer->seen != MSDU__SEEN_DEAD;
        has_silent = has_silent || (!is_self(council, i) && peer->seen == MSDU__SEEN_SILENT);
    }
    if (has_silent && !has_majority(council, accepted)) {
        msdu__gather_stop(council, MSDU__STOP_MINORITY);
    } else if (have_newcomers_accepted(council)) {
        decide(council);
    }
}

/* --- who gathers --- */

/* The lowest rank that is left. */
static uint32_t find_gatherer(const struct msdu__council *council)
{
    uint32_t rank = 0;
    while (!is_self(council, rank) && is_absent(&council->peers[rank])) {
        rank++;
    }
    return rank;
}

/* One step of whoever has left the epoch; false: there is nothing more to do. */
static bool step(struct msdu__council *council)
{
    if (!council->has_left || council->phase == MSDU__PHASE_STOPPED) {
        return false;
    }
    uint32_t phase = council->phase;
    uint32_t number = council->record.number;
    uint32_t gatherer = find_gatherer(council);
    if (!is_self(council, gatherer)) {
        council->phase = MSDU__PHASE_WAITING;
        if (council->pinged != (int32_t)gatherer) {
            council->pinged = (int32_t)gatherer;
            msdu__gather_send(council, MSDU__SAY_PING, gatherer);
        }
        return false;
    }
    if (phase == MSDU__PHASE_WAITING) {
        begin(council);
    } else if (phase == MSDU__PHASE_GATHERING) {
        check_reports(council);
    } else {
        check_accepted(council);
    }
    return council->phase != phase || council->record.number != number;
}

void msdu__gather_settle(struct msdu__council *council)
{
    while (step(council)) {
    }
}

/* --- what was decided --- */

/* Newcomers that were admitted do not wait any longer. */
static void strike_admitted(struct msdu__council *council)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < council->waiting_count; i++) {
        if (msdu__record_find(&council->record, &council->waiting[i].member.id) < 0) {
            council->waiting[kept++] = council->waiting[i];
        }
    }
    memset(&council->waiting[kept], 0,
           (council->waiting_count - kept) * sizeof(council->waiting[0]));
    council->waiting_count = kept;
}

void msdu__gather_adopt(struct msdu__council *council, const struct msdu__record *record,
                        bool is_over)
{
    bool is_same_fence = record->fence == council->record.fence;
    council->record = *record;
    council->rank = msdu__record_find(record, &council->self.id);
    council->is_fence_old = council->is_fence_old && is_same_fence;
    council->promised = 0;
    council->accepted = 0;
    council->pinged = -1;
    council->tries = 0;
    council->ballot = 0;
    council->best = 0;
    council->is_teller = false;
    council->is_awaited = is_over;
    council->is_patient = false;
    memset(&council->accepted_record, 0, sizeof(council->accepted_record));
    memset(&council->proposal, 0, sizeof(council->proposal));
    memset(council->peers, 0, sizeof(council->peers));
    strike_admitted(council);
    council->has_left = is_over;
    council->phase = is_over ? MSDU__PHASE_WAITING : MSDU__PHASE_TRAINING;
    if (council->rank < 0) {
        msdu__gather_stop(council, MSDU__STOP_PUT_OUT);
    }
}
