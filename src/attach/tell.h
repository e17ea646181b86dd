/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 tells its user, on standard error: the same over MPI and NCCL. */
#ifndef MSDU_TELL_H
#define MSDU_TELL_H

#include <stdint.h>

#include <msdu/msdu.h>

#include "engine.h"
#include "settings.h"

/* A list that cannot be read (then nothing is attached), once in a process. */
void msdu__tell_bad_list(int rank, const msdu__attach_comm *comm);
/* The pattern changed: `seen` came where another was due. */
void msdu__tell_break(const msdu__engine *engine, const msdu__call *seen);
/* What a context did; nothing where it sent nothing. */
void msdu__tell_summary(const msdu_summary *s);
/* How many reductions were passed through, for each of `count` reasons. */
void msdu__tell_passed(const uint64_t *passed, const char *const *reasons, int count);

#endif
