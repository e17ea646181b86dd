/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that are gone, and what holds instead. */
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
