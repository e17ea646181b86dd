/* SPDX-License-Identifier: Apache-2.0 */
/* The list of rules, chains of them, and the one pass over a slice that applies a chain; pure. */
#include "correct.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "rules.h"
#include "simd/vec.h"

#define RULE_ENTRY(name) &msdu__rule_##name,
static const msdu__rule *const known[] = {MSDU__RULES(RULE_ENTRY)};

#define RULE_COUNT (sizeof(known) / sizeof(known[0]))

const msdu__rule *msdu__rule_at(uint32_t index)
{
    return index < RULE_COUNT ? known[index] : NULL;
}

/* --- chains --- */

static const msdu__rule *rule_find(const char *name, size_t length)
{
    for (size_t i = 0; i < RULE_COUNT; i++) {
        if (strlen(known[i]->name) == length && strncmp(known[i]->name, name, length) == 0) {
            return known[i];
        }
    }
    return NULL;
}

/* The next name: past blanks and up to a comma or the end; *next is moved behind the comma. */
static size_t next_name(const char **text, const char **next)
{
    while (isspace((unsigned char)**text)) {
        (*text)++;
    }
    size_t length = strcspn(*text, ",");
    *next = *text + length + ((*text)[length] == ',' ? 1 : 0);
    while (length > 0 && isspace((unsigned char)(*text)[length - 1])) {
        length--;
    }
    return length;
}

static void chain_append(msdu__chain *chain, const msdu__rule *rule)
{
    assert(chain->count < MSDU_RULES_MOST);
    chain->rules[chain->count++] = rule;
    chain->needs |= rule->needs;
}

static bool has_merge(const msdu__chain *chain)
{
    return chain->count > 0 && chain->rules[chain->count - 1]->is_merge;
}

static bool has_rule(const msdu__chain *chain, const msdu__rule *rule)
{
    for (uint32_t i = 0; i < chain->count; i++) {
        if (chain->rules[i] == rule) {
            return true;
        }
    }
    return false;
}

/* Why `rule` cannot follow the chain; NULL if it can. */
static const char *append_error(const msdu__chain *chain, const msdu__rule *rule)
{
    if (rule == NULL) {
        return "is not a correction rule";
    }
    if (has_rule(chain, rule)) {
        return "is given twice";
    }
    if (has_merge(chain)) {
        return "follows a merge rule, which must be the last";
    }
    return NULL;
}

bool msdu__chain_parse(const char *text, bool is_delayed, msdu__chain *chain_out, char *why,
                       size_t why_bytes)
{
    msdu__chain chain = {.count = 0};
    const char *next = text;
    while (*next != '\0') {
        const char *name = next;
        const size_t length = next_name(&name, &next);
        const msdu__rule *rule = rule_find(name, length);
        const char *error = append_error(&chain, rule);
        if (error != NULL) {
            (void)snprintf(why, why_bytes, "\"%.*s\" %s", (int)(length < 60 ? length : 60), name,
                           error);
            return false;
        }
        chain_append(&chain, rule);
    }
    if (!has_merge(&chain)) {
        chain_append(&chain, is_delayed ? &msdu__rule_delayed : &msdu__rule_average);
    }
    *chain_out = chain;
    return true;
}

msdu_rules msdu__chain_numbers(const msdu__chain *chain, const msdu__correct_args *args,
                               bool is_prompt)
{
    msdu_rules rules = {.count = chain->count};
    assert(has_merge(chain));
    for (uint32_t i = 0; i < chain->count; i++) {
        rules.steps[i] = chain->rules[i]->step(args, is_prompt);
    }
    return rules;
}

bool msdu__chain_keeps_equal(const msdu__chain *chain, const msdu__correct_args *args,
                             bool is_prompt)
{
    const msdu_rules rules = msdu__chain_numbers(chain, args, is_prompt);
    return rules.count == 1 &&
           ((rules.steps[0].rule == MSDU_RULE_AVERAGE && is_prompt) ||
            (rules.steps[0].rule == MSDU_RULE_DELAYED && rules.steps[0].a == 1.0));
}

/* --- passes --- */

typedef struct span {
    uint64_t start;
    uint64_t count;
} span;

static span span_next(uint64_t start, uint64_t count)
{
    const uint64_t left = count - start;
    return (span){start, left < MSDU__CHUNK ? left : MSDU__CHUNK};
}

/* array + elements, for arrays of unknown type; NULL stays NULL. */
static void *at(void *array, uint64_t start, size_t element_bytes)
{
    return array == NULL ? NULL : (unsigned char *)array + start * element_bytes;
}

#define HASH_LANES 4 /* that do not wait for each other */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    return hash ^ hash >> 29;
}

/* Go on with a hash; what is left over at the end is padded with zeros. */
static uint64_t hash_more(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *in = data;
    uint64_t lanes[HASH_LANES] = {hash, 1, 2, 3};
    uint64_t words[HASH_LANES];
    for (size_t done = 0; done < bytes; done += sizeof(words)) {
        const size_t left = bytes - done;
        memset(words, 0, sizeof(words));
        memcpy(words, in + done, left < sizeof(words) ? left : sizeof(words));
        for (int l = 0; l < HASH_LANES; l++) {
            lanes[l] = mix(lanes[l], words[l]);
        }
    }
    return mix(mix(lanes[0], lanes[1]), mix(lanes[2], lanes[3]));
}

