/* SPDX-License-Identifier: Apache-2.0 */
/* Why a process' part in the job ended, in one line. */
#include "backend/rank_list.h"
#include "impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAMES_BYTES 128
#define SPAN_BYTES  32

static uint32_t mark_seen(const struct msdu__council *council, uint32_t seen,
                          bool marks[MSDU__MEMBERS_MOST])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < council->record.count; i++) {
        marks[i] = (int32_t)i != council->rank && council->peers[i].seen == seen;
        count += marks[i];
    }
    return count;
}

static void explain_minority(const struct msdu__members *members, char *text)
{
    const struct msdu__council *council = &members->standby.council;
    bool marks[MSDU__MEMBERS_MOST];
    char names[NAMES_BYTES];
    char span[SPAN_BYTES];
    int32_t ranks = (int32_t)council->record.count;
    uint32_t dead = mark_seen(council, MSDU__SEEN_DEAD, marks);
    uint32_t silent = mark_seen(council, MSDU__SEEN_SILENT, marks);
    (void)msdu__rank_list(marks, true, ranks, names, sizeof(names));
    msdu__span_text(members->settings.silence_ns, span, sizeof(span));
    (void)snprintf(
        text, MSDU__HUB_TEXT_BYTES,
        "%s did not answer within %s, and only %" PRIu32 " of %" PRId32 " members of epoch %" PRIu32
        " reported: no majority, so this rank stops lest two groups train on",
        names, span, council->record.count - silent - dead, ranks, council->record.number);
}

msdu_status msdu__explain_stop(const struct msdu__members *members, char text[MSDU__HUB_TEXT_BYTES])
{
    const struct msdu__council *council = &members->standby.council;
    uint32_t number = council->record.number;
    switch ((enum msdu__stop)council->stop) {
    case MSDU__STOP_MINORITY:
        explain_minority(members, text);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_AWAY:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "this rank stood still for seconds, and most members of epoch %" PRIu32
                       " do not answer: they may have gone on without it, so it stops",
                       number);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_FENCED:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "no member of epoch %" PRIu32 " is left, and members that were silent then "
                       "may train on: this rank stops",
                       council->record.fence);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_FEW:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "%" PRIu32 " members are left after epoch %" PRIu32
                       ", fewer than ranks_least %" PRIu32,
                       council->proposal.count, number, council->rules.least);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_STATELESS:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "no member that holds the parameters is left after epoch %" PRIu32, number);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_PUT_OUT:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "the other members went on without this rank after epoch %" PRIu32
                       ": it was silent for too long",
                       number);
        return MSDU_ERR_PEER_LOST;
    case MSDU__STOP_DENIED:
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                       "rendezvous %.160s: it refused rank %" PRId32 " of %" PRId32
                       ": another process has this rank, or the launch has another number of ranks",
                       members->find.shown, members->host->rank, members->host->ranks);
        return MSDU_ERR_DENIED;
    case MSDU__STOP_TRIES:
    case MSDU__STOP_NONE:
        break;
    }
    (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                   "the members did not agree on an epoch after %" PRIu32
                   ": some of them do not reach each other",
                   number);
    return MSDU_ERR_TIMEOUT;
}

void msdu__explain_launch(const struct msdu__members *members, char text[MSDU__HUB_TEXT_BYTES])
{
    const struct msdu__council *council = &members->standby.council;
    bool marks[MSDU__MEMBERS_MOST] = {true};
    char names[NAMES_BYTES];
    char span[SPAN_BYTES];
    msdu__span_text(members->host->deadline_ns, span, sizeof(span));
    if (council->phase == MSDU__PHASE_FORMING) {
        for (int32_t i = 1; i < council->launch_ranks; i++) {
            marks[i] = council->waiting[i].member.place[0] != '\0';
        }
        (void)msdu__rank_list(marks, false, council->launch_ranks, names, sizeof(names));
        (void)snprintf(text, MSDU__HUB_TEXT_BYTES, "%s did not join job %.128s within %s", names,
                       members->host->job, span);
        return;
    }
    (void)snprintf(
        text, MSDU__HUB_TEXT_BYTES, "rendezvous %.160s: %s, and nobody there answered for %s",
        members->find.shown,
        council->record.count > 0 ? "the job that ran here has ended" : "no job was found", span);
}
