/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is synchronized together: all slices, or one P-th of them (overlap streamed). Its round and
 * its messages are the communication thread's; what the API thread schedules is in
 * caller/caller.h, what the two hand over in handover.h.
 */
#ifndef MSDU_FRAGMENT_H
#define MSDU_FRAGMENT_H

#include "handover.h"
#include "interval/sketch.h"

/* What a rank says about a round; all-gathered as doubles, equal layout on all ranks. */
typedef struct msdu__control {
    double bad_tensor; /* 1 + tensor with a non-finite value, 0: none */
    double local_sq;
    double weight_sq;
    double residual_sq;
    double step_ns;
    double link_ns;
    double latency_ns;
    double wait_ns;  /* the API thread's, since the message before */
    double alone_ns; /* part of wait_ns in which a core of this host was idle; upper bound */
    float queued_ns; /* in the round of link_ns the communication thread waited for a core */
    float coding_ns; /* and had one for coding */
    double loss;     /* NaN: not told */
    double lr;
    double flags;      /* msdu__control_flag, added up */
    double weight;     /* of this rank in the mean */
    float host_ranks;  /* over which gradients of local steps are averaged; 1: they are its own */
    float taken_share; /* of processor time of coding, that the trainer lacks (interval/cost.h) */
    double steps;      /* of this rank, ended */
    double missed;     /* rounds by the clock that it missed since the start, this one included */
    double check[2];   /* halves of a hash of round, interval, wire and order; equal on all ranks */
    union {
        double hash[2];   /* likewise of the parameters that were captured, see is_told() in
                             control.c; 0: not told */
        struct {          /* by the clock, where no parameters are captured alike */
            double drawn; /* batches that this rank has drawn of what it was given */
            double work;  /* hash of what they are of; 0: nothing was drawn */
        } dealt;
    };
    float sketch[MSDU__SKETCH]; /* of what was captured, before quantization */
} msdu__control;

typedef enum msdu__control_flag {
    MSDU__CONTROL_PLAN = 1,  /* rank 0: the order shall be renewed after this round */
    MSDU__CONTROL_IDLE = 2,  /* this rank has no more input (msdu_join) */
    MSDU__CONTROL_CLIPS = 4, /* its trainer changes mean gradients (msdu_set_clipping) */
    MSDU__CONTROL_JOINS = 8, /* rank 0: the epoch ends, as a process waits to be let in */
} msdu__control_flag;

static inline bool msdu__control_has(const msdu__control *c, msdu__control_flag flag)
{
    return ((uint32_t)c->flags & (uint32_t)flag) != 0;
}

typedef enum msdu__fragment_state {
    MSDU__FRAGMENT_IDLE,
    MSDU__FRAGMENT_OPEN,
    MSDU__FRAGMENT_FAILED,
} msdu__fragment_state;

/* The statistics messages of a round. */
typedef struct msdu__messages {
    bool is_issued;
    bool is_done;
    msdu_req *req;
    uint64_t issued_ns;
    msdu__control *of; /* one per rank */
} msdu__messages;

/* The order in which slices are sent, and the next one on its way from rank 0. */
typedef struct msdu__order {
    uint32_t *plan; /* indices into members */
    uint64_t hash;
    uint32_t *next; /* being received */
    msdu_req *req;
    uint64_t issued_ns;
    bool is_wanted; /* rank 0 */
} msdu__order;

/* When the last statistics message left. */
typedef struct msdu__last_message {
    uint64_t blocked_ns;   /* that the API thread had waited */
    uint64_t told_ns;      /* time; 0: no message left yet */
    uint64_t computing_ns; /* processor time of this process */
    uint64_t stolen_ns;    /* time that a hypervisor took from all cores */
    struct {
        uint64_t told_ns; /* as above */
        uint64_t process_ns;
        uint64_t thread_ns; /* processor time of the communication thread */
        double share;       /* as told then */
    } taken;
} msdu__last_message;

typedef struct msdu__fragment {
    msdu__fragment_state state;
    uint64_t opened; /* rounds opened */
    int link_wire;   /* format of the round before, whose time on the link is told */
    msdu__round round;
    msdu__contribution contribution; /* since the first slice of the round was captured */
    bool may_apply;
    uint32_t slice_count;
    uint32_t *members; /* its slices, as the slicer ordered them */
    msdu__order order;
    uint64_t queue_begin; /* positions of its slices in the queue: begin .. begin + slice_count */
    uint32_t captured;
    uint32_t issued;
    uint32_t reduced;
    msdu__sums sums;
    uint32_t bad_tensor;
    uint64_t mark;      /* kernels that the control message, or the end of the round, waits for */
    bool is_marked;     /* `mark` is of the present wait */
    bool is_applied;    /* the kernels that apply the means were launched */
    bool is_skipped;    /* gradients of this round are dropped on all ranks (check_finite skip) */
    bool is_propagated; /* some of them are NaN on all ranks, as the trainer wants it (pass) */
    bool is_void;       /* all weights are 0: nothing changes */
    double scale;       /* ranks / sum of weights; 1: the mean needs no more than 1 / ranks */
    double residual_sq;
    double mean_sq;
    float sketch[MSDU__SKETCH];
    uint64_t bytes;
    uint64_t opened_ns;
    msdu__messages control;
    msdu__last_message last;
} msdu__fragment;

#endif
