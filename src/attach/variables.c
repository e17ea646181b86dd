/* SPDX-License-Identifier: Apache-2.0 */
#include "variables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* clang-format off */
#define NUMBER(name_, preset, low_, high_, help_)                                                  \
    {.name = "MSDU_ATTACH_" #name_, .default_text = preset, .range = #low_ " .. " #high_,          \
     .help = help_, .low = low_, .high = high_, .kind = MSDU__VARIABLE_NUMBER}
#define TEXT(kind_, name_, range_, help_)                                                          \
    {.name = "MSDU_ATTACH_" #name_, .default_text = "", .range = range_, .help = help_,            \
     .kind = MSDU__VARIABLE_##kind_}

static const msdu__variable table[] = {
    {.name = "MSDU_ATTACH", .default_text = "on", .range = "off, on, always",
     .help = "off: all is passed through; on: gradients are taken where steps were measured to be faster; always: whatever it costs",
     .kind = MSDU__VARIABLE_CHOICE},
    {.name = "MSDU_ATTACH_MIN_BYTES", .default_text = "1024", .range = "0 .. 1024GiB",
     .help = "smaller reductions are never gradients", .high = 1ULL << 40,
     .kind = MSDU__VARIABLE_BYTES},
    TEXT(LIST, ALLOW, "conditions, see doc/attach.md", "what may be a gradient; none: everything"),
    TEXT(LIST, DENY, "conditions, see doc/attach.md", "what must not be a gradient"),
    NUMBER(TENSORS, "0", 0, 1000000,
           "gradients of a step, with or without those that are too small; 0: found out"),
    NUMBER(LEARN, "32", 1, 1000000, "calls that must repeat before they are believed"),
    NUMBER(EQUAL_STEPS, "0", 0, 1000000000,
           "parameters are equal on all ranks after every so many steps; 0: never"),
    NUMBER(GUARD, "0", 0, 1000000000,
           "ranks compare the sums that were given out after every so many steps; 0: never"),
    TEXT(FILE, LIBRARY, "a shared library", "file of the MPI library, where it is not found"),
    TEXT(FILE, NCCL_LIBRARY, "a shared library", "file of the NCCL library, where it is not found"),
};
/* clang-format on */

const msdu__variable *msdu__variable_at(size_t index)
{
    return index < sizeof(table) / sizeof(table[0]) ? &table[index] : NULL;
}

const msdu__variable *msdu__variable_find(const char *name)
{
    const msdu__variable *variable = NULL;
    for (size_t i = 0; (variable = msdu__variable_at(i)) != NULL; i++) {
        if (strcmp(variable->name, name) == 0) {
            return variable;
        }
    }
    return NULL;
}

/* 0: there is no such suffix. Powers of 1024 only, as everywhere in the library. */
static uint64_t factor_of(const char *suffix)
{
    static const char *const names[] = {"B", "k", "KiB", "M", "MiB", "G", "GiB"};
    static const uint64_t factors[] = {1,        1U << 10, 1U << 10, 1U << 20,
                                       1U << 20, 1U << 30, 1U << 30};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(suffix, names[i]) == 0) {
            return factors[i];
        }
    }
    return *suffix == '\0' ? 1 : 0;
}

bool msdu__variable_number(const msdu__variable *variable, const char *text, uint64_t *value_out)
{
    bool has_suffix = variable != NULL && variable->kind == MSDU__VARIABLE_BYTES;
    size_t digits = strspn(text, "0123456789");
    uint64_t factor = has_suffix ? factor_of(text + digits) : text[digits] == '\0' ? 1 : 0;
    if (digits == 0 || factor == 0) {
        return false;
    }
    errno = 0;
    uint64_t value = strtoull(text, NULL, 10);
    *value_out = value * factor;
    return errno == 0 && value <= UINT64_MAX / factor;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices; *at != '\0'; at += strspn(at, ", ")) {
        size_t bytes = strcspn(at, ",");
        if (bytes == length && memcmp(at, text, length) == 0) {
            return true;
        }
        at += bytes;
    }
    return false;
}

bool msdu__variable_is_good(const msdu__variable *variable, const char *text)
{
    uint64_t number = 0;
    switch (variable->kind) {
    case MSDU__VARIABLE_CHOICE:
        return is_choice(variable->range, text);
    case MSDU__VARIABLE_NUMBER:
    case MSDU__VARIABLE_BYTES:
        return msdu__variable_number(variable, text, &number) && number >= variable->low &&
               number <= variable->high;
    case MSDU__VARIABLE_FILE: /* without a slash the loader searches for it */
        return strchr(text, '/') == NULL || access(text, R_OK) == 0;
    case MSDU__VARIABLE_LIST:
        break;
    }
    return true;
}

const char *msdu__variable_type(const msdu__variable *variable)
{
    static const char *const types[] = {"choice", "integer", "integer", "text", "text"};
    return types[variable->kind];
}
