/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of passthrough.h, their times, and the records. */
#include "passthrough.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAIRS       1001
#define CALLS       100 /* short, so that few are interrupted */
#define SMOKE_PAIRS 3
#define SMOKE_CALLS 50

typedef struct test_case {
    const char *name;
    passthrough_kind kind;
    const char *settings[2][2]; /* name, value */
} test_case;

static const test_case cases[] = {
    {"off", PASSTHROUGH_FLOATS, {{"MSDU_ATTACH", "off"}}},
    {"other type", PASSTHROUGH_INTEGERS, {{NULL}}},
    {"small", PASSTHROUGH_FLOATS, {{NULL}}},
    {"denied", PASSTHROUGH_FLOATS, {{"MSDU_ATTACH_MIN_BYTES", "0"}, {"MSDU_ATTACH_DENY", "0"}}},
    {"exact gradient",
     PASSTHROUGH_FLOATS,
     {{"MSDU_ATTACH_MIN_BYTES", "0"}, {"MSDU_WIRE", "float32"}}},
};

static double now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Of one call; negative: it failed. */
static double time_of(bool (*call)(passthrough_kind kind), passthrough_kind kind, int calls)
{
    bool is_good = true;
    double began = now_ns();
    for (int i = 0; i < calls; i++) {
        is_good = call(kind) && is_good;
    }
    return is_good ? (now_ns() - began) / calls : -1;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool measure(const passthrough_calls *calls, const test_case *c, int pairs, int each,
                    double *plain, double *added)
{
    /* until the pattern is known, and nothing is done for the first time any more */
    bool is_good = calls->begin() && time_of(calls->ours, c->kind, 200) >= 0 &&
                   time_of(calls->plain, c->kind, 200) >= 0;
    for (int i = 0; i < pairs && is_good; i++) {
        plain[i] = time_of(calls->plain, c->kind, each);
        double ours = time_of(calls->ours, c->kind, each);
        is_good = plain[i] >= 0 && ours >= 0;
        added[i] = ours - plain[i];
    }
    qsort(plain, (size_t)pairs, sizeof(*plain), compare);
    qsort(added, (size_t)pairs, sizeof(*added), compare);
    return calls->end() && is_good;
}

static void set_all(const test_case *c, bool is_on)
{
    for (int i = 0; i < 2 && c->settings[i][0] != NULL; i++) {
        (void)(is_on ? setenv(c->settings[i][0], c->settings[i][1], 1)
                     : unsetenv(c->settings[i][0]));
    }
}

int passthrough_run(const passthrough_calls *calls, bool is_loud, int argc, char **argv)
{
    static double plain[PAIRS];
    static double added[PAIRS];
    bool is_smoke = argc > 1 && strcmp(argv[1], "--smoke") == 0;
    int pairs = is_smoke ? SMOKE_PAIRS : PAIRS;
    int each = is_smoke ? SMOKE_CALLS : CALLS;
    if (dlsym(RTLD_DEFAULT, "msdu_attach_sync_after_step") == NULL) {
        (void)fprintf(stderr, "%s: run it as msdu run -- %s\n", argv[0], argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const test_case *c = &cases[i];
        set_all(c, true);
        bool is_good = measure(calls, c, pairs, each, plain, added);
        set_all(c, false);
        if (!is_good) {
            (void)fprintf(stderr, "%s: %s: a call failed\n", argv[0], c->name);
            return 1;
        }
        if (is_loud) {
            (void)printf(
                "%s{\"over\": \"%s\", \"ranks\": %d, \"case\": \"%s\", \"plain_ns\": %.1f, "
                "\"added_ns\": %.1f, \"added_p10_ns\": %.1f, \"added_p90_ns\": %.1f, "
                "\"pairs\": %d, \"calls\": %d}",
                i == 0 ? "[" : ",\n ", calls->over, calls->ranks, c->name, plain[pairs / 2],
                added[pairs / 2], added[pairs / 10], added[pairs * 9 / 10], pairs, each);
        }
    }
    (void)fputs(is_loud ? "]\n" : "", stdout);
    return 0;
}
