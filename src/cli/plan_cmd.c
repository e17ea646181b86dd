/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu plan`: what-if. Options, and the question that they make; plan_report.c answers it. */
#include "plan_cmd.h"

#include "cli.h"
#include "units.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/stages.h>

#define DEFAULT_STEP_MS    100
#define DEFAULT_PARAMETERS 25e6
#define FORWARD_SHARE      (1.0 / 3) /* of a step: a backward pass takes two products for each one */
#define PROFILE_TEXT       512

enum { KEY_RANKS = 256, KEY_NODES, KEY_BYTES, KEY_PARAMETERS, KEY_RATE, KEY_LATENCY, KEY_STEP };
enum { KEY_TARGET = KEY_STEP + 1, KEY_INNER_RATE, KEY_INNER_LATENCY, KEY_SCALE, KEY_RATIO };
enum {
    KEY_INTERVAL = KEY_RATIO + 1,
    KEY_SLICE,
    KEY_PASSES,
    KEY_UP_TO,
    KEY_OPTIMIZER,
    KEY_BLOCKING
};
enum { KEY_BACKWARD = KEY_BLOCKING + 1, KEY_PROFILE, KEY_METHODS, KEY_TOPOLOGY, KEY_SETTINGS };
enum { KEY_JSON = KEY_SETTINGS + 1, KEY_SLICE_US, KEY_HOSTS, KEY_LINK, KEY_INNER, KEY_SPEEDS };
enum { KEY_HERE = KEY_SPEEDS + 1, KEY_TAKEN, KEY_STAGES, KEY_MICRO, KEY_BATCH, KEY_SPLIT };
enum { KEY_TWO = KEY_SPLIT + 1, KEY_CSV, KEY_CSV_MESSAGES, KEY_MODULES };

static const struct argp_option options[] = {
    {"profile", KEY_PROFILE, "NAME", 0, "name or file of a model profile", 0},
    {"scale", KEY_SCALE, "X", 0, "factor of its times, tensors and slices (default 1)", 0},
    {"ratio", KEY_RATIO, "X", 0,
     "communication by computation, which sets its times (default 0: the profile's)", 0},
    {NULL, 0, NULL, 0, "Without a profile, a model of one layer:", 0},
    {"parameters", KEY_PARAMETERS, "N", 0, "parameters of the model (default 25 million)", 0},
    {"bytes", KEY_BYTES, "N", 0, "size of the model in float32, instead of --parameters", 0},
    {"step-ms", KEY_STEP, "X", 0, "one training step without waiting in ms (default 100)", 0},
    {NULL, 0, NULL, 0, "The machines:", 0},
    {"hosts", KEY_HOSTS, "MxN", 0, "M machines of N ranks each, as 2x8", 0},
    {"rate", KEY_LINK, "RATE", 0, "of a machine's link to the others, as 1gbit or 200mbit", 0},
    {"inner", KEY_INNER, "RATE", 0, "of a rank's link inside its machine", 0},
    {"speeds", KEY_SPEEDS, "LIST", 0,
     "of ranks, in turn, as 1,1,.5,.25: what ways of training them together take", 0},
    {NULL, 0, NULL, 0, "The same as single numbers:", 0},
    {"ranks", KEY_RANKS, "N", 0, "ranks (default 4)", 0},
    {"nodes", KEY_NODES, "M", 0, "machines, which divide the ranks (default: one for each)", 0},
    {"rate-mbit", KEY_RATE, "X", 0,
     "rate for data of a machine's link to the others, Mbit/s (default 1000)", 0},
    {"latency-us", KEY_LATENCY, "X", 0, "time of an empty message there in us (default 50)", 0},
    {"inner-rate-mbit", KEY_INNER_RATE, "X", 0,
     "rate of a rank's link inside its machine (default 100000)", 0},
    {"inner-latency-us", KEY_INNER_LATENCY, "X", 0, "and its latency (default 10)", 0},
    {"topology", KEY_TOPOLOGY, "NAME", 0,
     "of an exchange: direct (default), ring, tree, hierarchical", 0},
    {"passes", KEY_PASSES, "X", 0,
     "time of passes over slices, times that of bench/results/kernels.txt (default 1)", 0},
    {"here", KEY_HERE, NULL, 0, "passes take what they take on this machine, measured now", 0},
    {"taken", KEY_TAKEN, "X", 0,
     "of a round's processor time, time that computing is longer for it: 0 where cores are idle "
     "(default), 1 where a rank has one and keeps it busy",
     0},
    {"slice-us", KEY_SLICE_US, "X", 0,
     "processor time of sending and receiving a slice, beside these (default 0)", 0},
    {NULL, 0, NULL, 0, "The methods:", 0},
    {"methods", KEY_METHODS, "LIST", 0, "of msdu bench overlap, joined by commas (default all)", 0},
    {"interval", KEY_INTERVAL, "H", 0, "of local steps (default 4)", 0},
    {"slice-bytes", KEY_SLICE, "N", 0, "of a slice (default 1 MiB, less below scale 1)", 0},
    {"target", KEY_TARGET, "X", 0, "share of time that may be spent waiting (default 0.03)", 0},
    {"optimizer", KEY_OPTIMIZER, "NAME", 0,
     "of the trainer: unknown (default), sgd, whose gradients may go in sparse, or adam", 0},
    {"blocking", KEY_BLOCKING, NULL, 0, "overlap \"blocking\" rather than \"auto\"", 0},
    {"backward", KEY_BACKWARD, NULL, 0, "overlap \"backward\" rather than \"auto\"", 0},
    {"settings", KEY_SETTINGS, "LINES", 0,
     "more settings for the controller, as name=value joined by commas", 0},
    {NULL, 0, NULL, 0, "A pipeline instead of equal ranks:", 0},
    {"stages", KEY_STAGES, "FILE", 0,
     "machines and links (JSON, doc/pipelines.md): where to cut the profile, who takes which "
     "piece, "
     "in what order",
     0},
    {"micro-batches", KEY_MICRO, "M", 0,
     "of a step; profile and kept bytes are of one. auto: the best divisor of --batch", 0},
    {"batch", KEY_BATCH, "N", 0,
     "samples of a step; times then grow with samples from those of the profile", 0},
    {"split-backward", KEY_SPLIT, NULL, 0, "gradients of weights may be actions of their own", 0},
    {"two-stages", KEY_TWO, NULL, 0, "a machine may have two stages, the pipeline in a V", 0},
    {"csv", KEY_CSV, "FILE", 0, "write the order for torch's _load_csv()", 0},
    {"csv-messages", KEY_CSV_MESSAGES, "FILE", 0,
     "the same with messages, receives early (format compute_comms, for Gloo)", 0},
    {"modules", KEY_MODULES, "FILE", 0, "write the layers of each stage as JSON", 0},
    {NULL, 0, NULL, 0, "Output:", 0},
    {"up-to", KEY_UP_TO, "N", 0, "last number of ranks of the table (default 4096; 0: none)", 0},
    {"json", KEY_JSON, NULL, 0, "records instead of text", 0},
    {0},
};

/* Options with a number: where it goes and what it may be. */
static const struct number {
    int key;
    size_t offset;
    double low;
    double high;
    bool is_whole;
} numbers[] = {
    {KEY_RANKS, offsetof(msdu__plan_request, ranks), 1, 1e6, true},
    {KEY_NODES, offsetof(msdu__plan_request, nodes), 1, 1e6, true},
    {KEY_PARAMETERS, offsetof(msdu__plan_request, parameters), 1, 4e12, true},
    {KEY_BYTES, offsetof(msdu__plan_request, parameters), 4, 16e12, true},
    {KEY_RATE, offsetof(msdu__plan_request, rate_mbit), 1e-3, 1e9, false},
    {KEY_LATENCY, offsetof(msdu__plan_request, latency_us), 0, 1e9, false},
    {KEY_INNER_RATE, offsetof(msdu__plan_request, inner_rate_mbit), 1e-3, 1e9, false},
    {KEY_INNER_LATENCY, offsetof(msdu__plan_request, inner_latency_us), 0, 1e9, false},
    {KEY_STEP, offsetof(msdu__plan_request, step_ms), 1e-3, 1e6, false},
    {KEY_TARGET, offsetof(msdu__plan_request, target), 1e-4, 1, false},
    {KEY_SCALE, offsetof(msdu__plan_request, scale), 1e-6, 1000, false},
    {KEY_RATIO, offsetof(msdu__plan_request, ratio), 0, 1e6, false},
    {KEY_INTERVAL, offsetof(msdu__plan_request, interval), 2, 1000, true},
    {KEY_SLICE, offsetof(msdu__plan_request, slice_bytes), 1024, 1 << 30, true},
    {KEY_PASSES, offsetof(msdu__plan_request, passes), 0, 1e6, false},
    {KEY_SLICE_US, offsetof(msdu__plan_request, slice_us), 0, 1e9, false},
    {KEY_TAKEN, offsetof(msdu__plan_request, taken), 0, 1e3, false},
    {KEY_UP_TO, offsetof(msdu__plan_request, up_to), 0, 4096, true},
    {KEY_MICRO, offsetof(msdu__plan_request, pipeline.micro_batches), 1, MSDU_STAGES_MICRO_MAX,
     true},
    {KEY_BATCH, offsetof(msdu__plan_request, pipeline.batch), 1, 1e9, true},
};

static error_t read_number(int key, const char *text, struct argp_state *state)
{
    char *end = NULL;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const struct number *n = &numbers[i];
        if (n->key != key) {
            continue;
        }
        double value = strtod(text, &end);
        if (end == text || *end != '\0' || !(value >= n->low && value <= n->high)) {
            argp_error(state, "'%s' is not in %g .. %g", text, n->low, n->high);
        }
        if (n->is_whole && value != floor(value)) {
            argp_error(state, "'%s' is not a whole number", text);
        }
        value = key == KEY_BYTES ? ceil(value / 4) : value;
        memcpy((char *)state->input + n->offset, &value, sizeof value);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static int find_topology(const char *text, struct argp_state *state)
{
    for (int i = 0; msdu__whatif_topology_name(i) != NULL; i++) {
        if (strcmp(text, msdu__whatif_topology_name(i)) == 0) {
            return i;
        }
    }
    argp_error(state, "no topology '%s': direct, ring, tree or hierarchical", text);
    return 0;
}

/* Options whose value is more than a number. */
static error_t read_text(int key, const char *text, struct argp_state *state)
{
    msdu__plan_request *r = state->input;
    if (key == KEY_HOSTS && !msdu__plan_read_hosts(text, r)) {
        argp_error(state, "'%s' are no hosts: such as 2x8, at most 1e6 ranks", text);
    } else if ((key == KEY_LINK && !msdu__units_rate(text, &r->rate_mbit)) ||
               (key == KEY_INNER && !msdu__units_rate(text, &r->inner_rate_mbit))) {
        argp_error(state, "'%s' is no rate: such as 200mbit or 2.5gbit", text);
    } else if (key == KEY_SPEEDS && !msdu__plan_read_speeds(text, &r->speeds)) {
        argp_error(state, "'%s' are no speeds: at most %d, each 0.001 .. 1000, as 1,1,.5,.25", text,
                   MSDU__UNEVEN_SPEEDS_MAX);
    }
    r->has_groups = r->has_groups || key == KEY_HOSTS || key == KEY_SPEEDS;
    return 0;
}

/* Options of pipelines. */
static error_t read_pipeline(int key, char *text, struct argp_state *state)
{
    msdu__plan_pipeline *p = &((msdu__plan_request *)state->input)->pipeline;
    switch (key) {
    case KEY_STAGES:
        p->machines = text;
        return 0;
    case KEY_MICRO:
        p->has_micro_batches = true;
        return strcmp(text, "auto") == 0 ? 0 : read_number(key, text, state);
    case KEY_SPLIT:
        p->may_split = true;
        return 0;
    case KEY_TWO:
        p->may_two = true;
        return 0;
    case KEY_CSV:
        p->csv = text;
        return 0;
    case KEY_CSV_MESSAGES:
        p->csv_messages = text;
        return 0;
    case KEY_MODULES:
        p->modules = text;
        return 0;
    default:
        return read_number(key, text, state);
    }
}

static error_t on_option(int key, char *text, struct argp_state *state)
{
    msdu__plan_request *r = state->input;
    switch (key) {
    case KEY_OPTIMIZER:
        r->is_sgd = strcmp(text, "sgd") == 0;
        if (!r->is_sgd && strcmp(text, "unknown") != 0 && strcmp(text, "adam") != 0) {
            argp_error(state, "no optimizer '%s': unknown, sgd or adam", text);
        }
        return 0;
    case KEY_BLOCKING:
        r->is_blocking = true;
        return 0;
    case KEY_BACKWARD:
        r->is_backward = true;
        return 0;
    case KEY_HERE:
        r->is_here = true;
        return 0;
    case KEY_JSON:
        r->is_json = true;
        return 0;
    case KEY_PROFILE:
        r->profile_name = text;
        return 0;
    case KEY_METHODS:
        r->methods = text;
        return 0;
    case KEY_SETTINGS:
        r->settings = text;
        return 0;
    case KEY_TOPOLOGY:
        r->topology = find_topology(text, state);
        return 0;
    case KEY_HOSTS:
    case KEY_LINK:
    case KEY_INNER:
    case KEY_SPEEDS:
        return read_text(key, text, state);
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not an option", text);
        return 0;
    default:
        return read_pipeline(key, text, state);
    }
}

/* --- the question --- */

/* One layer, as JSON, so that there is one way to a profile. */
static bool make_profile(msdu__plan_request *r, char *why, size_t why_bytes)
{
    char text[PROFILE_TEXT];
    double count = r->parameters > 0 ? r->parameters : DEFAULT_PARAMETERS;
    double step_us = (r->step_ms > 0 ? r->step_ms : DEFAULT_STEP_MS) * 1e3;
    int length = snprintf(
        text, sizeof(text),
        "{\"format\":\"%s\",\"name\":\"one-layer\",\"layers\":[{\"name\":\"model\","
        "\"forward_us\":%.17g,\"backward_us\":%.17g,"
        "\"tensors\":[{\"name\":\"model\",\"count\":%.0f}]}]}",
        MSDU__PROFILE_FORMAT, step_us * FORWARD_SHARE, step_us * (1 - FORWARD_SHARE), count);
    return msdu__profile_parse(text, (size_t)length, &r->profile, why, why_bytes);
}

static bool read_profile(msdu__plan_request *r, char *why, size_t why_bytes)
{
    char path[MSDU__PROFILE_PATH_BYTES];
    if (r->profile_name == NULL) {
        return make_profile(r, why, why_bytes);
    }
    if (r->parameters > 0 || r->step_ms > 0) {
        snprintf(why, why_bytes,
                 "--parameters, --bytes and --step-ms describe a model without "
                 "--profile");
        return false;
    }
    msdu__profile_path(r->profile_name, path, sizeof(path));
    return msdu__profile_read(path, &r->profile, why, why_bytes);
}

static msdu__whatif_link link_of(double mbit, double latency_us)
{
    return (msdu__whatif_link){.bytes_per_ns = mbit * 1e6 / 8 / 1e9,
                               .latency_ns = latency_us * 1e3};
}

/* Times that make a float32 exchange take `ratio` times as long as computing, as the bench does. */
static void set_ratio(msdu__plan_request *r)
{
    double bytes = (double)msdu__profile_elements(&r->profile) * 4;
    double rate = r->question.network.links[MSDU__WHATIF_BETWEEN].bytes_per_ns;
    double link = msdu__bound_ring_bytes(bytes, (uint32_t)r->ranks) / rate;
    if (r->ratio > 0 && link > 0) {
        double compute = msdu__profile_compute_ns(&r->profile);
        msdu__profile_scale(&r->profile, link / r->ratio / compute, 1);
    }
}

static void set_question(msdu__plan_request *r)
{
    msdu__profile_scale(&r->profile, r->scale, r->scale);
    r->question = (msdu__whatif_question){
        .profile = &r->profile,
        .network = {.topology = (msdu__whatif_topology)r->topology,
                    .ranks = (uint32_t)r->ranks,
                    .nodes = (uint32_t)r->nodes,
                    .links = {link_of(r->inner_rate_mbit, r->inner_latency_us),
                              link_of(r->rate_mbit, r->latency_us)}},
        .scale = r->scale,
        .slice_bytes = (uint64_t)r->slice_bytes,
        .interval = (uint32_t)r->interval,
        .slice_ns = r->slice_us * 1e3,
        .pass_factor = r->passes,
        .taken_share = r->taken,
        .costs = r->is_here ? msdu__whatif_costs_here() : NULL,
    };
    set_ratio(r);
}

static void set_controller(msdu__plan_request *r)
{
    const char *overlap = r->is_blocking ? "blocking" : r->is_backward ? "backward" : "auto";
    snprintf(r->controller, sizeof(r->controller), "target_overhead=%.17g\noverlap=%s\n%s\n",
             r->target, overlap, r->settings != NULL ? r->settings : "");
    for (char *c = r->controller; *c != '\0'; c++) {
        *c = *c == ',' ? '\n' : *c;
    }
}

static bool check_pipeline(const msdu__plan_request *r, char *why, size_t why_bytes)
{
    const msdu__plan_pipeline *p = &r->pipeline;
    bool has_any = p->has_micro_batches || p->batch > 0 || p->may_split || p->may_two ||
                   p->csv != NULL || p->csv_messages != NULL || p->modules != NULL;
    if (p->machines == NULL && has_any) {
        snprintf(why, why_bytes,
                 "--micro-batches, --batch, --split-backward, --two-stages, --csv, "
                 "--csv-messages and --modules go with --stages");
        return false;
    }
    if (p->machines != NULL && r->profile_name == NULL) {
        snprintf(why, why_bytes, "--stages needs a --profile with output_bytes");
        return false;
    }
    if (p->machines != NULL && !p->has_micro_batches) {
        snprintf(why, why_bytes, "--stages needs --micro-batches, a number or auto");
        return false;
    }
    return true;
}

static bool check(msdu__plan_request *r, char *why, size_t why_bytes)
{
    if (!check_pipeline(r, why, why_bytes)) {
        return false;
    }
    r->nodes = r->nodes > 0 ? r->nodes : r->ranks;
    if (fmod(r->ranks, r->nodes) != 0) {
        snprintf(why, why_bytes, "%.0f nodes do not divide %.0f ranks", r->nodes, r->ranks);
        return false;
    }
    if (fmod(r->ranks, r->speeds.count) != 0) {
        snprintf(why, why_bytes, "%u speeds do not divide %.0f ranks", r->speeds.count, r->ranks);
        return false;
    }
    char *unknown = r->methods != NULL ? msdu__overlap_unknown(r->methods) : NULL;
    if (unknown != NULL) {
        snprintf(why, why_bytes, "no method '%.100s'; bench/README.md lists them", unknown);
        free(unknown);
        return false;
    }
    if (r->settings != NULL && strlen(r->settings) > sizeof(r->controller) / 2) {
        snprintf(why, why_bytes, "--settings is too long");
        return false;
    }
    return true;
}

int msdu__cmd_plan(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = on_option,
        .doc = "What would a network cost: a training step of a model by all methods, simulated; "
               "what the controller would choose, and why; and both over 2 to 4096 ranks. With "
               "--stages, "
               "a pipeline: cuts, placement and order.",
    };
    char why[1024] = "";
    msdu__plan_request request = {.ranks = 4,
                                  .rate_mbit = 1000,
                                  .latency_us = 50,
                                  .inner_rate_mbit = 1e5,
                                  .inner_latency_us = 10,
                                  .target = 0.03,
                                  .scale = 1,
                                  .interval = 4,
                                  .passes = 1,
                                  .up_to = 4096,
                                  .speeds = {.of = {1}, .count = 1}};
    argp_err_exit_status = MSDU__EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &request) != 0) {
        return MSDU__EXIT_USAGE;
    }
    bool is_done = check(&request, why, sizeof(why)) && read_profile(&request, why, sizeof(why));
    if (is_done && request.pipeline.machines != NULL) {
        msdu__profile_scale(&request.profile, request.scale, request.scale);
        is_done = msdu__plan_stages(&request, why, sizeof(why));
    } else if (is_done) {
        set_question(&request);
        set_controller(&request);
        is_done = msdu__plan_report(&request, why, sizeof(why));
    }
    if (!is_done) {
        fprintf(stderr, "msdu plan: %s\n", why);
    }
    msdu__profile_free(&request.profile);
    return is_done ? EXIT_SUCCESS : MSDU__EXIT_USAGE;
}
