/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local steps whose training ended before MSDU_TOTAL_STEPS were made: parameters may differ between
 * ranks, so a process that would end well must not. Knows neither MPI nor NCCL.
 *
 * A launcher may kill what still runs once a process ends badly, and trainers save models behind
 * MPI_Finalize. So only rank 0 ends with the status, after the other ranks of its machine have
 * ended.
 */
#ifndef MSDU_EARLY_END_H
#define MSDU_EARLY_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recognize.h"

#define MSDU__EARLY_STATUS 16

/* A rank's process; whole numbers below 2^53. */
typedef struct msdu__mate {
    uint64_t machine; /* equal where processes see each other */
    uint64_t process;
} msdu__mate;

msdu__mate msdu__early_self(void);
/* The ranks that rank 0 waits for at its end, itself among them; copied. */
void msdu__early_wait_for(const msdu__mate *mates, size_t count);
/* Where local steps were left for other ones, or for none: so many steps at most were made. */
bool msdu__early_is_left(const msdu__recognizer *r, uint64_t before, uint64_t candidates,
                         uint64_t *most_out);
/* Rank 0: say it, at any MSDU_LOG. The status of this process, and of no child, is decided.
 * about: "", or "at most "; total_steps: 0 if nobody said it. */
void msdu__early_tell(const char *about, uint64_t steps, uint64_t total_steps);
/* The same for any cause. */
void msdu__early_fail(const char *why);
/* When nothing of the process is left to be done: 0, or what its status has to be, if it is 0. */
int msdu__early_status(void);

#endif
