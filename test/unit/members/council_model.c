/* SPDX-License-Identifier: Apache-2.0 */
/* All ways in which a small job can go. */
#include "council_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"deliver", "lose",    "leave", "die",
                                         "notice",  "silence", "join",  "tick"};

struct model model;

/* True if it was not there before. */
static bool remember(uint64_t hash)
{
    uint64_t at = hash & model.seen_mask;
    while (model.seen[at] != 0 && model.seen[at] != hash) {
        at = (at + 1) & model.seen_mask;
    }
    bool is_new = model.seen[at] == 0;
    model.seen[at] = hash;
    return is_new;
}

/* --- faults --- */

void model_fault(const char *format, ...)
{
    char *text = model.verdict->fault;
    size_t bytes = sizeof(model.verdict->fault);
    if (text[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, bytes, format, args);
    va_end(args);
    for (size_t i = 0; i < model.depth && used > 0 && (size_t)used < bytes; i++) {
        const struct frame *frame = &model.frames[i];
        if (frame->next == 0) {
            break; /* the state in which the run ended */
        }
        const struct event *event = &frame->events[frame->next - 1];
        used += snprintf(text + used, bytes - (size_t)used, " %s%u:%u", kind_names[event->kind],
                         event->who, event->kind <= LOSE ? event->said : event->whom);
    }
}

/* --- events --- */

static void add(struct frame *frame, enum kind kind, uint32_t who, uint32_t whom, uint32_t at)
{
    if (frame->count == EVENTS_MOST) {
        model.has_overflow = true;
        return;
    }
    struct event *event = &frame->events[frame->count++];
    *event = (struct event){
        .kind = (uint8_t)kind, .who = (uint8_t)who, .whom = (uint8_t)whom, .at = (uint8_t)at};
    if (kind == DELIVER || kind == LOSE) {
        event->said = (uint8_t)frame->world.flying[at].letter.kind;
    }
}

/* Has this process reason to know whether that one lives? */
static bool does_watch(const struct world *world, uint32_t who, uint32_t whom, uint32_t seen)
{
    const struct msdu__council *council = &world->who[who];
    const struct msdu__member_id *id = &world->who[whom].self.id;
    int32_t rank = msdu__record_find(&council->record, id);
    if (rank < 0 || !world_has(world, who) || who == whom) {
        return false;
    }
    uint32_t known = council->peers[rank].seen;
    return known != MSDU__SEEN_DEAD && known != seen &&
           (council->has_left || council->phase == MSDU__PHASE_JOINING);
}

/* A newcomer that waits at a process, and is gone. */
static bool does_wait(const struct world *world, uint32_t who, uint32_t whom)
{
    const struct msdu__council *council = &world->who[who];
    for (uint32_t i = 0; i < council->waiting_count && world_has(world, who); i++) {
        if (world_process(&council->waiting[i].member.id) == whom) {
            return true;
        }
    }
    return false;
}

static bool is_training(const struct world *world, uint32_t who)
{
    return world_has(world, who) && world->who[who].phase == MSDU__PHASE_TRAINING &&
           world->who[who].record.number <= model.scenario->epochs;
}

static void list_messages(struct frame *frame)
{
    const struct world *world = &frame->world;
    for (uint32_t i = 0; i < world->flying_count; i++) {
        const struct flying *flying = &world->flying[i];
        if (world_is_behind(world, i) || world_is_stopped(world, flying->to)) {
            continue;
        }
        add(frame, DELIVER, flying->to, flying->from, i);
        if (!world_has(world, flying->from)) {
            add(frame, LOSE, flying->to, flying->from, i);
        }
    }
}

static bool may(uint32_t bits, uint32_t who)
{
    return bits == 0 || (bits >> who & 1U) != 0;
}

static void list_pair(struct frame *frame, uint32_t who, uint32_t whom)
{
    const struct world *world = &frame->world;
    bool is_gone = !world_has(world, whom);
    if (is_gone && (does_watch(world, who, whom, MSDU__SEEN_DEAD) || does_wait(world, who, whom))) {
        add(frame, NOTICE, who, whom, 0);
    }
    if (!is_gone && world->silences > 0 && may(model.scenario->quiet, whom) &&
        does_watch(world, who, whom, MSDU__SEEN_SILENT)) {
        add(frame, SILENCE, who, whom, 0);
    }
}

/* Whom a newcomer asks; where it knows nobody, the rendezvous leads to somebody. */
static uint32_t find_host(const struct world *world, uint32_t who)
{
    const struct msdu__member *host = msdu__council_host(&world->who[who]);
    uint32_t other = 0;
    if (host != NULL) {
        return world_process(&host->id);
    }
    while (other + 1 < PROCESSES && (!world_has(world, other) || world->who[other].rank < 0)) {
        other++;
    }
    return other;
}

/* All that can happen next. A run rests when nothing is under way; then clocks tick. */
static void list_events(struct frame *frame)
{
    const struct world *world = &frame->world;
    uint32_t all = model.scenario->ranks + model.scenario->newcomers;
    frame->count = 0;
    frame->next = 0;
    list_messages(frame);
    for (uint32_t who = 0; who < all; who++) {
        if (world_is_stopped(world, who)) {
            continue;
        }
        if (is_training(world, who)) {
            add(frame, LEAVE, who, who, 0);
        }
        for (uint32_t whom = 0; whom < all; whom++) {
            list_pair(frame, who, whom);
        }
    }
    uint32_t must = frame->count;
    for (uint32_t who = 0; who < all; who++) {
        if (world->deaths > 0 && world_has(world, who) && may(model.scenario->mortal, who)) {
            add(frame, DIE, who, who, 0);
        }
        const struct msdu__council *council = &world->who[who];
        bool is_newcomer = world_has(world, who) && council->phase == MSDU__PHASE_JOINING;
        if (is_newcomer && world->joins > 0) {
            add(frame, JOIN, who, find_host(world, who), 0);
        }
    }
    if (must == 0 && world->ticks > 0) {
        add(frame, TICK, 0, 0, 0);
    }
}

static void join(struct world *world, uint32_t who, uint32_t whom)
{
    struct msdu__letter letter;
    msdu__council_join(&world->who[who], &letter);
    letter.rank = -1;
    world_fly(world, who, whom, false, &letter);
}

static void tick_all(struct world *world)
{
    for (uint32_t who = 0; who < PROCESSES; who++) {
        struct msdu__council *council = &world->who[who];
        if (!world_has(world, who)) {
            continue;
        }
        if (council->phase == MSDU__PHASE_JOINING) {
            join(world, who, find_host(world, who));
        }
        msdu__council_tick(council);
        world_rehash(world, who);
    }
    world->ticks--;
}

static void deliver(struct world *world, uint32_t at)
{
    struct flying flying = world->flying[at];
    struct msdu__letter reply;
    world_take_away(world, at);
    struct msdu__council *who = &world->who[flying.to];
    if (flying.is_reply) {
        msdu__council_hear(who, &flying.letter);
    } else if (msdu__council_answer(who, &flying.letter, &reply)) {
        world_fly(world, flying.to, flying.from, true, &reply);
    }
}

static void happen(struct world *world, const struct event *event)
{
    struct msdu__council *who = &world->who[event->who];
    const struct msdu__member_id *whom = &world->who[event->whom].self.id;
    struct msdu__report report = world_report(event->who);
    switch ((enum kind)event->kind) {
    case DELIVER:
        deliver(world, event->at);
        break;
    case LOSE:
        world_lose_rest(world, event->at);
        break;
    case LEAVE:
        msdu__council_leave(who, &report);
        break;
    case DIE:
        world->is_alive[event->who] = false;
        world->deaths--;
        break;
    case NOTICE:
        msdu__council_dead(who, whom);
        break;
    case SILENCE:
        world->silences--;
        msdu__council_silent(who, whom);
        break;
    case JOIN:
        world->joins--;
        join(world, event->who, event->whom);
        break;
    case TICK:
        tick_all(world);
        break;
    }
}

/* Will this reply change nothing, whenever it comes? */
static bool is_stale(const struct msdu__council *who, const struct flying *flying)
{
    const struct msdu__letter *letter = &flying->letter;
    if (!flying->is_reply) {
        return false;
    }
    if (letter->kind == MSDU__SAY_PROMISE || letter->kind == MSDU__SAY_ACCEPTED) {
        return who->rank >= 0 && letter->ballot < who->ballot;
    }
    if (letter->kind == MSDU__SAY_TRAINING || letter->kind == MSDU__SAY_ALIVE) {
        return letter->number < who->record.number;
    }
    /* Whether all were told is not looked at. */
    return letter->kind == MSDU__SAY_KNOWN && who->phase == MSDU__PHASE_TRAINING;
}

static void sweep_stale(struct world *world)
{
    for (uint32_t i = world->flying_count; i-- > 0;) {
        if (is_stale(&world->who[world->flying[i].to], &world->flying[i])) {
            world_take_away(world, i);
        }
    }
}

/* An event at one process. When all look at the clock, none takes a record over. */
static void step(struct world *world, const struct event *event)
{
    static struct msdu__record last;
    struct msdu__council *who = &world->who[event->who];
    last = who->record;
    bool was_member = who->rank >= 0;
    uint32_t number = was_member ? last.number : 0;
    happen(world, event);
    if (who->rank >= 0 && who->record.number != number) {
        rules_adopted(world, event->who, &last, was_member);
    }
    if (!world_has(world, event->who)) {
        world_sweep(world, event->who);
    }
    sweep_stale(world);
    world_rehash(world, event->who);
}

static bool is_quick(const struct world *world, uint32_t at)
{
    uint32_t kind = world->flying[at].letter.kind;
    return kind == MSDU__SAY_PING || kind == MSDU__SAY_TRAINING || kind == MSDU__SAY_ALIVE ||
           kind == MSDU__SAY_KNOWN || kind == MSDU__SAY_REFUSE || kind == MSDU__SAY_BEHIND ||
           kind == MSDU__SAY_LIST || kind == MSDU__SAY_PAST;
}

/* An event with its consequences. */
static void advance(struct world *world, const struct event *event)
{
    model.now = world;
    step(world, event);
    for (uint32_t i = 0; i < world->flying_count && !model.scenario->is_whole;) {
        if (is_quick(world, i) && !world_is_behind(world, i) &&
            !world_is_stopped(world, world->flying[i].to)) {
            const struct event quick = {
                .kind = DELIVER, .who = world->flying[i].to, .at = (uint8_t)i};
            step(world, &quick);
            i = 0;
        } else {
            i++;
        }
    }
}

static void begin(void)
{
    struct world *world = &model.frames[0].world;
    world_make(world);
    model.now = world;
    for (uint32_t who = 0; who < PROCESSES; who++) {
        struct msdu__report report = world_report(who);
        if (model.scenario->is_prompt && is_training(world, who)) {
            msdu__council_leave(&world->who[who], &report);
        }
        world_rehash(world, who);
    }
    list_events(&model.frames[0]);
    (void)remember(world_hash(world));
    model.depth = 1;
}

/* Go one event deeper, or back. */
static void walk(void)
{
    struct frame *frame = &model.frames[model.depth - 1];
    if (frame->next == frame->count) {
        model.depth--;
        return;
    }
    struct frame *deeper = &model.frames[model.depth];
    world_copy(&deeper->world, &frame->world);
    const struct event *event = &frame->events[frame->next++];
    advance(&deeper->world, event);
    if (!remember(world_hash(&deeper->world)) || model.verdict->fault[0] != '\0') {
        return;
    }
    model.verdict->states++;
    list_events(deeper);
    model.depth++;
    if (model.depth > model.verdict->depth) {
        model.verdict->depth = model.depth;
    }
    bool is_end = true;
    for (uint32_t i = 0; i < deeper->count; i++) {
        is_end = is_end && (deeper->events[i].kind == DIE || deeper->events[i].kind == JOIN);
    }
    if (is_end) {
        rules_end(&deeper->world);
    }
}

void model_run(const struct scenario *scenario, uint64_t most, struct verdict *verdict_out)
{
    uint64_t room = 1024;
    memset(&model, 0, sizeof(model));
    memset(verdict_out, 0, sizeof(*verdict_out));
    while (room < 2 * most) {
        room *= 2;
    }
    model.scenario = scenario;
    model.verdict = verdict_out;
    model.most = most;
    model.seen_mask = room - 1;
    model.seen = calloc(room, sizeof(*model.seen));
    model.frames = calloc(DEPTH_MOST + 1, sizeof(*model.frames));
    if (model.seen == NULL || model.frames == NULL) {
        model_fault("no memory");
    } else {
        begin();
    }
    while (model.depth > 0 && verdict_out->fault[0] == '\0') {
        walk();
        if (model.has_overflow || model.depth > DEPTH_MOST || verdict_out->states > most) {
            model_fault("the model is too small (states %llu, depth %zu)",
                        (unsigned long long)verdict_out->states, model.depth);
        }
    }
    free(model.seen);
    free(model.frames);
}
