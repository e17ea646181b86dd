/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 tells its user, on standard error: the same over MPI and NCCL. */
#ifndef MSDU_REPORT_H
#define MSDU_REPORT_H

#include <stdint.h>

#include <msdu/msdu.h>

#include "engine.h"
#include "gain.h"
#include "ledger.h"
#include "settings.h"

/* A list that cannot be read (then nothing is attached), once in a process. */
void msdu__tell_bad_list(int rank, const msdu__attach_comm *comm);
/* Ranks voted: what the user said of a step's gradients cannot be met, or no step was found in many
 * votes. is_told: the former was said. */
void msdu__tell_vote(const msdu__recognizer *r, bool *is_told);
/* A pattern that held for many steps is not enough for local steps; once. */
void msdu__tell_doubt(const msdu__recognizer *r, bool *is_told);
/* One place of the pattern is two parameters: nothing is taken any more. */
void msdu__tell_contradiction(const msdu__recognizer *r, bool had_engine);
/* What was measured, and is done. */
void msdu__tell_gain(const msdu__gain *gain, msdu__gain_phase before, const msdu__recognizer *r);
/* The pattern changed: `seen` came where another was due. is_last: nothing is taken any more. */
void msdu__tell_break(const msdu__attach_engine *engine, const msdu__call *seen, bool is_last);
/* Why no step was found, at the end. */
void msdu__tell_nothing(const msdu__recognizer *r);
/* What became of all reductions; reasons: as ledger->passed has them, up to MSDU__REASONS_MAX. */
void msdu__tell_ledger(const msdu__ledger *ledger, const msdu__gain *gain, int ranks,
                       const char *const *reasons);

#endif
