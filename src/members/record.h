/* SPDX-License-Identifier: Apache-2.0 */
/* The record of an epoch: its number and its members in the order of ranks. Pure. */
#ifndef MSDU_MEMBERS_RECORD_H
#define MSDU_MEMBERS_RECORD_H

#include "members.h"

/* The model test counts states, so it takes smaller ones. */
#ifndef MSDU__MEMBERS_MOST
#define MSDU__MEMBERS_MOST 256
#endif
#ifndef MSDU__PLACE_BYTES
#define MSDU__PLACE_BYTES 80 /* numeric address with port, with its zero */
#endif
#define MSDU__MEMBER_ID_BYTES 16

/* Who a process is; made when it starts, never used again. */
struct msdu__member_id {
    uint8_t bytes[MSDU__MEMBER_ID_BYTES];
};

struct msdu__member {
    struct msdu__member_id id;
    uint32_t since;                /* number of the first epoch that it belongs to */
    char place[MSDU__PLACE_BYTES]; /* its standby port */
};

struct msdu__record {
    uint32_t number; /* 0: none */
    uint32_t count;
    /* Number of an epoch that went on without silent members, 0: none. These may be alive. Until
     * that is long ago, a decision takes one who was a member then: DESIGN.md says why. */
    uint32_t fence;
    uint32_t behind;
    uint32_t lost;
    uint32_t joined;
    uint64_t origin; /* the ballot in which it was made */
    uint64_t round;  /* rank 0's report */
    uint64_t step;
    struct msdu__member members[MSDU__MEMBERS_MOST];
};

/* A member of the last epoch and what it reported; or a newcomer, with none. */
struct msdu__candidate {
    const struct msdu__member *member;
    const struct msdu__report *report;
};

bool msdu__member_is(const struct msdu__member *member, const struct msdu__member_id *id);

/* Rank of a process, -1: it does not belong. */
int32_t msdu__record_find(const struct msdu__record *record, const struct msdu__member_id *id);

/*
 * The next epoch of candidates, old members first and in the order of their ranks, newcomers last;
 * these are cut off at `most`. Rank 0 is the first of the old members with the highest round, the
 * others keep their order. Returns false if no old member holds the state.
 */
bool msdu__record_make(const struct msdu__record *last, const struct msdu__candidate *candidates,
                       uint32_t count, uint32_t most, struct msdu__record *next_out);

#endif
