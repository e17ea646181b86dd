/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interval: statistics of a round -> steps until the next synchronization, and the width of the
 * wire. Pure: no I/O, locks, clock, allocation, globals. One file per policy; interval.c lists
 * them.
 *
 * All inputs are equal on all ranks (reduced values, settings, counters), so all ranks decide
 * alike without a message.
 */
#ifndef MSDU_INTERVAL_H
#define MSDU_INTERVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU__WIRES_MAX 8

/* A wire format as a policy sees it (filled from src/wire by src/core). */
typedef struct msdu__interval_wire {
    const char *name;
    double bits;           /* per element */
    double residual_ratio; /* predicted residual energy / energy of a contribution */
    double error_ratio;    /* the part of it that acts as noise does, in local rounds */
    double code_ns;        /* of an element, both phases, on one core */
    bool is_allowed;       /* may be chosen in local rounds (h > 1) */
    bool is_allowed_h1;    /* may be chosen at h = 1 */
    bool has_backlog;      /* what it holds back waits for many steps: at h = 1 for gradients only,
                              and not while that keeps growing (backlog.h) */
} msdu__interval_wire;

typedef struct msdu__interval_args {
    uint32_t interval_steps; /* h, or base h */
    uint32_t interval_max;
    uint32_t warmup_steps; /* h = 1 until then */
    uint64_t total_steps;  /* 0: not known */
    uint64_t switch_step;
    double target_overhead;
    bool prefer_speed;
    double drift_limit;
    double drift_exponent;
    double qsr_alpha;
    uint32_t plateau_patience;
    double plateau_threshold;
    int fixed_wire;     /* index, or -1: the policy chooses (auto) */
    int widest_wire;    /* index of float32 */
    bool can_go_local;  /* false: no parameter pointers, h stays 1 (only the wire narrows) */
    uint32_t delay_min; /* tau, steps the mean of a local round comes late: a policy may */
    uint32_t delay_max; /* choose it between these, below h */
    uint32_t fragments; /* parts of the model that follow each other over a late round */
    double local_ns;    /* of a synchronization, that is no network's: where all ranks are on one */
    double local_byte_ns; /* host, threads that wake, and copies; likewise of a byte */
    double copy_ns;       /* of a byte that one core copies */
    double hide_share;    /* of a step, that hides a gradient round, until measured */
    double hide_local;    /* likewise a local round that is not late */
    double clock_period;  /* rounds by the clock: steps of the median rank between them, at least */
    double clock_grace;   /* likewise, that a round waits for a rank */
    msdu__interval_wire wires[MSDU__WIRES_MAX];
    uint32_t wire_count;
} msdu__interval_args;

/* Reduced facts of the round that just ended. Norms are over all synchronized elements. */
typedef struct msdu__round_stats {
    uint64_t step;        /* steps done so far */
    uint64_t round;       /* rounds done so far */
    uint32_t interval;    /* h of this round */
    int wire;             /* format of this round */
    uint32_t delay_steps; /* steps after which its mean is applied */
    int32_t ranks;
    bool is_gradient;    /* norms are of gradients (h = 1), not of pseudo-gradients */
    bool is_clipping;    /* a trainer changes mean gradients before its optimizer takes them */
    bool is_trial;       /* sizes of slices are being measured: some are far from the best */
    double local_sq;     /* a: mean over ranks of |x_i|^2 */
    double mean_sq;      /* b: |mean x_i|^2 */
    double weight_sq;    /* |w|^2; 0 if not known */
    double residual_sq;  /* mean over ranks of the error feedback's energy */
    double lr;           /* 0 if not known */
    double loss;         /* mean over ranks; NaN if not told */
    uint64_t step_ns;    /* one step without waiting, largest over ranks, smoothed */
    uint64_t link_ns;    /* time slices kept the link busy in the round before, smallest over ranks;
                            0: not known */
    uint64_t queued_ns;  /* in that round a communication thread was ready to run, but no core was
                            free; largest over ranks */
    int link_wire;       /* format of that round */
    uint64_t latency_ns; /* time of an almost empty message */
    double fixed_ns;     /* of link_ns, whatever the format: learned by a policy; 0: not known */
    uint64_t wait_ns;    /* the API thread's, since the message of the round before, smallest over
                            ranks:    the slowest rank waits for the network only */
    uint64_t straggler_ns; /* mean over ranks of what they waited more: for slower ones */
    const double *late;  /* of each rank: how much less than the mean it waited; NULL: not known */
    const double *times; /* of a step, of each rank with input, ascending; NULL: not known */
    int32_t time_count;
    uint64_t shared_ns;   /* of wait_ns: others of the job computed on the same cores meanwhile */
    uint64_t round_bytes; /* bytes of this round per rank */
    uint64_t elements;    /* synchronized elements */
    uint32_t messages;    /* slices of a round */
    double coding_ns;     /* of the round before a core spent on coding, largest over ranks; 0: not
                             known, or nothing was coded */
    double code_scale;    /* what coding takes in rounds, times what args say; 0: not known */
    double taken_share;   /* of what a round costs a processor: time that the step is longer for it,
                             because no core is idle; above 1 where ranks outnumber cores */
    double host_ranks;    /* over which the ranks' gradients are averaged in local steps: ranks per
                             group of them; 0, 1: they are each rank's own */
} msdu__round_stats;

