/* SPDX-License-Identifier: Apache-2.0 */
/* The list of rules, and what their files share. */
#ifndef MSDU_RULES_H
#define MSDU_RULES_H

#include "correct.h"
#include "simd/vec.h"

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

/* Loops for the chunk's working type. */
static inline const msdu__vec_real *msdu__chunk_loops(const msdu__chunk *chunk)
{
    return msdu__vec_get()->real[chunk->is_double ? 1 : 0];
}

#endif
