/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `msdu plan` share: the question as it was asked, and its report. */
#ifndef MSDU_PLAN_CMD_H
#define MSDU_PLAN_CMD_H

#include "predict/control.h"
#include "predict/uneven.h"

/* Of pipelines, as options give them; 0 or NULL: not given. */
typedef struct msdu__plan_pipeline {
    const char *machines; /* file; NULL: no pipeline is asked for */
    const char *csv;      /* files to write */
    const char *csv_messages;
    const char *modules;
    double micro_batches; /* 0: the best */
    double batch;
    bool has_micro_batches;
    bool may_split;
    bool may_two;
} msdu__plan_pipeline;

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
    double taken;
    double slice_us;
    double up_to;
    int topology;
    bool is_sgd;
    bool is_here;
    bool is_blocking;
    bool is_backward;
    bool is_json;
    bool has_groups; /* hosts or speeds were named */
    msdu__uneven_speeds speeds;
    msdu__plan_pipeline pipeline;

    /* what follows from them */
    msdu__profile profile;
    msdu__whatif_question question;
    char controller[1024]; /* settings */
} msdu__plan_request;

/* Predict and print; false with one line in why. */
bool msdu__plan_report(msdu__plan_request *request, char *why, size_t why_bytes);

/* plan_uneven.c: what ways of training uneven ranks, and hosts of several, take; text, or records
 * appended to an array if it is not NULL. */
struct cJSON;
bool msdu__plan_uneven(const msdu__plan_request *request, struct cJSON *records, char *why,
                       size_t why_bytes);
/* plan_stages.c: stages of a pipeline on given machines; false with one line in why. */
bool msdu__plan_stages(const msdu__plan_request *request, char *why, size_t why_bytes);
/* Values of --hosts and --speeds; false: not one. */
bool msdu__plan_read_hosts(const char *text, msdu__plan_request *request);
bool msdu__plan_read_speeds(const char *text, msdu__uneven_speeds *speeds);

#endif
