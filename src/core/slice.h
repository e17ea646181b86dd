/* SPDX-License-Identifier: Apache-2.0 */
/* A slice at run time; the communication thread's. */
#ifndef MSDU_SLICE_H
#define MSDU_SLICE_H

#include "correct/correct.h"
#include "interval/sketch.h"
#include "observe/observe.h"

typedef enum msdu__run_state {
    MSDU__RUN_IDLE,
    MSDU__RUN_OPEN,     /* its round is open, its tensors are not all ready */
    MSDU__RUN_CAPTURED, /* buf holds what is to be reduced */
    MSDU__RUN_HOST_SUM, /* two levels: the sum over this host in flight */
    MSDU__RUN_HOST_SUMMED,
    MSDU__RUN_FIRST,   /* allreduce, or the all-to-all of a compressed wire, in flight */
    MSDU__RUN_SUMMED,  /* own share is summed, the all-gather waits for its turn */
    MSDU__RUN_SECOND,  /* all-gather in flight */
    MSDU__RUN_CARRIED, /* two levels: the mean is here, the host does not have it yet */
    MSDU__RUN_SPREAD,  /* on its way to the host */
    MSDU__RUN_REDUCED, /* buf holds the mean */
} msdu__run_state;

/* What kernels over a slice found, beside the sums of a capture; in memory that a device reaches.
 */
typedef struct msdu__found {
    msdu_sums mean;     /* |mean|^2; summed over slices in one order on all ranks */
    msdu_sums residual; /* of error feedback, phase 1 */
    msdu_sums summed;   /* of the own share; only where all weights may be 0 */
    float sketch[MSDU__SKETCH];
    uint64_t hash; /* of the parameters captured; 0: not known */
} msdu__found;

typedef struct msdu__run {
    msdu__run_state state;
    uint32_t slot;      /* while in flight */
    uint64_t position;  /* in issue order, since start */
    bool is_staged;     /* gradients: buf is a packed copy (fused or 16-bit tensors) */
    bool is_state;      /* optimizer state or a buffer: averaged as it is */
    bool is_compressed; /* in flight as a two-phase exchange */
    msdu__found *found;
    double scale;      /* of the latest round, for what its error feedback holds back */
    bool has_residual; /* the error feedback is not zero */
    bool had_residual; /* before the present round, see msdu__domain_keep() */
    void *buf;         /* working type: x, later the mean; NULL: the gradient itself */
    void *anchor;      /* parameter domain */
    void *snapshot;
    void *momentum;
    float *residual;       /* error feedback of phase 1 */
    float *owner_residual; /* and of phase 2, own share only */
    float *kept;           /* both as they were before the present round; NULL: never needed */
    float *owner_kept;
    msdu_recursion_state recursion;
    const uint64_t *shares[2];   /* of a flat exchange, of two levels: elements, then starts */
    const uint64_t *share_count; /* elements by owner */
    const uint64_t *share_start;
    msdu_req *req;
    double link_ns; /* smoothed time on the link, for the plan */
    double wait_ns; /* smoothed ready time since the step's start */
    msdu__trace_slice times;
} msdu__run;

/* Buffers of a slice in flight. */
typedef struct msdu__slot {
    bool is_used;
    uint8_t *send;          /* encoded slice; after phase 1 the gathered slice */
    uint8_t *received;      /* contributions to the own share */
    float *sum;             /* own share */
    uint64_t *share_bytes;  /* by owner */
    uint64_t *spread_bytes; /* by rank of this host */
} msdu__slot;

#endif
