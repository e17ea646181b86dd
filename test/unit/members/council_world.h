/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a small job: its processes and the messages under way. */
#ifndef COUNCIL_WORLD_H
#define COUNCIL_WORLD_H

#include "council_model.h"

#include "members/council.h"

#define PROCESSES    MSDU__MEMBERS_MOST
#define FLYING_MOST  48 /* messages under way */
#define NUMBERS_MOST 6
#define EVENTS_MOST  160
#define DEPTH_MOST   400

enum kind { DELIVER, LOSE, LEAVE, DIE, NOTICE, SILENCE, JOIN, TICK };

struct event {
    uint8_t kind;
    uint8_t who;
    uint8_t whom;
    uint8_t at; /* DELIVER, LOSE: which message */
    uint8_t said;
};

struct flying {
    uint64_t hash;
    uint8_t from;
    uint8_t to;
    bool is_reply;
    struct msdu__letter letter;
};

struct world {
    struct msdu__council who[PROCESSES];
    uint64_t hashes[PROCESSES];               /* of who[] */
    uint64_t chosen[PROCESSES][NUMBERS_MOST]; /* by number: the record it took over; 0: none */
    bool is_alive[PROCESSES];
    uint32_t deaths;
    uint32_t silences;
    uint32_t joins;
    uint32_t ticks;
    uint32_t flying_count;
    struct flying flying[FLYING_MOST];
};

struct frame {
    struct world world;
    struct event events[EVENTS_MOST];
    uint32_t count;
    uint32_t next;
};

struct model {
    const struct scenario *scenario;
    struct verdict *verdict;
    uint64_t *seen; /* open addressing, 0: free */
    uint64_t seen_mask;
    uint64_t most;
    struct frame *frames;
    size_t depth;
    struct world *now; /* for post() */
    bool has_overflow;
};

extern struct model model; /* a state that is hashed has no room for it */

/* council_model.c: note what is violated, with the events that led there; the first one counts. */
void model_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Members have the numbers of their processes as identity. */
uint32_t world_process(const struct msdu__member_id *id);
/* Alive, and not stopped: then its port is open. */
bool world_has(const struct world *world, uint32_t who);
/* Does it take no step at present? */
bool world_is_stopped(const struct world *world, uint32_t who);
/* What a process reports. */
struct msdu__report world_report(uint32_t who);

/* The state at the start of a scenario, and a copy of one. */
void world_make(struct world *world);
void world_copy(struct world *to, const struct world *from);

/* Put a message under way, or take one away. */
void world_fly(struct world *world, uint32_t from, uint32_t to, bool is_reply,
               const struct msdu__letter *letter);
void world_take_away(struct world *world, uint32_t at);
/* Does an earlier message go the same way? */
bool world_is_behind(const struct world *world, uint32_t at);
/* What a dead process sent is lost from this message on. */
void world_lose_rest(struct world *world, uint32_t at);
/* What was sent to a process that is gone. */
void world_sweep(struct world *world, uint32_t who);

/* A process changed. */
void world_rehash(struct world *world, uint32_t who);
uint64_t world_hash(const struct world *world);
uint64_t world_hash_record(const struct msdu__record *record);

/* council_rules.c: what must hold when a process has taken a record over, and at the end. */
void rules_adopted(struct world *world, uint32_t who, const struct msdu__record *last,
                   bool was_member);
void rules_end(const struct world *world);

#endif
