/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as text: parse, check against the table, print. */
#include "table.h"

#include "interval/interval.h"
#include "wire/wire.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What is wrong with a value; NULL: nothing. */
typedef const char *problem;

msdu_status msdu__setting_fail(const msdu__loader *loader, const char *format, ...)
{
    char text[MSDU__TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (loader->log->rank >= 0) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: %s", loader->log->rank, text);
    }
    return msdu__fail_text(MSDU_ERR_INVALID, text);
}

/* strtoll() alone would take leading blanks and an empty text. */
static bool parse_digits(const char *text, int64_t *value_out, const char **end_out)
{
    size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
    if (text[sign] < '0' || text[sign] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    *value_out = value;
    *end_out = end;
    return true;
}

bool msdu__setting_integer(const char *text, int64_t *value_out)
{
    const char *end = NULL;
    int64_t value = 0;
    if (!parse_digits(text, &value, &end) || *end != '\0') {
        return false;
    }
    *value_out = value;
    return true;
}

static problem check_range(const msdu__setting *setting, double value)
{
    return value >= setting->low && value <= setting->high ? NULL : "is out of range";
}

/* Numbers that the library chooses itself unless they are given: -1. */
static bool is_auto(const msdu__setting *setting, const char *text)
{
    return strcmp(setting->default_text, "auto") == 0 && strcmp(text, "auto") == 0;
}

static problem parse_integer(const msdu__setting *setting, const char *text, int64_t *value_out)
{
    if (is_auto(setting, text)) {
        *value_out = -1;
        return NULL;
    }
    if (!msdu__setting_integer(text, value_out)) {
        return "is not an integer";
    }
    return check_range(setting, (double)*value_out);
}

/* Factor of a size suffix, 0 if there is no such suffix. Powers of 1024 only: MB would be unclear.
 */
static int64_t suffix_factor(const char *text)
{
    static const struct {
        const char *suffix;
        int64_t factor;
    } list[] = {{"", 1},        {"B", 1},         {"k", 1 << 10}, {"KiB", 1 << 10},
                {"M", 1 << 20}, {"MiB", 1 << 20}, {"G", 1 << 30}, {"GiB", 1 << 30}};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        if (strcasecmp(text, list[i].suffix) == 0) {
            return list[i].factor;
        }
    }
    return 0;
}

static problem parse_bytes(const msdu__setting *setting, const char *text, int64_t *value_out)
{
    const char *end = NULL;
    int64_t value = 0;
    if (is_auto(setting, text)) {
        *value_out = -1;
        return NULL;
    }
    if (!parse_digits(text, &value, &end)) {
        return "is not a number of bytes";
    }
    int64_t factor = suffix_factor(end + strspn(end, " "));
    if (factor == 0) {
        return "is not a number of bytes (suffixes k, M, G, KiB, MiB, GiB)";
    }
    problem wrong = check_range(setting, (double)value * (double)factor);
    if (wrong == NULL) {
        *value_out = value * factor; /* fits: the range was checked before */
    }
    return wrong;
}

static problem parse_real(const msdu__setting *setting, const char *text, double *value_out)
{
    /* Decimal only: strtod() would take hexadecimal, "inf" and leading blanks as well. */
    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') {
        return "is not a number";
    }
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return "is not a number";
    }
    problem wrong = check_range(setting, value);
    if (wrong == NULL) {
        *value_out = value;
    }
    return wrong;
}

/* Start of the index-th choice and its length; 0 past the last. */
static size_t choice_at(const char *choices, int64_t index, const char **start_out)
{
    const char *at = choices;
    for (; index > 0; index--) {
        const char *comma = strchr(at, ',');
        if (comma == NULL) {
            return 0;
        }
        at = comma + 2; /* ", " */
    }
    *start_out = at;
    return strcspn(at, ",");
}

static problem parse_choice(const msdu__setting *setting, const char *text, int64_t *value_out)
{
    const char *start = NULL;
    for (int64_t i = 0;; i++) {
        size_t length = choice_at(setting->range, i, &start);
        if (length == 0) {
            return "is not one of the choices";
        }
        if (strlen(text) == length && memcmp(text, start, length) == 0) {
            *value_out = (int64_t)setting->low + i;
            return NULL;
        }
    }
}

static problem parse_text(const char *text, char *value_out)
{
    size_t length = strnlen(text, MSDU__SETTING_BYTES);
    if (length == MSDU__SETTING_BYTES) {
        return "is too long";
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
            return "has a control character";
        }
    }
    memcpy(value_out, text, length + 1);
    return NULL;
}

static problem parse_policy(const char *text, char *value_out)
{
    return msdu__policy_find(text) != NULL ? parse_text(text, value_out) : "is not a known policy";
}

static problem parse_wire(const char *text, int64_t *value_out)
{
    int wire = strcmp(text, "auto") == 0 ? -1 : msdu__wire_find(text);
    if (wire < 0 && strcmp(text, "auto") != 0) {
        return "is not a known wire format";
    }
    *value_out = wire;
    return NULL;
}

static problem parse_any(const msdu__setting *setting, const char *text, void *place)
{
    switch (setting->kind) {
    case MSDU__KIND_TEXT:
        return parse_text(text, place);
    case MSDU__KIND_INTEGER:
        return parse_integer(setting, text, place);
    case MSDU__KIND_BYTES:
        return parse_bytes(setting, text, place);
    case MSDU__KIND_CHOICE:
        return parse_choice(setting, text, place);
    case MSDU__KIND_WIRE:
        return parse_wire(text, place);
    case MSDU__KIND_REAL:
        return parse_real(setting, text, place);
    case MSDU__KIND_POLICY:
        return parse_policy(text, place);
    }
    return "has no known type";
}

