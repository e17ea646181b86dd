/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of attaching, which are read from the environment alone. */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

uint64_t msdu__attach_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    uint64_t value = strtoull(text, &end, 10);
    return *end == '\0' ? value : otherwise;
}

/* Is `count` in a list such as "1000,5000-6000"? */
static bool is_listed(const char *list, uint64_t count)
{
    const char *at = list;
    while (*at != '\0') {
        char *end = NULL;
        uint64_t low = strtoull(at, &end, 10);
        uint64_t high = low;
        if (*end == '-') {
            high = strtoull(end + 1, &end, 10);
        }
        if (end == at) {
            return false;
        }
        if (count >= low && count <= high) {
            return true;
        }
        at = *end == ',' ? end + 1 : end;
    }
    return false;
}

bool msdu__attach_is_allowed(uint64_t count)
{
    const char *allow = getenv("MSDU_ATTACH_ALLOW");
    const char *deny = getenv("MSDU_ATTACH_DENY");
    return (allow == NULL || is_listed(allow, count)) && (deny == NULL || !is_listed(deny, count));
}

bool msdu__attach_is_loud(void)
{
    const char *level = getenv("MSDU_LOG");
    return level == NULL || strcmp(level, "error") != 0;
}
