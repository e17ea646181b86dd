/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound: no schedule of a training step is faster. Pure: no I/O, locks, clock, allocation.
 *
 * Model. Layers 1 .. L in forward order. Each rank computes one thing at a time: in every step
 * F_1 .. F_L, then B_L .. B_1, of times f_l and b_l. The gradient of layer l is ready when B_l of
 * the step has ended; its reduction moves m_l bytes over this rank's link, one byte at a time at
 * rate R, in any order and with any interruptions; latency a after its last byte it is complete,
 * and only then may F_l of the next step begin. A layer without bytes has no reduction. Steps
 * repeat with a period T; the optimizer takes no time.
 *
 * Synchronous steps. The smallest period is
 *
 *     T* = max( C,  max over l with m_l > 0 of  chain_l ),     C = sum of all f and b
 *     chain_l = (b_L + .. + b_l)  +  (m_1 + .. + m_l) / R + a  +  (f_l + .. + f_L)
 *
 * No schedule is faster. C is the computing of one period. For chain_l: the gradients of layers
 * 1 .. l are ready no earlier than B_l ends, which is b_L + .. + b_l after the step's forward pass
 * ended; their bytes share one link, so the last of these layers, k <= l, is complete no earlier
 * than the bytes of all of them and a later; and the forward pass of the next step ends no earlier
 * than f_k + .. + f_L >= f_l + .. + f_L after that. Forward passes end once in a period.
 *
 * T* is reached by a link that always sends the ready byte of the smallest layer (preemptive
 * priority in the order of need). With the end of a forward pass at time 0, layer l is released
 * at r_l = b_L + .. + b_l and, in a period T, may be complete as late as d_l = T - (f_l + .. +
 * f_L) without making the forward pass end later than T. All jobs of a step lie between 0 and T,
 * so steps do not compete. Deadlines grow with l, so this link serves the earliest deadline first,
 * which meets all deadlines if any order does, and some order does if the demand of every interval
 * fits (Horn 1974): for all i, j the bytes of the layers with r_l >= r_i and d_l <= d_j take no
 * longer than d_j - a - r_i. Releases fall with l, so these are the layers l <= min(i, j), and
 * the narrowest interval for them is i = j: T >= chain_i.
 *
 * chain_L holds all bytes: the link is idle at least while the last layer's F and B run, so
 * bytes / R alone is never reached while computing takes time.
 *
 * Local steps. The ranks exchange the model once in h steps; what they exchange of layer l is
 * final after B_l of the round's last step s, and F_l of step s + 1 + t needs the mean (t = 0: the
 * next step; t < h, so one round is over before the next begins). By the same argument, with t
 * steps of computing in between, a round takes at least
 *
 *     max( h C,  h C + chain_l - (t + 1) C )
 *
 * Streamed. Each layer is exchanged once in h steps, at any time. A round takes at least
 * max( h C, (m_1 + .. + m_L) / R ); whether that can be reached is not said.
 */
#ifndef MSDU_BENCH_BOUND_H
#define MSDU_BENCH_BOUND_H

#include <stdint.h>

typedef struct msdu__bound_layer {
    double forward_ns;  /* f; not negative, as all numbers here */
    double backward_ns; /* b */
    double bytes;       /* m: what a rank sends for the layer, all phases together */
} msdu__bound_layer;

typedef struct msdu__bound_link {
    double bytes_per_ns; /* R, above 0; INFINITY: free */
    double latency_ns;   /* a */
} msdu__bound_link;

typedef struct msdu__bound {
    double compute_ns; /* C */
    double link_ns;    /* all bytes / R */
    double chain_ns;   /* largest chain_l; 0 if nothing is exchanged */
    uint32_t layer;    /* its l, from 0; the first of equals */
} msdu__bound;

/* layers in forward order; count may be 0. */
msdu__bound msdu__bound_of(const msdu__bound_layer *layers, uint32_t count,
                           const msdu__bound_link *link);
/* Least time of a step, as the mean over a round of `interval` steps (h >= 1, and h > delay) whose
 * mean is needed `delay` steps late (t); 1 and 0: synchronous. */
double msdu__bound_step_ns(const msdu__bound *bound, uint32_t interval, uint32_t delay);
double msdu__bound_streamed_ns(const msdu__bound *bound, uint32_t interval);

/* What a rank sends for `bytes` of an allreduce over `ranks`, at least: 2 (n - 1) / n of them. */
double msdu__bound_ring_bytes(double bytes, uint32_t ranks);

#endif
