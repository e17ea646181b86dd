/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps whose training ended too early: what is told, and the status of rank 0's process. */
#include "early_end.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cell.h"
#include "settings.h"

#define PAUSE_NS 10000000L
#define PAUSE_MS 10U

static msdu__cell culprit;  /* the process that ends with the status; 0: none */
static msdu__cell limit_ms; /* settings are not asked for at the end */
static pthread_mutex_t mates_lock = PTHREAD_MUTEX_INITIALIZER;
static msdu__mate *mates; /* mates_lock, and at the end nobody else is there */
static size_t mate_count;

static uint32_t add_text(uint32_t seed, const char *text)
{
    for (; *text != '\0'; text++) {
        seed = (seed ^ (unsigned char)*text) * 16777619U;
    }
    return seed;
}

msdu__mate msdu__early_self(void)
{
    char name[256] = "";
    char space[64] = ""; /* process numbers mean something in it alone */
    (void)gethostname(name, sizeof(name) - 1);
    (void)!readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    return (msdu__mate){.machine = add_text(add_text(2166136261U, name), space),
                        .process = (uint64_t)getpid()};
}

void msdu__early_wait_for(const msdu__mate *added, size_t count)
{
    const msdu__mate self = msdu__early_self();
    (void)pthread_mutex_lock(&mates_lock);
    msdu__mate *larger = realloc(mates, (mate_count + count) * sizeof(*mates));
    mates = larger != NULL ? larger : mates;
    for (size_t i = 0; larger != NULL && i < count; i++) {
        if (added[i].machine == self.machine && added[i].process != self.process) {
            mates[mate_count++] = added[i];
        }
    }
    (void)pthread_mutex_unlock(&mates_lock);
}

/* Ranks were joined then, if what was taken for a step is one. Candidates of no known step may be
 * a step each. */
bool msdu__early_is_left(const msdu__recognizer *r, uint64_t before, uint64_t candidates,
                         uint64_t *most_out)
{
    *most_out = before + candidates / (r->pattern_count > 0 ? r->pattern_count : 1);
    return *most_out + MSDU__STEPS_BEYOND < r->total_steps;
}

/* The status of this process, and of no child. */
static void decide(void)
{
    msdu__cell_set(&limit_ms, msdu__attach_number("deadline_ms", 60000));
    msdu__cell_set(&culprit, (uint64_t)getpid());
}

void msdu__early_fail(const char *why)
{
    (void)fprintf(stderr, "msdu: rank 0: error: %s; the process ends with status %d\n", why,
                  MSDU__EARLY_STATUS);
    decide();
}

void msdu__early_tell(const char *about, uint64_t steps, uint64_t total_steps)
{
    char why[512];
    if (total_steps == 0) {
        (void)snprintf(why, sizeof(why),
                       "local steps ended after %" PRIu64
                       " steps of the trainer, and nothing said that the last one ends with equal "
                       "parameters, so they may differ between ranks; MSDU_TOTAL_STEPS says so, or "
                       "msdu_attach_sync_after_step() before the last one",
                       steps);
        msdu__early_fail(why);
        return;
    }
    (void)fprintf(
        stderr,
        "msdu: rank 0: error: the training ended after %s%" PRIu64
        " steps, MSDU_TOTAL_STEPS is %" PRIu64
        ": ranks took local steps and did not synchronize behind the last one on purpose, "
        "or what was taken for a step is a part of one, so their parameters may differ; "
        "say the number of steps that are made, or end the training at it, or call "
        "msdu_attach_sync_after_step() before the last one, or use "
        "MSDU_DOMAIN=gradient; the process ends with status %d\n",
        about, steps, total_steps, MSDU__EARLY_STATUS);
    decide();
}

/* One that waits to be asked for its status has ended. */
static bool is_running(uint64_t process)
{
    char path[64];
    char text[512];
    (void)snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", process);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    const size_t length = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')'); /* then a blank and the state */
    return name_end != NULL && strlen(name_end) > 2 && strchr("ZX", name_end[2]) == NULL;
}

int msdu__early_status(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    if (msdu__cell_get(&culprit) != (uint64_t)getpid()) {
        return 0;
    }
    uint64_t left_ms = msdu__cell_get(&limit_ms);
    for (size_t i = 0; i < mate_count; i++) {
        for (; left_ms >= PAUSE_MS && is_running(mates[i].process); left_ms -= PAUSE_MS) {
            (void)nanosleep(&pause, NULL);
        }
    }
    return MSDU__EARLY_STATUS;
}
