/* SPDX-License-Identifier: Apache-2.0 */
/* Could so many candidates be a step? Pure. */
#include "period.h"

#define REPEATS      3  /* of a period, before it is believed */
#define WINDOW_LEAST 24 /* candidates whose memory is looked at, for short periods */

/* Candidates that a period explains before it is believed, where equal layers could be behind it:
 * more than the layers of a model in a row have. */
#define STRETCH_DOUBTFUL 4096

uint32_t msdu__period_from(const msdu__recognizer *r, uint32_t period)
{
    uint32_t from = r->seen_count - period;
    while (from > 0 &&
           msdu__call_is_same(&r->seen[from - 1].call, &r->seen[from - 1 + period].call)) {
        from--;
    }
    return from;
}

/* Three times the same, and as long as is asked for. */
static bool repeats(const msdu__recognizer *r, uint32_t period, uint32_t *from_out)
{
    const uint32_t from = msdu__period_from(r, period);
    uint32_t calls = r->seen_count - from;
    if (calls < REPEATS * period) {
        return false;
    }
    for (uint32_t i = from; i < r->seen_count && calls < r->least; i++) {
        calls += r->seen[i].others;
    }
    *from_out = from;
    return calls >= r->least;
}

/* Does a call like this belong to the latest period? */
static bool belongs(const msdu__recognizer *r, uint32_t period, const msdu__call *call)
{
    for (uint32_t i = r->seen_count - period; i < r->seen_count; i++) {
        if (msdu__call_is_same(&r->seen[i].call, call)) {
            return true;
        }
    }
    return false;
}

/* Did something come before `from` that no step has? */
static bool has_strange_past(const msdu__recognizer *r, uint32_t period, uint32_t from)
{
    for (uint32_t i = 0; i < from; i++) {
        if (!belongs(r, period, &r->seen[i].call)) {
            return true;
        }
    }
    return r->is_cut;
}

/* Two of these periods came before, and then something else: they are parts of something longer. */
static bool has_broken(const msdu__recognizer *r, uint32_t period, uint32_t from)
{
    uint32_t run = 0;
    for (uint32_t i = 0; i + period < from; i++) {
        bool is_run = msdu__call_is_same(&r->seen[i].call, &r->seen[i + period].call) &&
                      belongs(r, period, &r->seen[i].call);
        run = is_run ? run + 1 : 0;
        if (run >= period) {
            return true;
        }
    }
    return false;
}

/* Other calls in every period; but for the first ones, when parameters may have been averaged, as
 * soon as there are enough. */
static bool has_marks(const msdu__recognizer *r, uint32_t period, uint32_t from)
{
    const uint32_t enough = (REPEATS + 2) * period;
    const uint32_t begin = from + (r->seen_count - from >= enough ? 2 * period : period);
    for (uint32_t end = r->seen_count; end >= begin + period; end -= period) {
        uint32_t marks = 0;
        for (uint32_t i = end - period; i < end; i++) {
            marks += r->seen[i].marks;
        }
        if (marks == 0) {
            return false;
        }
    }
    return true;
}

/* How memory of the latest periods comes back, as far back as is worth it. */
typedef enum memory_order {
    ELSEWHERE, /* later or sooner than after a period, or not at all: two models take turns, say */
    ABOUT,     /* mostly after a period, and never much later: places change among tensors */
    EXACT,     /* after a period */
} memory_order;

static memory_order memory_of(const msdu__recognizer *r, uint32_t period, uint32_t from)
{
    const uint32_t stretch = r->seen_count - from - period;
    uint32_t window = 2 * period > WINDOW_LEAST ? 2 * period : WINDOW_LEAST;
    uint32_t exact = 0;
    uint32_t near = 0;
    uint32_t far = 0;
    window = window < stretch ? window : stretch;
    for (uint32_t i = r->seen_count - window; i < r->seen_count; i++) {
        const uint64_t back = r->seen[i].back;
        exact += back == period ? 1 : 0;
        near += 4 * back >= 3 * (uint64_t)period && 4 * back <= 6 * (uint64_t)period ? 1 : 0;
        far += back == 0 || back >= 2 * (uint64_t)period ? 1 : 0;
    }
    return exact == window ? EXACT : far == 0 && 2 * near > window ? ABOUT : ELSEWHERE;
}

