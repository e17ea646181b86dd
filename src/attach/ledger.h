/* SPDX-License-Identifier: Apache-2.0 */
/* What became of the reductions of a communicator, over all of a job. Pure. */
#ifndef MSDU_LEDGER_H
#define MSDU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include <msdu/msdu.h>

#define MSDU__REASONS_MAX 9
#define MSDU__BREAKS_MOST 2 /* of a pattern that an engine followed: then no more is looked for */

/* Zeroed at first. Bytes are those of the trainer's sums of floats. */
typedef struct msdu__ledger {
    uint64_t taken;
    uint64_t taken_bytes;
    uint64_t passed[MSDU__REASONS_MAX]; /* as the family numbers them */
    uint64_t passed_bytes[MSDU__REASONS_MAX];
    uint64_t steps;    /* of the trainer, while a pattern was known; at the end */
    uint32_t patterns; /* that ranks agreed upon */
    uint32_t breaks;   /* of one that an engine followed */
    msdu_summary sum;  /* steps, rounds and bytes of all engines, the rest of the latest */
    bool has_sum;
} msdu__ledger;

/* An engine ends. */
void msdu__ledger_add(msdu__ledger *ledger, msdu_ctx *ctx);
void msdu__ledger_pass(msdu__ledger *ledger, int reason, uint64_t bytes);
uint64_t msdu__ledger_passed(const msdu__ledger *ledger);
uint64_t msdu__ledger_passed_bytes(const msdu__ledger *ledger);

#endif
