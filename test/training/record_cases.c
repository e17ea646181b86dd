/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of test_record: which settings are tried with which. */
#include "record_cases.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STEPS        20
#define COUNT(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

/* Cut, fused, and of all types and roles. */
static const ranks_tensor model[] = {
    {.count = 700},
    {.count = 7},
    {.count = 40},
    {.count = 150, .dtype = MSDU_FLOAT64},
    {.count = 70, .dtype = MSDU_BFLOAT16},
    {.count = 90, .dtype = MSDU_FLOAT16},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
    {.count = 21, .role = MSDU_ROLE_STATE},
};
#define MODEL_COUNT (sizeof(model) / sizeof(model[0]))

typedef struct place {
    const char *domain;
    const char *overlap;
} place;

static const place places[] = {
    {"gradient", "backward"},    {"gradient", "blocking"},
    {"gradient", "auto"},        {"accumulated", "backward"},
    {"accumulated", "blocking"}, {"accumulated", "auto"},
    {"parameter", "backward"},   {"parameter", "blocking"},
    {"parameter", "delayed"},    {"parameter", "streamed"},
    {"parameter", "auto"},       {"auto", "backward"},
    {"auto", "blocking"},        {"auto", "delayed"},
    {"auto", "streamed"},        {"auto", "auto"},
};

static const char *const wires[] = {"float32", "bfloat16", "float16", "int8",
                                    "int4",    "int2",     "sparse"};
static const int intervals[] = {1, 2, 4};

static unsigned kind_of(const place *at)
{
    bool is_late = strcmp(at->overlap, "blocking") != 0 && strcmp(at->overlap, "backward") != 0;
    if (strcmp(at->domain, "gradient") == 0) {
        return RECORD_NO_GRADIENT;
    }
    if (strcmp(at->domain, "accumulated") == 0) {
        return RECORD_NO_ACCUMULATED;
    }
    return RECORD_NO_PARAMETER | (is_late ? RECORD_NO_LATE : 0U);
}

/* The rightmost digit of a number whose base is count; what is left of it stays. */
static unsigned take_digit(unsigned *number, unsigned count)
{
    unsigned digit = *number % count;
    *number /= count;
    return digit;
}

void record_say(char *text, size_t bytes, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
    ck_assert_int_ge(length, 0);
    ck_assert_uint_lt((size_t)length, bytes - used);
}

#define NAME(c, ...) record_say((c)->name, sizeof((c)->name), __VA_ARGS__)
#define SET(c, ...)  record_say((c)->settings, sizeof((c)->settings), __VA_ARGS__)

static void begin_case(record_case *c, const place *at, const char *wire, unsigned ranks)
{
    *c = (record_case){
        .job = {.ranks = (int)ranks,
                .steps = STEPS,
                .tensors = model,
                .tensor_count = MODEL_COUNT,
                .config = {.domain = at->domain,
                           .overlap = at->overlap,
                           .wire = wire,
                           .interval = "fixed",
                           .interval_steps = 3,
                           .delay_steps = 1,
                           .fragments = 3,
                           .warmup_steps = 2,
                           .slice_bytes = 1024,
                           .fuse_bytes = 512,
                           .wire_block = 64,
                           .window = 4,
                           .lanes = 2,
                           .optimizer = "sgd",
                           .lr = 0.05,
                           .momentum = 0.5}},
    };
}

static void name_place(record_case *c)
{
    NAME(c, " %s %s %s ranks %d", c->job.config.domain, c->job.config.overlap, c->job.config.wire,
         c->job.ranks);
}

/* All places, wires and intervals. */
static bool grid_case(unsigned i, record_case *c)
{
    unsigned ranks = 2 + (i + i / COUNT(intervals)) % 2;
    unsigned h = take_digit(&i, COUNT(intervals));
    unsigned wire = take_digit(&i, COUNT(wires));
    if (i >= COUNT(places)) {
        return false;
    }
    begin_case(c, &places[i], wires[wire], ranks);
    NAME(c, "grid h %d", intervals[h]);
    name_place(c);
    SET(c, "interval_steps = %d\n", intervals[h]);
    c->is_left_out =
        intervals[h] > 1 && kind_of(&places[i]) == RECORD_NO_GRADIENT; /* the same again */
    return true;
}

/* Where features are tried. */
typedef struct ground {
    const char *group;
    const record_feature *(*at)(unsigned i);
    const place *places;
    unsigned place_count;
    const char *const *wires;
    unsigned wire_count;
} ground;

/* The trainer of a feature. */
static void take_trainer(const record_feature *f, ranks_job *job)
{
    const ranks_job *with = &f->with;
    job->ranks = with->ranks > 0 ? with->ranks : job->ranks;
    job->style = with->style;
    job->hides_parameters = with->hides_parameters;
    job->starts_apart = with->starts_apart;
    job->goes_on = with->goes_on;
    job->looks = with->looks;
    job->lr_at = with->lr_at;
    job->needs_lr = with->lr_at != NULL;
    job->weight_at = with->weight_at;
    job->stepped = with->stepped;
    job->syncs_at = with->syncs_at;
    job->computed = with->computed;
    if (f->set != NULL) {
        f->set(job);
    }
}

static bool ground_case(const ground *g, unsigned i, record_case *c)
{
    unsigned wire = take_digit(&i, g->wire_count);
    unsigned at = take_digit(&i, g->place_count);
    const record_feature *f = g->at(i);
    if (f == NULL) {
        return false;
    }
    begin_case(c, &g->places[at], g->wires[wire], 2 + (i + at + wire) % 2);
    c->is_left_out = (f->without & kind_of(&g->places[at])) != 0;
    NAME(c, "%s %s", g->group, f->name);
    SET(c, "%s\n", f->settings);
    take_trainer(f, &c->job);
    name_place(c);
    return true;
}

static bool policy_case(unsigned i, record_case *c)
{
    static const place some[] = {
        {"gradient", "backward"},  {"accumulated", "backward"}, {"parameter", "blocking"},
        {"parameter", "backward"}, {"auto", "blocking"},        {"auto", "auto"},
        {"auto", "streamed"},
    };
    static const char *const with[] = {"float32", "int8", "auto"};
    static const ground g = {"policy", record_policy_at, some, COUNT(some), with, COUNT(with)};
    return ground_case(&g, i, c);
}

static bool rule_case(unsigned i, record_case *c)
{
    static const place some[] = {
        {"parameter", "blocking"},
        {"parameter", "delayed"},
        {"parameter", "streamed"},
        {"auto", "auto"},
    };
    static const char *const with[] = {"float32", "int4"};
    static const ground g = {"rule", record_rule_at, some, COUNT(some), with, COUNT(with)};
    return ground_case(&g, i, c);
}

static bool feature_case(unsigned i, record_case *c)
{
    static const place some[] = {
        {"gradient", "backward"},  {"accumulated", "backward"},
        {"parameter", "blocking"}, {"parameter", "streamed"},
        {"auto", "auto"},
    };
    static const char *const with[] = {"float32", "int8"};
    static const ground g = {"feature", record_feature_at, some, COUNT(some), with, COUNT(with)};
    return ground_case(&g, i, c);
}

const record_group record_groups[RECORD_GROUPS] = {grid_case, policy_case, rule_case, feature_case};
