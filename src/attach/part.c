/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that took local steps when the pattern of reductions changed. */
#include "part.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "early_end.h"

#define PIECE 65536 /* numbers summed up at a time */

/* How sums over ranks are had. */
typedef struct means {
    int ranks;
    msdu__part_sum sum;
    void *user;
    double *room;
} means;

/* Equal ranks differ from their mean by its rounding alone. */
static double difference(double x, double mean, int ranks)
{
    const double less = x - mean;
    return fabs(less) <= ranks * DBL_EPSILON * fabs(x) ? 0 : less;
}

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
            const double mean = m->room[i] / m->ranks;
            if (is_double) {
                wide[at + i] = difference(wide[at + i], mean, m->ranks);
            } else {
                narrow[at + i] -= (float)mean;
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

/* From the memory that was told of one. */
static bool was_home(const msdu__part *part, const msdu__call *call)
{
    for (uint32_t i = 0; i < part->before_count; i++) {
        const msdu__call *known = &part->before[i];
        if (known->count == call->count && known->kind == call->kind &&
            known->memory == call->memory) {
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

/* For lost() and suspect(); without memory everything is new. */
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
        const msdu__call call = {
            .count = list->count, .kind = list->kind, .is_candidate = true, .memory = list->memory};
        if (list->memory != 0 ? !was_home(part, &call) : !was_known(part, &call)) {
            part->before[part->before_count++] = call;
        }
    }
}

/* The newest first. Of what memory told so far, size and order tell nothing: of equal layers one
 * may be frozen, or their order another one. */
bool msdu__part_keep(msdu__part *part, msdu__apart *list, const msdu__recognizer *r, int ranks,
                     msdu__part_sum sum, void *user)
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
        apart->memory = msdu__recognize_home(r, apart->at);
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
    uint32_t newest = r->tensor_count;
    part->is_over = true;
    for (msdu__apart *apart = part->apart; apart != NULL; apart = apart->next) {
        if (apart->memory == 0) {
            apart->memory = newest > 0 ? r->tensors[apart->at].memory : UINT64_MAX; /* nowhere */
        }
        newest -= newest > 0 ? 1 : 0;
    }
}

/* One from memory that nobody knows may be of any that is apart and has its size: then what is
 * known of that one is not true any more. Behind the last step it may be an average. */
static void suspect(const msdu__part *part, const msdu__call *seen)
{
    const bool is_other = part->apart == NULL || part->is_over || was_home(part, seen);
    for (msdu__apart *apart = is_other ? NULL : part->apart; apart != NULL; apart = apart->next) {
        apart->is_unsure =
            apart->is_unsure || (apart->count == seen->count && apart->kind == seen->kind);
    }
}

msdu__apart *msdu__part_find(const msdu__part *part, const msdu__call *seen)
{
    if (!seen->is_candidate) {
        return NULL;
    }
    msdu__apart *found = msdu__apart_find(part->apart, seen->count, seen->kind, seen->memory);
    if (found == NULL) {
        suspect(part, seen);
    }
    return found;
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

#define TEXT_BYTES 320

static const char *describe(const msdu__apart *apart, char text[TEXT_BYTES])
{
    static const char *const came[] = {"was not reduced any more, or from other memory",
                                       "was reduced only once after the change",
                                       "was reduced while its learning rate changed or was 0"};
    (void)snprintf(text, TEXT_BYTES,
                   "the gradient of %" PRIu64 " elements, %u of %u of a step, %s: its parameters "
                   "differ between ranks by what local steps did since they met last",
                   apart->count, apart->at + 1, apart->of,
                   came[apart->calls < 2 ? apart->calls : 2]);
    return text;
}

void msdu__part_tell(msdu__part *part)
{
    char text[TEXT_BYTES];
    for (msdu__apart *apart = part->apart; apart != NULL; apart = apart->next) {
        const bool is_told = part->is_quiet || apart->is_left;
        if (!is_told && msdu__apart_differs(apart)) {
            (void)fprintf(stderr, "msdu: rank 0: %s, until it is reduced again\n",
                          describe(apart, text));
        } else if (!is_told && msdu__apart_drifts(apart)) {
            (void)fprintf(stderr,
                          "msdu: rank 0: the gradient of %" PRIu64 " elements, %u of %u of a step, "
                          "was not reduced any more: its parameters are equal on all ranks, its "
                          "momentum is not, so the optimizer has to leave it alone until then\n",
                          apart->count, apart->at + 1, apart->of);
        }
        apart->is_left = true;
    }
}

static const msdu__apart *first_that_differs(const msdu__apart *apart)
{
    while (apart != NULL && !msdu__apart_differs(apart)) {
        apart = apart->next;
    }
    return apart;
}

bool msdu__part_differs(const msdu__part *part)
{
    return first_that_differs(part->apart) != NULL;
}

void msdu__part_fail(const msdu__part *part)
{
    const msdu__apart *apart = first_that_differs(part->apart);
    char text[TEXT_BYTES];
    char why[512];
    apart = apart != NULL ? apart : part->apart; /* rank 0 may happen to be where the mean is */
    if (apart == NULL) {
        msdu__early_fail("gradients that changed under local steps did not come again: parameters "
                         "of other ranks differ");
        return;
    }
    const uint32_t others = length(apart->next);
    (void)snprintf(why, sizeof(why),
                   "%s%s; let ranks synchronize before such a change "
                   "(msdu_attach_sync_after_step(), MSDU_ATTACH_EQUAL_STEPS), or use "
                   "MSDU_DOMAIN=gradient",
                   describe(apart, text), others > 0 ? ", and others are like it" : "");
    msdu__early_fail(why);
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
