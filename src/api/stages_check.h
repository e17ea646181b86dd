/* SPDX-License-Identifier: Apache-2.0 */
/* What is checked of a question about a pipeline before it is answered. */
#ifndef MSDU_API_STAGES_CHECK_H
#define MSDU_API_STAGES_CHECK_H

#include <msdu/stages.h>

#define MSDU__STAGES_NAME_BYTES 96

typedef struct msdu__stages_name {
    char text[MSDU__STAGES_NAME_BYTES];
} msdu__stages_name;

/* A layer or device as the caller calls it; by number without names. */
msdu__stages_name msdu__stages_name_of(const char *kind, const char *const *names, uint32_t index);
/* ERR_INVALID: value is not in low .. high. */
msdu_status msdu__stages_check_range(const char *name, uint32_t value, uint32_t low, uint32_t high);
/* Everything but the batch; out: a copy of the question, of this library's size. */
msdu_status msdu__stages_check(const msdu_stages_question *question, msdu_stages_question *out);
msdu_status msdu__stages_check_batch(const msdu_stages_question *q);

#endif
