/* SPDX-License-Identifier: Apache-2.0 */
/* Membership among threads of this process, for tests of what a context does with it: one job, one
 * lock, and nobody is silent. */
#ifndef TEST_COUNCIL_H
#define TEST_COUNCIL_H

#include <msdu/backend.h>

extern const msdu_membership council;

/* A new job; no thread is in the last one. */
void council_reset(void);

#endif
