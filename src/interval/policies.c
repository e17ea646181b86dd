/* SPDX-License-Identifier: Apache-2.0 */
/* The list of policies. Pure. */
#include "policies.h"

#include <string.h>

#define POLICY_ENTRY(name) &msdu__policy_##name,
static const msdu__policy *const policies[] = {MSDU__POLICIES(POLICY_ENTRY)};

const msdu__policy *msdu__policy_at(uint32_t index)
{
    return index < sizeof(policies) / sizeof(policies[0]) ? policies[index] : NULL;
}

const msdu__policy *msdu__policy_find(const char *name)
{
    for (uint32_t i = 0; msdu__policy_at(i) != NULL; i++) {
        if (strcmp(policies[i]->name, name) == 0) {
            return policies[i];
        }
    }
    return NULL;
}