static void capture_span(const msdu_arrays *arrays, int32_t dtype, span s, msdu__sums *sums)
{
    const size_t bytes = msdu__dtype_working_bytes(dtype);
    const msdu__vec_real *loops = msdu__vec_get()->real[dtype == MSDU_FLOAT64];
    const void *anchor = at(arrays->anchor, s.start, bytes);
    const void *param = at(arrays->param, s.start, msdu__dtype_bytes(dtype));
    void *update = at(arrays->update, s.start, bytes);
    float wide[MSDU__CHUNK];
    if (msdu__dtype_is_half(dtype)) {
        msdu__vec_widen(param, dtype, wide, s.count);
        param = wide;
    }
    loops->difference(anchor, param, update, s.count);
    if (arrays->snapshot != NULL) {
        memcpy(at(arrays->snapshot, s.start, bytes), param, s.count * bytes);
    }
    /* Sums are loops of their own: in the first cache level they cost little, and compilers
     * vectorize each of these loops but not all of them in one. */
    sums->update_sq += loops->sum_sq(update, s.count, &sums->has_bad);
    sums->weight_sq += loops->sum_sq(anchor, s.count, &sums->has_bad);
    sums->hash = hash_more(sums->hash, param, s.count * bytes);
}

void msdu__correct_capture(const msdu_arrays *arrays, uint64_t count, int32_t dtype,
                           msdu__sums *sums)
{
    for (uint64_t start = 0; start < count; start += MSDU__CHUNK) {
        capture_span(arrays, dtype, span_next(start, count), sums);
    }
}

/* A chunk that the rules of a chain work on; arrays of working type. */
typedef struct chunk {
    const msdu__vec_real *loops;
    void *param;          /* w */
    void *anchor;         /* A */
    void *update;         /* d */
    void *momentum;       /* u, or NULL */
    const void *snapshot; /* y, or NULL */
    uint64_t count;
    size_t bytes; /* of an element */
} chunk;

static void merge(const msdu_rule_step *s, const chunk *c)
{
    const double weights[2] = {s->a, s->b};
    if (s->rule == MSDU_RULE_ELASTIC) {
        c->loops->elastic(c->anchor, c->param, c->update, s->a, c->count);
    } else if (s->rule == MSDU_RULE_DELAYED) {
        assert(c->snapshot != NULL);
        c->loops->delayed(c->anchor, c->param, c->update, c->snapshot, s->a, c->count);
    } else if (s->rule == MSDU_RULE_BLEND) {
        c->loops->blend(c->anchor, c->param, c->update, weights, c->count);
    } else {
        assert(s->rule == MSDU_RULE_AVERAGE);
        c->loops->average(c->anchor, c->param, c->update, c->count);
    }
}

static void shape(const msdu_rule_step *s, const chunk *c)
{
    if (s->rule == MSDU_RULE_NESTEROV) {
        c->loops->nesterov(c->update, c->momentum, s->a, s->b, c->count);
    } else if (s->rule == MSDU_RULE_HEAVY_BALL) {
        c->loops->heavy_ball(c->update, c->momentum, s->a, s->b, c->count);
    } else if (s->rule == MSDU_RULE_COPY) {
        assert(c->momentum != NULL && c->update != NULL);
        memcpy(c->momentum, c->update, c->count * c->bytes);
        c->loops->scale(c->update, s->a, c->count);
    } else if (s->a != 1.0) {
        assert(s->rule == MSDU_RULE_SCALE);
        c->loops->scale(c->update, s->a, c->count);
    }
}

static void apply_span(const msdu_rules *rules, const msdu_arrays *arrays, int32_t dtype, span s,
                       msdu__sums *sums)
{
    const size_t bytes = msdu__dtype_working_bytes(dtype);
    const msdu_rule_step *last = &rules->steps[rules->count - 1];
    void *param = at(arrays->param, s.start, msdu__dtype_bytes(dtype));
    float wide[MSDU__CHUNK];
    const chunk c = {
        .loops = msdu__vec_get()->real[dtype == MSDU_FLOAT64],
        .param = msdu__dtype_is_half(dtype) ? wide : param,
        .anchor = at(arrays->anchor, s.start, bytes),
        .update = at(arrays->update, s.start, bytes),
        .momentum = at(arrays->momentum, s.start, bytes),
        .snapshot = at(arrays->snapshot, s.start, bytes),
        .count = s.count,
        .bytes = bytes,
    };
    if (msdu__dtype_is_half(dtype) && last->rule != MSDU_RULE_AVERAGE) { /* that only writes w */
        msdu__vec_widen(param, dtype, wide, s.count);
    }
    sums->update_sq += c.loops->sum_sq(c.update, s.count, &sums->has_bad);
    for (uint32_t i = 0; i + 1 < rules->count; i++) {
        shape(&rules->steps[i], &c);
    }
    merge(last, &c);
    sums->weight_sq += c.loops->sum_sq(c.anchor, s.count, &sums->has_bad);
    if (msdu__dtype_is_half(dtype)) {
        msdu__vec_narrow(wide, dtype, param, s.count);
    }
}

void msdu__correct_apply(const msdu_rules *rules, const msdu_arrays *arrays, uint64_t count,
                         int32_t dtype, msdu__sums *sums)
{
    assert(rules->count > 0);
    for (uint64_t start = 0; start < count; start += MSDU__CHUNK) {
        apply_span(rules, arrays, dtype, span_next(start, count), sums);
    }
}
