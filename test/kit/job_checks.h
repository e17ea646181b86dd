/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of jobs of real processes share, beside the processes themselves; all of it asserts.
 */
#ifndef TEST_JOB_CHECKS_H
#define TEST_JOB_CHECKS_H

#include <check.h>

#include "processes.h"

/* Three or more slices, and rounds that do not depend on time: one in 4 steps. */
void job_set_modes(job *j, const char *domain, const char *overlap, const char *wire);
/* The optimizer of the ranks, for gradients in 2 bits and domain accumulated. */
void job_set_sgd(job *j);
/* Rounds of 3 steps after 2 exact ones, in 3 fragments, with small blocks, of that optimizer. */
void job_set_fragments(job *j);
/* All ranks as threads of the one process. */
void job_set_threads(job *j, int ranks);

/* Start all ranks, and wait for all. */
void job_run(job *j, int limit_ms);
/* The rank ended well; `process` is where it is. */
void job_check_ok(const job *j, int process, int rank);
/* The rank ended by exit(0) after one error of this status, whose text has all the words, joined by
 * |. */
void job_check_failed(const job *j, int process, int rank, const char *status, const char *words);

/* suite_run(), but 77 if no such job is possible here. */
int job_suite_run(Suite *suite);

#endif
