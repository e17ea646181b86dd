/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that only attaching has: variables, MSDU_ATTACH_*, one row each. */
#ifndef MSDU_ATTACH_VARIABLES_H
#define MSDU_ATTACH_VARIABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum msdu__variable_kind {
    MSDU__VARIABLE_CHOICE, /* one of `range`, which lists them */
    MSDU__VARIABLE_NUMBER, /* low .. high */
    MSDU__VARIABLE_BYTES,  /* likewise, with k, M, G, KiB, MiB, GiB, as a setting of the library */
    MSDU__VARIABLE_LIST,   /* see msdu__attach_is_allowed() */
    MSDU__VARIABLE_FILE,   /* a library: with a slash it must be there */
} msdu__variable_kind;

typedef struct msdu__variable {
    const char *name;
    const char *default_text; /* "": none */
    const char *range;
    const char *help;
    uint64_t low;
    uint64_t high;
    msdu__variable_kind kind;
} msdu__variable;

const msdu__variable *msdu__variable_at(size_t index);       /* NULL past the last */
const msdu__variable *msdu__variable_find(const char *name); /* NULL: there is none */
bool msdu__variable_is_good(const msdu__variable *variable, const char *text); /* but for lists */
/* variable: NULL, or whose number it is; false: it is none. */
bool msdu__variable_number(const msdu__variable *variable, const char *text, uint64_t *value_out);
/* "choice", "integer" or "text", as msdu_setting_info has it. */
const char *msdu__variable_type(const msdu__variable *variable);

#endif
