/* SPDX-License-Identifier: Apache-2.0 */
/* The table behind all settings, shared by the files of this folder and their tests. */
#ifndef MSDU_CONFIG_TABLE_H
#define MSDU_CONFIG_TABLE_H

#include "config.h"

/* What a setting is once resolved, which also says how its text is parsed. */
typedef enum msdu__kind {
    MSDU__KIND_TEXT,    /* char[MSDU__SETTING_BYTES] */
    MSDU__KIND_INTEGER, /* int64_t; so are all up to KIND_WIRE */
    MSDU__KIND_BYTES,   /* accepts k, M, G */
    MSDU__KIND_CHOICE,  /* low + index into `range`, which lists the choices */
    MSDU__KIND_WIRE,    /* index of wire.h, -1: auto */
    MSDU__KIND_REAL,    /* double */
    MSDU__KIND_POLICY,  /* text, a name of interval.h */
} msdu__kind;

/* Type of the field in msdu_config. */
typedef enum msdu__store {
    MSDU__STORE_TEXT,
    MSDU__STORE_INT32,
    MSDU__STORE_INT64,
    MSDU__STORE_UINT64,
    MSDU__STORE_DOUBLE,
    MSDU__STORE_NONE,
} msdu__store;

enum {
    MSDU__SETTING_AGREE = 1,   /* must be equal on all ranks */
    MSDU__SETTING_HIDDEN = 2,  /* its value never appears in a text */
    MSDU__SETTING_NO_FILE = 4, /* means nothing inside an ini file */
};

typedef struct msdu__setting {
    const char *name;
    const char *environment;
    const char *default_text;
    const char *range;
    const char *help;
    double low; /* numbers: both ends are allowed */
    double high;
    size_t config_at;   /* offset in msdu_config */
    size_t settings_at; /* offset in msdu__settings */
    msdu__kind kind;
    msdu__store store;
    unsigned flags;
} msdu__setting;

/* Places in the table, by variable: MSDU__AT_WINDOW. */
enum {
#define SETTING_AS(type, field, resolved, kind, variable, ...) MSDU__AT_##variable,
#include "settings.inc"
    MSDU__SETTINGS
};

/* State of one load. */
typedef struct msdu__loader {
    msdu__settings *settings;
    msdu__log *log;             /* its rank, once known, is named in errors */
    bool given[MSDU__SETTINGS]; /* by struct, file or environment; by place in the table */
    bool is_quiet;              /* nothing is logged */
    size_t asked;               /* whose origin is kept, in: */
    char *origin;               /* MSDU__SETTING_BYTES, or NULL */
} msdu__loader;

/* --- table.c --- */
const msdu__setting *msdu__setting_at(size_t index); /* NULL past the last */
size_t msdu__setting_index(const char *name);        /* SIZE_MAX if there is none */
/* The known name nearest to a mistyped one, NULL if none is near; both of names or of variables. */
const char *msdu__setting_nearest(const char *name, bool is_environment);

/* --- removed.c --- */
/* Of a name or variable that was a setting once: what holds instead. NULL: it never was one. */
const char *msdu__setting_removed(const char *name);
/* Of a value that had another name once: the name that it has now. NULL: it is none of these. */
const char *msdu__setting_renamed(const char *name, const char *value);

/* --- value.c --- */
/* Check a value and store it. origin ("MSDU_WINDOW", "run.ini:3: window") is for the error text. */
msdu_status msdu__setting_set(msdu__loader *loader, size_t index, const char *value,
                              const char *origin);
/* The resolved value as text, in the same form as an ini file holds it. */
void msdu__setting_print(const msdu__setting *setting, const msdu__settings *settings, char *text,
                         size_t bytes);
/* Remember that it was given, and by whom. */
void msdu__setting_given(msdu__loader *loader, size_t index, const char *origin);
/* As msdu__setting_set(), then remember that it was given and log the override at info. */
msdu_status msdu__setting_override(msdu__loader *loader, size_t index, const char *value,
                                   const char *origin);
/* Error text with "rank N: " in front where the rank is known. Always ERR_INVALID. */
msdu_status msdu__setting_fail(const msdu__loader *loader, const char *format, ...)
    MSDU_PRINTF(2, 3);
/* Decimal integer, nothing else around it. */
bool msdu__setting_integer(const char *text, int64_t *value_out);

/* --- env.c --- */
/* All MSDU_* variables; a warning for each unknown one, an error for one that is gone. */
msdu_status msdu__settings_environment(msdu__loader *loader);
/* Rank and size from torchrun, Open MPI, MPICH or Slurm where no one gave them; then the default
 * rendezvous. */
msdu_status msdu__settings_launcher(msdu__loader *loader);
/* This process's rank as far as it can be told before anything is checked; -1 if it cannot. */
int msdu__settings_peek_rank(const msdu_config *config);

/* --- check.c --- */
/* Rules that join several settings. */
msdu_status msdu__settings_check(msdu__loader *loader);

#endif
