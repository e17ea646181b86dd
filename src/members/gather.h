/* SPDX-License-Identifier: Apache-2.0 */
/* The gatherer's part of the council, and how a decision or a stop is taken over. Pure. */
#ifndef MSDU_MEMBERS_GATHER_H
#define MSDU_MEMBERS_GATHER_H

#include "council.h"

/* Begin a letter of this process. */
void msdu__gather_letter(const struct msdu__council *council, uint32_t kind,
                         struct msdu__letter *letter_out);

/* A request of this kind to the member of a rank. */
void msdu__gather_send(struct msdu__council *council, uint32_t kind, uint32_t rank);

/* After every event: go on as far as it leads. */
void msdu__gather_settle(struct msdu__council *council);

/* Phase 1 or 2 is of no use any more: who gathers is looked at anew. */
void msdu__gather_reopen(struct msdu__council *council);

/* Somebody's ballot is higher: it lives, and may be the one that gathers. */
void msdu__gather_outbid(struct msdu__council *council, uint64_t ballot);

/* Somebody's accepted record, which may have been decided: phase 1 keeps that of the highest
 * ballot. */
void msdu__gather_consider(struct msdu__council *council, uint64_t ballot,
                           const struct msdu__record *record);

/* What is asked of a member in this phase. */
void msdu__gather_ask(struct msdu__council *council, uint32_t rank);

/* A record is the present one from now on; is_over: its epoch has ended already. */
void msdu__gather_adopt(struct msdu__council *council, const struct msdu__record *record,
                        bool is_over);

void msdu__gather_stop(struct msdu__council *council, enum msdu__stop cause);

#endif
