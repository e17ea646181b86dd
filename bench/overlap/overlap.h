/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `msdu bench overlap` share: methods, a rank's replay, its results. */
#ifndef MSDU_BENCH_OVERLAP_H
#define MSDU_BENCH_OVERLAP_H

#include <limits.h>

#include <msdu/msdu.h>

#include "harness/bench.h"
#include "predict/bound.h"
#include "predict/methods.h"
#include "predict/profile.h"

#define MSDU__OVERLAP_RANKS_MAX 64

/* --- what all methods of a run have in common --- */

typedef struct msdu__overlap_plan {
    msdu__profile profile; /* scaled */
    double scale;
    double ratio; /* communication over computation, as wanted; 0: the profile's */
    const char *methods;
    const char *backend;  /* NULL: as the environment says */
    const char *trace;    /* files of timelines, %m is the method and %r the rank; NULL: none */
    uint64_t slice_bytes; /* 0: the library's choice */
    uint32_t interval;    /* h of local steps */
    uint32_t steps;       /* measured */
    uint32_t warmup;
    bool is_spinning;      /* compute takes processor time */
    bool is_smoke;         /* seconds only */
    double link_mbit;      /* for the bound; 0: measure */
    double latency_us;     /* for the bound */
    char folder[PATH_MAX]; /* where ranks meet; "": as a launcher says */
    int32_t rank;          /* unless a launcher says */
    int32_t ranks;
} msdu__overlap_plan;

/* What a method took, and whether its results were right; of all ranks on rank 0. */
typedef struct msdu__overlap_result {
    double step_ns; /* median over windows of steps, slowest rank */
    double p90_ns;
    double bytes;    /* sent in a step, largest over ranks */
    double cpu_ns;   /* processor time of a step, mean over ranks */
    double interval; /* h at the end */
    double wire;     /* at the end */
    double wrong;    /* checks that failed, all ranks */
    double error;    /* largest error found, as the method's check counts it */
} msdu__overlap_result;

/* --- overlap_values.c: gradients that are sums of few bits, so that every order of adding them
 * gives the same float32; and what must come out --- */

typedef struct msdu__overlap_values {
    float *pattern; /* Gaussian, multiples of 1/64 */
} msdu__overlap_values;

bool msdu__overlap_values_make(msdu__overlap_values *values);
void msdu__overlap_values_free(msdu__overlap_values *values);
/* Gradient of a tensor on a rank in a step, from element `first` on. */
void msdu__overlap_fill(const msdu__overlap_values *values, int32_t rank, uint64_t step,
                        uint32_t tensor, float *out, uint64_t count);
/* w -= gradient / 16 */
void msdu__overlap_update(const msdu__overlap_values *values, int32_t rank, uint64_t step,
                          uint32_t tensor, float *w, uint64_t count);
void msdu__overlap_apply(float *w, const float *gradient, uint64_t count);
/* Where a parameter begins, on all ranks, as msdu__overlap_fill() with rank -1 has it. */
double msdu__overlap_start(const msdu__overlap_values *values, uint32_t tensor, uint64_t element);
/* Sum of the gradients of one element over all ranks. */
double msdu__overlap_sum(const msdu__overlap_values *values, int32_t ranks, uint64_t step,
                         uint32_t tensor, uint64_t element);
uint64_t msdu__overlap_hash(const float *values, uint64_t count, uint64_t seed);

/* --- overlap_step.c: one rank replays steps --- */

#define MSDU__OVERLAP_CHECKS 8   /* first steps, whose gradients are compared */
#define MSDU__OVERLAP_SAMPLE 256 /* elements of each tensor that are compared with arithmetic */

