/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a state and its context must have in common: settings and tensors as text, a fact a line.
 * Settings come and go, and values get other names: a state of an older version counts as what it
 * means today.
 */
#include "state.h"

#include "config/table.h"
#include "startup/startup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES 120

/* A resumed run may have its own: they change neither what the state means nor how it is cut. */
static bool may_differ(const char *line)
{
    static const char *const names[] = {"job ",    "broadcast ", "check_finite ",
                                        "window ", "lanes ",     "total_steps "};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(line, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

char *msdu__text_describe(const msdu__caller *caller)
{
    char *text = msdu__agree_describe(caller->engine, false);
    char *to = text;
    for (const char *line = text; line != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n") + 1;
        if (!may_differ(line)) {
            memmove(to, line, length);
            to += length;
        }
        line += length;
    }
    if (text != NULL) {
        *to = '\0';
    }
    return text;
}

/* A line `name value`. */
typedef struct fact {
    char name[SHOWN_BYTES];
    char value[MSDU__SETTING_BYTES];
} fact;

static fact fact_of(const char *line, int length)
{
    fact f = {.name = ""};
    const char *space = memchr(line, ' ', (size_t)length);
    int name = space != NULL ? (int)(space - line) : length;
    snprintf(f.name, sizeof(f.name), "%.*s", name, line);
    if (space != NULL) {
        snprintf(f.value, sizeof(f.value), "%.*s", length - name - 1, space + 1);
    }
    return f;
}

static const char *next_line(const char *line, int length, const char *end)
{
    return line + length + (line + length < end ? 1 : 0);
}

/* Is it a setting of which the state, from here on, says nothing? They have one order in all
 * versions. */
static bool is_unknown_to(const msdu__lines *l, const char *name)
{
    size_t length = strlen(name);
    int whole = 0;
    for (const char *line = l->a; line < l->a_end; line = next_line(line, whole, l->a_end)) {
        const char *end = memchr(line, '\n', (size_t)(l->a_end - line));
        whole = (int)((end != NULL ? end : l->a_end) - line);
        if ((size_t)whole > length && memcmp(line, name, length) == 0 && line[length] == ' ') {
            return false;
        }
    }
    return msdu__setting_index(name) != SIZE_MAX;
}

/* Go on behind a difference that is one of versions only; otherwise false. */
static bool pass_over(const msdu__settings *settings, msdu__lines *l)
{
    fact saved = fact_of(l->a, l->a_length);
    fact own = fact_of(l->b, l->b_length);
    const char *value = msdu__setting_renamed(saved.name, saved.value);
    bool is_renamed =
        value != NULL && strcmp(saved.name, own.name) == 0 && strcmp(value, own.value) == 0;
    bool is_gone = msdu__setting_was_default(saved.name, saved.value);
    bool is_new = is_unknown_to(l, own.name) && msdu__settings_is_default(settings, own.name);
    if (is_renamed || is_gone) {
        l->a = next_line(l->a, l->a_length, l->a_end);
    }
    if (is_renamed || (is_new && !is_gone)) {
        l->b = next_line(l->b, l->b_length, l->b_end);
    }
    return is_renamed || is_gone || is_new;
}

static msdu_status fail_difference(int32_t rank, const msdu__lines *l)
{
    int a_length = l->a_length < SHOWN_BYTES ? l->a_length : SHOWN_BYTES;
    int b_length = l->b_length < SHOWN_BYTES ? l->b_length : SHOWN_BYTES;
    const char *instead = msdu__setting_removed(fact_of(l->a, l->a_length).name);
    if (instead != NULL) {
        return msdu__fail(MSDU_ERR_MISMATCH,
                          "rank %d: the state was saved with '%.*s', which is %s", rank, a_length,
                          l->a, instead);
    }
    if (is_unknown_to(l, fact_of(l->b, l->b_length).name)) {
        return msdu__fail(MSDU_ERR_MISMATCH,
                          "rank %d: this context has '%.*s', of which the version that saved the "
                          "state knew nothing: only its default goes on from there",
                          rank, b_length, l->b);
    }
    return msdu__fail(MSDU_ERR_MISMATCH,
                      "rank %d: the state was saved with '%.*s', this context has '%.*s'", rank,
                      a_length, l->a, b_length, l->b);
}

msdu_status msdu__text_check(const msdu__caller *caller, const char *text, uint64_t bytes)
{
    char *own = msdu__text_describe(caller);
    if (own == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the state",
                          caller->job->rank);
    }
    msdu__lines lines = {.a = text, .a_end = text + bytes, .b = own, .b_end = own + strlen(own)};
    msdu_status status = MSDU_OK;
    while (status == MSDU_OK && msdu__agree_first_difference(&lines)) {
        if (!pass_over(&caller->job->settings, &lines)) {
            status = fail_difference(caller->job->rank, &lines);
        }
    }
    free(own);
    return status;
}
