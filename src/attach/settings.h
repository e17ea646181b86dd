/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of attaching, MSDU_ATTACH_*, which are read from the environment alone. */
#ifndef MSDU_ATTACH_SETTINGS_H
#define MSDU_ATTACH_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t msdu__attach_number(const char *name, uint64_t otherwise);

/* What the lists ask about a communicator: equal on all its ranks. */
typedef struct msdu__attach_comm {
    int ranks;
    int stride;     /* from each member to the next, in ranks of the job; 0: they are not alike */
    char name[64];  /* as its owner called it; "": not at all */
    bool is_silent; /* stride and name cannot be known: nobody may ask for them */
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
 * stride=, comm=, at=; numbers may be ranges, open ones, too, and a name may be a pattern of the
 * shell: "float32:1000-,ranks=4:at=0-3,comm=data*".
 */
bool msdu__attach_is_allowed(const msdu__attach_facts *facts);
/* The first item of a list that cannot be read, with its list's name, in text; false: none. */
bool msdu__attach_has_bad_list(const msdu__attach_comm *comm, char *text, size_t text_bytes);
/* Shall what was recognized, and the summary, be told (MSDU_LOG is not "error")? */
bool msdu__attach_is_loud(void);

#endif
