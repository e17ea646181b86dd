/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls of a communicator are gradients, and where does a step begin? Pure. */
#include "recognize.h"

#include <assert.h>
#include <string.h>

#include "period.h"

#define STRAYS 2 /* steps' worth of strays in a row end the patience */

#define LOOK_STEPS 128 /* between two looks for contradictions, at last ... */
#define LOOK_LOCAL 8   /* ... and under local steps */

#define NEIGHBORS 8 /* places of the table where a memory may stand */

/* Calls that a pattern explains before local steps build on it, by doubt. */
static const uint64_t calls_proven[MSDU__DOUBTS] = {0, 0, 256, 512, 16384, UINT64_MAX, UINT64_MAX};

/* --- what was seen --- */

static bool holds(const msdu__recognizer *r, uint64_t last, uint64_t memory)
{
    const uint64_t back = r->total + 1 - last;
    return last > 0 && back <= r->seen_count && r->seen[r->seen_count - back].call.memory == memory;
}

/* Candidates since the same memory came last; 0: never. The present one is the latest from now on,
 * in place of the oldest of its neighbors in the table. */
static uint32_t back_of(msdu__recognizer *r, uint64_t memory)
{
    const uint64_t first = ((memory >> 4) * 0x9E3779B97F4A7C15U) >> 48;
    uint64_t *place = &r->last[first];
    for (uint64_t i = 0; i < NEIGHBORS && !holds(r, *place, memory); i++) {
        uint64_t *next = &r->last[(first + i) % MSDU__PLACES];
        place = holds(r, *next, memory) || *next < *place ? next : place;
    }
    const uint64_t back = holds(r, *place, memory) ? r->total + 1 - *place : 0;
    *place = r->total + 1;
    return (uint32_t)back;
}

static void remember(msdu__recognizer *r, const msdu__call *call)
{
    if (r->seen_count == MSDU__CALLS_MAX) {
        const uint32_t quarter = MSDU__CALLS_MAX / 4;
        memmove(r->seen, r->seen + quarter, (MSDU__CALLS_MAX - quarter) * sizeof(r->seen[0]));
        r->seen_count -= quarter;
        r->next_look = r->next_look > quarter ? r->next_look - quarter : 0;
        r->is_cut = true;
    }
    msdu__seen *seen = &r->seen[r->seen_count];
    *seen = r->since;
    seen->call = *call;
    seen->back = back_of(r, call->memory);
    r->since = (msdu__seen){.marks = 0};
    r->seen_count++;
    r->total++;
}

static void forget(msdu__recognizer *r)
{
    r->seen_count = 0;
    r->next_look = 0;
    r->is_cut = false;
}

/* What is no candidate may be a small gradient, and that is a layer's, unless it has one element,
 * as losses have, or another type. */
static bool is_mark(const msdu__recognizer *r, const msdu__call *call)
{
    const msdu__call *latest = r->seen_count == 0 ? call : &r->seen[r->seen_count - 1].call;
    return !call->is_sum || call->count == 1 || call->kind != latest->kind;
}

void msdu__recognize_mark(msdu__recognizer *r)
{
    r->since.marks++;
}

/* --- the vote --- */

/* Only what is equal on all ranks decides when they vote. */
static bool is_time_to_vote(msdu__recognizer *r)
{
    if (r->seen_count < r->next_look) {
        return false;
    }
    r->next_look = r->seen_count + 1 + r->seen_count / 16;
    return msdu__period_is_any(r);
}

void msdu__recognize_vote(msdu__recognizer *r, double sums_out[MSDU__VOTE_SUMS])
{
    const msdu__proposal own = msdu__period_propose(r);
    sums_out[0] = own.period;
    sums_out[1] = (double)own.period * own.period;
    for (int i = 0; i < MSDU__DOUBTS; i++) {
        sums_out[2 + i] = i == (int)own.doubt ? 1 : 0;
    }
}

