/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `msdu plan` share: the question as it was asked, and its report. */
#ifndef MSDU_PLAN_CMD_H
#define MSDU_PLAN_CMD_H

#include "predict/control.h"

typedef struct msdu__plan_request {
    /* as options give them; 0 or NULL: the default */
    const char *profile_name;
    const char *methods;
    const char *settings;
    double ranks;
    double nodes;
    double parameters;
    double rate_mbit;
    double latency_us;
    double inner_rate_mbit;
    double inner_latency_us;
    double step_ms;
    double target;
    double scale;
    double ratio;
    double interval;
    double slice_bytes;
    double passes;
    double slice_us;
    double up_to;
    int topology;
    bool is_linear;
    bool is_blocking;
    bool is_backward;
    bool is_json;

    /* what follows from them */
    msdu__profile profile;
    msdu__whatif_question question;
    char controller[1024]; /* settings */
} msdu__plan_request;

/* Predict and print; false with one line in why. */
bool msdu__plan_report(msdu__plan_request *request, char *why, size_t why_bytes);

#endif
