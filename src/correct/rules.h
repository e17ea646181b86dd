/* SPDX-License-Identifier: Apache-2.0 */
/* What the rule files share; a new rule is one file and one line here and in correct.c. */
#ifndef MSDU_RULES_H
#define MSDU_RULES_H

#include "correct.h"
#include "vec.h"

extern const msdu__rule msdu__rule_average;
extern const msdu__rule msdu__rule_elastic;
extern const msdu__rule msdu__rule_delayed;
extern const msdu__rule msdu__rule_blend;
extern const msdu__rule msdu__rule_clip;
extern const msdu__rule msdu__rule_outer;

/* Loops for the chunk's working type. */
static inline const msdu__vec_real *msdu__chunk_loops(const msdu__chunk *chunk)
{
    return msdu__vec_get()->real[chunk->is_double ? 1 : 0];
}

#endif
