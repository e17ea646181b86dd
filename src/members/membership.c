/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of membership as a backend offers them: the same in the words of msdu/backend.h. */
#include "membership.h"

#include "members.h"

#include <stdlib.h>

struct msdu_members {
    msdu__members *own;
};

static msdu_epoch told(const msdu_members *members, const msdu__epoch *epoch)
{
    return (msdu_epoch){
        .size = sizeof(msdu_epoch),
        .number = epoch->number,
        .rank = epoch->rank,
        .ranks = epoch->ranks,
        .lost = (int32_t)epoch->lost,
        .joined = (int32_t)epoch->joined,
        .is_newcomer = epoch->is_newcomer ? 1 : 0,
        .store = msdu__members_store(members->own),
    };
}

static void close_members(msdu_members *members)
{
    if (members != NULL) {
        msdu__members_close(members->own);
        free(members);
    }
}

static msdu_status open_members(const msdu_host *host, int32_t least, int32_t most,
                                uint64_t wait_ns, msdu_members **members_out, msdu_epoch *epoch_out)
{
    msdu__epoch epoch;
    msdu__members_settings settings = {
        .join_wait_ns = wait_ns, .ranks_least = least, .ranks_most = most};
    msdu_members *members = calloc(1, sizeof(*members));
    if (members == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "no memory to be a member of the job");
    }
    msdu_status status = msdu__members_open(host, &settings, &members->own, &epoch);
    if (status != MSDU_OK) {
        free(members);
        return status;
    }
    *members_out = members;
    *epoch_out = told(members, &epoch);
    return MSDU_OK;
}

static msdu_status next_epoch(msdu_members *members, uint64_t step, int32_t has_state,
                              msdu_epoch *epoch_out)
{
    msdu__epoch epoch;
    msdu__report report = {.round = step, .step = step, .has_state = has_state != 0};
    msdu_status status = msdu__members_next(members->own, &report, &epoch);
    if (status == MSDU_OK) {
        *epoch_out = told(members, &epoch);
    }
    return status;
}

static int32_t has_newcomer(msdu_members *members)
{
    return msdu__members_has_newcomer(members->own) ? 1 : 0;
}

const msdu_membership msdu__membership = {
    .size = sizeof(msdu_membership),
    .open = open_members,
    .next = next_epoch,
    .has_newcomer = has_newcomer,
    .close = close_members,
};
