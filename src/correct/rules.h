/* SPDX-License-Identifier: Apache-2.0 */
/* The list of rules. */
#ifndef MSDU_RULES_H
#define MSDU_RULES_H

#include "correct.h"

/* A line here registers msdu__rule_<name> of <name>.c; the build reads this list too. */
#define MSDU__RULES(X)                                                                             \
    X(average)                                                                                     \
    X(elastic)                                                                                     \
    X(delayed)                                                                                     \
    X(blend)                                                                                       \
    X(outer)                                                                                       \
    X(clip)

#define MSDU__RULE_EXTERN(name) extern const msdu__rule msdu__rule_##name;
MSDU__RULES(MSDU__RULE_EXTERN)
#undef MSDU__RULE_EXTERN

#endif
