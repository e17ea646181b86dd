/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of before, under new times. Pure but for memory. */
#ifndef MSDU_STAGES_GIVEN_H
#define MSDU_STAGES_GIVEN_H

#include "model.h"

typedef enum msdu__given_outcome {
    MSDU__GIVEN_OK,
    MSDU__GIVEN_SHORT,   /* no memory */
    MSDU__GIVEN_LAYOUT,  /* stages do not cover the layers in order, or have no rank */
    MSDU__GIVEN_LINK,    /* neighbors have no link */
    MSDU__GIVEN_ACTION,  /* an action is missing, repeated, unknown or on another's rank */
    MSDU__GIVEN_FOREVER, /* ranks wait for each other */
} msdu__given_outcome;

/* action_out: number of the action that is wrong. */
msdu__given_outcome msdu__given_time(const msdu__stages_model *model, const msdu_stages *plan,
                                     double *step_ns_out, uint32_t *action_out);

#endif
