/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two stages a device: down the devices and up again, a V. Pure.
 *
 * With devices d_1 .. d_R in a given order, device r has layers i' .. i-1 of the way down and
 * j .. j'-1 of the way up. For a bottleneck T, let f_r(i) be the smallest j at which the devices
 * 1 .. r can have all layers before i and from j on within T each:
 *
 *     f_r(i) = min over i' < i of the smallest j < k with t_r(i', i) + t_r(j, k) <= T, k =
 * f_(r-1)(i')
 *
 * Between i and j every device that follows needs two layers. T can be kept if f_R(i) = i for some
 * i. T is found by halving an interval. Messages are left to the simulation.
 */
#ifndef MSDU_STAGES_VEE_H
#define MSDU_STAGES_VEE_H

#include "model.h"

/* Numbers of work for so many devices. */
size_t msdu__stages_vee_room(const msdu__stages_model *model, uint32_t devices);
/* Devices of `plain`, in its order; out has twice its stages. False: too few layers. */
bool msdu__stages_vee(const msdu__stages_model *model, const msdu__stages_layout *plain,
                      uint32_t *work, msdu__stages_layout *out);

#endif
