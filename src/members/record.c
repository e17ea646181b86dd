/* SPDX-License-Identifier: Apache-2.0 */
/* The record of an epoch: its number and its members in the order of ranks. Pure. */
#include "record.h"

#include <string.h>

bool msdu__member_is(const struct msdu__member *member, const struct msdu__member_id *id)
{
    return memcmp(&member->id, id, sizeof(*id)) == 0;
}

int32_t msdu__record_find(const struct msdu__record *record, const struct msdu__member_id *id)
{
    for (uint32_t i = 0; i < record->count; i++) {
        if (msdu__member_is(&record->members[i], id)) {
            return (int32_t)i;
        }
    }
    return -1;
}

static bool has_state(const struct msdu__candidate *candidate)
{
    return candidate->report != NULL && candidate->report->has_state;
}

/* The donor; `count` if there is none. */
static uint32_t find_donor(const struct msdu__candidate *candidates, uint32_t count)
{
    uint32_t donor = count;
    for (uint32_t i = 0; i < count; i++) {
        if (has_state(&candidates[i]) &&
            (donor == count || candidates[i].report->round > candidates[donor].report->round)) {
            donor = i;
        }
    }
    return donor;
}

static void append(struct msdu__record *next, const struct msdu__candidate *candidate)
{
    struct msdu__member *member = &next->members[next->count++];
    *member = *candidate->member;
    if (candidate->report == NULL) {
        member->since = next->number;
        next->joined++;
    }
    if (!has_state(candidate) || candidate->report->round != next->round) {
        next->behind++;
    }
}

bool msdu__record_make(const struct msdu__record *last, const struct msdu__candidate *candidates,
                       uint32_t count, uint32_t most, struct msdu__record *next_out)
{
    uint32_t donor = find_donor(candidates, count);
    if (donor == count) {
        return false;
    }
    memset(next_out, 0, sizeof(*next_out));
    next_out->number = last->number + 1;
    next_out->round = candidates[donor].report->round;
    next_out->step = candidates[donor].report->step;
    append(next_out, &candidates[donor]);
    for (uint32_t i = 0; i < count; i++) {
        bool is_old = candidates[i].report != NULL;
        bool has_room = next_out->count < most && next_out->count < MSDU__MEMBERS_MOST;
        if (i != donor && (is_old || has_room)) {
            append(next_out, &candidates[i]);
        }
    }
    next_out->lost = last->count - (next_out->count - next_out->joined);
    return true;
}
