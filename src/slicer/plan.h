/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: the order in which all ranks issue slices. Pure: no I/O, locks, clock, globals.
 *
 * Rank 0 simulates a preemptive priority queue on measured ready times and costs, broadcasts the
 * order, and every rank checks its hash; order is never decided by local timing.
 */
#ifndef MSDU_PLAN_H
#define MSDU_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One slice as the simulation sees it. */
typedef struct msdu__plan_item {
    uint64_t ready_ns; /* since the step's start */
    uint64_t cost_ns;  /* time on the link if alone */
    int32_t priority;  /* small = needed sooner */
} msdu__plan_item;

/*
 * Simulate: `window` servers share one link; at each free place the ready slice of smallest
 * (priority, index) starts; if none is ready, the one that becomes ready first. order_out receives
 * count indices, each exactly once. scratch: count values. Takes count log(count).
 * Returns the simulated end in ns.
 */
uint64_t msdu__plan_simulate(const msdu__plan_item *items, uint32_t count, uint32_t window,
                             uint32_t *order_out, uint32_t *scratch);

/* End of a given order on the same model: what a plan would cost, for renewal and `msdu plan`. */
uint64_t msdu__plan_cost(const msdu__plan_item *items, uint32_t count, const uint32_t *order);

/*
 * When the next forward pass has what it needs, under a given order: the mean over slices of the
 * time at which it and all that are needed before it have ended. Every order that keeps the link
 * busy ends at the same time; this is what priority gains. items are in the slicer's order, what is
 * needed last first. scratch: count values.
 */
uint64_t msdu__plan_need(const msdu__plan_item *items, uint32_t count, const uint32_t *order,
                         uint64_t *scratch);

/* Before anything was measured: slices in the order of the slicer (backward order). */
void msdu__plan_initial(uint32_t count, uint32_t *order_out);

/* Is order a permutation of 0 .. count - 1? scratch: count values. */
bool msdu__plan_is_valid(const uint32_t *order, uint32_t count, uint32_t *scratch);

/* 64-bit FNV-1a of an order. */
uint64_t msdu__plan_hash(const uint32_t *order, uint32_t count);

/* Renew? True if the present order, on the new measurement, is slower than the best simulated order
 * by more than 5 % of the latter and by more than `floor_ns`. */
bool msdu__plan_is_stale(uint64_t present_ns, uint64_t best_ns, uint64_t floor_ns);

#endif
