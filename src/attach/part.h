/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that took local steps when the pattern of reductions changed: how far each is from their
 * mean, what joins them, and what stays apart. Knows neither MPI nor NCCL.
 */
#ifndef MSDU_PART_H
#define MSDU_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drift_recovery.h"
#include "recognize.h"

/* Zeroed: ranks are together. */
typedef struct msdu__part {
    msdu__apart *apart;        /* gradients whose parameters differ between ranks */
    msdu__optimizer optimizer; /* that makes them equal again */
    msdu__call *before;        /* the pattern before the change */
    uint32_t before_count;
    bool is_quiet; /* another rank tells it */
    bool is_over;  /* the last step was made */
} msdu__part;

/* values[0 .. count) <- their sum over ranks; false: it failed, and the text is msdu_last_error()
 * or the caller's. */
typedef bool (*msdu__part_sum)(void *user, double *values, size_t count);

/*
 * What a rank is apart by, from where ranks were together: keep it, from the mean of `ranks`, and
 * what the pattern was. The list is taken over, all ranks are at the same call, and the recognizer
 * still knows the pattern's tensors. False: the sum failed, or there is no memory.
 */
bool msdu__part_keep(msdu__part *part, msdu__apart *list, const msdu__recognizer *r, int ranks,
                     msdu__part_sum sum, void *user);
void msdu__part_free(msdu__part *part);
/* What was kept last met behind the last step. What comes from a gradient's memory is one more all
 * the same; else it may be an average, and is left alone. */
void msdu__part_over(msdu__part *part, const msdu__recognizer *r);
/* A gradient that joins the ranks again; NULL: the call is none. */
msdu__apart *msdu__part_find(const msdu__part *part, const msdu__call *seen);
/* Ranks are equal in it: it is the caller's. */
void msdu__part_joined(msdu__part *part, msdu__apart *apart);
/* Another pattern is known. Can ranks not be joined any more? Then `why` says so. */
bool msdu__part_is_lost(const msdu__part *part, const msdu__recognizer *r, char *why, size_t bytes);
/* What did not come again, where that is certain: new gradients are known. */
void msdu__part_tell(msdu__part *part);
/* At the end: do parameters differ between ranks, by what this one knows? And why; the process of
 * rank 0 ends with a status. */
bool msdu__part_differs(const msdu__part *part);
void msdu__part_fail(const msdu__part *part);

#endif
