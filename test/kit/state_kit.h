/* SPDX-License-Identifier: Apache-2.0 */
/* A toy training that is interrupted and resumed, with what a trainer's checkpoint holds. */
#ifndef TEST_STATE_KIT_H
#define TEST_STATE_KIT_H

#include "ranks.h"

#define KIT_STEPS 40

/* Three ranks, a few tensors, rounds of 5 steps after a warm-up, delay 3. */
ranks_job kit_job(const char *domain, const char *overlap);

/* A rank's checkpoint. */
typedef struct kit_rank {
    unsigned char *state;
    size_t bytes;
    void *parameter[RANKS_TENSORS_MOST];
    double *velocity;
    bool is_pending; /* a mean waits for its step */
    bool is_local;   /* in the parameter domain */
} kit_rank;

typedef struct kit_save {
    int ranks;
    kit_rank rank[RANKS_MOST];
    void *barrier; /* nobody leaves before all have their state */
} kit_save;

/* Inside a rank's `started`: take the rank's state, parameters and velocity from a save. */
void kit_load(ranks_self *self, const kit_save *save);

/* Train job up to step `at` and keep what every rank has; asserts that no rank failed. */
void kit_interrupt(const ranks_job *job, int at, kit_save *save);
/* From a save of step `from` up to step `at`, into the same save. */
void kit_interrupt_again(const ranks_job *job, int from, int at, kit_save *save);
void kit_free(kit_save *save);

/* Train from step `at` to the end of the job from a save. False: no memory or no thread. */
bool kit_resume(const ranks_job *job, int at, const kit_save *save, ranks_run *run);

/* Assert that every rank of `run` saw the same parameters in every step from `first` on, to the
 * bit. */
void kit_check_equal(const ranks_job *job, int first, const ranks_run *wanted,
                     const ranks_run *run);

/* Train without an interruption, and with one at every `stride`-th step of first .. last, and
 * compare. Returns how often a mean was waiting. */
int kit_check_resume(const ranks_job *job, int first, int last, int stride);

#endif