/* Which of the pattern are gradients. */
static void choose_tensors(msdu__recognizer *r)
{
    r->tensor_count = 0;
    for (uint32_t i = 0; i < r->pattern_count; i++) {
        bool is_allowed = r->allows == NULL || r->allows(r->allows_user, &r->pattern[i], i);
        r->tensor_at[i] = is_allowed ? r->tensor_count : MSDU__TENSORS_MAX;
        if (is_allowed) {
            r->tensors[r->tensor_count++] = r->pattern[i];
        }
    }
}

/* Which of the pattern only their memory tells from others. */
static void find_twins(msdu__recognizer *r)
{
    r->has_twins = false;
    for (uint32_t i = 0; i < r->pattern_count; i++) {
        r->is_twin[i] = false;
        for (uint32_t k = 0; k < r->pattern_count && !r->is_twin[i]; k++) {
            r->is_twin[i] = k != i && msdu__call_is_same(&r->pattern[i], &r->pattern[k]);
        }
        r->has_twins = r->has_twins || r->is_twin[i];
    }
}

/* What the latest candidates were before they are steps of the present pattern is not counted
 * twice. */
static void drop_overlap(msdu__recognizer *r, uint32_t calls)
{
    const uint64_t begin = r->total - calls;
    const uint64_t twice = r->ended_total > begin ? (r->ended_total - begin) / r->pattern_count : 0;
    r->ended_steps -= twice < r->ended_steps ? twice : r->ended_steps;
}

/* The step begins with the first candidate that repeats; where in a step are we now? */
static void take_pattern(msdu__recognizer *r, uint32_t period)
{
    assert(period > 0 && period <= MSDU__TENSORS_MAX);
    const uint32_t from = msdu__period_from(r, period);
    uint32_t most = 0;
    r->pattern_count = period;
    r->pattern_sums = msdu__period_sums(r, period, &most);
    for (uint32_t i = from; i < r->seen_count; i++) { /* memory is where it was last */
        r->pattern[(i - from) % period] = r->seen[i].call;
    }
    choose_tensors(r);
    find_twins(r);
    r->position = (r->seen_count - from) % period;
    r->state = r->position == 0 ? MSDU__FOLLOWING : MSDU__WAITING;
    r->held_steps = (r->seen_count - from) / period;
    drop_overlap(r, r->seen_count - from);
    r->held_calls = r->seen_count - from;
    for (uint32_t i = from; i < r->seen_count; i++) {
        r->held_calls += r->seen[i].others;
    }
    r->unmet_count = 0;
    r->again_steps = r->again_count = 0;
    r->has_moved = r->has_alternated = false;
    r->left_at = 0;
    memset(r->is_away, 0, sizeof(r->is_away));
}

bool msdu__recognize_agree(msdu__recognizer *r, const double sums[MSDU__VOTE_SUMS], int ranks)
{
    const double period = sums[0] / ranks;
    /* equal numbers have no variance; all of them are whole, and exact */
    const bool is_agreed = sums[0] > 0 && ranks * sums[1] == sums[0] * sums[0];
    r->votes++;
    if (!is_agreed) {
        if (r->votes >= MSDU__VOTES_MAX) {
            msdu__recognize_close(r);
        } else { /* seldom in a row */
            r->next_look += r->seen_count / 8;
        }
        return false;
    }
    r->doubt = MSDU__DOUBT_NONE;
    for (int i = 0; i < MSDU__DOUBTS; i++) {
        r->doubt = sums[2 + i] > 0 ? (msdu__doubt)i : r->doubt;
    }
    if (r->doubt == MSDU__DOUBT_SAID && sums[2 + MSDU__DOUBT_NONE] > 0) {
        r->doubt = MSDU__DOUBT_NONE; /* memory does not speak on every rank */
    }
    take_pattern(r, (uint32_t)period);
    return true;
}

/* Memory spoke when the pattern was taken, so that it may speak against it. */
static bool has_evidence(const msdu__recognizer *r)
{
    return r->doubt > MSDU__DOUBT_NONE && r->doubt < MSDU__DOUBT_FULL;
}

