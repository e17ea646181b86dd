/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold in every state of a small job. */
#include "council_world.h"

/* --- what must hold --- */

static bool is_whole(const struct world *world, const struct msdu__record *record)
{
    for (uint32_t i = 0; i < record->count; i++) {
        if (!world_has(world, world_process(&record->members[i].id))) {
            return false;
        }
    }
    return true;
}

/* Could these two train on side by side, in groups that do not come from one another? */
static bool are_split(const struct world *world, uint32_t left, uint32_t right)
{
    for (uint32_t number = 1; number < NUMBERS_MOST; number++) {
        uint64_t a = world->chosen[left][number];
        uint64_t b = world->chosen[right][number];
        if (a != 0 && b != 0 && a != b) {
            return is_whole(world, &world->who[left].record) &&
                   is_whole(world, &world->who[right].record);
        }
    }
    return false;
}

static void check_left_out(const struct world *world, const struct msdu__record *last,
                           const struct msdu__record *record)
{
    uint32_t kept = 0;
    bool has_living = false;
    for (uint32_t i = 0; i < last->count; i++) {
        bool is_kept = msdu__record_find(record, &last->members[i].id) >= 0;
        kept += is_kept;
        has_living =
            has_living || (!is_kept && world_has(world, world_process(&last->members[i].id)));
    }
    if (has_living && 2 * kept <= last->count) {
        model_fault("a minority decided epoch %u", record->number);
    }
}

/* The donor, as far as the reports of the epoch that ended tell. */
static void check_donor(const struct world *world, const struct msdu__record *record)
{
    uint32_t donor = world_process(&record->members[0].id);
    if (record->members[0].since == record->number) {
        model_fault("a newcomer is rank 0 of epoch %u", record->number);
    }
    for (uint32_t i = 0; i < record->count; i++) {
        uint32_t who = world_process(&record->members[i].id);
        struct msdu__report report = world->who[who].report; /* a newcomer's is empty */
        if (record->members[i].since < record->number && report.has_state &&
            report.round > record->round) {
            model_fault("rank %u of epoch %u has a higher round than the donor", i, record->number);
        }
    }
    struct msdu__report report = world->who[donor].report;
    if (!report.has_state || report.round != record->round || report.step != record->step) {
        model_fault("rank 0 of epoch %u does not hold its round", record->number);
    }
}

static void check_order(const struct msdu__record *last, const struct msdu__record *record)
{
    int32_t before = -1;
    for (uint32_t i = 1; i < record->count; i++) {
        int32_t rank = msdu__record_find(last, &record->members[i].id);
        bool is_newcomer = record->members[i].since == record->number;
        rank = is_newcomer ? MSDU__MEMBERS_MOST : rank;
        if (rank < before || (rank < 0 && !is_newcomer)) {
            model_fault("rank %u of epoch %u is out of order", i, record->number);
        }
        before = rank;
    }
}

void rules_adopted(struct world *world, uint32_t who, const struct msdu__record *last,
                   bool was_member)
{
    const struct msdu__council *council = &world->who[who];
    const struct msdu__record *record = &council->record;
    world->chosen[who][record->number] = world_hash_record(record);
    if (was_member && record->number != last->number + 1) {
        model_fault("epoch %u after epoch %u", record->number, last->number);
    }
    if (was_member) {
        check_donor(world, record);
        check_order(last, record);
    }
    if (council->is_teller) {
        check_left_out(world, last, record);
        if (record->count < council->rules.least && record->origin == council->ballot) {
            model_fault("epoch %u is too small", record->number);
        }
    }
    for (uint32_t other = 0; other < PROCESSES; other++) {
        uint64_t chosen = world->chosen[other][record->number];
        if (other != who && world_has(world, other) && are_split(world, who, other)) {
            model_fault("two groups train on: processes %u and %u", who, other);
        }
        /* Where nobody was silent, not even the dead may have decided anything else. */
        if (chosen != 0 && chosen != world->chosen[who][record->number] &&
            world->silences == model.scenario->silences) {
            model_fault("processes %u and %u have other records of epoch %u", who, other,
                        record->number);
        }
    }
}

/* --- the end of a run --- */

void rules_end(const struct world *world)
{
    bool is_decided = false;
    bool is_stopped = false;
    for (uint32_t who = 0; who < PROCESSES; who++) {
        const struct msdu__council *council = &world->who[who];
        is_stopped = is_stopped || council->phase == MSDU__PHASE_STOPPED;
        if (!world_has(world, who) || world_is_stopped(world, who)) {
            continue;
        }
        is_decided = is_decided || council->record.number > 1;
        if (council->phase != MSDU__PHASE_TRAINING && council->phase != MSDU__PHASE_JOINING) {
            bool is_held_up = false; /* by a trainer beyond the last epoch, or a stopped process */
            for (uint32_t i = 0; i < council->record.count; i++) {
                uint32_t other = world_process(&council->record.members[i].id);
                bool is_training = world->who[other].phase == MSDU__PHASE_TRAINING &&
                                   world->who[other].record.number == council->record.number;
                is_held_up = is_held_up || (world_has(world, other) &&
                                            (is_training || world_is_stopped(world, other)));
            }
            if (!is_held_up) {
                model_fault("process %u waits for ever in epoch %u, phase %u", who,
                            council->record.number, council->phase);
            }
        }
        for (uint32_t i = 0; i < council->record.count; i++) {
            uint32_t other = world_process(&council->record.members[i].id);
            if (council->phase == MSDU__PHASE_TRAINING && world_has(world, other) &&
                !world_is_stopped(world, other) &&
                world->who[other].record.number < council->record.number) {
                model_fault("process %u was not told of epoch %u", other, council->record.number);
            }
        }
    }
    model.verdict->ends++;
    model.verdict->decided += is_decided;
    model.verdict->stopped += is_stopped;
}
