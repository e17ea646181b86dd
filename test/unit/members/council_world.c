/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a small job: its processes and the messages under way. */
#include "council_world.h"

#include <stddef.h>
#include <string.h>

#define IDLE_TICKS 3 /* looks at the clock before a run that rests has ended */

/* --- hashes --- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word = 0;
        memcpy(&word, at, sizeof(word));
        hash = mix(hash, word);
    }
    uint64_t rest = 0;
    memcpy(&rest, at, bytes);
    return mix(hash, rest + bytes);
}

uint64_t world_hash_record(const struct msdu__record *record)
{
    return hash_bytes(1, record, sizeof(*record));
}

void world_rehash(struct world *world, uint32_t who)
{
    world->hashes[who] =
        hash_bytes(who + 2, &world->who[who], offsetof(struct msdu__council, outgoing));
}

static bool is_same_way(const struct flying *left, const struct flying *right)
{
    return left->from == right->from && left->to == right->to && left->is_reply == right->is_reply;
}

uint64_t world_hash(const struct world *world)
{
    uint64_t hash = 3;
    uint64_t flying = 0;
    for (uint32_t i = 0; i < world->flying_count; i++) {
        uint64_t place = 0;
        for (uint32_t j = 0; j < i && !model.scenario->is_unordered; j++) {
            place += is_same_way(&world->flying[j], &world->flying[i]);
        }
        flying += mix(world->flying[i].hash, place);
    }
    for (uint32_t i = 0; i < PROCESSES; i++) {
        hash = mix(hash, world->hashes[i] + world->is_alive[i]);
    }
    hash = hash_bytes(hash, world->chosen, sizeof(world->chosen));
    hash =
        mix(hash, world->deaths | world->silences << 8 | world->joins << 16 | world->ticks << 24);
    hash = mix(hash, flying);
    return hash == 0 ? 1 : hash;
}

/* --- the world --- */

uint32_t world_process(const struct msdu__member_id *id)
{
    return id->bytes[0] - 1U;
}

static struct msdu__member member_of(uint32_t who)
{
    struct msdu__member member;
    memset(&member, 0, sizeof(member));
    member.id.bytes[0] = (uint8_t)(who + 1);
    member.place[0] = (char)('a' + who);
    return member;
}

bool world_has(const struct world *world, uint32_t who)
{
    return world->is_alive[who] && world->who[who].phase != MSDU__PHASE_STOPPED;
}

bool world_is_stopped(const struct world *world, uint32_t who)
{
    bool has_mortal = false;
    for (uint32_t other = 0; other < PROCESSES; other++) {
        has_mortal =
            has_mortal || ((model.scenario->mortal >> other & 1U) != 0 && world->is_alive[other]);
    }
    return (model.scenario->stopped >> who & 1U) != 0 && has_mortal;
}

void world_fly(struct world *world, uint32_t from, uint32_t to, bool is_reply,
               const struct msdu__letter *letter)
{
    if (!world_has(world, to)) {
        return;
    }
    if (world->flying_count == FLYING_MOST) {
        model.has_overflow = true;
        return;
    }
    struct flying *place = &world->flying[world->flying_count++];
    place->from = (uint8_t)from;
    place->to = (uint8_t)to;
    place->is_reply = is_reply;
    place->letter = *letter;
    place->hash = hash_bytes(from * 64 + to * 4 + is_reply + 7, letter, sizeof(*letter));
    place->hash = mix(place->hash, 11);
}

static void post(void *user, const struct msdu__member *to, const struct msdu__letter *letter)
{
    (void)user;
    world_fly(model.now, world_process(&letter->from), world_process(&to->id), false, letter);
}

/* The others keep their order. */
void world_take_away(struct world *world, uint32_t at)
{
    world->flying_count--;
    memmove(&world->flying[at], &world->flying[at + 1],
            (world->flying_count - at) * sizeof(world->flying[0]));
}

/* Does an earlier message go the same way? */
bool world_is_behind(const struct world *world, uint32_t at)
{
    for (uint32_t i = 0; i < at && !model.scenario->is_unordered; i++) {
        if (is_same_way(&world->flying[i], &world->flying[at])) {
            return true;
        }
    }
    return false;
}

/* The rest of what a dead process sent. */
void world_lose_rest(struct world *world, uint32_t at)
{
    const struct flying first = world->flying[at];
    for (uint32_t i = world->flying_count; i-- > at;) {
        if (i == at || (is_same_way(&world->flying[i], &first) && !model.scenario->is_unordered)) {
            world_take_away(world, i);
        }
    }
}

void world_copy(struct world *to, const struct world *from)
{
    memcpy(to, from, offsetof(struct world, flying) + from->flying_count * sizeof(from->flying[0]));
}

/* What a process that is gone was sent. */
void world_sweep(struct world *world, uint32_t who)
{
    for (uint32_t i = world->flying_count; i-- > 0;) {
        if (world->flying[i].to == who) {
            world_take_away(world, i);
        }
    }
}

void world_make(struct world *world)
{
    const struct scenario *scenario = model.scenario;
    const struct msdu__post out = {.send = post};
    const struct msdu__rules rules = {.least = scenario->least > 0 ? scenario->least : 1,
                                      .most = MSDU__MEMBERS_MOST};
    struct msdu__record first;
    memset(world, 0, sizeof(*world));
    memset(&first, 0, sizeof(first));
    first.number = 1;
    first.count = scenario->ranks;
    for (uint32_t i = 0; i < scenario->ranks; i++) {
        first.members[i] = member_of(i);
        first.members[i].since = 1;
    }
    for (uint32_t i = 0; i < scenario->ranks + scenario->newcomers; i++) {
        struct msdu__council *who = &world->who[i];
        const struct msdu__member self = member_of(i);
        msdu__council_init(who, &out, &rules, &self, (int32_t)i, (int32_t)scenario->ranks);
        world->is_alive[i] = (scenario->dead >> i & 1U) == 0;
        who->record = first; /* newcomers know the list */
        if (i < scenario->ranks) {
            who->rank = (int32_t)i;
            who->phase = MSDU__PHASE_TRAINING;
            world->chosen[i][1] = world_hash_record(&first);
        }
    }
    world->deaths = scenario->deaths;
    world->silences = scenario->silences;
    world->joins = scenario->newcomers;
    world->ticks = IDLE_TICKS;
}

/* The same in all epochs, so that it does not matter who has gone on to which. */
struct msdu__report world_report(uint32_t who)
{
    struct msdu__report report;
    memset(&report, 0, sizeof(report));
    report.round = model.scenario->rounds[who];
    report.step = 10 * report.round;
    report.has_state = (model.scenario->stateless >> who & 1U) == 0;
    return report;
}
