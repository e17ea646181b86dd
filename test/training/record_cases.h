/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of test_record: settings, and what the trainer does with them. */
#ifndef TEST_RECORD_CASES_H
#define TEST_RECORD_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "ranks.h"

typedef struct record_case {
    char name[128];
    char settings[256]; /* lines of an ini file */
    bool is_left_out;   /* settings that do not go together, or that give what time decides */
    ranks_job job;
} record_case;

/* Each gives its i-th case; false: there are no more. */
typedef bool (*record_group)(unsigned i, record_case *c);

#define RECORD_GROUPS 4
extern const record_group record_groups[RECORD_GROUPS];

/* Append to a text; what does not fit is a failure of the test. */
void record_say(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- record_features.c --- */

/* What a feature does not go with, bits. */
enum {
    RECORD_NO_GRADIENT = 1,
    RECORD_NO_ACCUMULATED = 2,
    RECORD_NO_PARAMETER = 4, /* nor domain auto */
    RECORD_NO_LATE = 8,      /* overlaps whose means come in a later step */
};

/* Settings, and what the trainer does: what is not 0 in `with`, and what `set` changes. */
typedef struct record_feature {
    const char *name;
    const char *settings;
    unsigned without;
    ranks_job with;
    void (*set)(ranks_job *job);
} record_feature;

/* The i-th; NULL: there are no more. */
const record_feature *record_policy_at(unsigned i);
const record_feature *record_rule_at(unsigned i);
const record_feature *record_feature_at(unsigned i);

#endif
