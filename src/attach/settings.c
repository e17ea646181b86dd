/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of what may be a gradient, and what they ask about a communicator. */
#include "settings.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cell.h"

/* Both of two: the lesser; either of two: the greater, unless one is BAD. */
typedef enum answer {
    BAD = -1, /* it cannot be read */
    NO = 0,
    UNKNOWN = 1, /* what is asked for is not known yet */
    YES = 2,
} answer;

/* Where the digits end; NULL: there are none. */
static const char *read_number(const char *at, uint64_t *value_out)
{
    char *end = NULL;
    if (!isdigit((unsigned char)*at)) {
        return NULL;
    }
    *value_out = strtoull(at, &end, 10);
    return end;
}

/* "5", "5-8" or "5-", which ends at `end`; a negative value is not known. */
static answer is_in_range(const char *at, const char *end, int64_t value)
{
    uint64_t low = 0;
    at = read_number(at, &low);
    uint64_t high = low;
    if (at != NULL && at != end && *at == '-') {
        high = UINT64_MAX;
        at = at + 1 == end ? end : read_number(at + 1, &high);
    }
    if (at != end || high < low) {
        return BAD;
    }
    if (value < 0) {
        return UNKNOWN;
    }
    return (uint64_t)value >= low && (uint64_t)value <= high ? YES : NO;
}

/* "data*", which ends at `end`. */
static answer has_name(const char *at, const char *end, const msdu__attach_comm *comm)
{
    char pattern[sizeof(comm->name)];
    size_t length = (size_t)(end - at);
    if (length == 0 || length >= sizeof(pattern) || comm->is_nameless) {
        return BAD;
    }
    memcpy(pattern, at, length);
    pattern[length] = '\0';
    return fnmatch(pattern, comm->name, 0) == 0 ? YES : NO;
}

static answer meets_condition(const char *at, const char *end, const msdu__attach_facts *facts)
{
    /* as msdu_dtype counts them */
    static const char *const types[] = {"float32", "float64", "float16", "bfloat16"};
    size_t length = (size_t)(end - at);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (length == strlen(types[i]) && strncmp(at, types[i], length) == 0) {
            return facts->dtype == (int32_t)i ? YES : NO;
        }
    }
    if (strncmp(at, "ranks=", 6) == 0) {
        return is_in_range(at + 6, end, facts->comm->ranks);
    }
    if (strncmp(at, "comm=", 5) == 0) {
        return has_name(at + 5, end, facts->comm);
    }
    if (strncmp(at, "at=", 3) == 0) {
        return is_in_range(at + 3, end, facts->at);
    }
    return is_in_range(at, end, (int64_t)facts->count);
}

/* All conditions of an item. */
static answer meets_item(const char *at, const char *end, const msdu__attach_facts *facts)
{
    answer all = YES;
    for (const char *stop = NULL; stop != end; at = stop + 1) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        stop = colon == NULL ? end : colon;
        answer one = meets_condition(at, stop, facts);
        all = one < all ? one : all;
    }
    return all;
}

/* Any item of a list; bad_out: the item that cannot be read. */
static answer meets_list(const char *list, const msdu__attach_facts *facts, const char **bad_out)
{
    answer any = NO;
    const char *at = list;
    while (*at != '\0') {
        const char *end = strchrnul(at, ',');
        answer one = meets_item(at, end, facts);
        if (one == BAD) {
            *bad_out = at;
            return BAD;
        }
        any = one > any ? one : any;
        at = *end == '\0' ? end : end + 1;
    }
    return any;
}

static const char allow_name[] = "MSDU_ATTACH_ALLOW";
static const char deny_name[] = "MSDU_ATTACH_DENY";

static msdu__flag is_bad; /* read at every reduction */

void msdu__attach_set_bad(bool is_found)
{
    msdu__flag_set(&is_bad, is_found);
}

bool msdu__attach_is_allowed(const msdu__attach_facts *facts)
{
    if (msdu__flag_get(&is_bad)) {
        return false;
    }
    const char *bad = NULL;
    const char *allow = msdu__attach_setting(allow_name);
    if (*allow != '\0' && meets_list(allow, facts, &bad) < UNKNOWN) {
        return false;
    }
    answer denied = meets_list(msdu__attach_setting(deny_name), facts, &bad);
    return denied == NO || denied == UNKNOWN;
}

bool msdu__attach_has_bad_list(const msdu__attach_comm *comm, char *text, size_t text_bytes)
{
    static const msdu__attach_comm anyone = {.ranks = 1};
    const msdu__attach_facts any = {.comm = comm == NULL ? &anyone : comm, .at = -1};
    const char *const names[] = {allow_name, deny_name};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *bad = NULL;
        if (meets_list(msdu__attach_setting(names[i]), &any, &bad) == BAD) {
            (void)snprintf(text, text_bytes,
                           "%s: \"%.*s\" is no count, type, ranks=, at=%s, nor a range", names[i],
                           (int)strcspn(bad, ","), bad,
                           any.comm->is_nameless ? " (NCCL tells no name)" : " or comm=");
            return true;
        }
    }
    return false;
}
