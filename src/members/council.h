/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the members of an epoch decide on the next one: one process' part in it, as a state machine.
 * Pure: no I/O, locks, clock, allocation, globals. Messages and what became of other processes go
 * in; messages, a decision or a cause to stop come out. DESIGN.md says the rules in plain words.
 *
 * In short: the lowest rank that is left gathers reports (phase 1: PREPARE, PROMISE), makes the
 * record of the next epoch and has it accepted (phase 2: ACCEPT, ACCEPTED), then tells it (COMMIT).
 * It is single-decree Paxos for each epoch, with the last epoch's members as acceptors. Its quorum
 * is all of them that are not dead, and a majority as soon as one of them is silent.
 */
#ifndef MSDU_MEMBERS_COUNCIL_H
#define MSDU_MEMBERS_COUNCIL_H

#include "record.h"

enum msdu__say {
    /* Requests. A living process answers each at once. */
    MSDU__SAY_PREPARE = 1, /* gatherer -> member: promise this ballot and report */
    MSDU__SAY_ACCEPT,      /* gatherer -> member or newcomer: accept this record */
    MSDU__SAY_COMMIT,      /* this record was decided */
    MSDU__SAY_PING,        /* member -> its gatherer: this member has left the epoch */
    MSDU__SAY_JOIN,        /* newcomer -> any member; launch: rank -> rank 0 */
    /* Replies. */
    MSDU__SAY_PROMISE,  /* with the report and what was accepted before */
    MSDU__SAY_TRAINING, /* alive, has not left the epoch */
    MSDU__SAY_REFUSE,   /* has promised a higher ballot */
    MSDU__SAY_ACCEPTED,
    MSDU__SAY_KNOWN,  /* to COMMIT */
    MSDU__SAY_ALIVE,  /* to PING; to PREPARE of a higher rank */
    MSDU__SAY_PAST,   /* that epoch is over: the present record */
    MSDU__SAY_BEHIND, /* that epoch is not known here */
    MSDU__SAY_LIST,   /* to JOIN: who the members are; count 0: the launch is not complete */
    MSDU__SAY_DENIED, /* to JOIN: this launch has another number of ranks, or has that rank */
};

struct msdu__letter {
    uint32_t kind;
    uint32_t number; /* the sender's epoch */
    struct msdu__member_id from;
    uint64_t ballot;
    uint64_t accepted;          /* PROMISE: ballot in which `record` was accepted, 0: none */
    struct msdu__report report; /* PROMISE */
    bool is_over;               /* COMMIT, PAST: the sender has left that epoch already */
    bool is_patient;            /* ALIVE: it waits for a trainer, its own or another's */
    int32_t rank;               /* JOIN: of the launch */
    int32_t ranks;
    char place[MSDU__PLACE_BYTES]; /* JOIN: the sender's */
    struct msdu__record record;    /* ACCEPT, COMMIT, PROMISE, PAST, LIST; else count 0 */
};

enum msdu__phase {
    MSDU__PHASE_FORMING,   /* rank 0 of a launch: waits for the other ranks */
    MSDU__PHASE_JOINING,   /* newcomer, or another rank of a launch */
    MSDU__PHASE_TRAINING,  /* the owner is in an epoch */
    MSDU__PHASE_WAITING,   /* has left it, another one gathers */
    MSDU__PHASE_GATHERING, /* phase 1 */
    MSDU__PHASE_PROPOSING, /* phase 2 */
    MSDU__PHASE_STOPPED,   /* for good */
};

enum msdu__stop {
    MSDU__STOP_NONE,
    MSDU__STOP_MINORITY, /* some are silent, and no majority reported */
    MSDU__STOP_FENCED, /* an earlier epoch's silent members may train, and nobody of then is here */
    MSDU__STOP_AWAY,   /* likewise others are dead, who may have gone on without this process */
    MSDU__STOP_FEW,    /* fewer than ranks_least */
    MSDU__STOP_STATELESS, /* nobody left holds the state */
    MSDU__STOP_PUT_OUT,   /* the others went on without this process */
    MSDU__STOP_DENIED,    /* the launch does not fit */
    MSDU__STOP_TRIES,     /* gatherers that do not see each other disturbed each other too often */
};

enum msdu__sight {
    MSDU__SEEN_NOTHING,
    MSDU__SEEN_TRAINING,
    MSDU__SEEN_PROMISED,
    MSDU__SEEN_SILENT,
    MSDU__SEEN_DEAD, /* its standby port is closed: for good */
};

/* A member of the present record, as this process sees it. */
struct msdu__peer {
    uint32_t seen; /* msdu__sight */
    bool has_accepted;
    bool is_told; /* it knows the present record */
    bool is_back; /* silent, and was heard since a record was proposed without it */
    struct msdu__report report;
};

