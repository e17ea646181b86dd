/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls of a stream of reductions are gradients? Pure. */
#include "recognize.h"

#include <string.h>

#define REPEATS 3 /* of a period, before it is believed */
#define STRAYS  2 /* steps' worth of strays in a row end the patience */

static bool is_same(const msdu__call *x, const msdu__call *y)
{
    return x->count == y->count && x->kind == y->kind && x->is_candidate == y->is_candidate;
}

static void remember(msdu__recognizer *r, const msdu__call *call)
{
    if (r->seen_count == MSDU__CALLS_MAX) {
        uint32_t half = MSDU__CALLS_MAX / 2;
        memmove(r->seen, r->seen + half, (MSDU__CALLS_MAX - half) * sizeof(r->seen[0]));
        r->seen_count -= half;
    }
    r->seen[r->seen_count++] = *call;
}

/* The first call from which on everything repeats after `period` calls. */
static uint32_t periodic_from(const msdu__recognizer *r, uint32_t period)
{
    uint32_t from = r->seen_count - period;
    while (from > 0 && is_same(&r->seen[from - 1], &r->seen[from - 1 + period])) {
        from--;
    }
    return from;
}

void msdu__recognize_allowed(msdu__recognizer *r)
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

/* The candidates of the period that begins at `from`; false if they are not what is wanted. */
static bool take_pattern(msdu__recognizer *r, uint32_t from, uint32_t period)
{
    r->pattern_count = 0;
    r->has_others = false;
    for (uint32_t i = from; i < from + period; i++) {
        if (!r->seen[i].is_candidate) {
            r->has_others = true;
        } else if (r->pattern_count == MSDU__TENSORS_MAX) {
            return false;
        } else {
            r->pattern[r->pattern_count++] = r->seen[i];
        }
    }
    if (r->pattern_count == 0 ||
        (r->tensors_wanted != 0 && r->pattern_count != r->tensors_wanted)) {
        return false;
    }
    msdu__recognize_allowed(r);
    return true;
}

/* The step begins with the first candidate that repeats; where in a step are we now? */
static void take_position(msdu__recognizer *r, uint32_t from)
{
    uint32_t candidates = 0;
    for (uint32_t i = from; i < r->seen_count; i++) {
        candidates += r->seen[i].is_candidate ? 1 : 0;
    }
    r->position = candidates % r->pattern_count;
    r->state = r->position == 0 ? MSDU__FOLLOWING : MSDU__WAITING;
    r->other_count = 0;
}

/* Three times the same, and as long as is asked for: equal layers are no steps. */
static void look_for_period(msdu__recognizer *r)
{
    for (uint32_t period = 1; period <= r->seen_count / REPEATS; period++) {
        uint32_t from = periodic_from(r, period);
        uint32_t stretch = r->seen_count - from;
        if (stretch >= REPEATS * period && stretch >= r->least && take_pattern(r, from, period)) {
            take_position(r, from);
            return;
        }
    }
}

/*
 * Equal layers one after another look like steps of one tensor, until another call comes for the
 * second time. Then learn again, and longer; once, because a trainer may also begin to evaluate.
 */
static bool is_doubtful(msdu__recognizer *r)
{
    r->other_count++;
    if (r->has_others || r->has_doubted || r->pattern_count > 1 || r->tensors_wanted > 0 ||
        r->other_count < 2) {
        return false;
    }
    r->has_doubted = true;
    r->least *= 4;
    r->seen_count = 0; /* steps begin behind this call */
    return true;
}

static msdu__verdict give_up(msdu__recognizer *r)
{
    bool was_following = r->state == MSDU__FOLLOWING;
    r->state = MSDU__LEARNING;
    r->pattern_count = r->tensor_count = 0;
    r->position = 0;
    r->stray_count = r->stray_steps = 0;
    r->has_strayed = false;
    return was_following ? MSDU__CALL_BREAKS : MSDU__CALL_OTHER;
}

static bool is_tensor(const msdu__recognizer *r, const msdu__call *call)
{
    for (uint32_t i = 0; i < r->pattern_count; i++) {
        if (is_same(call, &r->pattern[i])) {
            return true;
        }
    }
    return false;
}

/* One of the tensors out of turn was not dropped or moved without a reason; anything else may come
 * now and then, and does no harm to those that are known. */
static bool is_stray(const msdu__recognizer *r, const msdu__call *call)
{
    return r->state == MSDU__FOLLOWING && r->is_patient && !is_tensor(r, call) &&
           r->stray_count < STRAYS * r->pattern_count &&
           (r->steps_borne == 0 || r->stray_steps < r->steps_borne);
}

/* The calls of the present step are remembered, so that after a change steps begin where they
 * began before. */
static msdu__verdict follow(msdu__recognizer *r, const msdu__call *call, uint32_t *position_out)
{
    bool is_following = r->state == MSDU__FOLLOWING;
    bool is_expected = is_same(call, &r->pattern[r->position]);
    if (is_expected && is_following && r->position == 0) {
        r->seen_count = 0;
    }
    remember(r, call);
    if (!is_expected) {
        if (!is_stray(r, call)) {
            return give_up(r);
        }
        r->stray_count++;
        r->has_strayed = true;
        return MSDU__CALL_STRAYS;
    }
    r->stray_count = 0;
    *position_out = r->tensor_at[r->position];
    r->position = (r->position + 1) % r->pattern_count;
    if (r->position == 0) {
        r->state = MSDU__FOLLOWING;
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
    if (r->state != MSDU__LEARNING && call->is_candidate) {
        return follow(r, call, position_out);
    }
    remember(r, call);
    if (r->state != MSDU__LEARNING) {
        return is_doubtful(r) ? give_up(r) : MSDU__CALL_OTHER;
    }
    if (call->is_candidate && r->seen_count >= r->least) {
        look_for_period(r);
    }
    return MSDU__CALL_OTHER;
}
