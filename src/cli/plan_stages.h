/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `msdu plan --stages` share. */
#ifndef MSDU_PLAN_STAGES_H
#define MSDU_PLAN_STAGES_H

#include <msdu/stages.h>

#include "machines.h"
#include "plan_cmd.h"

typedef struct msdu__plan_stages_case {
    const msdu__plan_request *request;
    msdu__machines machines;
    msdu_stages_question question;
    const msdu_stages *plan;
} msdu__plan_stages_case;

/* plan_stages_report.c: text or one JSON object on standard output, and the files asked for. False:
 * why holds one line. */
bool msdu__plan_stages_report(const msdu__plan_stages_case *c, char *why, size_t why_bytes);

#endif
