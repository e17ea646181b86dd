/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulation of one rank's pipeline: computing layer by layer, slices through window, channels and
 * link, barriers as the method has them. Deterministic and pure: no I/O, locks, clock, allocation,
 * globals. All ranks are alike, so one stands for all.
 *
 * What is simulated, as src/core/progress.c and src/backend/gloo/gloo_lane.cc do it:
 *  - The device runs F_1 .. F_L, B_L .. B_1 of every step, one after another.
 *  - A slice is announced when the backward pass of the lowest of its layers has ended, in steps in
 *    which its fragment meets; it is captured once its round is open. A fragment's round opens when
 *    the one before is over.
 *  - Slices start strictly in queue order, at most `window` of them under way. A channel has two
 *    operations under way: while one is gathered, the next is scattered; it waits for the former
 *    first. All-gathers of compressed slices have channels of their own.
 *  - What is on a link shares it evenly. A phase ends when its bytes have passed and then its
 *    latency.
 *  - The communication thread does one pass over a slice at a time.
 *  - When the last slice has started, the statistics message leaves; it and all slices end the
 * round.
 */
#ifndef MSDU_WHATIF_SIMULATE_H
#define MSDU_WHATIF_SIMULATE_H

#include "network.h"

#define MSDU__SIM_WINDOW_MAX 64
#define MSDU__SIM_LANES_MAX  8
#define MSDU__SIM_PARTS_MAX  32

typedef struct msdu__sim_layer {
    double forward_ns;
    double backward_ns;
    uint32_t first_slice; /* of those that it needs first: a range of `by_layer` */
    uint32_t slice_count;
} msdu__sim_layer;

/* Passes of the communication thread over a slice. */
enum { MSDU__SIM_CAPTURE, MSDU__SIM_ENCODE, MSDU__SIM_SUM, MSDU__SIM_DECODE, MSDU__SIM_PASSES };

typedef struct msdu__sim_slice {
    uint32_t part; /* fragment */
    msdu__whatif_exchange exchange;
    double pass_ns[MSDU__SIM_PASSES];
} msdu__sim_slice;

/* What the API thread waits for, and where. */
typedef enum msdu__sim_wait {
    MSDU__SIM_WAIT_STEP,  /* at the end of the step in which ranks synchronize */
    MSDU__SIM_WAIT_LAYER, /* before F of a layer that needs it */
} msdu__sim_wait;

typedef struct msdu__sim_job {
    const msdu__sim_layer *layers; /* forward order */
    uint32_t layer_count;
    const msdu__sim_slice *slices;
    uint32_t slice_count;
    const uint32_t *by_layer; /* slices, those of a layer side by side */
    const uint32_t *order;    /* queue order of all slices; a fragment's are a subsequence */
    uint32_t parts;           /* fragments; 1 unless streamed */
    uint32_t interval;        /* h: every fragment meets once in so many steps */
    uint32_t delay;           /* steps that a mean comes late, < h unless 0 */
    uint32_t window;
    uint32_t lanes;
    bool is_gated;       /* no slice starts before all are captured */
    bool is_compressed;  /* two operations for each slice */
    bool commits_slices; /* a slice is given out when it has come, else with its round */
    msdu__sim_wait wait;
    double message_ns; /* the statistics message */
    uint32_t rounds;   /* simulated, the first half is not counted; at least 2 */
} msdu__sim_job;

/* What a slice went through; the means of the rounds that count. */
typedef struct msdu__sim_times {
    double ready_ns; /* captured, since the start of the step */
    double link_ns;  /* from its start to its end */
} msdu__sim_times;

/* Memory of a run. */
typedef struct msdu__sim_slice_state {
    uint32_t stage;
    uint32_t phase; /* under way */
    uint32_t link;
    bool is_working; /* bytes of its phase are passing */
    double left_ns;  /* of them, if alone */
    double due_ns;   /* latency: when the phase ends */
    uint64_t met;    /* steps up to which its mean has come: step + 1 */
    double issued_ns;
    msdu__sim_times sum;
} msdu__sim_slice_state;

typedef struct msdu__sim_memory {
    msdu__sim_slice_state *slices; /* as many as slices */
    uint32_t *queue;               /* a ring of 2 * slice_count + 1 */
    uint32_t *announced;           /* likewise */
} msdu__sim_memory;

typedef struct msdu__sim_result {
    double step_ns; /* mean of the rounds that count */
    double wait_ns; /* of the API thread, a step */
    double link_ns; /* something was under way, a round of the whole model */
    bool is_stuck;  /* a model that waits for itself: a defect */
} msdu__sim_result;

/* times_out: NULL, or one for each slice. */
msdu__sim_result msdu__sim_run(const msdu__sim_job *job, const msdu__sim_memory *memory,
                               msdu__sim_times *times_out);

#endif
