/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings on hosts given by hand, whose ranks average gradients in local steps. */
#ifndef TEST_HOST_JOBS_H
#define TEST_HOST_JOBS_H

#include "ranks.h"

/* Hosts of the ranks, a letter each: even, uneven and mixed, alone on one. */
#define HOST_LAYOUTS 6
extern const char *const host_layouts[HOST_LAYOUTS];
#define HOST_WARM 2 /* steps before the first local one */

/* A few tensors, rounds of `interval` steps, however long ranks wait for the mean. */
ranks_job host_job(const char *hosts, int interval, const char *overlap);
/* Of four steps; more types, and a buffer. */
ranks_job host_job_wide(const char *hosts, const char *overlap);
/* Assert that the ranks of each host have the same parameters before the steps 0 .. last. */
void host_check_alike(const ranks_run *run, int last);

#endif
