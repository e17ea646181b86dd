/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu plan`: what-if. Predicted waiting over (h, wire) on a given network, and the floor. */
#include "cli.h"
#include "interval/interval.h"
#include "wire/wire.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_BYTES  4194304.0 /* default of setting slice_bytes */
#define PHASES       2         /* messages of a slice: contributions to the owner, means back */
#define HIDE_SHARE   0.5       /* of a step, with overlap "backward" */
#define DELAY_MAX    1         /* default of setting delay_steps */
#define INTERVAL_MAX 64

enum { KEY_RANKS = 256, KEY_BYTES, KEY_PARAMETERS, KEY_RATE, KEY_LATENCY, KEY_STEP, KEY_TARGET };
enum { KEY_LINEAR = KEY_TARGET + 1, KEY_BLOCKING, KEY_BACKWARD };

static const struct argp_option options[] = {
    {"ranks", KEY_RANKS, "N", 0, "ranks (default 4)", 0},
    {"parameters", KEY_PARAMETERS, "N", 0, "parameters of the model (default 25 million)", 0},
    {"bytes", KEY_BYTES, "N", 0, "size of the model in float32, instead of --parameters", 0},
    {"rate-mbit", KEY_RATE, "X", 0, "rate of a rank's link in Mbit/s (default 1000)", 0},
    {"latency-us", KEY_LATENCY, "X", 0, "time of an empty message in us (default 50)", 0},
    {"step-ms", KEY_STEP, "X", 0, "one training step without waiting in ms (default 100)", 0},
    {"target", KEY_TARGET, "X", 0, "share of time that may be spent waiting (default 0.03)", 0},
    {"linear", KEY_LINEAR, NULL, 0, "the optimizer is SGD: gradients may go in 2 bits", 0},
    {"blocking", KEY_BLOCKING, NULL, 0, "overlap \"blocking\" rather than \"auto\"", 0},
    {"backward", KEY_BACKWARD, NULL, 0, "overlap \"backward\" rather than \"auto\"", 0},
    {0},
};

typedef struct question {
    double ranks;
    double parameters;
    double rate_mbit;
    double latency_us;
    double step_ms;
    double target;
    bool is_linear;
    bool is_blocking;
    bool is_backward;
} question;

/* Options with a number: where it goes and what it may be. */
static const struct number {
    int key;
    size_t offset;
    double low;
    double high;
} numbers[] = {
    {KEY_RANKS, offsetof(question, ranks), 1, 1e6},
    {KEY_PARAMETERS, offsetof(question, parameters), 1, 1e13},
    {KEY_BYTES, offsetof(question, parameters), 4, 4e13},
    {KEY_RATE, offsetof(question, rate_mbit), 1e-3, 1e9},
    {KEY_LATENCY, offsetof(question, latency_us), 0, 1e9},
    {KEY_STEP, offsetof(question, step_ms), 1e-3, 1e9},
    {KEY_TARGET, offsetof(question, target), 1e-6, 1},
};

static error_t read_number(int key, const char *text, struct argp_state *state)
{
    char *end = NULL;

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const struct number *n = &numbers[i];
        double value = 0;

        if (n->key != key) {
            continue;
        }
        value = strtod(text, &end);
        if (end == text || *end != '\0' || !(value >= n->low && value <= n->high)) {
            argp_error(state, "'%s' is not in %g .. %g", text, n->low, n->high);
        }
        value = key == KEY_RANKS ? floor(value) : key == KEY_BYTES ? value / 4 : value;
        memcpy((char *)state->input + n->offset, &value, sizeof value);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static error_t on_option(int key, char *text, struct argp_state *state)
{
    question *q = state->input;

    switch (key) {
    case KEY_LINEAR:
        q->is_linear = true;
        return 0;
    case KEY_BLOCKING:
        q->is_blocking = true;
        return 0;
    case KEY_BACKWARD:
        q->is_backward = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not an option", text);
        return 0;
    default:
        return read_number(key, text, state);
    }
}

static msdu__interval_args make_args(const question *q)
{
    msdu__interval_args args = {
        .interval_max = INTERVAL_MAX,
        .target_overhead = q->target,
        .fixed_wire = -1,
        .widest_wire = MSDU__WIRE_FLOAT32,
        .can_go_local = true,
        .delay_max = q->is_blocking || q->is_backward ? 0 : DELAY_MAX,
        .hide_share = q->is_blocking ? 0 : HIDE_SHARE,
        .hide_local = q->is_backward ? HIDE_SHARE : 0,
        .wire_count = MSDU__WIRE_COUNT,
    };

    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        const msdu__wire *wire = msdu__wire_at(i);

        args.wires[i].name = wire->name;
        args.wires[i].bits = wire->bits;
        args.wires[i].is_allowed = true;
        args.wires[i].is_allowed_h1 = i != MSDU__WIRE_TERNARY || q->is_linear;
    }
    return args;
}

/* A float32 round as it would be measured: every rank sends 2 (N - 1) / N of the model. */
static msdu__round_stats make_stats(const question *q)
{
    double bytes = 2 * (q->ranks - 1) / q->ranks * q->parameters * 4;
    double messages = q->ranks > 1 ? ceil(q->parameters * 4 / SLICE_BYTES) * PHASES : 0;
    double link = bytes * 8e3 / q->rate_mbit + messages * q->latency_us * 1e3;
    msdu__round_stats stats = {
        .interval = 1,
        .wire = MSDU__WIRE_FLOAT32,
        .is_gradient = true,
        .step_ns = (uint64_t)(q->step_ms * 1e6),
        .link_ns = (uint64_t)fmin(link, 1e18),
        .latency_ns = (uint64_t)(q->latency_us * 1e3),
        .round_bytes = (uint64_t)bytes,
        .messages = (uint32_t)fmin(messages, UINT32_MAX),
    };

    return stats;
}

/* Late where the overlap allows it and the round has room. */
static double overhead_of(const msdu__interval_args *args, const msdu__round_stats *stats,
                          uint32_t interval, int wire)
{
    msdu__choice choice = {.interval = interval, .wire = wire};
    msdu__hiding hiding = {.gradient_share = args->hide_share, .local_share = args->hide_local};

    choice.delay_steps = interval > args->delay_max ? args->delay_max : 0;
    return msdu__interval_overhead(args, stats, &hiding, &choice);
}

static bool is_candidate(const msdu__interval_args *args, uint32_t interval, int wire)
{
    return interval > 1 ? args->wires[wire].is_allowed : args->wires[wire].is_allowed_h1;
}

static void print_pair(const msdu__interval_args *args, const msdu__round_stats *stats,
                       uint32_t interval, int wire)
{
    double share = args->wires[wire].bits / args->wires[args->widest_wire].bits;
    double overhead = overhead_of(args, stats, interval, wire);

    printf("%4u  %-9s %12.3f %8.2f%% %15.0f%s\n", interval, args->wires[wire].name,
           msdu__interval_sync_ns(args, stats, wire) / 1e6, 100 * overhead,
           (double)stats->round_bytes * share / interval,
           !is_candidate(args, interval, wire) ? "  needs --linear"
           : overhead <= args->target_overhead ? "  meets the target"
                                               : "");
}

/* The shortest interval, then the widest wire, that meets the target; 0: none. */
static uint32_t find_floor(const msdu__interval_args *args, const msdu__round_stats *stats,
                           int *wire_out)
{
    for (uint32_t interval = 1; interval <= args->interval_max; interval++) {
        for (int wire = 0; (uint32_t)wire < args->wire_count; wire++) {
            if (is_candidate(args, interval, wire) &&
                overhead_of(args, stats, interval, wire) <= args->target_overhead) {
                *wire_out = wire;
                return interval;
            }
        }
    }
    return 0;
}

static void print_answer(const question *q)
{
    msdu__interval_args args = make_args(q);
    msdu__round_stats stats = make_stats(q);
    int wire = args.widest_wire;
    uint32_t floor_steps = find_floor(&args, &stats, &wire);

    printf("%.0f ranks, %.0f parameters, %g Mbit/s, latency %g us, step %g ms, target %g%%\n\n",
           q->ranks, q->parameters, q->rate_mbit, q->latency_us, q->step_ms, 100 * q->target);
    printf("   h  wire           sync ms   waited  bytes per step\n");
    for (uint32_t interval = 1; interval <= INTERVAL_MAX; interval *= 2) {
        for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
            print_pair(&args, &stats, interval, i);
        }
    }
    if (floor_steps == 0) {
        printf("\nno pair meets the target: see the settings prefer and interval_max\n");
        return;
    }
    printf("\nfloor, the shortest interval and then the widest wire that meets the target:\n");
    print_pair(&args, &stats, floor_steps, wire);
}

int msdu__cmd_plan(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = on_option,
        .doc = "What would a network cost: predicted waiting over interval and wire.",
    };
    question q = {.ranks = 4,
                  .parameters = 25e6,
                  .rate_mbit = 1000,
                  .latency_us = 50,
                  .step_ms = 100,
                  .target = 0.03};

    argp_err_exit_status = MSDU__EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &q) != 0) {
        return MSDU__EXIT_USAGE;
    }
    print_answer(&q);
    return 0;
}