/* A policy's memory: plain data, zeroed at first, saved with a checkpoint. */
typedef struct msdu__interval_state {
    double real[24];
    uint64_t count[17]; /* see drift.h, waiting.h and backlog.h */
} msdu__interval_state;

/* What a policy chooses among. */
typedef struct msdu__choice {
    uint32_t interval;
    uint32_t delay_steps;
    int wire;
} msdu__choice;

/* What hides a synchronization; see waiting.h. */
typedef struct msdu__hiding {
    double gradient_share; /* of a step */
    double local_share;
    double late_ns;  /* waited in a late round for other reasons than the link */
    double exact_ns; /* waited in a float32 gradient round, at most; infinity: not known */
    double least_ns; /* a synchronization while the machine is quiet; 0: not known */
    int least_wire;  /* in this format */
} msdu__hiding;

typedef struct msdu__decision {
    uint32_t interval;    /* h of the next round, 1 .. interval_max */
    uint32_t delay_steps; /* preset; a policy may change it up to delay_max */
    int wire;
    bool is_clock;    /* rounds by the clock from the next one on */
    bool is_left;     /* policy host_mean: no such means from the next step on */
    bool is_last;     /* not a policy's: ranks end the epoch with the next round (setting
                         ranks_least) */
    double period_ns; /* of these; 0: as set */
    char reason[96];  /* one line: the measurement and what follows from it */
} msdu__decision;

typedef struct msdu__policy {
    const char *name;
    const char *help; /* one line */
    void (*decide)(const msdu__interval_args *args, const msdu__round_stats *stats,
                   msdu__interval_state *state, msdu__decision *decision);
} msdu__policy;

const msdu__policy *msdu__policy_at(uint32_t index); /* NULL past the last */
const msdu__policy *msdu__policy_find(const char *name);

/* Not one that is set: means of gradients over the ranks of a host, in every local step; until they
 * cost too much. */
extern const msdu__policy msdu__policy_host_mean;

/* Format of the first round, and of all in the warm-up whose policy does not watch the wire. */
int msdu__interval_first_wire(const msdu__interval_args *args);
/* Shared by policies: clamp to 1 .. interval_max, and to a factor 2 of the previous interval;
 * always 1 if !can_go_local. */
uint32_t msdu__interval_limit(const msdu__interval_args *args, uint32_t previous, double wanted);
/* a - b, how far ranks are apart: zero where it is below the rounding of what it is measured on. */
double msdu__interval_drift(const msdu__round_stats *stats);
/* Predicted time of a synchronization in the given format, from this round's measurement. */
double msdu__interval_sync_ns(const msdu__interval_args *args, const msdu__round_stats *stats,
                              int wire);
/* Predicted share of time waited. */
double msdu__interval_overhead(const msdu__interval_args *args, const msdu__round_stats *stats,
                               const msdu__hiding *hiding, const msdu__choice *choice);

#endif
