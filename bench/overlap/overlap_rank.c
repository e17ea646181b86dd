/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench overlap`: one method on one rank, from its context to its result. */
#include "overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

#define MIB             1048576.0
#define BUCKET_MIB      25.0 /* PyTorch's DistributedDataParallel: bucket_cap_mb */
#define BUCKET_LEAST    262144.0
#define DEFAULTS_WARMUP 64 /* the controller takes its time */
#define WINDOW          8  /* steps whose mean is one value, where the interval may move */
#define SETTINGS_BYTES  1024
#define FRAGMENTS       8 /* of streamed rounds, where they are that long */

/* --- contexts --- */

/* 0: the library's choice. */
static double slice_bytes(const msdu__overlap_plan *plan, const msdu__overlap_method *method)
{
    if (method->is_bucketed) {
        return fmax(BUCKET_LEAST, BUCKET_MIB * MIB * fmin(1, plan->scale));
    }
    return (double)plan->slice_bytes;
}

static uint32_t fragments_of(const msdu__overlap_plan *plan)
{
    return plan->interval < FRAGMENTS ? plan->interval : FRAGMENTS;
}

static void write_settings(const msdu__overlap_rank *r, char out[SETTINGS_BYTES])
{
    const msdu__overlap_plan *plan = r->plan;
    const msdu__overlap_method *m = r->method;
    unsigned long long bytes = (unsigned long long)slice_bytes(plan, m);
    int used = snprintf(out, SETTINGS_BYTES, "%s", m->settings);
    if (bytes > 0) {
        used += snprintf(out + used, SETTINGS_BYTES - (size_t)used,
                         "slice_bytes=%llu\nfuse_bytes=%llu\n", bytes, bytes);
    }
    if (m->kind == MSDU__OVERLAP_LOCAL) {
        used += snprintf(out + used, SETTINGS_BYTES - (size_t)used, "interval_steps=%u\n",
                         plan->interval);
    }
    if (m->kind == MSDU__OVERLAP_LOCAL && m->is_streamed) {
        snprintf(out + used, SETTINGS_BYTES - (size_t)used, "fragments=%u\n", fragments_of(plan));
    }
}

static bool add_tensors(msdu__overlap_rank *r)
{
    const msdu__profile *p = &r->plan->profile;
    for (uint32_t l = 0; l < p->layer_count; l++) {
        for (uint32_t k = 0; k < p->layers[l].tensor_count; k++) {
            uint32_t t = p->layers[l].first_tensor + k;
            msdu_tensor_desc desc = MSDU_TENSOR_INIT;
            desc.name = p->tensors[t].name;
            desc.count = p->tensors[t].count;
            desc.priority = r->method->has_priority ? (int32_t)l : 0;
            desc.gradient = r->method->kind != MSDU__OVERLAP_LOCAL ? r->gradient[t] : NULL;
            desc.parameter = r->method->kind != MSDU__OVERLAP_GRADIENT ? r->parameter[t] : NULL;
            if (msdu_tensor_add(r->ctx, &desc, NULL) != MSDU_OK) {
                return false;
            }
        }
    }
    return true;
}

/* "%m" of a path becomes the method. */
static void trace_path(const char *given, const char *method, char *out, size_t bytes)
{
    const char *mark = strstr(given, "%m");
    size_t before = mark != NULL ? (size_t)(mark - given) : strlen(given);
    snprintf(out, bytes, "%.*s%s%s", (int)before, given, mark != NULL ? method : "",
             mark != NULL ? mark + 2 : "");
}

/* Computing goes into a file beside the library's, on the same clock. */
static void open_spans(msdu__overlap_rank *r, const char *path)
{
    char name[PATH_MAX];
    msdu_summary summary = MSDU_SUMMARY_INIT;
    const char *mark = strstr(path, "%r");
    size_t before = mark != NULL ? (size_t)(mark - path) : strlen(path);
    snprintf(name, sizeof(name), "%.*s%d%s.compute", (int)before, path, (int)r->rank,
             mark != NULL ? mark + 2 : "");
    r->spans = fopen(name, "we");
    if (r->spans != NULL && msdu_summary_get(r->ctx, &summary) == MSDU_OK) {
        r->spans_from_ns = msdu__bench_now() - (double)summary.elapsed_ns;
        fprintf(r->spans,
                "[\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":0,"
                "\"args\":{\"name\":\"compute\"}}",
                (int)r->rank);
    }
}

static void close_spans(msdu__overlap_rank *r)
{
    if (r->spans != NULL) {
        fputs("\n]\n", r->spans);
        (void)fclose(r->spans);
        r->spans = NULL;
    }
}

static bool open_method(msdu__overlap_rank *r, msdu__overlap_group *group)
{
    const msdu__profile *p = &r->plan->profile;
    char settings[SETTINGS_BYTES];
    char trace[PATH_MAX];
    msdu_config config;
    r->ctx = NULL;
    r->step = 0;
    r->due_ns = 0;
    r->error = r->received = 0;
    r->sampled = 0;
    memset(r->hash, 0, sizeof(r->hash));
    for (uint32_t t = 0; t < p->tensor_count; t++) { /* equal on all ranks */
        msdu__overlap_fill(&r->values, -1, 0, t, r->parameter[t], p->tensors[t].count);
        memset(r->gradient[t], 0, p->tensors[t].count * sizeof(float));
    }
    if (r->method->kind == MSDU__OVERLAP_COMPUTE) {
        return true;
    }
    if (!msdu__overlap_group_next(group, &config)) {
        return false;
    }
    write_settings(r, settings);
    config.settings = settings;
    if (r->plan->trace != NULL) {
        trace_path(r->plan->trace, r->method->name, trace, sizeof(trace));
        config.trace_file = trace;
    }
    if (msdu_create(&config, &r->ctx) != MSDU_OK || !add_tensors(r) ||
        msdu_start(r->ctx) != MSDU_OK) {
        return false;
    }
    if (r->plan->trace != NULL) {
        open_spans(r, trace);
    }
    return true;
}

/* --- measuring --- */

static bool run_steps(msdu__overlap_rank *r, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        if (!msdu__overlap_step(r)) {
            return false;
        }
    }
    return true;
}

static uint32_t window_of(const msdu__overlap_rank *r)
{
    switch (r->method->kind) {
    case MSDU__OVERLAP_LOCAL:
        return r->plan->interval;
    case MSDU__OVERLAP_DEFAULTS:
        return WINDOW;
    case MSDU__OVERLAP_COMPUTE:
    case MSDU__OVERLAP_GRADIENT:
        break;
    }
    return 1;
}

static uint64_t bytes_sent(const msdu__overlap_rank *r)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    return r->ctx != NULL && msdu_summary_get(r->ctx, &summary) == MSDU_OK ? summary.bytes_sent : 0;
}

/* The measured steps, as windows of whole rounds. */
static bool measure(msdu__overlap_rank *r, msdu__overlap_result *out)
{
    uint32_t window = window_of(r);
    uint32_t windows = (r->plan->steps + window - 1) / window;
    double *spent = calloc(windows, sizeof(*spent));
    double cpu = msdu__bench_cpu();
    uint64_t bytes = bytes_sent(r);
    bool is_done = spent != NULL;
    for (uint32_t i = 0; i < windows && is_done; i++) {
        double began = msdu__bench_now();
        is_done = run_steps(r, window);
        spent[i] = (msdu__bench_now() - began) / window;
    }
    if (is_done) {
        double steps = (double)windows * window;
        msdu__bench_stats stats = msdu__bench_summarize(spent, windows);
        out->step_ns = stats.median;
        out->p90_ns = stats.p90;
        out->cpu_ns = (msdu__bench_cpu() - cpu) / steps;
        out->bytes = (double)(bytes_sent(r) - bytes) / steps; /* where rounds may change */
    }
    free(spent);
    return is_done;
}

static uint32_t warmup_of(const msdu__overlap_rank *r)
{
    uint32_t least =
        r->method->kind == MSDU__OVERLAP_DEFAULTS ? DEFAULTS_WARMUP : MSDU__OVERLAP_CHECKS;
    uint32_t wanted = r->plan->is_smoke || r->plan->warmup > least ? r->plan->warmup : least;
    uint32_t window = window_of(r); /* measured windows begin with a round */
    return (wanted + window - 1) / window * window;
}

/* Rounds end at odd times. Those of gradients are alike; of fixed local steps the bytes are known.
 */
static void note_bytes(const msdu__overlap_rank *r, const msdu_summary *summary,
                       msdu__overlap_result *out)
{
    if (r->method->kind == MSDU__OVERLAP_GRADIENT) {
        out->bytes = (double)summary->bytes_sent / (double)summary->rounds;
    } else if (r->method->kind == MSDU__OVERLAP_LOCAL) {
        out->bytes = msdu__overlap_link_bytes(r->plan, r->ranks, r->method->wire) /
                     (double)r->plan->interval;
    }
}

static void note_end(msdu__overlap_rank *r, msdu__overlap_result *out)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    out->interval = 1;
    out->wire = r->method->wire;
    if (r->ctx != NULL && msdu_summary_get(r->ctx, &summary) == MSDU_OK) {
        out->interval = (double)summary.interval_steps;
        out->wire = msdu__wire_find(summary.wire);
        if (summary.rounds > 0) {
            note_bytes(r, &summary, out);
        }
    }
}

/* Slowest time, most bytes, mean processor time, all that is wrong. */
static bool join_results(const msdu__overlap_rank *r, msdu__overlap_group *group,
                         msdu__overlap_result *result)
{
    double numbers[MSDU__OVERLAP_RANKS_MAX * 6] = {0};
    double *own = numbers + (size_t)r->rank * 6;
    own[0] = result->step_ns;
    own[1] = result->p90_ns;
    own[2] = result->bytes;
    own[3] = result->cpu_ns;
    own[4] = result->wrong;
    own[5] = result->error;
    if (!msdu__overlap_group_sum(group, numbers, (uint32_t)r->ranks * 6)) {
        return false;
    }
    result->cpu_ns = result->wrong = 0;
    for (int32_t i = 0; i < r->ranks; i++) {
        const double *of = numbers + (size_t)i * 6;
        result->step_ns = fmax(result->step_ns, of[0]);
        result->p90_ns = fmax(result->p90_ns, of[1]);
        result->bytes = fmax(result->bytes, of[2]);
        result->cpu_ns += of[3] / r->ranks;
        result->wrong += of[4];
        result->error = fmax(result->error, of[5]);
    }
    return true;
}

static bool end_method(msdu__overlap_rank *r, msdu__overlap_result *result)
{
    if (!msdu__overlap_last(r)) {
        return false;
    }
    note_end(r, result);
    if (r->ctx != NULL && msdu_finish(r->ctx) != MSDU_OK) {
        return false;
    }
    msdu__overlap_compare(r);
    result->error = r->error;
    return true;
}

bool msdu__overlap_method_run(msdu__overlap_rank *r, msdu__overlap_group *group,
                              msdu__overlap_result *result)
{
    *result = (msdu__overlap_result){.step_ns = 0};
    bool is_done = open_method(r, group) && run_steps(r, warmup_of(r)) && measure(r, result) &&
                   end_method(r, result);
    close_spans(r);
    if (!is_done) {
        return false; /* the context stays: its failure is what is told */
    }
    msdu_destroy(r->ctx);
    r->ctx = NULL;
    return msdu__overlap_check(r, group, &result->wrong) && join_results(r, group, result);
}