bool msdu__recognize_is_due(const msdu__recognizer *r, uint64_t steps, bool is_local)
{
    const uint64_t every = is_local ? LOOK_LOCAL : LOOK_STEPS;
    return has_evidence(r) && steps > 0 && ((steps & (steps - 1)) == 0 || steps % every == 0);
}

/* New memory alone may be the same tensor's: what the user said stands, unless tensors changed
 * places. */
bool msdu__recognize_is_contradicted(const msdu__recognizer *r)
{
    return has_evidence(r) && (r->has_moved || (r->has_alternated && r->doubt > MSDU__DOUBT_SAID));
}

bool msdu__recognize_is_mistaken(const msdu__recognizer *r)
{
    return has_evidence(r) && r->left_at > 0;
}

bool msdu__recognize_was_mistaken(const msdu__recognizer *r)
{
    return has_evidence(r) && r->left_at > 0 && r->left_at < r->total;
}

/* Memory told it from others in every step. */
static bool has_home(const msdu__recognizer *r, uint32_t place)
{
    return has_evidence(r) && (r->doubt > MSDU__DOUBT_SAID || r->is_twin[place]);
}

uint64_t msdu__recognize_home(const msdu__recognizer *r, uint32_t tensor)
{
    return has_home(r, tensor) ? r->tensors[tensor].memory : 0;
}

bool msdu__recognize_is_blind(const msdu__recognizer *r)
{
    const bool is_loose = r->tensors_wanted > 0 && r->tensors_wanted != r->pattern_count;
    return !has_evidence(r) && (r->has_twins || is_loose);
}

uint64_t msdu__recognize_steps(const msdu__recognizer *r)
{
    return r->ended_steps + r->held_steps + r->again_steps;
}

bool msdu__recognize_is_proven(const msdu__recognizer *r)
{
    const bool is_said = r->total_steps > 0 ? msdu__recognize_steps(r) < r->total_steps
                                            : r->doubt <= MSDU__DOUBT_SAID;
    return is_said && !msdu__recognize_is_blind(r) && r->state >= MSDU__WAITING &&
           r->held_steps >= MSDU__STEPS_PROVEN && r->held_calls >= calls_proven[r->doubt];
}

bool msdu__recognize_is_exceeded(const msdu__recognizer *r)
{
    return r->total_steps > 0 && msdu__recognize_steps(r) > r->total_steps + MSDU__STEPS_BEYOND;
}

/* There is no pattern any more. If it was a layer in place of a step, it comes again. */
static void end_pattern(msdu__recognizer *r)
{
    if (r->pattern_count > 0) {
        r->again_count = r->pattern_count;
        memset(r->again, 0, r->again_count * sizeof(r->again[0]));
    }
    r->pattern_count = r->tensor_count = 0;
}

/* Whatever the order, and whatever else comes: a gradient of the latest pattern comes once a step.
 */
static void count_again(msdu__recognizer *r, const msdu__call *call)
{
    const uint32_t count = r->pattern_count > 0 ? 0 : r->again_count;
    for (uint32_t i = 0; i < count; i++) {
        const msdu__call *known = &r->pattern[i];
        if (msdu__call_is_same(call, known) && (!has_home(r, i) || call->memory == known->memory)) {
            r->again[i]++;
            r->again_steps = r->again[i] > r->again_steps ? r->again[i] : r->again_steps;
            return;
        }
    }
}

void msdu__recognize_close(msdu__recognizer *r)
{
    end_pattern(r);
    r->state = MSDU__CLOSED;
    r->position = 0;
}

/* --- the pattern --- */

static msdu__verdict give_up(msdu__recognizer *r)
{
    bool was_following = r->state == MSDU__FOLLOWING;
    r->state = MSDU__LEARNING;
    r->votes = 0;
    end_pattern(r);
    r->position = 0;
    r->ended_steps += r->held_steps;
    r->ended_total = r->total;
    r->held_steps = r->held_calls = 0;
    r->stray_count = r->stray_steps = 0;
    r->has_strayed = false;
    r->next_look = 0;
    return was_following ? MSDU__CALL_BREAKS : MSDU__CALL_OTHER;
}

