/* SPDX-License-Identifier: Apache-2.0 */
/* A plan for the caller, made of what the search found. Pure but for memory. */
#ifndef MSDU_STAGES_BUILD_H
#define MSDU_STAGES_BUILD_H

#include "search.h"

/* What msdu_stages_plan() gives out: the caller sees the first member. */
typedef struct msdu__stages_made {
    msdu_stages plan;
    msdu__stages_memory memory; /* this struct is one of its blocks */
} msdu__stages_made;

/* NULL: no memory. */
msdu__stages_made *msdu__stages_build(const msdu__stages_model *model,
                                      const msdu__search_answer *answer, uint32_t ahead);
void msdu__stages_unbuild(msdu__stages_made *made);

#endif
