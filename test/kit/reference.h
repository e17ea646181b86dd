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

#endif
