/* SPDX-License-Identifier: Apache-2.0 */
/* What became of the reductions of a communicator. */
#include "ledger.h"

void msdu__ledger_add(msdu__ledger *ledger, msdu_ctx *ctx)
{
    msdu_summary latest = MSDU_SUMMARY_INIT;
    const msdu_summary before = ledger->sum;
    if (msdu_summary_get(ctx, &latest) != MSDU_OK) {
        return;
    }
    latest.steps += before.steps;
    latest.rounds += before.rounds;
    latest.bytes_sent += before.bytes_sent;
    latest.bytes_plain += before.bytes_plain;
    ledger->sum = latest;
    ledger->has_sum = true;
}

void msdu__ledger_pass(msdu__ledger *ledger, int reason, uint64_t bytes)
{
    ledger->passed[reason]++;
    ledger->passed_bytes[reason] += bytes;
}

static uint64_t total(const uint64_t values[MSDU__REASONS_MAX])
{
    uint64_t sum = 0;
    for (int i = 0; i < MSDU__REASONS_MAX; i++) {
        sum += values[i];
    }
    return sum;
}

uint64_t msdu__ledger_passed(const msdu__ledger *ledger)
{
    return total(ledger->passed);
}

uint64_t msdu__ledger_passed_bytes(const msdu__ledger *ledger)
{
    return total(ledger->passed_bytes);
}