/* Names of a list, asked for one by one, joined by commas. */
static void join_names(char *text, size_t bytes, const char *(*name_at)(uint32_t index))
{
    size_t used = strlen(text);
    const char *name = NULL;
    for (uint32_t i = 0; (name = name_at(i)) != NULL && used < bytes; i++) {
        int added = snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", name);
        used += (size_t)added;
    }
}

static const char *policy_name(uint32_t index)
{
    const msdu__policy *policy = msdu__policy_at(index);
    return policy != NULL ? policy->name : NULL;
}

static const char *wire_name(uint32_t index)
{
    return index < MSDU__WIRE_COUNT ? msdu__wire_at((int)index)->name : NULL;
}

/* Policies and wires may be added without touching the table, so their lists are made here. */
static void print_range(const msdu__setting *setting, char *text, size_t bytes)
{
    text[0] = '\0';
    if (setting->kind == MSDU__KIND_POLICY) {
        join_names(text, bytes, policy_name);
    } else if (setting->kind == MSDU__KIND_WIRE) {
        snprintf(text, bytes, "auto");
        join_names(text, bytes, wire_name);
    } else {
        snprintf(text, bytes, "%s", setting->range);
    }
}

/* A text for others: the login of a URL stays out of it. */
static const char *without_login(const char *value, char text[MSDU__SETTING_BYTES])
{
    const char *start = strstr(value, "://");
    const char *at = start != NULL ? strrchr(start, '@') : NULL;
    if (at == NULL) {
        return value;
    }
    (void)snprintf(text, MSDU__SETTING_BYTES, "%.*s(hidden)%s", (int)(start + 3 - value), value,
                   at);
    return text;
}

msdu_status msdu__setting_set(msdu__loader *loader, size_t index, const char *value,
                              const char *origin)
{
    const msdu__setting *setting = msdu__setting_at(index);
    const char *now = msdu__setting_renamed(setting->name, value);
    if (now != NULL) {
        msdu__log_line(loader->log, MSDU_LOG_WARN, "%s: value '%s' is called '%s' since 0.3",
                       origin, value, now);
        value = now;
    }
    problem wrong = parse_any(setting, value, (char *)loader->settings + setting->settings_at);
    if (wrong == NULL) {
        return MSDU_OK;
    }
    char range[MSDU__TEXT_BYTES / 2];
    char text[MSDU__SETTING_BYTES];
    print_range(setting, range, sizeof(range));
    bool is_hidden = (setting->flags & MSDU__SETTING_HIDDEN) != 0;
    return msdu__setting_fail(loader, "%s: '%.60s' %s; allowed: %s", origin,
                              is_hidden ? "(hidden)" : without_login(value, text), wrong, range);
}

void msdu__setting_given(msdu__loader *loader, size_t index, const char *origin)
{
    loader->given[index] = true;
    if (loader->origin != NULL && loader->asked == index) {
        snprintf(loader->origin, MSDU__SETTING_BYTES, "%s", origin);
    }
}

msdu_status msdu__setting_override(msdu__loader *loader, size_t index, const char *value,
                                   const char *origin)
{
    msdu_status status = msdu__setting_set(loader, index, value, origin);
    if (status != MSDU_OK) {
        return status;
    }
    const msdu__setting *setting = msdu__setting_at(index);
    char text[MSDU__SETTING_BYTES];
    bool is_hidden = (setting->flags & MSDU__SETTING_HIDDEN) != 0;
    msdu__setting_given(loader, index, origin);
    msdu__log_line(loader->log, MSDU_LOG_INFO, "%s %s (from %s)", setting->name,
                   is_hidden ? "set" : without_login(value, text), origin);
    return MSDU_OK;
}

void msdu__setting_print(const msdu__setting *setting, const msdu__settings *settings, char *text,
                         size_t bytes)
{
    const char *place = (const char *)settings + setting->settings_at;
    int64_t integer = 0;
    double real = 0;
    const char *choice = "";
    char shown[MSDU__SETTING_BYTES];
    switch (setting->kind) {
    case MSDU__KIND_TEXT:
    case MSDU__KIND_POLICY:
        snprintf(text, bytes, "%s", without_login(place, shown));
        return;
    case MSDU__KIND_REAL:
        memcpy(&real, place, sizeof(real));
        snprintf(text, bytes, "%.17g", real);
        return;
    case MSDU__KIND_INTEGER:
    case MSDU__KIND_BYTES:
    case MSDU__KIND_CHOICE:
    case MSDU__KIND_WIRE:
        memcpy(&integer, place, sizeof(integer));
        break;
    }
    if (setting->kind == MSDU__KIND_CHOICE) {
        size_t length = choice_at(setting->range, integer - (int64_t)setting->low, &choice);
        snprintf(text, bytes, "%.*s", (int)length, choice);
    } else if (setting->kind == MSDU__KIND_WIRE) {
        snprintf(text, bytes, "%s", integer < 0 ? "auto" : msdu__wire_at((int)integer)->name);
    } else if (integer < 0 && is_auto(setting, setting->default_text)) {
        snprintf(text, bytes, "auto");
    } else {
        snprintf(text, bytes, "%lld", (long long)integer);
    }
}
