/* SPDX-License-Identifier: Apache-2.0 */
#include "variables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
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
     .help = "off: everything is passed through; always: also where it was not measured to gain",
     .kind = MSDU__VARIABLE_CHOICE},
    NUMBER(MIN_BYTES, "1024", 0, 1000000000000, "smaller reductions are never gradients"),
    TEXT(LIST, ALLOW, "conditions, see doc/attach.md", "what may be a gradient; none: everything"),
    TEXT(LIST, DENY, "conditions, see doc/attach.md", "what must not be a gradient"),
    NUMBER(TENSORS, "0", 0, 1000000,
           "gradients of a step, where equal layers leave it open; 0: found out"),
    NUMBER(LEARN, "32", 1, 1000000, "calls that must repeat before they are believed"),
    NUMBER(EQUAL_STEPS, "0", 0, 1000000000,
           "parameters are equal on all ranks after every so many steps; 0: never"),
    NUMBER(GUARD, "0", 0, 1000000000,
           "steps between two comparisons of what ranks were given; 0: never"),
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

bool msdu__variable_number(const char *text, uint64_t *value_out)
{
    if (*text == '\0' || text[strspn(text, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    *value_out = strtoull(text, NULL, 10);
    return errno == 0;
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
        return msdu__variable_number(text, &number) && number >= variable->low &&
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
    static const char *const types[] = {"choice", "integer", "text", "text"};
    return types[variable->kind];
}
