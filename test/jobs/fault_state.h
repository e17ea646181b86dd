/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of fault_rank: the library's state and the trainer's own, in one file. */
#ifndef TEST_FAULT_STATE_H
#define TEST_FAULT_STATE_H

#include <msdu/msdu.h>

#include "fault_model.h"

/* What else a trainer keeps. */
typedef struct fault_progress {
    int step;
    uint64_t history;
} fault_progress;

/* Between steps. Returns the library's status, or ERR_IO. */
msdu_status fault_state_save(msdu_ctx *ctx, const char *path, const fault_model *model,
                             const fault_progress *progress);
/* After msdu_start(). Returns the library's status, or ERR_IO. */
msdu_status fault_state_load(msdu_ctx *ctx, const char *path, const fault_model *model,
                             fault_progress *progress_out);

#endif
