/* SPDX-License-Identifier: Apache-2.0 */
/* Names of ranks and spans of time for error texts. Pure. */
#include "rank_list.h"

#include <inttypes.h>
#include <stdio.h>

#define NAMED_RANKS 8 /* most ranks named one by one */

static size_t append_rank(char *text, size_t used, size_t bytes, const char *before, int32_t rank)
{
    int length = snprintf(text + used, bytes - used, "%s%" PRId32, before, rank);
    size_t end = used + (length > 0 ? (size_t)length : 0);
    return end < bytes ? end : bytes - 1;
}

int32_t msdu__rank_list(const bool *marks, bool wanted, int32_t ranks, char *text, size_t bytes)
{
    int32_t total = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        total += marks[rank] == wanted;
    }
    size_t used = 0;
    int32_t named = 0;
    text[0] = '\0';
    for (int32_t rank = 0; rank < ranks && named < NAMED_RANKS; rank++) {
        if (marks[rank] == wanted) {
            const char *first = total == 1 ? "rank " : "ranks ";
            used = append_rank(text, used, bytes, named == 0 ? first : ", ", rank);
            named++;
        }
    }
    if (total > named) {
        (void)snprintf(text + used, bytes - used, " and %" PRId32 " more", total - named);
    }
    return total;
}

void msdu__span_text(uint64_t span_ns, char *text, size_t bytes)
{
    if (span_ns % 1000000000 == 0 || span_ns > UINT64_C(10000000000)) {
        (void)snprintf(text, bytes, "%" PRIu64 " s", span_ns / 1000000000);
    } else {
        (void)snprintf(text, bytes, "%" PRIu64 " ms", span_ns / 1000000);
    }
}

void msdu__differ_text(struct msdu__said a, struct msdu__said b, uint64_t sequence, uint32_t lane,
                       char *text, size_t bytes)
{
    struct msdu__said first = a.rank < b.rank ? a : b;
    struct msdu__said second = a.rank < b.rank ? b : a;
    bool is_first = (first.print & MSDU__PRINT_FINAL) != 0;
    bool is_second = (second.print & MSDU__PRINT_FINAL) != 0;
    int length = snprintf(text, bytes,
                          "ranks %" PRId32 " and %" PRId32 " differ in operation %" PRIu64
                          " of lane %" PRIu32,
                          first.rank, second.rank, sequence, lane);
    size_t used = length > 0 && (size_t)length < bytes ? (size_t)length : bytes - 1;
    if (is_first != is_second) {
        (void)snprintf(text + used, bytes - used,
                       ": rank %" PRId32 " ended its steps (msdu_finish, msdu_synchronize or "
                       "msdu_join), rank %" PRId32 " trains on",
                       is_first ? first.rank : second.rank, is_first ? second.rank : first.rank);
    } else {
        (void)snprintf(text + used, bytes - used,
                       " (kind, type or sizes; they may be in different steps)");
    }
}
