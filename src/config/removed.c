/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that are gone, and values that have another name now. */
#include "table.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    const char *instead;
} removed[] = {
    {"wire_rounding", "gone since 0.3: values are always rounded to the nearest level"},
    {"wire_warmup", "gone since 0.3: the first warmup_steps travel in the format of wire"},
};

const char *msdu__setting_removed(const char *name)
{
    static const char prefix[] = "MSDU_";
    bool is_variable = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
    const char *own = is_variable ? name + sizeof(prefix) - 1 : name;
    for (size_t i = 0; i < sizeof(removed) / sizeof(removed[0]); i++) {
        if (strcasecmp(own, removed[i].name) == 0) {
            return removed[i].instead;
        }
    }
    return NULL;
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
