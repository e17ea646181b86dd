/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that are gone, and values that have another name now. */
#include "table.h"

#include <string.h>
#include <strings.h>

typedef struct removal {
    const char *name;
    const char *default_text;
    const char *instead;
} removal;

static const removal removed[] = {
    {"wire_rounding", "nearest", "gone since 0.3: values are always rounded to the nearest level"},
    {"wire_warmup", "auto", "gone since 0.3: the first warmup_steps travel in the format of wire"},
};

static const removal *find(const char *name)
{
    for (size_t i = 0; i < sizeof(removed) / sizeof(removed[0]); i++) {
        if (strcasecmp(name, removed[i].name) == 0) {
            return &removed[i];
        }
    }
    return NULL;
}

const char *msdu__setting_removed(const char *name)
{
    static const char prefix[] = "MSDU_";
    bool is_variable = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
    const removal *found = find(is_variable ? name + sizeof(prefix) - 1 : name);
    return found != NULL ? found->instead : NULL;
}

bool msdu__setting_was_default(const char *name, const char *value)
{
    const removal *found = find(name);
    return found != NULL && strcmp(found->default_text, value) == 0;
}

/* Old values are taken until 0.4. */
static const struct {
    const char *name;
    const char *old;
    const char *value;
} renamed[] = {
    {"wire", "ternary", "int2"},
    {"check_finite", "pass", "propagate"},
};

const char *msdu__setting_renamed(const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++) {
        if (strcmp(renamed[i].name, name) == 0 && strcmp(renamed[i].old, value) == 0) {
            return renamed[i].value;
        }
    }
    return NULL;
}