/* Behind an evaluation one period has more than the others. */
uint32_t msdu__period_sums(const msdu__recognizer *r, uint32_t period, uint32_t *most_out)
{
    uint32_t fewest = UINT32_MAX;
    *most_out = UINT32_MAX;
    for (uint32_t k = 1; k <= REPEATS && k * period <= r->seen_count; k++) {
        const msdu__seen *seen = &r->seen[r->seen_count - k * period];
        uint32_t sums = period;
        uint32_t most = period;
        for (uint32_t i = 0; i < period; i++) {
            sums += seen[i].small;
            most += seen[i].sums;
        }
        fewest = sums < fewest ? sums : fewest;
        *most_out = most < *most_out ? most : *most_out;
    }
    return fewest;
}

/* By sizes alone the period is several equal ones: equal blocks in memory of their own, or steps
 * whose memory alternates? Marks between some of them only speak for blocks. */
static bool is_divisible(const msdu__recognizer *r, uint32_t period, uint32_t from, bool is_marked)
{
    for (uint32_t part = 1; part <= period / 2; part++) {
        if (period % part == 0 && msdu__period_from(r, part) <= from &&
            (!is_marked || has_marks(r, part, from))) {
            return true;
        }
    }
    return false;
}

/* Could it be a step, by this rank's own evidence? */
static bool is_step(const msdu__recognizer *r, uint32_t period, uint32_t from, msdu__doubt *doubt)
{
    const memory_order memory = memory_of(r, period, from);
    const bool is_exact = memory == EXACT;
    const bool is_marked = has_marks(r, period, from);
    /* one place for all: equal layers would do the same, and may have marks behind each */
    if (memory == ELSEWHERE || period == 1 || has_broken(r, period, from) ||
        is_divisible(r, period, from, is_exact && is_marked)) {
        return false;
    }
    const bool is_strange = has_strange_past(r, period, from);
    *doubt = !is_exact                              ? MSDU__DOUBT_FULL
             : is_divisible(r, period, from, false) ? MSDU__DOUBT_EQUAL
             : is_strange                           ? MSDU__DOUBT_MUCH
             : is_marked                            ? MSDU__DOUBT_LITTLE
                                                    : MSDU__DOUBT_SOME;
    return !is_strange || r->seen_count - from >= STRETCH_DOUBTFUL;
}

/* Is it several steps, by memory that comes back within it? One place for everything may be a
 * trainer's habit; the user knows best. */
static bool has_steps_inside(const msdu__recognizer *r, uint32_t period)
{
    for (uint32_t part = 2; part <= period / 2; part++) {
        const uint32_t from = period % part == 0 ? msdu__period_from(r, part) : r->seen_count;
        if (from + REPEATS * part <= r->seen_count && memory_of(r, part, from) == EXACT) {
            return true;
        }
    }
    return false;
}

msdu__proposal msdu__period_propose(msdu__recognizer *r)
{
    msdu__proposal best = {.period = 0};
    const uint32_t wanted = r->tensors_wanted;
    for (uint32_t period = 1; period <= r->seen_count / REPEATS && period <= MSDU__TENSORS_MAX;
         period++) {
        uint32_t from = 0;
        if (!repeats(r, period, &from)) {
            continue;
        }
        uint32_t most = 0;
        const uint32_t sums = msdu__period_sums(r, period, &most);
        const bool is_wanted = wanted == period || (wanted >= sums && wanted <= most);
        if (is_wanted && !has_steps_inside(r, period)) {
            const bool is_told = memory_of(r, period, from) == EXACT;
            return (msdu__proposal){.period = period,
                                    .doubt = is_told ? MSDU__DOUBT_SAID : MSDU__DOUBT_NONE};
        }
        msdu__doubt doubt = MSDU__DOUBT_NONE;
        if (best.period == 0 && is_step(r, period, from, &doubt)) {
            best = (msdu__proposal){.period = period, .doubt = doubt};
            if (wanted == 0) {
                break;
            }
            r->unmet_count = period;
            r->unmet_sums = sums;
        }
    }
    return wanted == 0 ? best : (msdu__proposal){.period = 0};
}

bool msdu__period_is_any(const msdu__recognizer *r)
{
    uint32_t from = 0;
    for (uint32_t period = 1; period <= r->seen_count / REPEATS && period <= MSDU__TENSORS_MAX;
         period++) {
        if (repeats(r, period, &from)) {
            return true;
        }
    }
    return false;
}
