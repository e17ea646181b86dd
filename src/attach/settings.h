/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as attaching sees them. */
#ifndef MSDU_ATTACH_SETTINGS_H
#define MSDU_ATTACH_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/msdu.h>

#include "place.h"

/*
 * What somebody gave a setting, by its name ("wire") or variable ("MSDU_ATTACH_LEARN"): environment
 * over ini file, checked, as `msdu info` writes it.
 * "": nobody did, or a setting has a bad value, which msdu__attach_has_bad_setting() tells. Static,
 * asked for once in a process. Thread: any.
 */
const char *msdu__attach_setting(const char *name);
/* Did the environment or the file give it? */
bool msdu__attach_is_given(const char *name);
/* Who gave it: "MSDU_WIRE", "run.ini:3: wire"; "": nobody. */
const char *msdu__attach_origin(const char *name);
/* A whole number, given or the default; otherwise: where a setting has a bad value. */
uint64_t msdu__attach_number(const char *name, uint64_t otherwise);
/* Of all that decides what is taken: equal on ranks that were given the same. */
uint64_t msdu__attach_hash(void);
/* Settings are asked for anew: for tests, that change them. */
void msdu__attach_forget(void);

/* Local steps: domain accumulated. */
bool msdu__attach_is_local(void);
/* float32 at h = 1 is what MPI does. */
bool msdu__attach_is_exact(void);
/* Gradients are taken whatever it costs: MSDU_ATTACH=always, or what is to be done with them was
 * said (format, interval, domain). */
bool msdu__attach_is_asked(void);
bool msdu__attach_is_dampened(void);
/* A context's settings, but for its place in the job: what users give comes over them. */
msdu_config msdu__attach_config(bool is_local);

/* What the lists ask about a communicator: equal on all its ranks. */
typedef struct msdu__attach_comm {
    int ranks;
    char name[64];    /* as its owner called it; "": not at all */
    bool is_nameless; /* nobody may ask for its name */
} msdu__attach_comm;

/* What they ask about a reduction, likewise. */
typedef struct msdu__attach_facts {
    uint64_t count;
    int32_t dtype; /* msdu_dtype */
    const msdu__attach_comm *comm;
    int64_t at; /* among those of a step; negative: not known yet, nothing is denied by it */
} msdu__attach_facts;

/*
 * May it be a gradient (MSDU_ATTACH_ALLOW, MSDU_ATTACH_DENY)? A list has items between commas, an
 * item has conditions between colons, all of which hold: a count of elements, a type, ranks=,
 * comm=, at=; numbers may be ranges, open ones, too, and a name may be a pattern of the
 * shell: "float32:1000-,ranks=4:at=0-3,comm=data*".
 */
bool msdu__attach_is_allowed(const msdu__attach_facts *facts);
/* --- check.c --- */

/*
 * Does any setting not hold for a trainer that is attached: a value that is not allowed, a slip in
 * a variable's name, a list that cannot be read, what attaching sets itself? One line about it in
 * text. From then on msdu__attach_is_allowed() allows nothing. comm: NULL before there is one.
 */
bool msdu__attach_has_bad_setting(const msdu__attach_comm *comm, char *text, size_t bytes);
void msdu__attach_set_bad(bool is_found); /* settings.c */
/* The next MSDU_* variable from the *at-th of the environment on that is no setting, in text with
 * the nearest one; is it a slip? false: there is none left. */
bool msdu__attach_unknown(size_t *at, char *text, size_t bytes, bool *is_slip_out);

/* --- settings.c: lists --- */

/* The first item of a list that cannot be read, with its list's name, in text; false: none. */
bool msdu__attach_has_bad_list(const msdu__attach_comm *comm, char *text, size_t text_bytes);
/* Shall what was recognized, and the summary, be told (MSDU_LOG is not "error")? */
bool msdu__attach_is_loud(void);

#endif
