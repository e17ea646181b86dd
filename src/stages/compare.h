/* SPDX-License-Identifier: Apache-2.0 */
/* What torch's own schedules would take, beside a plan. Pure but for memory. */
#ifndef MSDU_STAGES_COMPARE_H
#define MSDU_STAGES_COMPARE_H

#include "model.h"

/* layout: of the plan. False: no memory. */
bool msdu__stages_compare(const msdu__stages_model *model, const msdu__stages_layout *layout,
                          msdu_stages_torch *out);
/* Layers in equal numbers over all devices, in their order. False: fewer layers than devices. */
bool msdu__stages_equal(const msdu__stages_model *model, msdu__stages_layout *out);

#endif
