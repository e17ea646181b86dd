/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who belongs to the job: numbered lists of members, the epochs, which the members decide among
 * themselves. DESIGN.md beside this file says how.
 *
 * An epoch's own work is not done here. Its members open a hub and a communicator of its size, as a
 * job of fixed size does, and call msdu__members_next() when they can go on no longer (a member was
 * lost) or have agreed to end it (a newcomer waits).
 *
 * Order of calls, by one thread at a time: open, then store and next in turns, then close. A thread
 * of this layer answers the other members all the while, however long the trainer takes.
 */
#ifndef MSDU_MEMBERS_H
#define MSDU_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include <msdu/backend.h>
#include <msdu/store.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct msdu__members msdu__members;

/* Zero: the default. */
typedef struct msdu__members_settings {
    uint64_t silence_ns;   /* a member that answers nothing for so long is silent; 5 s */
    uint64_t join_wait_ns; /* longest wait for newcomers where fewer than ranks_least are left */
    int32_t ranks_least;   /* smallest group that trains on; 1 */
    int32_t ranks_most;    /* largest group, a newcomer beyond it waits; MSDU__MEMBERS_MOST */
} msdu__members_settings;

/* What a member says when it leaves an epoch. */
typedef struct msdu__report {
    uint64_t round; /* last whole round: the state that this process holds is that of its end */
    uint64_t step;  /* the trainer's step at that point */
    /* This process holds the state of a whole round. False for a newcomer whose epoch ended before
     * it had received everything: it is not made rank 0. */
    bool has_state;
    bool is_leaving; /* for good: next() returns at once, with rank -1 */
} msdu__report;

/* An epoch, as its members know it; equal on all of them but for rank and is_newcomer. */
typedef struct msdu__epoch {
    uint32_t number;  /* 1, 2, ...; a number may be passed over */
    int32_t rank;     /* of this process; rank 0 is the donor and never a newcomer */
    int32_t ranks;    /* how many members */
    bool is_newcomer; /* this process: it holds no state of the job */
    uint64_t round;   /* rank 0's report: the state that all members start from */
    uint64_t step;
    uint32_t behind; /* members that need that state: newcomers, and those of an earlier round */
    uint32_t lost;   /* members of the epoch before that are not in this one */
    uint32_t joined; /* members of this epoch that were not in the one before */
} msdu__epoch;

/*
 * Open a standby port, find the others by host->rendezvous, and
 * take part in the first epoch: the one of all host->ranks processes of the launch, in the order of
 * host->rank, or, if the job runs already, the first that admits this process as a newcomer. A
 * launch waits for host->deadline_ns; a newcomer waits as long as the job answers. `host` and its
 * strings are borrowed until close(); rank and ranks are read here only.
 *
 * Returns MSDU_OK; ERR_INVALID (rendezvous, settings), ERR_IO, ERR_TIMEOUT (names the ranks that
 * did not come; or the job that was to admit this process has ended), ERR_DENIED (the secret, the
 * job's name, the rank), ERR_PEER_LOST, ERR_NO_MEMORY, ERR_UNSUPPORTED (a build without the
 * rendezvous); the cause by host->fail.
 */
msdu_status msdu__members_open(const msdu_host *host, const msdu__members_settings *settings,
                               msdu__members **members_out, msdu__epoch *epoch_out);

/*
 * Leave the present epoch and wait for the next one. Blocks while members that are alive have not
 * left the epoch yet, however long their trainers take. A member that does not answer is waited for
 * settings.silence_ns. What cannot be agreed on within host->deadline_ns after that ends in
 * failure.
 *
 * A failure is final: this process belongs to the job no longer, and only close() may follow.
 * Returns MSDU_OK; ERR_PEER_LOST: too few are left, or no majority answers, or the others went on
 * without this process; ERR_TIMEOUT; ERR_IO; the cause by host->fail.
 */
msdu_status msdu__members_next(msdu__members *members, const msdu__report *report,
                               msdu__epoch *epoch_out);

/* A newcomer waits here and there is room for it. True on rank 0 only. Cheap. Thread: any. */
bool msdu__members_has_newcomer(msdu__members *members);

/* Another member has left the present epoch and waits in next(). Cheap. Thread: any. */
bool msdu__members_is_awaited(msdu__members *members);

/*
 * Small values among the members of the present epoch: what one sets, all can get. With it the
 * epoch's hub finds its rank 0: host.rendezvous = "store://[HOST]", host.store = this table, whose
 * `epoch` is the epoch's number. To be taken anew for each epoch; of no use after close().
 */
msdu_store msdu__members_store(msdu__members *members);

/* Leave for good, in peace; NULL is allowed. The standby port closes, so the others know at their
 * next gathering that this process is gone, and not before. Bounded by 1 s. */
void msdu__members_close(msdu__members *members);

#ifdef __cplusplus
}
#endif

#endif
