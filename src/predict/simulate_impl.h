/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulation share: its state, and how they call each other. */
#ifndef MSDU_WHATIF_SIMULATE_IMPL_H
#define MSDU_WHATIF_SIMULATE_IMPL_H

#include "simulate.h"

#define MSDU__SIM_NONE UINT32_MAX

/* A slice on its way. */
enum {
    MSDU__SIM_IDLE,
    MSDU__SIM_CAPTURED,
    MSDU__SIM_FIRST,    /* an operation of its first phases is queued or under way */
    MSDU__SIM_ANSWERED, /* it ended; the communication thread has to look */
    MSDU__SIM_SUMMED,   /* narrow: the all-gather waits for its turn */
    MSDU__SIM_SECOND,
    MSDU__SIM_GATHERED,
};

typedef struct msdu__sim_lane {
    uint32_t queue[MSDU__SIM_WINDOW_MAX];
    uint32_t count;
    uint32_t current;  /* being scattered */
    uint32_t previous; /* being gathered */
    bool is_closing;   /* found nothing to take, so waits for `previous` whatever comes */
} msdu__sim_lane;

typedef struct msdu__sim_part {
    uint32_t slice_count;
    uint32_t captured;
    uint32_t started;
    uint32_t reduced;
    uint64_t armed;  /* step + 1 of the newest round */
    double armed_ns; /* when that step began */
    double began_ns; /* likewise, of the round that is open */
    uint64_t opened; /* of the round that is open, or was last */
    uint64_t met;    /* of the last round whose slices have all come */
    uint64_t over;   /* of the last round that is over */
    bool is_sent;    /* the statistics message */
    double message_due_ns;
} msdu__sim_part;

typedef struct msdu__sim {
    const msdu__sim_job *job;
    msdu__sim_slice_state *slices;
    double now_ns;

    /* owner */
    uint64_t step;
    uint32_t pass;        /* 0 .. 2 L: the next, or the present one; 2 L: the end of the step */
    uint32_t layer_asked; /* slices of the layer that have come */
    bool is_computing;
    double due_ns;

    /* communication thread */
    uint32_t busy_with; /* slice */
    int busy_pass;
    double busy_until_ns;
    uint32_t *announced;
    uint64_t announced_first;
    uint64_t announced_end;
    uint32_t *queue;
    uint64_t queue_first;
    uint64_t queue_second;
    uint64_t queue_end;
    uint32_t used; /* places of the window */
    msdu__sim_part parts[MSDU__SIM_PARTS_MAX];

    /* channels and links */
    msdu__sim_lane lanes[2 * MSDU__SIM_LANES_MAX];
    uint32_t active[MSDU__SIM_WINDOW_MAX]; /* slices with an operation under way */
    uint32_t active_count;
    uint32_t on_link[MSDU__WHATIF_LINKS]; /* phases whose bytes are passing */
    uint32_t answered[MSDU__SIM_WINDOW_MAX];
    uint32_t answered_count;
    uint32_t in_flight; /* operations given to channels and not answered */

    /* what counts */
    bool is_counting;
    double counted_from_ns;
    double waited_ns;
    double flown_ns;
} msdu__sim;

/* simulate_lane.c */
void msdu__sim_lanes_clear(msdu__sim *s);
/* Give an operation of a slice to a channel. */
void msdu__sim_lane_push(msdu__sim *s, uint32_t lane, uint32_t slice);
/* Whatever phases and channels can do now; true if anything. */
bool msdu__sim_lanes_move(msdu__sim *s);
/* When something changes by itself; INFINITY: nothing is under way. */
double msdu__sim_lanes_next(const msdu__sim *s);
/* Time passes, up to that. */
void msdu__sim_lanes_pass(msdu__sim *s, double until_ns);

/* simulate_thread.c */
void msdu__sim_announce(msdu__sim *s, uint32_t slice);
bool msdu__sim_thread_move(msdu__sim *s);
double msdu__sim_thread_next(const msdu__sim *s);

#endif