struct msdu__waiting {
    struct msdu__member member;
    bool has_accepted;
};

struct msdu__rules {
    uint32_t least;    /* smallest group, at least 1 */
    uint32_t most;     /* largest group, at most MSDU__MEMBERS_MOST */
    bool has_patience; /* wait for newcomers below `least` until msdu__council_waited() */
};

/* Requests go out here, as they are made; `to` and `message` are borrowed for the call. */
struct msdu__post {
    void *user;
    void (*send)(void *user, const struct msdu__member *to, const struct msdu__letter *message);
};

struct msdu__council {
    struct msdu__post post;
    struct msdu__rules rules;
    struct msdu__member self;
    int32_t launch_rank;
    int32_t launch_ranks;
    uint32_t phase;             /* msdu__phase */
    uint32_t stop;              /* msdu__stop */
    struct msdu__record record; /* of the present epoch; JOINING: of the job, as far as known */
    int32_t rank;               /* in it; -1 */
    bool has_left;              /* the owner waits for the next epoch */
    bool is_teller;             /* decided the present record itself, so tells it */
    bool is_awaited;            /* another member has left the present epoch */
    bool is_patient;            /* the gatherer said that it waits for a trainer */
    uint32_t away;              /* the epoch in which this process stood still for long; 0: none */
    bool is_fence_old; /* the present record's fence is so long ago that it does not count */
    struct msdu__report report;
    /* as an acceptor, for the epoch after the present one */
    uint64_t promised;
    uint64_t accepted;
    struct msdu__record accepted_record;
    int32_t pinged; /* the gatherer that knows that this process waits, -1: none */
    /* as the gatherer */
    uint32_t tries;
    uint64_t ballot;
    uint64_t best; /* phase 1: highest ballot in which somebody accepted `proposal`, 0: none */
    bool is_short; /* phase 1 waits for newcomers */
    struct msdu__record proposal;
    struct msdu__peer peers[MSDU__MEMBERS_MOST];      /* by rank of the present record */
    struct msdu__waiting waiting[MSDU__MEMBERS_MOST]; /* newcomers; FORMING: by rank */
    uint32_t waiting_count;
    struct msdu__letter outgoing; /* the request that is being made */
};

/* All but rank 0 of a launch start as newcomers. `self` has its id and place. */
void msdu__council_init(struct msdu__council *council, const struct msdu__post *post,
                        const struct msdu__rules *rules, const struct msdu__member *self,
                        int32_t launch_rank, int32_t launch_ranks);

/* Rank 0 of a launch found no job: it waits for the other ranks, and the first epoch is theirs. */
void msdu__council_form(struct msdu__council *council);

/* The owner leaves the present epoch; it must be TRAINING. */
void msdu__council_leave(struct msdu__council *council, const struct msdu__report *report);

/* A request came; false: there is no reply. `in` and `reply_out` are different. */
bool msdu__council_answer(struct msdu__council *council, const struct msdu__letter *in,
                          struct msdu__letter *reply_out);

/* A reply came. */
void msdu__council_hear(struct msdu__council *council, const struct msdu__letter *reply);

/* A process' standby port is closed: it is dead. */
void msdu__council_dead(struct msdu__council *council, const struct msdu__member_id *id);

/* A process that was asked did not answer for too long. */
void msdu__council_silent(struct msdu__council *council, const struct msdu__member_id *id);

/* A newcomer's connection closed: forget it. If it lives, it asks again. */
void msdu__council_forget(struct msdu__council *council, const struct msdu__member_id *id);

/* Newcomers were waited for long enough. */
void msdu__council_waited(struct msdu__council *council);

/* This process stood still for so long that others may have found it silent, gone on without it,
 * and ended: in this epoch their deaths are no proof that nobody trains on. */
void msdu__council_was_away(struct msdu__council *council);

/* The present record's fence is so long ago that it does not count any more. */
void msdu__council_fence_is_old(struct msdu__council *council);

/* Ask again whoever has not answered, or trained when asked. */
void msdu__council_tick(struct msdu__council *council);

/* JOINING: the member to ask; NULL: none is known. */
const struct msdu__member *msdu__council_host(const struct msdu__council *council);

/* JOINING: the request, for whoever answers at the rendezvous. */
void msdu__council_join(const struct msdu__council *council, struct msdu__letter *join_out);

/* A newcomer waits at rank 0, and there is room. */
bool msdu__council_has_newcomer(const struct msdu__council *council);

/* Does the decision wait for a trainer, or for newcomers? */
bool msdu__council_is_patient(const struct msdu__council *council);

#endif
