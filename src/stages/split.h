/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts and devices, exactly: dynamic programming over sets of devices, from the last layer to the
 * first. Pure but for memory.
 *
 *     A[U + d, d, i] = min over j > i of max(own(d, i, j), min over p in U of max(A[U, p, j],
 *                                                                         link(d, p, j)))
 *
 * is the smallest bottleneck of layers i .. L-1 on the devices of U and d, those on d coming first.
 * From the end, because |U| + 1 is then the number of stages to the end, which is what the first of
 * them holds in 1F1B. Among plans up to a bottleneck, the smallest fill: the same with sums.
 *
 * And the smallest step, as no order can make it shorter. A stage computes M times t; before its
 * first forward pass a micro-batch has passed all stages in front of it, and after its last
 * backward pass one goes back through them all. Likewise a link:
 *
 *     S[U + d, d, i] = min over j of max(M own(d, i, j),
 *                          t' + min over p of max(M link(d, p, j), both ways(d, p, j) + S[U, p,
 * j]))
 *
 * with t' = t. It is at least M times the bottleneck, and the fill. Where backward passes may be
 * split, a stage's last gradients of weights may come while others still go back. Then two bounds
 * hold: M t with the way there only, and all of it without gradients of weights.
 *
 * Devices that nothing tells apart are one *class*, and U says how many it has of each. That leaves
 * the answer as it is: with n_c devices of class c there are prod(n_c + 1) sets instead of 2^D.
 */
#ifndef MSDU_STAGES_SPLIT_H
#define MSDU_STAGES_SPLIT_H

#include "model.h"

#define MSDU__SPLIT_CELLS_MAX (40U << 20) /* sets x classes x layers: half a gigabyte of memory */

typedef struct msdu__split {
    const msdu__stages_model *m;
    uint32_t classes;
    uint32_t class_of[MSDU_STAGES_DEVICES_MAX];
    uint32_t devices_of[MSDU_STAGES_DEVICES_MAX];  /* in a class */
    uint32_t stride[MSDU_STAGES_DEVICES_MAX];      /* of a class in the number of a set */
    uint32_t member[MSDU_STAGES_DEVICES_MAX];      /* first device of a class */
    uint32_t next_member[MSDU_STAGES_DEVICES_MAX]; /* second; the first again if there is none */
    uint32_t sets;
    bool is_frugal; /* stages need to hold one micro-batch only, not what 1F1B holds */
    /* sets x classes x (L + 1) */
    double *value;
    uint16_t *next_layer;
    uint8_t *next_class;
    /* of one step, L + 1 */
    double *rest;
    uint8_t *rest_class;
} msdu__split;

typedef enum msdu__split_outcome {
    MSDU__SPLIT_OK,
    MSDU__SPLIT_SHORT,    /* no memory for the search */
    MSDU__SPLIT_TOO_MANY, /* sets */
} msdu__split_outcome;

/* What is in front of a stage, in a bound of the step. */
typedef enum msdu__split_way {
    MSDU__SPLIT_WHOLE, /* the way there and back, with whole backward passes */
    MSDU__SPLIT_THERE, /* the way there */
    MSDU__SPLIT_INPUTS /* there and back, everything without gradients of weights */
} msdu__split_way;

/* Classes and room. has_classes: false takes every device by itself, for tests. */
msdu__split_outcome msdu__split_make(const msdu__stages_model *model, bool has_classes,
                                     msdu__stages_memory *memory, msdu__split *out);
/* The smallest bottleneck; INFINITY: nothing fits. layout_out: NULL, or one that has it. */
double msdu__split_bottleneck(msdu__split *split, msdu__stages_layout *layout_out);
/* The smallest fill of plans whose bottleneck is at most `limit`; INFINITY: none. */
double msdu__split_fill(msdu__split *split, double limit, msdu__stages_layout *layout_out);
/* The smallest step that no order can beat; INFINITY: nothing fits. */
double msdu__split_step(msdu__split *split, msdu__split_way way, msdu__stages_layout *layout_out);

#endif
