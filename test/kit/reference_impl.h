/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a reference run, shared by reference.c (steps) and reference_means.c (means). */
#ifndef TEST_REFERENCE_IMPL_H
#define TEST_REFERENCE_IMPL_H

#include "reference.h"

#define FRAGMENTS_MOST 32

typedef struct fragment {
    int sync;       /* step at whose end the ranks meet next */
    int apply;      /* step at whose end the last mean is applied; -1: none under way */
    int last;       /* step of the last meeting; -1: none */
    int interval;   /* to the next one */
    int delay;      /* from the next one to its mean */
    double mean_sq; /* of the mean under way */
    bool is_void;   /* all weights were 0 */
    bool is_equal;  /* all ranks captured the same parameters: there is nothing to apply */
    int next;       /* what the last meeting decided */
} fragment;

typedef struct simulation {
    const ranks_job *job;
    const int *fragment_of;
    uint64_t elements;
    int32_t *dtype;
    int32_t *role;
    bool has_input[RANKS_MOST];
    double told[RANKS_MOST]; /* weight a rank told last */
    uint64_t rounds;
    int decision;              /* the latest */
    double weight[RANKS_MOST]; /* of the ranks, in this step */
    double weights;            /* of all */
    double *w[RANKS_MOST];
    double *g[RANKS_MOST];
    double *v[RANKS_MOST];
    double *snapshot[RANKS_MOST];
    double *anchor;
    double *mean; /* of pseudo-gradients, or of state */
    double *outer;
    fragment fragments[FRAGMENTS_MOST];
    int fragment_count;
    bool is_gradient;
    bool is_accumulated;
    bool is_anchored;
    bool was_uneven; /* ranks had different numbers of batches in the gradient domain */
    bool is_auto;    /* overlap auto: late only where the round is long enough */
    int delay;
    double norm_average;
} simulation;

/* --- reference_means.c --- */
bool simulated_text(const char *setting, const char *wanted);
bool simulated_rule(const simulation *s, const char *rule);
/* Gradients of all ranks become their mean. */
void simulate_gradients(simulation *s);
/* Those of the ranks of each host. */
void simulate_hosts(simulation *s);
/* The oracle of the accumulated domain: parameters become their mean. */
void simulate_drift(simulation *s);
/* A fragment's mean pseudo-gradient, and later its correction. */
void simulate_capture(simulation *s, int index);
void simulate_apply(simulation *s, int index);
/* What is under way is applied. */
void simulate_drain(simulation *s);
/* Likewise, then parameters and buffers become their mean. Rounds it took. */
uint64_t simulate_synchronize(simulation *s);

#endif
