/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that took local steps when the pattern of reductions changed. */
#include "part.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE 65536 /* numbers summed up at a time */

/* How sums over ranks are had. */
typedef struct means {
    int ranks;
    msdu__part_sum sum;
    void *user;
    double *room;
} means;

/* x <- x - mean of all ranks */
static bool subtract_mean(const means *m, void *x, uint64_t count, bool is_double)
{
    double *wide = x;
    float *narrow = x;
    for (uint64_t at = 0; at < count; at += PIECE) {
        const uint64_t piece = count - at < PIECE ? count - at : PIECE;
        for (uint64_t i = 0; i < piece; i++) {
            m->room[i] = is_double ? wide[at + i] : (double)narrow[at + i];
        }
        if (!m->sum(m->user, m->room, piece)) {
            return false;
        }
        for (uint64_t i = 0; i < piece; i++) {
            if (is_double) {
                wide[at + i] -= m->room[i] / m->ranks;
            } else {
                narrow[at + i] -= (float)(m->room[i] / m->ranks);
            }
        }
    }
    return true;
}

static bool was_known(const msdu__part *part, const msdu__call *call)
{
    for (uint32_t i = 0; i < part->before_count; i++) {
        if (part->before[i].count == call->count && part->before[i].kind == call->kind) {
            return true;
        }
    }
    return false;
}

static uint32_t length(const msdu__apart *list)
{
    uint32_t count = 0;
    for (; list != NULL; list = list->next) {
        count++;
    }
    return count;
}

/* For lost(); without memory everything is new. */
static void remember(msdu__part *part, const msdu__apart *list)
{
    msdu__call *larger =
        realloc(part->before, (part->before_count + length(list)) * sizeof(*part->before));
    if (larger == NULL) {
        part->before_count = 0;
        return;
    }
    part->before = larger;
    for (; list != NULL; list = list->next) {
        const msdu__call call = {.count = list->count, .kind = list->kind, .is_candidate = true};
        if (!was_known(part, &call)) {
            part->before[part->before_count++] = call;
        }
    }
}

/* The newest first. */
bool msdu__part_keep(msdu__part *part, msdu__apart *list, int ranks, msdu__part_sum sum, void *user)
{
    if (list == NULL) {
        return true;
    }
    means m = {ranks, sum, user, malloc(PIECE * sizeof(double))};
    bool is_good = m.room != NULL;
    msdu__apart *last = list;
    for (msdu__apart *apart = list; apart != NULL && is_good; apart = apart->next) {
        bool is_double = msdu__apart_is_double(apart);
        is_good = subtract_mean(&m, apart->parameter, apart->count, is_double) &&
                  subtract_mean(&m, apart->momentum, apart->count, is_double);
        last = apart;
    }
    free(m.room);
    if (!is_good) {
        msdu__apart_free(list);
    } else {
        remember(part, list);
        last->next = part->apart;
        part->apart = list;
    }
    return is_good;
}

void msdu__part_free(msdu__part *part)
{
    msdu__apart_free(part->apart);
    free(part->before);
    *part = (msdu__part){.apart = NULL};
}

void msdu__part_over(msdu__part *part, const msdu__recognizer *r)
{
    part->is_over = true;
    for (msdu__apart *apart = part->apart; apart != NULL; apart = apart->next) {
        apart->memory = r->tensors[apart->at].memory;
    }
}

msdu__apart *msdu__part_find(const msdu__part *part, const msdu__call *seen)
{
    msdu__apart *apart = seen->is_candidate ? part->apart : NULL;
    if (apart != NULL && !part->is_over) {
        return msdu__apart_find(apart, seen->count, seen->kind);
    }
    while (apart != NULL && (apart->memory != seen->memory || apart->count != seen->count ||
                             apart->kind != seen->kind || apart->is_busy)) {
        apart = apart->next;
    }
    return apart;
}

void msdu__part_joined(msdu__part *part, msdu__apart *apart)
{
    msdu__apart **at = &part->apart;
    while (*at != apart) {
        at = &(*at)->next;
    }
    *at = apart->next;
    apart->next = NULL;
    if (part->apart == NULL && !part->is_quiet && !part->is_over) {
        (void)fprintf(stderr, "msdu: rank 0: ranks are joined again\n");
    }
}

static void tell_one(const msdu__apart *apart, bool is_end)
{
    (void)fprintf(stderr,
                  "msdu: rank 0: the gradient of %" PRIu64 " elements, %u of %u of a step, %s: its "
                  "parameters differ between ranks by what local steps did since they met last%s\n",
                  apart->count, apart->at + 1, apart->of,
                  apart->calls == 0 ? "was not reduced any more"
                                    : "was reduced only once after the change",
                  is_end ? "" : ", until it is reduced again");
}

void msdu__part_tell(msdu__part *part, bool is_end)
{
    for (msdu__apart *apart = part->apart; apart != NULL; apart = apart->next) {
        if (!part->is_quiet && !part->is_over && (is_end || !apart->is_left)) {
            tell_one(apart, is_end);
        }
        apart->is_left = true;
    }
}

/*
 * Gradients that stay away while others are new may have become them, such as a tensor that is
 * reduced in two parts from now on: then ranks would train different models. Where nothing is new
 * they are not trained any more, and the difference stays what it is.
 */
static const msdu__apart *lost(const msdu__part *part, const msdu__recognizer *r)
{
    const msdu__apart *apart = part->apart;
    bool has_new = false;
    for (uint32_t i = 0; apart != NULL && i < r->tensor_count && !has_new; i++) {
        has_new = !was_known(part, &r->tensors[i]);
    }
    while (apart != NULL && apart->is_left) {
        apart = apart->next;
    }
    return has_new ? apart : NULL;
}

bool msdu__part_is_lost(const msdu__part *part, const msdu__recognizer *r, char *why, size_t bytes)
{
    const msdu__apart *apart = lost(part, r);
    if (apart == NULL) {
        return false;
    }
    (void)snprintf(why, bytes,
                   "after local steps the gradient of %" PRIu64 " elements, %u of %u of a step, "
                   "stays away, and others are new: if they took its place, ranks cannot be "
                   "joined; use MSDU_DOMAIN=gradient",
                   apart->count, apart->at + 1, apart->of);
    return true;
}