typedef struct msdu__overlap_rank {
    const msdu__overlap_plan *plan;
    msdu__overlap_values values;
    int32_t rank;
    int32_t ranks;
    float **gradient;  /* by tensor */
    float **parameter; /* by tensor */
    double *held;      /* by tensor and sample: sum over steps of received less true */

    /* of the present method */
    const msdu__overlap_method *method;
    msdu_ctx *ctx; /* NULL: nothing is exchanged */
    uint64_t step;
    double due_ns;                            /* when the computing so far ends */
    uint64_t hash[MSDU__OVERLAP_CHECKS];      /* of all mean gradients of a step */
    uint64_t reference[MSDU__OVERLAP_CHECKS]; /* of blocking steps; 0: not known */
    double error;                             /* largest so far */
    double received;                          /* squares of true means, for relative errors */
    uint64_t sampled;
    FILE *spans; /* timeline of computing, NULL: none */
    double spans_from_ns;
} msdu__overlap_rank;

/* One step; false: a call failed, see msdu_last_error(). */
bool msdu__overlap_step(msdu__overlap_rank *r);
/* What the last step still owes: its gradients are waited for, and applied. */
bool msdu__overlap_last(msdu__overlap_rank *r);

/* --- overlap_group.c: a small context beside the methods: ranks tell each other numbers --- */

typedef struct msdu__overlap_group {
    msdu_ctx *ctx;
    const msdu__overlap_plan *plan;
    int32_t rank;
    int32_t ranks;
    uint32_t opened;           /* contexts for methods so far */
    double *values;            /* what travels */
    char given[512];           /* rendezvous of a launcher, "" if there is none */
    char place[PATH_MAX + 64]; /* rendezvous of the next one */
} msdu__overlap_group;

#define MSDU__OVERLAP_GROUP_VALUES 1024

bool msdu__overlap_group_open(msdu__overlap_group *group, const msdu__overlap_plan *plan);
void msdu__overlap_group_close(msdu__overlap_group *group);
/* Sum over ranks of `count` finite numbers, in place. */
bool msdu__overlap_group_sum(msdu__overlap_group *group, double *values, uint32_t count);
/* Settings of a new context for all ranks: rank, ranks, rendezvous, job, interface, deadline. job
 * and place are borrowed from the group until the next call. */
bool msdu__overlap_group_next(msdu__overlap_group *group, msdu_config *config);

/* --- overlap_check.c --- */
/* The error of the results, before the context ends. */
void msdu__overlap_compare(msdu__overlap_rank *r);
/* Checks that failed on this rank; false: the group failed. */
bool msdu__overlap_check(msdu__overlap_rank *r, msdu__overlap_group *group, double *wrong_out);

/* --- overlap_rank.c: one method on one rank --- */
/* r->method, with a context of its own; the result is that of all ranks. False: a call of the
 * library failed, see msdu_last_error(). */
bool msdu__overlap_method_run(msdu__overlap_rank *r, msdu__overlap_group *group,
                              msdu__overlap_result *result);

/* --- overlap_report.c --- */

typedef struct msdu__overlap_facts {
    msdu__bound_link link;
    bool is_measured;    /* the link's rate */
    double exchange_ns;  /* of one element, the best: two messages deep */
    double slice_cpu_ns; /* processor time of a rank for an almost empty slice, two phases */
    int32_t ranks;
    double ratio; /* communication over computation, float32 in every step */
} msdu__overlap_facts;

/* --- overlap_probe.c --- */
/* All facts but the ratio, equal on all ranks; false: a call of the library failed. */
bool msdu__overlap_probe(const msdu__overlap_plan *plan, msdu__overlap_group *group,
                         msdu__overlap_facts *facts);

/* The bound of a method for `interval` and `wire`, ns a step. */
double msdu__overlap_bound_ns(const msdu__overlap_plan *plan, const msdu__overlap_facts *facts,
                              const msdu__overlap_method *method, uint32_t interval, int wire);
double msdu__overlap_link_bytes(const msdu__overlap_plan *plan, int32_t ranks, int wire);
void msdu__overlap_print_head(msdu__bench *bench, const msdu__overlap_plan *plan,
                              const msdu__overlap_facts *facts);
void msdu__overlap_print(msdu__bench *bench, const msdu__overlap_plan *plan,
                         const msdu__overlap_facts *facts, const msdu__overlap_method *method,
                         const msdu__overlap_result *result);

#endif
