/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What training must compute: all ranks of a ranks_job one after another in plain C, without
 * slices, threads or messages. Covers the policy "fixed" and wires without error feedback.
 *
 * Every operation is done in double and rounded to the working type at once, which for a single
 * operation is the same as doing it in that type; equality of bits can therefore be asked for.
 */
#ifndef TEST_REFERENCE_H
#define TEST_REFERENCE_H

#include "ranks.h"

typedef struct reference {
    uint64_t elements;
    int steps;
    double *history[RANKS_MOST]; /* as in ranks_self */
    uint64_t rounds;
} reference;

/* fragment: of every element, as the library cut it (ranks_self). False: no memory. */
bool reference_go(const ranks_job *job, const int *fragment, reference *out);
void reference_free(reference *ref);

/* Run a job; assert that no rank failed. */
void ranks_run_well(const ranks_job *job, ranks_run *run);
/* Run a job and its reference; assert that no rank failed and that all parameters of all steps are
 * within tolerance (0: equal), relative to 1 + |value|. */
void reference_check(const ranks_job *job, double tolerance);

/* Run a job that fails: assert that every rank has this status, and a text with all of the words,
 * which are separated by '|'. */
void ranks_run_badly(const ranks_job *job, msdu_status status, const char *words);
/* Assert that all ranks have the same parameters before the steps first .. last. */
void ranks_check_alike(const ranks_run *run, int first, int last);
/* Run a job in float32 and in its wire; assert that ranks of the latter are alike from step `first`
 * on. Root mean square of the difference at the end, which is not 0. */
double ranks_far_from_float32(const ranks_job *job, int first);
/* Where so many steps lead an element, with constant gradients and no loss. */
double ranks_led_to(const ranks_job *job, int steps, uint64_t at);
/* Run a job with constant gradients; assert that ranks end alike. Largest distance from there. */
double ranks_lost_at_end(const ranks_job *job);

#endif