static bool is_tensor(const msdu__recognizer *r, const msdu__call *call)
{
    for (uint32_t i = 0; i < r->pattern_count; i++) {
        if (msdu__call_is_same(call, &r->pattern[i])) {
            return true;
        }
    }
    return false;
}

/* One of the tensors out of turn was not dropped or moved without a reason; anything else may come
 * now and then, and does no harm to those that are known. */
static bool is_stray(const msdu__recognizer *r, const msdu__call *call)
{
    return r->state == MSDU__FOLLOWING && !is_tensor(r, call) &&
           r->stray_count < STRAYS * r->pattern_count && r->stray_steps < MSDU__STEPS_BORNE;
}

/* Of several tensors of one size the order among each other is taken to be what it was. Does memory
 * say otherwise? */
static void look_at_memory(msdu__recognizer *r, const msdu__call *call)
{
    const bool is_home = r->pattern[r->position].memory == call->memory;
    bool *is_away = &r->is_away[r->position];
    r->has_alternated = r->has_alternated || (is_home && *is_away);
    *is_away = !is_home;
    if (!is_home && r->left_at == 0 && (r->doubt > MSDU__DOUBT_SAID || r->is_twin[r->position])) {
        r->left_at = r->total;
    }
    for (uint32_t i = 0; !is_home && i < r->pattern_count && !r->has_moved; i++) {
        r->has_moved =
            r->pattern[i].memory == call->memory && msdu__call_is_same(&r->pattern[i], call);
    }
}

/* The calls of the present step are remembered, so that after a change steps begin where they
 * began before. */
static msdu__verdict follow(msdu__recognizer *r, const msdu__call *call, uint32_t *position_out)
{
    bool is_following = r->state == MSDU__FOLLOWING;
    bool is_expected = msdu__call_is_same(call, &r->pattern[r->position]);
    const bool is_break = !is_expected && !is_stray(r, call);
    if (is_following && r->position == 0 && is_tensor(r, call)) {
        forget(r);
    }
    r->held_calls += 1 + r->since.others;
    remember(r, call);
    if (is_break) {
        return give_up(r);
    }
    if (!is_expected) {
        r->stray_count++;
        r->has_strayed = true;
        return MSDU__CALL_STRAYS;
    }
    look_at_memory(r, call);
    r->stray_count = 0;
    *position_out = r->tensor_at[r->position];
    r->position = (r->position + 1) % r->pattern_count;
    if (r->position == 0) {
        r->state = MSDU__FOLLOWING;
        r->held_steps++;
        r->stray_steps = r->has_strayed ? r->stray_steps + 1 : 0;
        r->has_strayed = false;
    }
    if (*position_out == MSDU__TENSORS_MAX) {
        return MSDU__CALL_DENIED;
    }
    return is_following ? MSDU__CALL_GRADIENT : MSDU__CALL_OTHER;
}

msdu__verdict msdu__recognize(msdu__recognizer *r, const msdu__call *call, uint32_t *position_out)
{
    if (call->is_candidate) {
        count_again(r, call);
    }
    if (r->state == MSDU__CLOSED) {
        return MSDU__CALL_OTHER;
    }
    if (!call->is_candidate) {
        r->since.others++;
        const bool is_between = is_mark(r, call);
        r->since.marks += is_between ? 1 : 0;
        r->since.sums += call->is_sum ? 1 : 0;
        r->since.small += call->is_sum && !is_between ? 1 : 0;
        return MSDU__CALL_OTHER;
    }
    if (r->state != MSDU__LEARNING) {
        return follow(r, call, position_out);
    }
    remember(r, call);
    return is_time_to_vote(r) ? MSDU__CALL_VOTES : MSDU__CALL_OTHER;
}
